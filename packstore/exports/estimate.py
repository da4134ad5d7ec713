"""How much room an export takes, before it is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from packstore.core.column import Column
from packstore.core.columns import NUMPY_DTYPE
from packstore.exports.base import Export
from packstore.exports.recoding import Recode, image_of
from packstore.stores.base import Reader
from packstore.stores.records import ProvenRecords

_ONCE = 8192
"""Bytes that each split takes, and ``packstore.json``, however few records there are."""
_SAMPLED = 16
"""Images that are encoded to see how large they become; their sizes differ by tens of percent."""


def estimate_bytes(export: Export, held: Sequence[str], has_lines: bool, recode: Recode | None) -> int:
    """About what an export takes on disk."""
    manifest, reader = export.manifest, export.reader
    image = reader.manifest.image.nbytes
    if recode is not None:
        image = int(image * _ratio(reader, recode))
    kept = [each for column in export.columns if column.name in held for each in (column, *column.companions)]
    values = sum(column.size_of(manifest.records) for column in kept)
    total = image + values + manifest.records * export.overhead() + _ONCE * (1 + len(manifest.splits))
    if has_lines:
        keys = 0 if export.keeps_keys else export.key_bytes
        files = 0 if held or export.shard_bytes is not None else export.key_bytes
        line = len('{"key":"","file":""}\n') + keys + files
        rest = [each for column in export.columns if column.name not in held for each in (column, *column.companions)]
        total += manifest.records * line + sum(_in_lines(column, manifest.records) for column in rest)
    return total


def _in_lines(column: Column, records: int) -> int:
    """Bytes of the values of a column in ``packstore.rows.jsonl``."""
    size = records * (len(column.name) + 6)
    if column.kind == "fixed" and column.shape == () and NUMPY_DTYPE[column.dtype].kind in "biu":
        return size
    values = column.size_of(records)
    return size + (values if column.type in ("text", "json") else values * 4 // 3)


def _ratio(reader: Reader, recode: Callable[[str, Any], Any]) -> float:
    """How much larger images become, by some of them from all over the store."""
    records = ProvenRecords(reader)
    before = after = 0
    for number in range(0, len(reader), -(-len(reader) // _SAMPLED)):
        image = records.image(number)
        before += len(image)
        shape = records.row(number).get("shape")
        after += len(recode(reader.key(number), image_of(reader.manifest, image, shape)))
    return after / max(1, before)

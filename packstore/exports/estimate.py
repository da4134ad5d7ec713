"""Estimates the size of an export before it is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from packstore.core.column import Column
from packstore.core.columns import NUMPY_DTYPE
from packstore.exports.base import Export
from packstore.exports.recoding import Recode, image_from_stored
from packstore.stores.base import Reader
from packstore.stores.records import ProvenRecords

_FIXED_BYTES = 8192
"""Bytes of each split, and of ``packstore.json``, in an export of few records."""
_SAMPLE_IMAGES = 16
"""Images that are encoded to estimate the size; sizes differ by tens of percent."""


def estimate_bytes(export: Export, held: Sequence[str], has_lines: bool, recode: Recode | None) -> int:
    """Estimates the bytes of an export on disk.

    With ``recode``, re-encodes up to 16 images. Raises :class:`SampleError` if that fails, and
    :class:`CorruptRecordError` for a damaged record.

    Args:
        export: The export, before it writes.
        held: Names of the columns that the format holds exactly.
        has_lines: The export has ``packstore.rows.jsonl``.
        recode: Re-encodes an image; None if images are written unchanged.
    """
    manifest, reader = export.manifest, export.reader
    image = reader.manifest.image.nbytes
    if recode is not None:
        image = int(image * _estimate_size_ratio(reader, recode))
    kept = [each for column in export.columns if column.name in held for each in (column, *column.companions)]
    values = sum(column.size_of(manifest.records) for column in kept)
    total = image + values + manifest.records * export.overhead() + _FIXED_BYTES * (1 + len(manifest.splits))
    if has_lines:
        keys = 0 if export.keeps_keys else export.mean_key_bytes
        files = 0 if held or export.shard_bytes is not None else export.mean_key_bytes
        line = len('{"key":"","file":""}\n') + keys + files
        rest = [each for column in export.columns if column.name not in held for each in (column, *column.companions)]
        total += manifest.records * line + sum(_estimate_line_bytes(column, manifest.records) for column in rest)
    return total


def _estimate_line_bytes(column: Column, records: int) -> int:
    """Estimates the bytes of a column's values in ``packstore.rows.jsonl``."""
    size = records * (len(column.name) + 6)
    if column.kind == "fixed" and column.shape == () and NUMPY_DTYPE[column.dtype].kind in "biu":
        return size
    values = column.size_of(records)
    return size + (values if column.form == "text" else values * 4 // 3)


def _estimate_size_ratio(reader: Reader, recode: Callable[[str, Any], Any]) -> float:
    """Estimates the quotient of new and old size of re-encoded images. Re-encodes up to 16 images from all over the
    store."""
    records = ProvenRecords(reader)
    before = after = 0
    for number in range(0, len(reader), -(-len(reader) // _SAMPLE_IMAGES)):
        image = records.read_image(number)
        before += len(image)
        shape = records.read_row(number).get("shape")
        after += len(recode(reader.key(number), image_from_stored(reader.manifest, image, shape)))
    return after / max(1, before)

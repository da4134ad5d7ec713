"""Compares samples of a source with the records of a store that have their keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from packstore.core.columns import NUMPY_DTYPE
from packstore.core.manifest import Column
from packstore.core.progress import Progress, ProgressCallback
from packstore.core.proof import Proof
from packstore.packing.batches import PackedBatch, pack_batches
from packstore.packing.plan import Plan
from packstore.stores.base import Reader
from packstore.stores.keys import KeyIndex, hash_keys


def count_identical_samples(reader: Reader, plan: Plan, keys: set[str], progress: ProgressCallback) -> int:
    """Counts the samples of a source that a store already has, with the same key, image and fields.

    Encodes each sample, and compares checksums. Raises :class:`SampleError` at a bad sample, unless ``on_error`` is
    ``skip``.

    Args:
        reader: The store.
        plan: A plan whose encoder makes records like the store's.
        keys: Keys of the samples to compare; the store has all of them.
        progress: Called after each batch.
    """
    stored, encoder = KeyIndex(hash_keys([reader]), reader.key), plan.make_encoder()
    proof = Proof(reader.manifest.columns, reader.value)
    known = (entry for entry in plan.source.entries() if entry.key in keys)
    same = seen = 0
    for packed in pack_batches(plan, encoder, known, plan.options.workers or plan.source.workers()):
        for key, checksum, fields in _iterate_fields(packed, plan, reader.manifest.columns):
            record = stored.find(key)
            same += (
                record is not None
                and checksum == int(reader.value("checksum", record))
                and not proof.compare_fields(record, fields).differs
            )
        seen += packed.tally.entries
        progress(Progress("compare", seen, len(keys), 0))
    return same


def _iterate_fields(
    packed: PackedBatch, plan: Plan, columns: tuple[Column, ...]
) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    """Yields key, image checksum and other fields of each packed record. Converts fixed fields to the dtypes of
    ``columns``."""
    dtypes = {column.name: NUMPY_DTYPE[column.dtype] for column in columns if column.kind == "fixed"}
    for sample in packed.samples:
        if sample.skipped:
            continue
        entry = sample.entry
        labels = zip((column.name for column in plan.survey.labels), entry.labels, strict=True)
        row: dict[str, Any] = {"shape": sample.shape} | dict(labels) | dict(sample.values or {})
        row["key"] = entry.key.encode("utf-8", "surrogateescape")
        yield (
            entry.key,
            sample.checksum,
            {name: np.asarray(value, dtypes[name]) if name in dtypes else value
             for name, value in row.items() if value is not None},
        )  # fmt: skip

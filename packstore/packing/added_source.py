"""A source adapted to a store to which it is appended: with the store's class numbers and splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from packstore.core.columns import NUMPY_DTYPE, ImageData
from packstore.core.files import Location
from packstore.core.manifest import Column
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.core.proof import Proof
from packstore.packing.batches import PackedBatch, pack_batches
from packstore.packing.composing import renumber_classes
from packstore.packing.plan import Plan
from packstore.sources.base import Entry, Sample, Source, Survey, round_up_size
from packstore.sources.store import StoreSource
from packstore.stores import Reader
from packstore.stores.keys import KeyIndex, find_repeated_keys, hash_keys
from packstore.stores.lenses import map_class_numbers


class AddedSource(Source):
    """Source of an append: adapts a source to the store.

    Maps class numbers and splits to the store's, prefixes keys, leaves out samples. Its methods ignore ``split``: the
    samples to add were chosen before.

    Attributes:
        source: The opened source itself.
        split_of: Maps a split of the source to one of the store.
        left_out: Keys of samples that surveys and entries leave out, prefix included.
    """

    read_like_store = True

    def __init__(
        self,
        source: Source,
        columns: tuple[Column, ...],
        split_of: Callable[[str], str],
        survey: Survey,
        store: str,
        key_prefix: str = "",
    ) -> None:
        """
        Args:
            source: The opened source.
            columns: The store's columns, with the classes of both.
            split_of: Maps a split of the source to one of the store.
            survey: Survey of the samples to add.
            store: Digest of the store's manifest.
            key_prefix: Prefix for each key.
        """
        super().__init__(source.path, source.options)
        self.kind = source.kind
        self.normalization = source.normalization
        self.source = source
        self.split_of = split_of
        self.left_out: frozenset[str] = frozenset()
        self._survey = survey
        self._taken = next(iter(survey.splits)) if len(survey.splits) == 1 and "" not in survey.splits else None
        self._stamp = store
        self._prefix = key_prefix
        merged = {column.name: column for column in columns}
        self._numbers = [map_class_numbers(column, merged.get(column.name, column)) for column in survey.labels]
        self._sampled = {
            column.name: numbers
            for column in survey.columns
            if column.name in survey.sampled
            and (numbers := map_class_numbers(column, merged.get(column.name, column))) is not None
        }
        self._columns = tuple(
            replace(
                c,
                classes=c.classes if c.classes is None else merged[c.name].classes,
                mode=merged[c.name].mode if c.form in ("file", "files") and c.traits.has_images else c.mode,
            )
            if c.name in merged
            else c
            for c in survey.columns
        )

    def find_duplicates(self, reader: Reader) -> set[str]:
        """Finds the keys that an open store has, too. Compares only hashes if all of a store is added as it is."""
        if isinstance(self.source, StoreSource) and self._taken is None and not self._prefix:
            return {key for _, key in find_repeated_keys([reader, self.source.reader])}
        keys = KeyIndex(hash_keys([reader]), reader.key)
        return {entry.key for entry in self.entries() if entry.key in keys}

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Returns the survey with the store's classes and splits. Lists all entries if samples are left out."""
        longer = len(self._prefix.encode("utf-8")) * self._survey.records
        survey = replace(self._survey, columns=self._columns, key_bytes=self._survey.key_bytes + longer)
        if not self.left_out:
            return replace(survey, splits={self.split_of(name): count for name, count in survey.splits.items()})
        splits, sizes = Counter[str](), Counter[int]()
        size_bytes = key_bytes = 0
        for entry in self.entries():
            splits[entry.split] += 1
            sizes[round_up_size(entry.size_bytes)] += 1
            size_bytes += entry.size_bytes
            key_bytes += len(entry.key.encode("utf-8", "surrogateescape"))
        return replace(
            survey, splits=dict(splits), size_bytes=size_bytes, size_counts=dict(sizes), key_bytes=key_bytes
        )  # fmt: skip

    def entries(self, split: str | None = None) -> Iterator[Entry]:
        """Yields the entries to add, with the store's class numbers and splits and the key prefix."""
        same = all(numbers is None for numbers in self._numbers)
        for entry in self.source.entries(self._taken):
            key = self._prefix + entry.key
            if key in self.left_out:
                continue
            labels = entry.labels
            if not same:
                pairs = zip(self._numbers, labels, strict=True)
                labels = tuple(label if numbers is None else int(numbers[label]) for numbers, label in pairs)
            yield entry._replace(key=key, split=self.split_of(entry.split), labels=labels)

    def annotation_frame(self, kind: str) -> str | None:
        """Returns the wrapped source's convention."""
        return self.source.annotation_frame(kind)

    def further_file_name(self, entry: Entry, column: str, number: int) -> str | None:
        """Returns the wrapped source's name of an image file beside the main image, or None."""
        return self.source.further_file_name(entry, column, number)

    def locate(self, entry: Entry) -> Location | None:
        """Locates the entry's image in the wrapped source's files. Returns None if it is not one range of a file's
        bytes."""
        return self.source.locate(self._restore_key(entry))

    def read(self, entry: Entry) -> ImageData | Sample:
        """Reads the sample from the wrapped source; renumbers its classes and prefixes its key."""
        content = self.source.read(self._restore_key(entry))
        if not isinstance(content, Sample):
            return content
        if content.key is not None:
            content = content._replace(key=self._prefix + content.key)
        if not self._sampled:
            return content
        values = dict(content.values)
        for name, numbers in self._sampled.items():
            if values.get(f"{name}_valid", True) and values[name] is not None:
                values[name] = renumber_classes(values[name], numbers)
        return content._replace(values=values)

    def stamp(self) -> str:
        """Returns the wrapped source's stamp, extended by the store's digest and the key prefix."""
        return f"{self.source.stamp()} {self._stamp} {self._prefix}"

    def close(self) -> None:
        """Closes the wrapped source."""
        self.source.close()

    def _restore_key(self, entry: Entry) -> Entry:
        """Returns the entry with its key in the wrapped source: without the prefix."""
        return entry._replace(key=entry.key[len(self._prefix) :]) if self._prefix else entry


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
    stored = KeyIndex(hash_keys([reader]), reader.key)
    proof = Proof(reader.manifest.columns, reader.value)
    known = (entry for entry in plan.source.entries() if entry.key in keys)
    same = seen = 0
    for packed in pack_batches(plan, known, plan.options.workers or plan.source.workers()):
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
    """Yields the key, the image checksum and the other fields of each packed record."""
    # Fixed fields get the dtypes of ``columns``.
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

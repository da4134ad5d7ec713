"""Reads a packstore store as a source: records pass through unchanged, after their checksums are verified."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import INTERNAL, Buffer, ImageData
from packstore.core.errors import SourceError, printable
from packstore.core.files import Location
from packstore.core.manifest import Column, Manifest
from packstore.core.progress import ProgressCallback, no_progress
from packstore.core.registry import FORMATS
from packstore.core.urls import ShardPlace, UrlPath
from packstore.sources.base import Certainty, Entry, Kind, Sample, Source, SourceOptions, Survey
from packstore.sources.refusals import first_bytes
from packstore.stores import Reader
from packstore.stores.format import Format
from packstore.stores.linked import read_link_values
from packstore.stores.opening import START_BYTES, holds_store, looks_like_store, open_reader, recognise_store
from packstore.stores.parts import as_image_array, find_file_offset
from packstore.stores.proven import Proven

_CHUNK = 4096
# Formats that other programs use for images too.
_OF_OTHERS = ("lmdb", "hdf5")


class StoreSource(Source):
    """Packstore store as a source. Reading a record verifies all of it by its checksums.

    Leaves out internal columns such as checksums. ``Entry.labels`` has the scalar int64 columns. The values of other
    columns come with each sample in stored form. ``Entry.ref`` is the number of the record.
    """

    kind = "store"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.reader: Reader = open_reader(path)
        self._records = Proven(self.reader)
        manifest = self.manifest
        self._columns = tuple(c for c in manifest.columns if c.name not in INTERNAL)
        self._label_columns = tuple(c for c in self._columns if _is_label(c))
        self._sampled = tuple(c.name for c in self._columns if not _is_label(c))
        self._holds_files = manifest.holds_files

    @property
    def manifest(self) -> Manifest:
        """Manifest of the store."""
        return self.reader.manifest

    @property
    def store_manifest(self) -> Manifest | None:
        """Manifest of the store."""
        return self.manifest

    def survey(self, split: str | None = None, progress: ProgressCallback = no_progress) -> Survey:
        """Counts records. If they differ in size, estimates bytes by their mean. Raises :class:`SourceError` for a
        store or split without records, and :class:`NotInSourceError` for an unknown split."""
        manifest = self.manifest
        ranges = self._split_ranges(split)
        splits = {name: stop - start for name, start, stop in ranges}
        records = ranges[-1][2] - ranges[0][1]
        if not records:
            where = f" in {printable(split)}" if split else ""
            raise SourceError(f"{printable(str(self.path))} holds no records{where}")
        image = manifest.image
        if image.kind == "fixed":
            size_bytes, size_counts = image.record_nbytes * records, {image.record_nbytes: records}
        else:
            # The lengths of ragged images are not a column in every format: the mean stands for each of them.
            size_bytes = image.nbytes * records // manifest.records
            size_counts = {-(-image.nbytes // manifest.records): records}
        return Survey(
            splits=splits,
            columns=self._columns,
            encoding=manifest.encoding,
            shape=image.shape if image.kind == "fixed" else None,
            size_bytes=size_bytes,
            size_counts=size_counts,
            key_bytes=self._count_key_bytes(ranges[0][1], ranges[-1][2]),
            store=manifest,
            sampled=frozenset(self._sampled),
            further_bytes=sum(column.nbytes for column in self._columns if column.holds_images)
            * records
            // manifest.records,
            value_bytes=sum(manifest.column(name).nbytes for name in self._sampled) * records // manifest.records,
        )

    def _count_key_bytes(self, start: int, stop: int) -> int:
        """Returns the bytes of the keys of a range of records."""
        if stop - start == len(self.reader):
            return self.manifest.column("key").nbytes
        total = first = 0
        for part in self.reader.parts():
            offsets = part.ragged_column("key").offsets
            begin, end = (min(max(edge - first, 0), len(part)) for edge in (start, stop))
            total += int(offsets[end] - offsets[begin])
            first += len(part)
        return total

    def entries(self, split: str | None = None) -> Iterator[Entry]:
        """Yields an entry for each record. If records differ in size, ``size_bytes`` is their mean. Raises
        :class:`NotInSourceError` at once for an unknown split."""
        return self._make_entries(self._split_ranges(split))

    def _make_entries(self, ranges: list[tuple[str, int, int]]) -> Iterator[Entry]:
        """Yields an entry for each record of the ranges (split, first record, end)."""
        image = self.manifest.image
        size = image.record_nbytes if image.kind == "fixed" else -(-image.nbytes // max(self.manifest.records, 1))
        for name, first, last in ranges:
            for start in range(first, last, _CHUNK):
                stop = min(start + _CHUNK, last)
                records = np.arange(start, stop)
                values_of = [self.reader.values(column.name, records).tolist() for column in self._label_columns]
                labels: Iterable[tuple[int, ...]] = zip(*values_of, strict=True) if values_of else [()] * len(records)
                for record, values in zip(range(start, stop), labels, strict=True):
                    yield Entry(self.reader.key(record), name, values, size, record)

    def read(self, entry: Entry) -> ImageData | Sample:
        """Reads a record: its image as in :meth:`image`, and the values of columns that are not in ``Entry.labels``.

        Raises :class:`CorruptRecordError` if image, key or any value does not match the record's checksums. Values in
        ``Entry.labels`` are compared, too.
        """
        image, values = self.image(entry), self._read_values(entry)
        return Sample(image, values, at_rest=True) if self._sampled else image

    def image(self, entry: Entry) -> ImageData:
        """Reads and verifies the image of a record: the bytes of a file, or an array for a tensor encoding. Raises
        :class:`CorruptRecordError` if the image does not match its checksum."""
        record: int = entry.ref
        data = self._records.prove_image(record)
        if self._holds_files:
            return data if isinstance(data, bytes) else bytes(data)
        return self._as_array(record, data)

    def locate(self, entry: Entry) -> Location | None:
        """Locates the image in the store's file; in a linked store, in the file that it names. Returns None if the
        store's file is at a URL, or if the image is not one range of it."""
        record: int = entry.ref
        if self.manifest.is_linked:
            link = read_link_values(self.reader, np.array([record]))
            return Location(link["link_file"][0], int(link["link_offset"][0]))
        view = self.reader.view(record)
        offset = find_file_offset(view) if isinstance(view, memoryview) else None
        if offset is None or isinstance(self.path, UrlPath):
            return None
        number = int(self.reader.table.find([record])[0])
        format: Format = FORMATS[self.manifest.format]
        return Location(str(format.data_file(Path(self._part_places[number])).absolute()), offset)

    @cached_property
    def _part_places(self) -> list[ShardPlace]:
        """Paths or URLs of the shards; for a store without shards, its only file."""
        return self.reader.table.places()

    def _read_values(self, entry: Entry) -> dict[str, Any]:
        """Reads the values of a record that come with its sample, in their stored form, and verifies the row."""
        row = self._records.prove_fields(entry.ref)
        values = ((name, row[name]) for name in self._sampled)
        return {name: bytes(value) if isinstance(value, memoryview) else value for name, value in values}

    def _as_array(self, record: int, data: Buffer) -> NDArray[Any]:
        """Returns an array over verified bytes, without a copy, so the bytes must stay valid."""
        image = self.manifest.image
        shape = image.shape if image.kind == "fixed" else tuple(self.reader.value("shape", record).tolist())
        return as_image_array(data, image, shape, lambda: f"record {record} of {printable(str(self.path))}")

    def stamp(self) -> str:
        """Returns the digest of the store."""
        return self.manifest.digest

    def close(self) -> None:
        """Closes the store."""
        self.reader.close()

    def _split_ranges(self, split: str | None) -> list[tuple[str, int, int]]:
        """Returns name, first record and end of one split, or of all."""
        if split is None:
            return self.manifest.ranges
        chosen = [each for each in self.manifest.ranges if each[0] == split != ""]
        if not chosen:
            raise self.unknown_split_error(split, [s.name for s in self.manifest.splits])
        return chosen


def _is_label(column: Column) -> bool:
    """Tells if a column has one int64 number for each record."""
    return column.kind == "fixed" and column.dtype == "int64" and column.shape == ()


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises stores by their first bytes or their layout, damaged ones as well."""
    if not looks_like_store(path, first_bytes(path, START_BYTES)):
        return Certainty.NO
    format = recognise_store(path)
    others = format is not None and format.name in _OF_OTHERS
    # LMDB or HDF5 without a manifest may be a damaged store, or another program's file.
    return Certainty.POSSIBLE if others and not holds_store(path) else Certainty.CERTAIN


KIND = Kind("store", "a packstore store", _recognise, StoreSource)

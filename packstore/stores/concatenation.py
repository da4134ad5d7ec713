"""Reads several open stores as one."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from packstore.core.checksums import join_records_digests
from packstore.core.column import join_hidden_boxes
from packstore.core.columns import NUMPY_DTYPE, Buffer, ColumnData, Ragged
from packstore.core.errors import CorruptRecordError, StoreError
from packstore.core.manifest import Manifest, Split
from packstore.core.progress import ProgressCallback, no_progress
from packstore.core.urls import ShardPlace
from packstore.stores.base import Problem, Reader
from packstore.stores.joining import join_columns, map_class_numbers
from packstore.stores.shard_columns import concatenate_column
from packstore.stores.unify import UnifiedReader

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _RecordRange:
    """Consecutive records of one of the joined stores.

    Attributes:
        store: Number of the store.
        first: Number of the first record in that store.
        start: Number of the first record in the joined store.
        length: Number of records.
    """

    store: int
    first: int
    start: int
    length: int


class ConcatReader(Reader):
    """Reads open stores as one: each split has the records of the first store, then those of the second, and so on.

    Columns are joined as by ``merge``: classes are matched by name, and class numbers are those of the joined classes.
    A number without a class becomes -1. The manifest has the first store's options and skipped samples. Each store
    checks its own records. :meth:`close` closes all stores.

    Raises:
        StoreError: The stores do not fit together.
    """

    def __init__(self, readers: Sequence[Reader]) -> None:
        """Raises :class:`StoreError` if the stores do not fit together."""
        columns = join_columns(readers)
        self._readers = tuple(readers)
        self._ranges = tuple(_list_ranges(readers))
        self._starts = [run.start for run in self._ranges]
        self._numbers: list[Mapping[str, NDArray[np.int64]]] = []
        for reader in readers:
            pairs = ((c.name, map_class_numbers(reader.manifest.column(c.name), c)) for c in columns)
            # -1 for a number without a class; the store that has it reports it.
            self._numbers.append({name: np.append(numbers, -1) for name, numbers in pairs if numbers is not None})
        super().__init__(Path(" + ".join(str(reader.path) for reader in readers)), self._join_manifests(columns))
        self.checks_records = any(reader.checks_records for reader in readers)
        self.can_refetch = any(reader.can_refetch for reader in readers)
        self.converts_images = any(reader.converts_images for reader in readers)
        self._columns: dict[str, ColumnData] = {}

    def _join_manifests(self, columns: Sequence[Any]) -> Manifest:
        """Builds the manifest of the joined store.

        Records, splits, the digest of records and the bytes of each column cover all stores. There are no shards. All
        else, such as options and skipped samples, is the first store's.
        """
        manifests = [reader.manifest for reader in self._readers]
        records = sum(m.records for m in manifests)
        splits: dict[str, Split] = {}
        if manifests[0].splits:
            for run in self._ranges:
                name = next(s.name for s in manifests[run.store].splits if s.start == run.first and len(s))
                start = splits[name].start if name in splits else run.start
                splits[name] = Split(name, start, run.start + run.length)
        given = [(column, [manifest.column(column.name) for manifest in manifests]) for column in columns]
        whole = (
            replace(column, nbytes=sum(each.nbytes for each in parts), hides_boxes=join_hidden_boxes(parts))
            for column, parts in given
        )
        return replace(
            manifests[0],
            records=records,
            columns=tuple(whole),
            splits=tuple(splits.values()),
            records_digest=join_records_digests((m.records_digest, m.records) for m in manifests),
            shards=None,
        )

    @property
    def stores(self) -> tuple[Reader, ...]:
        """The readers of the stores, without the wrappers that convert images to one encoding."""
        readers = [*self._readers]
        for n, reader in enumerate(readers):
            while isinstance(reader, UnifiedReader):
                readers[n] = reader = reader.store
        return tuple(readers)

    @property
    def ranges(self) -> list[tuple[int, int, int]]:
        """The ranges of records in order, as (number of the store, first record in the joined store, length)."""
        return [(run.store, run.start, run.length) for run in self._ranges]

    @cached_property
    def unchecked_reader(self) -> Reader:
        """A reader of the stores' unchecked readers. This reader itself if no store compares checksums."""
        if all(reader.unchecked_reader is reader for reader in self._readers):
            return self
        return ConcatReader([reader.unchecked_reader for reader in self._readers])

    @cached_property
    def _part_table(self) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
        """First record of each part, and (number of the store, number of the part in that store) of each part.

        A part is a file of a store. A file with several splits is several parts.
        """
        starts, parts = [], []
        for run in self._ranges:
            own = self._readers[run.store].part_starts
            first, stop = np.searchsorted(own, [run.first, run.first + run.length - 1], "right")
            for number in range(int(first) - 1, int(stop)):
                starts.append(run.start + max(0, int(own[number]) - run.first))
                parts.append((run.store, number))
        return np.array(starts, np.int64), parts

    def part(self, number: int) -> Reader:
        """Returns the reader of part ``number``: a file of one of the stores. A file with several splits is several
        parts."""
        store, local = self._part_table[1][number]
        return self._readers[store].part(local)

    @property
    def part_starts(self) -> NDArray[np.int64]:
        """First record of each part. A file with several splits is several parts."""
        return self._part_table[0]

    @property
    def part_origins(self) -> list[tuple[Reader, int]]:
        """The reader of the store that has each part, and the part's number in it."""
        stores = self.stores
        return [(stores[store], local) for store, local in self._part_table[1]]

    def parts_are_local(self, numbers: Iterable[int]) -> NDArray[np.bool_]:
        """Returns a mask of the parts whose store has them on this machine."""
        origins = np.array([self._part_table[1][number] for number in numbers], np.int64).reshape(-1, 2)
        local = np.ones(len(origins), np.bool_)
        for store in np.unique(origins[:, 0]).tolist():
            rows = origins[:, 0] == store
            local[rows] = self._readers[store].parts_are_local(origins[rows, 1].tolist())
        return local

    def part_places(self) -> list[ShardPlace]:
        """Returns the path or URL of each part. A file with several splits is listed several times."""
        names = [reader.part_places() for reader in self._readers]
        return [names[store][local] for store, local in self._part_table[1]]

    def read(self, index: int) -> Buffer:
        """Returns the image from the store that has the record."""
        return self._call_store(index, lambda reader, record: reader.read(record))

    def view(self, index: int) -> Buffer:
        """Returns a view of the image from the store that has the record."""
        return self._call_store(index, lambda reader, record: reader.view(record))

    def read_stored_image(self, index: int) -> Buffer:
        """Returns the image in the form in which its own store has it."""
        return self._call_store(index, lambda reader, record: reader.read_stored_image(record))

    def will_need(self, index: int, view: Buffer) -> None:
        """Passes the request on to the store that has the record."""
        run = self._find_range(index)
        self._readers[run.store].will_need(index - run.start + run.first, view)

    def array(self, index: int) -> NDArray[Any]:
        """Returns the array from the store that has the record."""
        return self._call_store(index, lambda reader, record: reader.array(record))

    def value(self, name: str, index: int) -> Any:
        """Returns the stored value, with the class numbers of the joined store.

        A number without a class becomes -1. The class numbers of a ragged column are returned as bytes.
        """
        value = self._call_store(index, lambda reader, record: reader.value(name, record))
        numbers = self._numbers[self._find_range(index).store].get(name)
        if numbers is None:
            return value
        if self.manifest.column(name).kind == "ragged":
            return _renumber_labels(np.frombuffer(value, "<i8"), numbers).tobytes()
        return _renumber_labels(np.asarray(value), numbers)

    def values(self, name: str, records: NDArray[np.int64]) -> NDArray[Any]:
        """Returns the values of some records, with the class numbers of the joined store.

        A number without a class becomes -1. Raises :class:`IndexError` if a record does not exist.
        """
        column = self.manifest.column(name)
        out = np.empty((len(records), *column.shape), NUMPY_DTYPE[column.dtype])
        for run, rows, local in self._group_by_range(records):
            try:
                values = self._readers[run.store].values(name, local)
            except CorruptRecordError as error:
                raise _shift_error(error, run) from error
            numbers = self._numbers[run.store].get(name)
            out[rows] = values if numbers is None else _renumber_labels(values, numbers)
        return out

    def column(self, name: str) -> ColumnData:
        """Joins the columns of all stores in memory, with the class numbers of the joined store, and keeps the result.
        Raises :class:`StoreError` for ``image``.
        """
        if name == "image":
            raise StoreError("several stores have no array of all images; read them one by one")
        if name not in self._columns:
            column = self.manifest.column(name)
            self._columns[name] = concatenate_column(
                column, (self._read_range(run, name) for run in self._ranges), False
            )
        return self._columns[name]

    def _read_range(self, run: _RecordRange, name: str) -> ColumnData:
        """Returns a range's values of a column, with the class numbers of the joined store."""
        data = self._readers[run.store].column(name)
        numbers = self._numbers[run.store].get(name)
        stop = run.first + run.length
        if not isinstance(data, Ragged):
            values = data[run.first : stop]
            return values if numbers is None else _renumber_labels(values, numbers)
        offsets = data.offsets[run.first : stop + 1]
        part = data.data[int(offsets[0]) : int(offsets[-1])]
        if numbers is not None:
            part = _renumber_labels(np.frombuffer(part, "<i8"), numbers).view(np.uint8)
        return Ragged(offsets - offsets[0], part)

    def key(self, index: int) -> str:
        """Returns the key from the store that has the record."""
        return self._call_store(index, lambda reader, record: reader.key(record))

    def mark_suspect(self, index: int) -> None:
        """Marks the record in the store that has it."""
        run = self._find_range(index)
        self._readers[run.store].mark_suspect(index - run.start + run.first)

    def find_faults(self, records: NDArray[np.int64], names: Iterable[str]) -> dict[int, StoreError]:
        """Returns the faults that each store finds, by record number in the joined store.

        Raises :class:`IndexError` if a record does not exist.
        """
        errors: dict[int, StoreError] = {}
        names = [*names]
        for run, _, local in self._group_by_range(records):
            for record, error in self._readers[run.store].find_faults(local, names).items():
                errors[record - run.first + run.start] = _shift_error(error, run)
        return errors

    def check_fields(self, index: int) -> None:
        """Checks the record in its store. Raises :class:`CorruptRecordError` with its number in the joined store."""
        self._call_store(index, lambda reader, record: reader.check_fields(record))

    def verify_column(self, name: str) -> None:
        """Verifies the column in every store. Raises :class:`StoreError` of the first in which it is damaged."""
        for reader in self._readers:
            reader.verify_column(name)

    def check_files(self) -> None:
        """Checks the files of all stores. Raises :class:`StoreError` of the first with a bad file."""
        for reader in self._readers:
            reader.check_files()

    def check_structure(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        """Yields the faults of all stores. Record numbers count within each store, not within the joined store."""
        for reader in self._readers:
            yield from reader.check_structure(quick=quick, progress=progress)

    def disk_bytes(self) -> int:
        """Returns the bytes of all stores together."""
        return sum(reader.disk_bytes() for reader in self._readers)

    def close(self) -> None:
        """Closes all stores."""
        self._columns = {}
        for reader in self._readers:
            reader.close()

    def _find_range(self, index: int) -> _RecordRange:
        """Returns the range that has record ``index``. Raises :class:`IndexError` if there is no such record."""
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        return self._ranges[bisect.bisect_right(self._starts, index) - 1]

    def _call_store(self, index: int, method: Callable[[Reader, int], _T]) -> _T:
        """Calls ``method`` with the store that has record ``index``, and the record's number in that store.

        A :class:`CorruptRecordError` gets the number ``index``. Raises :class:`IndexError` if there is no such record.
        """
        run = self._find_range(index)
        try:
            return method(self._readers[run.store], index - run.start + run.first)
        except CorruptRecordError as error:
            raise _shift_error(error, run) from error

    def _group_by_range(
        self, records: NDArray[np.int64]
    ) -> Iterator[tuple[_RecordRange, NDArray[np.int64], NDArray[np.int64]]]:
        """Groups ``records`` by range: yields the range, their positions in ``records``, their numbers in its store.

        Raises :class:`IndexError` if a record does not exist.
        """
        if len(records) and not 0 <= int(records.min()) <= int(records.max()) < len(self):
            raise IndexError(f"records {records.min()} to {records.max()} of {len(self)}")
        numbers = np.searchsorted(self._starts, records, "right") - 1
        for number in np.unique(numbers).tolist():
            run, rows = self._ranges[number], np.flatnonzero(numbers == number)
            yield run, rows, records[rows] - run.start + run.first


def _list_ranges(readers: Sequence[Reader]) -> Iterator[_RecordRange]:
    """Yields the ranges of records of the joined store: split by split, and store by store within a split.

    Leaves out empty ranges.
    """
    names = dict.fromkeys(split.name for reader in readers for split in reader.manifest.splits)
    start = 0
    for name in names or (None,):
        for number, reader in enumerate(readers):
            if name is None or any(split.name == name for split in reader.manifest.splits):
                split = reader.split(name)
                if len(split):
                    yield _RecordRange(number, split.start, start, len(split))
                    start += len(split)


def _renumber_labels(labels: NDArray[Any], numbers: NDArray[np.int64]) -> NDArray[Any]:
    """Maps each class number to its entry in ``numbers``, and each number without a class to the last entry."""
    return numbers[np.where((labels >= 0) & (labels < len(numbers) - 1), labels, len(numbers) - 1)]


def _shift_error(error: StoreError, run: _RecordRange) -> StoreError:
    """Returns a :class:`CorruptRecordError` with the record's number in the joined store. Returns other errors
    unchanged.
    """
    if not isinstance(error, CorruptRecordError):
        return error
    number = error.record - run.first + run.start
    return CorruptRecordError(number, error.key, error.expected, error.found, error.what)

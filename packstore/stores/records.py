"""The reader of a store, :class:`Records`, and the table of the files that it reads."""

from __future__ import annotations

import bisect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packstore.core.columns import NUMPY_DTYPE, Buffer, ColumnData, Ragged, from_stored
from packstore.core.errors import CorruptRecordError, StoreError, printable
from packstore.core.manifest import Column, Manifest, Split
from packstore.core.progress import ProgressCallback, no_progress
from packstore.core.registry import notebook_html
from packstore.core.urls import ShardPlace, UrlPath
from packstore.stores.parts import Fault, Lens, Part, Problem, Rows, as_image_array

if TYPE_CHECKING:
    from packstore.cache import Cache
    from packstore.stores.remote_objects import RemoteHead

_T = TypeVar("_T")
_FEWEST_TOGETHER = 64
"""With fewer records for each file, finding their images one by one is faster than file by file."""


@dataclass(slots=True)
class FetchCounts:
    """Statistics of a reader's fetches.

    Attributes:
        hits: Openings of a shard that was in the cache. A read from an open shard does not count.
        misses: Openings that had to fetch the shard.
        damaged: Damaged copies in the cache that were fetched again.
        fetched_bytes: Bytes fetched from the object store, prefetched shards included.
        waiting_seconds: Total time that reading threads waited for shards.
    """

    hits: int = 0
    misses: int = 0
    damaged: int = 0
    fetched_bytes: int = 0
    waiting_seconds: float = 0.0


class PartTable(ABC):
    """The files of a store, in order: where each begins, and how to open it.

    Attributes:
        path: Path or URL of the store.
        manifest: Its manifest.
        starts: ``int64``, the first record of each file.
        nbytes: Bytes of a store at a URL; None for a store on this machine.
        bounded: Whether files are closed to make room for others, so that views of them have to be copied.
        can_refetch: Whether files are cached copies, which are fetched again after :meth:`mark_suspect`.
        columns: Columns that were concatenated from all files, by name.
        cache: The cache that files are fetched into; None if all files are on this machine.
        head: The version of a store at a URL, which can be opened again even if the store grows. None for others.
        all_counts: Statistics of the fetches of each store at a URL.
        part_nbytes: ``int64``, bytes of each file at a URL; 0 for a file on this machine.
    """

    bounded = False
    can_refetch = False

    def __init__(self, path: Path, manifest: Manifest, starts: NDArray[np.int64]) -> None:
        self.path = path
        self.manifest = manifest
        self.starts = starts
        self.nbytes: int | None = None
        self.columns: dict[str, ColumnData] = {}
        self.cache: Cache | None = None
        self.head: RemoteHead | None = None
        self.all_counts: list[FetchCounts] = []
        self.part_nbytes: NDArray[np.int64] = np.zeros(len(starts), np.int64)

    @abstractmethod
    def open(self, number: int) -> Part:
        """Returns a file, opened if need be. Raises :class:`StoreError` if it cannot be opened or fetched."""

    @abstractmethod
    def close(self) -> None:
        """Releases all files and maps. Idempotent. Arrays and memoryviews already returned stay valid."""

    @abstractmethod
    def faults(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        """Yields the faults of the files and of what joins them. See :meth:`Part.faults`."""

    def rows(self) -> Rows:
        """Returns the records of all files."""
        zeros = [0] * len(self.starts)
        return Chain(self.path, self.manifest, (self.starts.tolist(), zeros), self.open, self)

    def places(self) -> list[ShardPlace]:
        """Returns the path of each file, or for a store at a URL the URL of its object."""
        return [self.path if isinstance(self.path, UrlPath) else str(self.path)]

    def find(self, records: ArrayLike) -> NDArray[np.int64]:
        """Returns the number of the file that holds each of ``records``."""
        numbers: NDArray[np.int64] = np.searchsorted(self.starts, records, "right") - 1
        return numbers

    def check_files(self) -> None:
        """Raises :class:`StoreError` if a shard's file is missing or has another size.

        Opening a sharded store does not check all files: a damaged one can still be verified and salvaged.
        """
        return

    def disk_bytes(self) -> int:
        """Returns the bytes that the store takes on disk. For a store at a URL, returns the bytes of its objects."""
        return disk_bytes(self.path) if self.nbytes is None else self.nbytes

    def mark_suspect(self, number: int) -> None:  # noqa: B027 - most stores have no cache
        """Has the cached copy of a file verified, and fetched again if it is damaged, before the next read."""

    def are_local(self, numbers: Iterable[int]) -> NDArray[np.bool_]:
        """Returns a mask, ``bool (n,)``: which of these files can be read without fetching anything."""
        return np.ones(len([*numbers]), np.bool_)

    def list_surplus_files(self) -> list[str]:
        """Lists the names in the store's directory that the manifest does not know."""
        return []

    def prefetch(self, number: int) -> None:  # noqa: B027 - see mark_suspect
        """Fetches a file into the cache, unless it is there. Raises :class:`StoreError` if that fails."""

    def release(self, numbers: Collection[int]) -> None:  # noqa: B027 - see mark_suspect
        """Closes files that are not needed soon, so that the cache may evict them."""

    def refuse_requests(self) -> AbstractContextManager[None]:
        """Aborts pending requests, and refuses new ones until the context ends."""
        return nullcontext()


class OneFile(PartTable):
    """The table of a store of one file, which is open, or of a single shard."""

    def __init__(self, part: Part) -> None:
        super().__init__(part.path, part.manifest, np.zeros(1, np.int64))
        self._part = part

    def open(self, number: int) -> Part:
        return self._part

    def rows(self) -> Rows:
        return self._part

    def close(self) -> None:
        self._part.close()

    def faults(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        return self._part.faults(quick=quick, progress=progress)


class Chain(Rows):
    """Reads ranges of several :class:`Rows` one after the other: the shards of a store, or the splits of stores."""

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        ranges: tuple[list[int], list[int]],
        open: Callable[[int], Rows],
        table: PartTable | None = None,
    ) -> None:
        """
        Args:
            path: Path for messages.
            manifest: Describes all records.
            ranges: For each range, its first record here, and that record's number in the range's own rows.
            open: Returns the rows of a range by its number.
            table: Table whose files are the ranges. None if ranges are never closed to make room.
        """
        super().__init__(path, manifest)
        starts, firsts = ranges
        self._records = manifest.records
        self._starts = starts
        self._numbers = np.array(starts, np.int64)
        self._shift_of = self._numbers - np.array(firsts, np.int64)
        self._shifts: list[int] = self._shift_of.tolist()
        self._open = open
        self._table = table
        self._columns: dict[str, ColumnData] = {}

    def view(self, index: int) -> Buffer:
        """Returns the image as a view, or as a copy if the range may be closed."""
        view = self._read(index, lambda rows, local: rows.view(local))
        # A view keeps its shard's map open: a batch could keep as many files open as it has records.
        return bytes(view) if self._copies else view

    def views(self, records: NDArray[np.int64]) -> Sequence[Buffer]:
        """Reads file by file, or one by one if the records are in too many files for that to be faster."""
        # A file of links opens each linked file only once.
        if len(self._starts) * _FEWEST_TOGETHER > len(records) and not self.manifest.is_linked:
            return super().views(records)
        images: list[Buffer] = [b""] * len(records)
        for _, places, views in self._read_groups(records, lambda rows, local: rows.views(local)):
            for place, view in zip(places.tolist(), views, strict=True):
                images[place] = bytes(view) if self._copies else view
        return images

    def value(self, name: str, index: int) -> Any:
        """Returns the value. Bytes are a copy if the range may be closed."""
        value = self._read(index, lambda rows, local: rows.value(name, local))
        return bytes(value) if self._copies and isinstance(value, memoryview) else value

    def values(self, name: str, records: NDArray[np.int64]) -> NDArray[Any]:
        """Returns the values of some records, and opens only the files that have them.

        Raises :class:`IndexError` for a number without a record.
        """
        column = self.manifest.column(name)
        if column.kind != "fixed" or name == "image":
            return super().values(name, records)
        out: NDArray[Any] | None = None
        chosen = np.asarray(records, np.int64)
        for _, places, values in self._read_groups(chosen, lambda rows, local: rows.values(name, local)):
            if out is None:  # allocated only after the first read: a manifest may claim any shape
                out = np.empty((len(records), *column.shape), NUMPY_DTYPE[column.dtype])
            out[places] = values
        return np.empty((0, *column.shape), NUMPY_DTYPE[column.dtype]) if out is None else out

    def column(self, name: str) -> ColumnData:
        """Opens everything, concatenates the values of a column in memory, and keeps the result.

        Raises :class:`StoreError` for ``image``.
        """
        column = self.manifest.column(name)
        if name == "image":
            raise StoreError("a store of several files has no array of all images; read them one by one")
        # Read once: another thread may close the table meanwhile.
        columns = self._columns if self._table is None else self._table.columns
        if name not in columns:
            stops = [*self._starts[1:], self._records]
            parts = (
                _cut(self._open(number).column(name), start - shift, stop - shift, self._copies)
                for number, (start, stop, shift) in enumerate(zip(self._starts, stops, self._shifts, strict=True))
            )
            columns[name] = concatenate_column(column, parts)
        return columns[name]

    def key(self, index: int) -> str:
        return self._read(index, lambda rows, local: rows.key(local))

    def try_key(self, index: int) -> str:
        rows, local = self._find(index)
        return rows.try_key(local)

    @property
    def _copies(self) -> bool:
        """Whether ranges may be closed, so that whatever is read has to be copied."""
        return self._table is not None and self._table.bounded

    def _find(self, index: int) -> tuple[Rows, int]:
        """Returns the rows that hold record ``index``, and its number there."""
        if not 0 <= index < self._records:
            raise IndexError(f"record {index} of {self._records}")
        number = bisect.bisect_right(self._starts, index) - 1
        return self._open(number), index - self._shifts[number]

    def _read(self, index: int, read: Callable[[Rows, int], _T]) -> _T:
        """Reads something of a record."""
        rows, local = self._find(index)
        try:
            return read(rows, local)
        except StoreError as error:
            self._renumber(error, index - local)  # errors name a record by its number in the chain
            raise

    def _read_groups(
        self, records: NDArray[np.int64], read: Callable[[Rows, NDArray[np.int64]], _T]
    ) -> Iterator[tuple[int, NDArray[np.int64], _T]]:
        """Yields for each range that has some of ``records``: its number, their positions, and what is read."""
        if len(records) and not 0 <= int(records.min()) <= int(records.max()) < self._records:
            raise IndexError(f"records {records.min()} to {records.max()} of {self._records}")
        numbers = np.searchsorted(self._numbers, records, "right") - 1
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
        local = records[order] - self._shift_of[numbers]
        edges = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)] if len(numbers) else []
        for first, last in itertools.pairwise(edges):
            number = int(numbers[first])
            try:
                some = read(self._open(number), local[first:last])
            except StoreError as error:
                self._renumber(error, self._shifts[number])
                raise
            yield number, order[first:last], some

    def _renumber(self, error: StoreError, shift: int) -> None:
        """Changes the record number in an error to that of the chain."""
        if isinstance(error, CorruptRecordError):
            error.record += shift
        elif isinstance(error, Fault):
            error.record += shift
            error.path = self.path


class Records(Lens):
    """An open store: ``len(reader)`` records, numbered from 0.

    Readers are safe to use from several threads. They do not survive a fork and do not pickle: open one in each process
    (``PackedDataset`` does that by itself). Opening costs milliseconds, whatever the number of records. As a context
    manager, a reader is closed at the end.

    Attributes:
        path: Path or URL of the store.
        manifest: Its manifest.
        table: Its files.
    """

    def __init__(self, table: PartTable, rows: Rows | None = None, unchecked: Records | None = None) -> None:
        """
        Args:
            table: The files.
            rows: The records, read through lenses. None for the records of ``table`` as they are.
            unchecked: The reader without comparing checksums, if ``rows`` compares them.
        """
        super().__init__(table.rows() if rows is None else rows)
        self.table = table
        self._unchecked = unchecked

    @property
    def unchecked_reader(self) -> Records:
        """The reader of the same open files that compares no checksums. This reader itself if it compares none."""
        return self if self._unchecked is None else self._unchecked

    def through(self, lens: Callable[[Rows], Rows]) -> Records:
        """Returns a reader of the same open files through a lens."""
        unchecked = None if self._unchecked is None else self._unchecked.through(lens)
        return Records(self.table, lens(self.rows), unchecked)

    @property
    def nbytes(self) -> int | None:
        """Bytes of a store at a URL; None for a store on this machine."""
        return self.table.nbytes

    def read(self, index: int) -> Buffer:
        """Returns the image of record ``index`` (0 … N-1): bytes, or a read-only memoryview that keeps its map alive.

        Raises :class:`IndexError` outside the range, and :class:`StoreError` if the image is missing or damaged.
        """
        return self.rows.view(index)

    def array(self, index: int) -> NDArray[Any]:
        """Returns the image of a record as an array: ``(H, W, C)`` uint8 or ``(C, H, W)`` floating point (bfloat16 as
        uint16 bit patterns). Read-only; shares memory with :meth:`view`.

        Raises :class:`StoreError` if the store holds encoded images, such as JPEG, or if the record is damaged.
        """
        column = self.manifest.image
        if column.layout is None:
            raise StoreError(f"{self.path} holds encoded images ({self.manifest.encoding}), not arrays")
        shape = column.shape if column.kind == "fixed" else tuple(self.rows.value("shape", index).tolist())
        view = self.rows.view(index)
        return as_image_array(view, column, shape, lambda: f"record {index} of {printable(str(self.path))}")

    def has_value(self, name: str, index: int) -> bool:
        """Returns whether a record has a value in column ``name``. Always True for a column that is not nullable.

        Raises :class:`KeyError` for an unknown column.
        """
        column = self.manifest.column(name)
        return not column.nullable or bool(self.rows.value(column.valid_name, index))

    def item(self, name: str, index: int) -> Any:
        """Returns a record's value of column ``name`` as it was given to the writer, or None if it has no value.

        See :func:`packstore.core.columns.from_stored`. For ``image``, returns the file's bytes or :meth:`array`. Raises
        :class:`KeyError` for an unknown column.
        """
        column = self.manifest.column(name)
        if name == "image":
            return bytes(self.rows.view(index)) if column.layout is None else self.array(index)
        if not self.has_value(name, index):
            return None
        has_shape = column.kind == "ragged" and column.layout is not None
        shape = tuple(self.rows.value(column.shape_name, index).tolist()) if has_shape else None
        return from_stored(column, self.rows.value(name, index), shape)

    def mapped_ragged_column(self, name: str) -> Ragged | None:
        """Returns the ragged column ``name`` if all of it is mapped or in memory, else None.

        Returns None for a fixed column, and always for a sharded store.
        """
        column = self.rows.column(name) if len(self.table.starts) == 1 else None
        return column if type(column) is Ragged else None

    def split(self, name: str | None) -> Split:
        """Returns the range of split ``name``. For None returns the range of the whole store, named ``all``.

        Raises :class:`KeyError` for an unknown name.
        """
        return Split("all", 0, len(self)) if name is None else self.manifest.split(name)

    def parts(self) -> Iterator[Records]:
        """Yields a reader for each file of the store, in order."""
        return map(self.part, range(len(self.table.starts)))

    def part(self, number: int) -> Records:
        """Returns the reader of one file of the store, opened if need be, without lenses."""
        return Records(OneFile(self.table.open(number)))

    def check_structure(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        """Yields faults of the container itself: sizes, counts, offsets, container checksums, shard digests.

        ``verify`` checks records and column digests, for all formats alike. ``quick`` skips checks that read all of the
        data.
        """
        return self.table.faults(quick=quick, progress=progress)

    def check_files(self) -> None:
        """Raises :class:`StoreError` if a shard's file is missing or has another size."""
        self.table.check_files()

    def disk_bytes(self) -> int:
        """Returns the bytes that the store takes on disk. For a store at a URL, returns the bytes of its objects."""
        return self.table.disk_bytes()

    def close(self) -> None:
        """Releases files and maps. Idempotent. Arrays and memoryviews already returned stay valid."""
        self.table.close()

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"a {type(self).__name__} does not pickle; pickle its path and open it again")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _repr_html_(self) -> str:
        """Returns what a notebook shows for the store, as HTML."""
        return notebook_html(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {str(self.path)!r}: {len(self)} records, {self.manifest.encoding}>"


def disk_bytes(path: Path) -> int:
    """Returns the bytes that a file or directory takes on disk, by the allocated blocks of its files: holes do not
    count.
    """
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(p.stat().st_blocks * 512 for p in files)


def concatenate_column(column: Column, values: Iterable[ColumnData]) -> ColumnData:
    """Concatenates a column's values of several files to read-only arrays. Does not join those of a single file."""
    parts = [*values]
    if len(parts) == 1:
        return parts[0]
    if column.kind == "fixed":
        joined: NDArray[Any] = np.concatenate([p[:] for p in parts if not isinstance(p, Ragged)])
        joined.flags.writeable = False
        return joined
    ragged = [p for p in parts if isinstance(p, Ragged)]
    bases = [0, *itertools.accumulate(len(p.data) for p in ragged)]
    offsets = np.concatenate(
        [np.zeros(1, np.int64), *(p.offsets[1:] + base for p, base in zip(ragged, bases, strict=False))]
    )
    data = np.concatenate([p.data for p in ragged])
    offsets.flags.writeable = data.flags.writeable = False
    return Ragged(offsets, data)


def _cut(values: ColumnData, start: int, stop: int, copy: bool) -> ColumnData:
    """Returns a range of a column's values: a view, or a ``copy`` that keeps no file open."""
    if (start, stop) != (0, len(values)):
        if isinstance(values, Ragged):
            offsets = values.offsets[start : stop + 1]
            values = Ragged(offsets - offsets[0], values.data[int(offsets[0]) : int(offsets[-1])])
        else:
            values = values[start:stop]
    if not copy:
        return values
    if isinstance(values, Ragged):
        return Ragged(values.offsets.copy(), values.data.copy())
    return values[:].copy() if isinstance(values, np.ndarray) else values[:]

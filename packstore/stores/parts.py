"""The contract of one immutable file of a store, :class:`Part`: all that a format must do to be read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import Buffer, ColumnData, LazyArray, MappedValues, Ragged
from packstore.core.errors import StoreError, printable
from packstore.core.manifest import Manifest
from packstore.core.progress import ProgressCallback, no_progress


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault of a store.

    Attributes:
        what: The fault, on one line, with found and expected values.
        record: Number of the faulty record, or None if the fault is not in a record.
        key: That record's key.
        shard: Name of the shard file, or None in a store of one file.
        lost: Whether that shard does not open at all.
    """

    what: str
    record: int | None = None
    key: str | None = None
    shard: str | None = None
    lost: bool = False


class Fault(StoreError):  # noqa: N818 - a fault is of a record, not of the reader
    """The image of a record cannot be read.

    Attributes:
        record: Number of the record: its row in the part until the store's reader adds the part's first record.
        path: Path of the part.
        why: The rest of the sentence after "record 3 of PATH": ``is missing``.
    """

    def __init__(self, record: int, path: Path, why: str) -> None:
        super().__init__(record, path, why)
        self.record = record
        self.path = path
        self.why = why

    def __str__(self) -> str:
        return f"record {self.record} of {printable(str(self.path))} {self.why}"


class Spans(NamedTuple):
    """Locations of images in a map.

    Attributes:
        data: The map.
        starts: ``int64``, offset of each image.
        sizes: ``int64``, bytes of each image.
    """

    data: memoryview
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]


class Rows(ABC):
    """Records that can be read by number: those of a part, or of a store.

    Attributes:
        manifest: Describes the records as they are read.
    """

    manifest: Manifest

    def __len__(self) -> int:
        return self.manifest.records

    @abstractmethod
    def view(self, row: int) -> Buffer:
        """Returns the image of a record: bytes, or a read-only memoryview that keeps its map alive.

        Raises :class:`IndexError` for a number out of range, and :class:`Fault` if the image cannot be read.
        """

    @abstractmethod
    def column(self, name: str) -> ColumnData:
        """Returns a whole column: shape ``(N, *column.shape)`` if fixed (``bfloat16`` as ``uint16`` bit patterns), else
        :class:`Ragged`. It is mapped, or loaded once and kept.

        Raises:
            KeyError: There is no such column.
            StoreError: The column is damaged, or it is ``image`` and cannot be an array.
        """

    def views(self, rows: NDArray[np.int64]) -> Sequence[Buffer]:
        """Returns :meth:`view` of each of ``rows``, in their order."""
        return [self.view(row) for row in rows.tolist()]

    def value(self, name: str, row: int) -> Any:
        """Returns a record's value of a column in stored form: in the column's dtype, or a memoryview if ragged."""
        return self.column(name)[row]

    def values(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Returns a copy of the values of some records in a fixed column: ``(len(rows), *column.shape)``."""
        values: NDArray[Any] = require_fixed(self.column(name), name)[rows]
        return values


class Part(Rows):
    """One immutable file of a store, open for reading: the only file of a store, or a shard.

    A format implements :meth:`locate`, :meth:`column`, :meth:`faults` and :meth:`close`. Views and arrays stay valid
    after :meth:`close`; reading from a closed part raises :class:`StoreError`. Safe to use from several threads.

    Attributes:
        path: Path or URL of the file.
        has_image_array: Whether :meth:`column` also returns ``image``, without a copy.
    """

    has_image_array = False

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest

    @abstractmethod
    def locate(self, rows: NDArray[np.int64]) -> Spans:
        """Locates the images of some records in the map, in the order of ``rows``.

        Raises :class:`IndexError` for a number out of range, and :class:`Fault` for the first record whose image is
        missing, damaged or outside the map.
        """

    @abstractmethod
    def faults(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        """Yields faults of the container itself: sizes, counts, offsets, checksums of the format.

        ``verify`` checks records and column digests, for all formats alike. ``quick`` skips checks that read all of the
        data.
        """

    @abstractmethod
    def close(self) -> None:
        """Releases file and map. Idempotent."""

    def view(self, row: int) -> Buffer:
        """Returns the image of a record as a view of the map. Override it if one record can be found faster."""
        data, starts, sizes = self.locate(np.array([row]))
        return data[int(starts[0]) : int(starts[0]) + int(sizes[0])]

    def views(self, rows: NDArray[np.int64]) -> Sequence[Buffer]:
        """Returns views of the map, made on access."""
        data, starts, sizes = self.locate(rows)
        return MappedValues(data, np.frombuffer(data, np.uint8).ctypes.data, starts, sizes)

    def will_need(self, view: Buffer) -> None:
        """Asks the operating system to read all of ``view``, an image of this part, from the disk."""


def require_fixed(column: ColumnData, name: str) -> NDArray[Any] | LazyArray:
    """Returns ``column`` if it is fixed. Raises :class:`StoreError` if it is ragged."""
    if isinstance(column, Ragged):
        raise StoreError(f"column {name!r} is ragged")
    return column

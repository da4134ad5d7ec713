"""The contracts of reading: :class:`Rows`, records by number; :class:`Part`, all that a format must do for one file of
a store; and :class:`Lens`, which changes what is read.

:class:`MappedPart` is a part of formats that store each column as a whole array in one file, such as HDF5 and ``.pth``.

``packstore.testing.StoreSuite`` tests the same contract.
"""

from __future__ import annotations

import math
import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE, Buffer, ColumnData, LazyArray, MappedValues, Ragged, WholeColumn
from packstore.core.errors import CorruptRecordError, StoreError, printable
from packstore.core.manifest import Column, Manifest
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
        self.record: int = record
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
    """Records that are read by number: those of a part, of a store, or of several stores.

    Attributes:
        path: Path or URL, for messages.
        manifest: Describes the records as they are read.
        converts_images: Whether :meth:`view` converts images. Checksums cover images as stored.
        has_image_array: Whether :meth:`column` also returns ``image``, without a copy.
    """

    converts_images = False
    has_image_array = False

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest

    def __len__(self) -> int:
        return self.manifest.records

    @abstractmethod
    def view(self, index: int) -> Buffer:
        """Returns the image of record ``index`` (0 … N-1): bytes, or a read-only memoryview. It stays valid after the
        store is closed.

        Raises :class:`IndexError` outside the range, and :class:`StoreError` if the image is missing or damaged.
        """

    @abstractmethod
    def column(self, name: str) -> ColumnData:
        """Returns a whole column: shape ``(N, *column.shape)`` if fixed (``bfloat16`` as ``uint16`` bit patterns), else
        :class:`Ragged`.

        Maps or loads the column once and keeps it. A sharded store opens all its shards: use :meth:`values` to read
        some records. If a format stores each value by itself, the column is a
        :class:`packstore.core.columns.LazyArray`, which reads a value on access.

        Raises:
            KeyError: There is no such column.
            StoreError: ``image`` was asked for without :attr:`has_image_array`.
        """

    def views(self, records: NDArray[np.int64]) -> Sequence[Buffer]:
        """Returns :meth:`view` of each of ``records``, in their order. Faster than one by one."""
        return [self.view(record) for record in records.tolist()]

    def read_stored_image(self, index: int) -> Buffer:
        """Returns the image of a record as stored, even if :meth:`view` converts images. The record's checksum covers
        this form.
        """
        return self.view(index)

    def value(self, name: str, index: int) -> Any:
        """Returns a record's value of column ``name`` in stored form: in the column's dtype, or a memoryview if it is
        ragged.
        """
        return self.column(name)[index]

    def values(self, name: str, records: NDArray[np.int64]) -> NDArray[Any]:
        """Returns a copy of the values of the fixed column ``name`` for some records: ``(len(records),
        *column.shape)``. Raises :class:`StoreError` if the column is ragged.
        """
        values: NDArray[Any] = self._require_fixed(name)[records]
        return values

    def fixed_column(self, name: str) -> NDArray[Any]:
        """Returns the fixed column ``name``, loaded whole if it is stored value by value. Raises :class:`StoreError` if
        it is ragged.
        """
        column = self._require_fixed(name)
        return column[:] if isinstance(column, LazyArray) else column

    def _require_fixed(self, name: str) -> NDArray[Any] | LazyArray:
        """Returns a column, or raises :class:`StoreError` if it is ragged."""
        column = self.column(name)
        if isinstance(column, Ragged):
            raise StoreError(f"column {name!r} of {self.path} is ragged")
        return column

    def ragged_column(self, name: str) -> Ragged:
        """Returns the ragged column ``name``. Raises :class:`StoreError` if it is fixed."""
        column = self.column(name)
        if not isinstance(column, Ragged):
            raise StoreError(f"column {name!r} of {self.path} is not ragged")
        return column

    def find_faults(self, records: NDArray[np.int64], names: Iterable[str]) -> dict[int, StoreError]:
        """Checks the values of some records in the columns ``names``, but no images. Returns the first fault of each
        faulty record, by its number.

        A class number without a class is a fault. For a lens that compares checksums, damaged values are faults, too.
        """
        errors: dict[int, StoreError] = {}
        for name in names:
            column = self.manifest.column(name)
            if column.classes is None or column.kind != "fixed" or not len(records):
                continue
            values = self.values(name, records).reshape(len(records), -1)
            if not values.size or 0 <= int(values.min()) <= int(values.max()) < len(column.classes):
                continue
            wrong = (values < 0) | (values >= len(column.classes))
            for row in np.flatnonzero(wrong.any(1)).tolist():
                record = int(records[row])
                errors.setdefault(record, self.class_error(column, record, int(values[row][wrong[row]][0])))
        return errors

    def check_fields(self, index: int) -> None:
        """Raises :class:`CorruptRecordError` if a record's label, key or other fields do not match its row checksum.

        Does nothing by default. :meth:`view` checks the image.
        """
        return

    def check_images(self, records: NDArray[np.int64], images: NDArray[Any]) -> None:
        """Raises :class:`CorruptRecordError` if one of ``images``, the stored arrays of ``records``, does not match its
        checksum. Does nothing by default.

        For a caller that took the images from the array of all images.
        """
        return

    def verify_column(self, name: str) -> None:
        """Proves that a column is undamaged: raises :class:`StoreError` if it does not match its digest.

        Does nothing by default.
        """
        return

    def key(self, index: int) -> str:
        """Returns the key of a record. Bytes that are not UTF-8 become surrogates, as in file names."""
        return decode_key(self.value("key", index))

    def try_key(self, index: int) -> str:
        """Returns the key of a record for a message, unchecked; or the words "its key is damaged, too"."""
        try:
            return decode_key(self.value("key", index))
        except (StoreError, IndexError):
            return "its key is damaged, too"

    def class_error(self, column: Column, record: int, value: int) -> CorruptRecordError:
        """Returns the error for a record with a class number that has no class. The message has the record's key."""
        expected = f"one from 0 to {len(column.classes or ()) - 1}"
        return CorruptRecordError(record, self.try_key(record), expected, str(value), f"its {column.name} is")


class Part(Rows):
    """One immutable file of a store, open for reading: the only file of a store, or a shard.

    A format implements :meth:`locate`, :meth:`column`, :meth:`faults` and :meth:`close`. Reading from a closed part
    raises :class:`StoreError`. Parts are safe to use from several threads.

    Attributes:
        fewest_together: Fewer images are faster to locate one by one.
    """

    fewest_together = 1

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

    def view(self, index: int) -> Buffer:
        """Returns the image of a record as a view of the map. Override it if one record can be found faster."""
        data, starts, sizes = self.locate(np.array([index]))
        return data[int(starts[0]) : int(starts[0]) + int(sizes[0])]

    def views(self, records: NDArray[np.int64]) -> Sequence[Buffer]:
        """Returns views of the map, made on access if there are many."""
        if len(records) < self.fewest_together:
            return [self.view(record) for record in records.tolist()]
        data, starts, sizes = self.locate(records)
        return MappedValues(data, np.asarray(data).ctypes.data, starts, sizes)


class Lens(Rows):
    """Reads through other :class:`Rows`, and changes some of what they return. By default nothing."""

    def __init__(self, rows: Rows, manifest: Manifest | None = None) -> None:
        """``manifest`` describes the records as this lens shows them. None takes that of ``rows``."""
        super().__init__(rows.path, rows.manifest if manifest is None else manifest)
        self.rows = rows
        self.converts_images = rows.converts_images
        self.has_image_array = rows.has_image_array

    def view(self, index: int) -> Buffer:
        return self.rows.view(index)

    def views(self, records: NDArray[np.int64]) -> Sequence[Buffer]:
        return self.rows.views(records)

    def read_stored_image(self, index: int) -> Buffer:
        return self.rows.read_stored_image(index)

    def column(self, name: str) -> ColumnData:
        return self.rows.column(name)

    def value(self, name: str, index: int) -> Any:
        return self.rows.value(name, index)

    def values(self, name: str, records: NDArray[np.int64]) -> NDArray[Any]:
        return self.rows.values(name, records)

    def find_faults(self, records: NDArray[np.int64], names: Iterable[str]) -> dict[int, StoreError]:
        return self.rows.find_faults(records, names)

    def check_fields(self, index: int) -> None:
        self.rows.check_fields(index)

    def check_images(self, records: NDArray[np.int64], images: NDArray[Any]) -> None:
        self.rows.check_images(records, images)

    def verify_column(self, name: str) -> None:
        self.rows.verify_column(name)

    def key(self, index: int) -> str:
        return self.rows.key(index)

    def try_key(self, index: int) -> str:
        return self.rows.try_key(index)


def decode_key(stored: Buffer) -> str:
    """Decodes a stored key. Bytes that are not UTF-8 become surrogates, as in file names."""
    return bytes(stored).decode("utf-8", "surrogateescape")


def as_image_array(data: Buffer, column: Column, shape: tuple[int, ...], where: Callable[[], str]) -> NDArray[Any]:
    """Views the bytes of an image as an array ``(H, W, C)`` or ``(C, H, W)`` of the column's dtype. Copies nothing.

    Raises :class:`StoreError` if ``shape`` has not three dimensions or does not fit the bytes; the result of
    ``where`` names the record in the message.
    """
    flat: NDArray[Any] = np.frombuffer(data, NUMPY_DTYPE[column.dtype])
    if len(shape) != 3 or min(shape) < 0 or math.prod(shape) != flat.size or (not flat.size and max(shape) >= 1 << 31):
        raise StoreError(f"{where()} holds {flat.size} elements, not {shape}")
    return flat.reshape(shape)


class MappedPart(Part):
    """A part whose columns, images included, are arrays over one read-only map of the file.

    Arrays and memoryviews keep the map alive: they stay valid after :meth:`close` and after a fork.
    """

    has_image_array = True
    fewest_together = 32

    def __init__(self, path: Path, manifest: Manifest, data: Mapping[str, WholeColumn]) -> None:
        """``data`` holds every column of the manifest, of the right dtypes and shapes.

        Raises :class:`StoreError` if the first or last offset of a ragged column is wrong. :meth:`faults` checks all.
        """
        super().__init__(path, manifest)
        for column in manifest.container_columns:
            values = data[column.name]
            ends = (
                (int(values.offsets[0]), int(values.offsets[-1])) if isinstance(values, Ragged) else (0, column.nbytes)
            )
            if ends != (0, column.nbytes):
                raise StoreError(
                    f"{printable(str(path))}: column {column.name!r} has offsets from {ends[0]} to {ends[1]}, "
                    f"not from 0 to {column.nbytes}"
                )
        self._data: Mapping[str, WholeColumn] | None = data
        self._records = manifest.records
        image = data["image"]
        offsets: NDArray[np.int64] | None = None
        flat: NDArray[np.uint8] = np.empty(0, np.uint8)
        if isinstance(image, Ragged):
            offsets, flat = image.offsets, image.data
        elif image.size:
            flat = image.reshape(-1).view(np.uint8)
        raw = flat.data.toreadonly() if flat.size else memoryview(b"")
        # One attribute, so that a close in another thread removes all of it at once.
        self._images = offsets, raw, manifest.image.record_nbytes

    def view(self, index: int) -> memoryview:
        if not 0 <= index < self._records:
            raise IndexError(f"record {index} of {self._records}")
        offsets, raw, width = self._images
        if offsets is None:
            start = int(index) * width
            stop = start + width
        else:
            start, stop = int(offsets[index]), int(offsets[index + 1])
        if not 0 <= start <= stop <= len(raw):
            self._require_open()
            raise Fault(int(index), self.path, f"is at bytes {start} to {stop} of {len(raw)}: its offsets are damaged")
        return raw[start:stop]

    def locate(self, rows: NDArray[np.int64]) -> Spans:
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < self._records:
            raise IndexError(f"records {rows.min()} to {rows.max()} of {self._records}")
        offsets, raw, width = self._images
        if offsets is None:
            starts = rows * width
            stops = starts + width
        else:
            starts, stops = offsets[rows], offsets[rows + 1]
        wrong = (starts < 0) | (starts > stops) | (stops > len(raw))
        if wrong.any():
            self.view(int(rows[wrong.argmax()]))  # raises
        return Spans(raw, starts, stops - starts)

    def column(self, name: str) -> ColumnData:
        """Returns a column as arrays over the map. Raises :class:`KeyError` for an unknown name, and
        :class:`StoreError` if the part is closed.
        """
        data = self._require_open()
        self.manifest.column(name)  # raises a KeyError that lists the columns
        return data[name]

    def faults(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        """Yields faults of the offsets of ragged columns. Opening has checked the rest of the structure."""
        for column in self.manifest.columns:
            yield from check_offsets(column.name, self.column(column.name))

    def close(self) -> None:
        self._data = None
        self._images = None, memoryview(b""), 1  # reading finds the map too short

    def _require_open(self) -> Mapping[str, WholeColumn]:
        """Returns the arrays of all columns, or raises :class:`StoreError` if the part is closed."""
        data = self._data  # read once: another thread may close the part meanwhile
        if data is None:
            raise StoreError(f"{printable(str(self.path))} is closed")
        return data


MapArray = Callable[[str, str, tuple[int, ...]], NDArray[Any]]
"""Maps an array of a file by its name (see :attr:`Column.array_names`), the name of its dtype, and its shape."""


def map_column(column: Column, records: int, map_array: MapArray) -> WholeColumn:
    """Returns a column over the arrays that ``map_array`` returns."""
    if column.kind == "fixed":
        return map_array(column.name, column.dtype, (records, *column.shape))
    data = map_array(f"{column.name}/bytes", "uint8", (column.nbytes,))
    return Ragged(map_array(f"{column.name}/offsets", "int64", (records + 1,)), data)


def check_offsets(name: str, data: ColumnData, chunk: int = 1 << 20) -> Iterator[Problem]:
    """Yields a problem for each record of a ragged column whose offsets decrease or lie outside the data.

    Yields one also for wrong first or last offsets. Yields nothing for a fixed column.
    """
    if not isinstance(data, Ragged):
        return
    if int(data.offsets[0]) != 0 or int(data.offsets[-1]) != len(data.data):
        yield Problem(
            f"offsets of column {name!r} run from {int(data.offsets[0])} to {int(data.offsets[-1])}, "
            f"not from 0 to {len(data.data)}"
        )
    for start in range(0, len(data), chunk):
        part = data.offsets[start : start + chunk + 1]
        # Compared, not subtracted: a difference may not fit into 64 bits.
        bad = (part[1:] < part[:-1]) | (part[1:] > len(data.data)) | (part[:-1] < 0)
        for i in np.flatnonzero(bad).tolist():
            yield Problem(
                f"offsets of column {name!r} are {int(part[i])} and {int(part[i + 1])}, over {len(data.data)} bytes",
                record=start + i,
            )


def find_file_offset(view: memoryview) -> int | None:
    """Returns the offset in the mapped file at which a memoryview begins.

    Returns None if the view is empty, or not a view of a map.
    """
    place = _find_map(view)
    return None if place is None else place[1]


def read_ahead(view: Buffer) -> None:
    """Asks the operating system to read all of ``view`` from the disk, if it is a view of a mapped file.

    Only costs time, 6 µs or more, if the view is already in memory.
    """
    place = _find_map(view) if hasattr(mmap, "MADV_WILLNEED") and isinstance(view, memoryview) else None
    if place is not None:
        start = place[1] - place[1] % mmap.PAGESIZE
        place[0].madvise(mmap.MADV_WILLNEED, start, place[1] - start + len(view))


def _find_map(view: memoryview) -> tuple[mmap.mmap, int] | None:
    """Returns the map that holds a view and the view's offset in it, or None without one."""
    owner: Any = view
    while isinstance(owner, memoryview | np.ndarray):
        owner = owner.obj if isinstance(owner, memoryview) else owner.base
    if not isinstance(owner, mmap.mmap) or not len(view):
        return None
    first, start = (np.frombuffer(each, np.uint8).__array_interface__["data"][0] for each in (owner, view))
    return owner, int(start - first)

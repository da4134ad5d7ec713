"""The columns of a store that is being written: checked batch by batch, spooled to files, hashed, mapped at the end.

Also reads what a killed run left: its columns, and the images of a file that it has not finished.
"""

from __future__ import annotations

import dataclasses
import hashlib
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE, OFFSET, Buffer, ColumnData, Ragged, WholeColumn
from packstore.core.errors import StoreError, printable
from packstore.core.files import beyond_standard_streams, drop, open_file
from packstore.core.manifest import Column
from packstore.core.proof import ROW_CHECKSUM, column_digest, digest_ragged, hash_values, row_checksums


class _HashedFile:
    """A file that counts and hashes the bytes written to it.

    It is a new file at ``path``. If that is None, it is an unlinked file on the disk of ``directory``.
    """

    def __init__(self, directory: Path, path: Path | None = None) -> None:
        if path is not None:
            self.file = open_file(path, "x+b")
        else:
            with beyond_standard_streams():
                self.file = cast("IO[bytes]", tempfile.TemporaryFile(dir=directory))  # noqa: SIM115 - the owner closes
        self.nbytes = 0
        self.sha = hashlib.sha256()

    def write(self, data: Buffer) -> None:
        """Appends, hashes and counts data."""
        self.file.write(data)
        self.sha.update(data)
        self.nbytes += memoryview(data).nbytes

    def map_content(self) -> NDArray[np.uint8]:
        """Flushes and maps the file. Raises :class:`StoreError` if it is shorter than what was written."""
        self.file.flush()
        if not self.nbytes:
            return np.empty(0, np.uint8)
        try:
            mapped = mmap.mmap(self.file.fileno(), self.nbytes, access=mmap.ACCESS_READ)
        except ValueError as error:  # the file is shorter than what was written
            raise StoreError(f"a temporary file of the columns was changed by somebody else: {error}") from None
        return np.frombuffer(mapped, np.uint8)

    def check_content(self, name: str) -> None:
        """Reads the file again. Raises :class:`StoreError` naming the column if the content differs from what was
        written.
        """
        if hashlib.sha256(self.map_content().data).digest() != self.sha.digest():
            raise StoreError(
                f"the temporary file of column {name!r} does not hold what was written to it: another program wrote "
                "to it, or the disk is faulty; nothing is published, pack again"
            )

    def close(self) -> None:
        """Closes the file without writing buffered data. Idempotent."""
        drop(self.file)


class OffsetSpool(_HashedFile):
    """Collects the sizes of ragged values in a file, and returns the offsets. Does not take the values."""

    def __init__(self, directory: Path, path: Path | None = None) -> None:
        super().__init__(directory, path)
        self._end = 0
        self.write(np.zeros(1, OFFSET).data)

    def append(self, sizes: Iterable[int], count: int) -> None:
        """Appends the sizes of ``count`` values in bytes."""
        if count:
            ends = self._end + np.cumsum(np.fromiter(sizes, OFFSET, count), dtype=OFFSET)
            self.write(ends.data)
            self._end = int(ends[-1])

    def offsets(self) -> NDArray[np.int64]:
        """Maps the offsets: ``int64 (n + 1,)`` for ``n`` values. They stay valid after :meth:`close`.

        Raises :class:`StoreError` if the file does not hold what was appended.
        """
        self.check_content("image")
        return self.map_content().view(OFFSET)


class ColumnSpool:
    """Collects the values of one column batch by batch, and returns them as one mapped array.

    Values go to files: memory does not grow with their number. Unlinked files leave nothing behind if the process is
    killed. Files named after the column let another run resume. Returned arrays stay valid after :meth:`close`.

    Also checks and converts values before they are appended, and hashes the appended ones.
    """

    def __init__(self, column: Column, directory: Path, keep: Path | None = None) -> None:
        """Creates the files: unlinked ones on the disk of ``directory``, or named ones in the directory ``keep``."""
        self.column = column
        self.records = 0
        self._data = _HashedFile(directory, keep and keep / f"{column.name}.values")
        self._offsets: OffsetSpool | None = None
        if column.kind == "ragged":
            self._offsets = OffsetSpool(directory, keep and keep / f"{column.name}.offsets")

    def convert_values(self, values: Any, count: int) -> Any:
        """Converts ``values`` to the form that :meth:`append` takes.

        - Ragged column: a list of bytes or flat byte views.
        - Fixed column: an array ``(count, *shape)`` in the column's dtype. Rounds floats to a narrower dtype.

        Raises :class:`StoreError` for a wrong number, type, shape or range of values. Raises it also for a class number
        without a class in a fixed column.
        """
        name = self.column.name
        if self.column.kind == "ragged":
            items = to_flat_buffers(values, name)
            if len(items) != count:
                raise StoreError(f"column {name!r} needs {count} values, got {len(items)}")
            return items
        dtype = NUMPY_DTYPE[self.column.dtype]
        try:
            given = np.asarray(values)
            if given.size and not np.can_cast(given.dtype, dtype, "same_kind"):
                raise ValueError(f"{given.dtype} does not convert to it")
            array = np.ascontiguousarray(given.astype(dtype, copy=False)).reshape(given.shape)
            if dtype.kind in "iu" and dtype != given.dtype and not np.array_equal(array, given):
                raise ValueError("some values are out of its range")
        except (ValueError, TypeError, OverflowError) as error:
            raise StoreError(f"column {name!r} has dtype {self.column.dtype}: {error}") from None
        if array.shape != (count, *self.column.shape):
            raise StoreError(f"column {name!r} needs shape {(count, *self.column.shape)}, got {array.shape}")
        if self.column.classes is not None:
            check_classes(self.column, array)
        return array

    def append(self, values: Any, count: int) -> None:
        """Appends ``count`` values, in the form that :meth:`convert_values` returns. Checks nothing."""
        if self._offsets is None:
            self._data.write(values.data.cast("B") if values.size else b"")
        else:
            self._offsets.append(map(len, values), count)
            self._data.write(b"".join(values))
        self.records += count

    def map_values(self, start: int, stop: int) -> WholeColumn:
        """Maps the values of records ``start`` to ``stop - 1``. Offsets begin with 0.

        Raises :class:`StoreError` if another program has made a file shorter.
        """
        if self._offsets is None:
            dtype, width = NUMPY_DTYPE[self.column.dtype], self.column.record_nbytes
            raw = self._data.map_content()[start * width : stop * width]
            return raw.view(dtype).reshape(stop - start, *self.column.shape)
        offsets: NDArray[np.int64] = self._offsets.map_content().view(OFFSET)[start : stop + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        return Ragged(offsets - first if first else offsets, self._data.map_content()[first:last])

    def describe_values(self, start: int, stop: int, data: ColumnData) -> Column:
        """Returns the column with what depends on ``data``, the values of records ``start`` to ``stop - 1``.

        If these are all records, calls :meth:`check_spooled`, which may raise :class:`StoreError`.
        """
        values = data if isinstance(data, Ragged) else ()
        hides = self.column.traits.find_hidden_boxes(self.column, values)
        column = dataclasses.replace(self.column, hides_boxes=hides)
        if (start, stop) != (0, self.records):
            return describe_column(column, data)
        self.check_spooled()
        return dataclasses.replace(column, nbytes=self._data.nbytes, digest=self.digest())

    def digest(self) -> str:
        """Returns the digest of all values so far."""
        if self._offsets is None:
            return self._data.sha.hexdigest()
        return digest_ragged(self._offsets.sha.digest(), self._data.sha.digest())

    def check_spooled(self) -> None:
        """Reads the files again. Raises :class:`StoreError` if they do not hold the appended values any more."""
        for spool in (self._data, self._offsets):
            if spool is not None:
                spool.check_content(self.column.name)

    def flush(self) -> None:
        """Writes appended values from memory to the files. Does not sync the files to the disk."""
        self._data.file.flush()
        if self._offsets is not None:
            self._offsets.file.flush()

    def close(self) -> None:
        """Closes the files without writing buffered data. Idempotent."""
        self._data.close()
        if self._offsets is not None:
            self._offsets.close()


def describe_column(column: Column, data: ColumnData) -> Column:
    """Returns ``column`` with the size and digest of ``data``."""
    return dataclasses.replace(column, nbytes=data.nbytes, digest=column_digest(data))


def to_flat_buffers(values: Sequence[Buffer], name: str) -> list[bytes | memoryview]:
    """Views values of the ragged column ``name``, or images, as ``bytes`` or flat byte views. Copies nothing.

    ``len`` of a result is its number of bytes. Raises :class:`StoreError` for anything but bytes and contiguous
    buffers.
    """
    try:
        return [value if type(value) is bytes else _value_bytes(value) for value in values]
    except (TypeError, ValueError) as error:
        raise StoreError(f"values of {name!r} must be bytes or contiguous memoryviews: {error}") from None


def _value_bytes(value: Buffer) -> bytes | memoryview:
    """Views a value as flat bytes."""
    view = memoryview(value)
    return view.cast("B") if view.nbytes else b""  # a view with an empty dimension cannot be cast


def check_classes(column: Column, numbers: NDArray[Any]) -> None:
    """Raises :class:`StoreError` if one of ``numbers`` is negative, or not below the column's number of classes."""
    count = len(column.classes or ())
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < count:
        raise StoreError(
            f"column {column.name!r} has {count} classes (0 to {count - 1}), "
            f"got labels from {numbers.min()} to {numbers.max()}"
        )


def open_kept_column(column: Column, directory: Path) -> Callable[[int], Any]:
    """Opens the files of a column that a killed run kept. Returns a function that reads the value of a record.

    Raises :class:`StoreError` if a file cannot be read. The function raises it for a missing value. The function checks
    no value: the caller compares checksums.
    """
    mapped = _map_file(directory / f"{column.name}.values")
    width = column.record_nbytes
    if column.kind == "fixed":
        dtype = NUMPY_DTYPE[column.dtype]

        def read_fixed(record: int) -> Any:
            raw = mapped[record * width : (record + 1) * width]
            if len(raw) != width:
                raise StoreError(f"the interrupted run has no {column.name} of record {record}")
            return raw.copy().view(dtype).reshape(column.shape)

        return read_fixed
    ends = _map_file(directory / f"{column.name}.offsets")
    ends = ends[: len(ends) // OFFSET.itemsize * OFFSET.itemsize].view(OFFSET)

    def read_ragged(record: int) -> Any:
        start, stop = ends[record : record + 2].tolist() if record + 2 <= len(ends) else (0, -1)
        if not 0 <= start <= stop <= len(mapped):
            raise StoreError(f"the interrupted run has no {column.name} of record {record}")
        return mapped[start:stop].tobytes()

    return read_ragged


def map_consecutive_images(path: Path, start: int, sizes: NDArray[np.uint64]) -> Callable[[int], memoryview]:
    """Maps an unfinished file in which images of these ``sizes`` lie one after another, from offset ``start`` on.

    Returns a function that views an image by its number. The function raises :class:`StoreError` if the file ends
    before the image does. Raises :class:`StoreError` for an empty file, and :class:`OSError` if it cannot be opened.
    """
    ends = start + np.cumsum(sizes.astype(np.int64))
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            raise StoreError(f"{printable(str(path))} is empty")
        mapped = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))

    def image(number: int) -> memoryview:
        end = int(ends[number])
        if end > size:
            raise StoreError(f"{printable(str(path))} ends after {size} bytes, before image {number}")
        return mapped[end - int(sizes[number]) : end]

    return image


def _map_file(path: Path) -> NDArray[Any]:
    """Maps a file of a killed run, or raises :class:`StoreError` if it cannot be read."""
    try:
        return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
    except (OSError, ValueError) as error:
        raise StoreError(f"{printable(str(path))} of the interrupted run cannot be read: {error}") from None


BATCH_RECORDS, BATCH_BYTES = 1024, 8 << 20
"""Most records, and about the most bytes, of a batch that is read from a store."""
KEY_HASHES = Column("keyhash", "fixed", "uint64")
"""Hashes of the keys: a column that finds equal keys, and is not stored."""


def prepare_batch(
    columns: Sequence[Column],
    spools: Mapping[str, ColumnSpool],
    buffers: Sequence[bytes | memoryview],
    sizes: Sequence[int],
    values: Mapping[str, Any],
    checksums: NDArray[np.uint64] | None,
    first: int,
) -> dict[str, Any]:
    """Checks a batch and converts it to the values for each spool, by column.

    Adds image checksums, row checksums and key hashes.

    Args:
        columns: Columns of the store, ``image`` first.
        spools: Spools of all columns but ``image``.
        buffers: Images of the records.
        sizes: Bytes of each image.
        values: Values of all columns but ``image`` and ``checksum``, as :meth:`StoreBuilder.append` takes them.
        checksums: Checksums of the images; None computes them.
        first: Number of the first record, for messages.

    Raises:
        StoreError: Columns are missing or unknown, or values do not fit their column or each other.
    """
    image, count = columns[0], len(buffers)
    if image.kind == "fixed":
        wrong = next((i for i, size in enumerate(sizes) if size != image.record_nbytes), None)
        if wrong is not None:
            raise StoreError(
                f"record {first + wrong} has {sizes[wrong]} bytes, not {image.record_nbytes} "
                f"({image.dtype} {image.shape})"
            )
    given = dict(values)
    needed = {c.name for c in columns[1:]} - {"checksum", ROW_CHECKSUM.name}
    if given.keys() != needed:
        raise StoreError(f"values of the columns {sorted(needed)} are needed, got {sorted(given)}")
    for column in columns[1:]:
        if column.kind == "ragged":
            try:
                given[column.name] = [
                    v.encode("utf-8", "surrogateescape") if isinstance(v, str) else v for v in given[column.name]
                ]
            except UnicodeEncodeError as error:
                raise StoreError(f"a value of column {column.name!r} cannot be stored: {error}") from None
    if checksums is None:
        checksums = hash_values(buffers, count)
    given["checksum"] = checksums
    checked = {name: spools[name].convert_values(given[name], count) for name in given}
    hashes = {c.name: hash_values(checked[c.name], count) for c in columns[1:] if c.kind == "ragged"}
    checked[KEY_HASHES.name] = hashes["key"]
    checked[ROW_CHECKSUM.name] = row_checksums(columns, checked | hashes, count)
    check_batch(columns, checked, sizes, first)
    return checked


def check_batch(columns: Sequence[Column], values: Mapping[str, Any], image_sizes: Sequence[int], first: int) -> None:
    """Checks that the values of each record fit together:

    - Ragged values fit their shape or width.
    - Class numbers of a ragged column have a class.
    - A missing value is empty or zero.
    - Parallel columns, such as boxes and their labels, have equally many rows.

    Raises :class:`StoreError` naming the first record that does not fit. For a class number without a class, it names
    only the column.

    Args:
        columns: Columns of the store, ``image`` first.
        values: Values by column, as :meth:`ColumnSpool.convert_values` returns them.
        image_sizes: Bytes of each image.
        first: Number of the first record, for messages.
    """
    by_name = {column.name: column for column in columns}
    parallel = {column.parallel for column in columns}
    sizes: dict[str, NDArray[np.int64]] = {}
    for column in columns:
        restricted = column.layout or column.record_nbytes > 1 or column.classes is not None or column.nullable
        if column.kind == "ragged" and (restricted or column.name in parallel):  # not keys and image files
            given = image_sizes if column.name == "image" else list(map(len, values[column.name]))
            sizes[column.name] = np.array(given, np.int64)
    for column in columns:
        if column.name in sizes:
            _check_ragged(column, values, sizes[column.name], first)
        if column.nullable:
            filled = sizes[column.name] > 0 if column.kind == "ragged" else _nonzero_mask(values[column.name])
            what = f"has a value of {column.name!r}, which {column.valid_name!r} says is missing"
            _raise_for_first(filled & ~values[column.valid_name], first, what)
        if column.parallel is not None:
            boxes = by_name[column.parallel]
            wanted = sizes[boxes.name] // boxes.record_nbytes
            rows = np.array([column.traits.count_rows(column, value) for value in values[column.name]], np.int64)
            what = f"has {{}} rows of {column.name!r}, and {{}} of {boxes.name!r}"
            _raise_for_first(rows != wanted, first, what, rows, wanted)


def _check_ragged(column: Column, values: Mapping[str, Any], sizes: NDArray[np.int64], first: int) -> None:
    """Raises :class:`StoreError` if values of a ragged column do not fit their shapes, widths or classes."""
    where = "" if column.name == "image" else f" of {column.name!r}"
    width = column.record_nbytes
    if column.layout is not None:
        shapes = values[column.shape_name]
        wrong = (shapes.astype(np.int64).prod(axis=1) * width != sizes) | (shapes < 0).any(axis=1)
        wrong |= shapes.astype(np.float64).prod(axis=1) > 2**62  # the int64 product may have overflowed
        _raise_for_first(wrong, first, f"has {{}} bytes{where}, not shape {{}}", sizes, shapes)
    elif width > 1:
        _raise_for_first(sizes % width != 0, first, f"has {{}} bytes{where}, not a multiple of {width}", sizes)
    if column.classes is not None:
        numbers: NDArray[np.int64] = np.frombuffer(b"".join(values[column.name]), NUMPY_DTYPE[column.dtype])
        check_classes(column, numbers)


def _nonzero_mask(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Returns a mask of the values of a fixed column that have a nonzero byte."""
    flat = values.reshape(len(values), -1)
    return np.any(flat.view(np.uint8), axis=1) if flat.size else np.zeros(len(values), np.bool_)


def _raise_for_first(wrong: NDArray[np.bool_], first: int, what: str, *values: NDArray[Any]) -> None:
    """Raises :class:`StoreError` with ``what``, a template for ``values``, for the first record that is ``wrong``."""
    places = np.flatnonzero(wrong)
    if len(places):
        i = int(places[0])
        raise StoreError(f"record {first + i} {what.format(*(each[i] for each in values))}")

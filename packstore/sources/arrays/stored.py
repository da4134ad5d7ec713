"""Named arrays of a file, read block by block."""

from __future__ import annotations

import math
import os
import re
import struct
import threading
import zlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable

# Errors of libraries and parsers for damaged files.
FAULTS = (OSError, ValueError, TypeError, LookupError, RuntimeError, EOFError, struct.error, zlib.error, BadZipFile)

_LAYOUT = re.compile(r"([NHWC]{3,4})(?::(\d{1,6}(?:x\d{1,6}){1,2}))?")
_STEP = 1 << 20
_BLOCK_BYTES = 1 << 20
_STRIDED_BLOCK_BYTES = 32 << 20  # for rows that are scattered over the array, so that each block is a pass over it
_KEPT_BYTES = 64 << 20
_MAX_CHUNK_BYTES = 1 << 30
_BYTE = np.dtype("u1")
_MAX_RATIO, _MAX_UNWRITTEN = 1100, 1 << 28
# Most chunks of a block: a library may take some kilobytes for each, written or not.
_BLOCK_CHUNKS = 1024


# Reads bytes of a file, given size and offset.
ReadRange = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """Description of an array, known before it is read.

    Attributes:
        name: Its name in the file. An array without a name has the name of the file, without suffix.
        shape: Shape in the file. If :attr:`flat` is set, the shape with height and width.
        dtype: Dtype of its numbers; without meaning for other content.
        content: Numbers, files (bytes of any length, such as encoded images), texts, or unreadable values.
        chunk: Rows along the first axis that have to be read together.
        alone: The file holds this array alone, without a name.
        reversed: MATLAB wrote the file, with the axes in reverse order.
        by_columns: Values are in MATLAB's order, with the first axis the fastest.
        flat: Each image is one row or column of a matrix in the file.
        why: Reason why it is unreadable.
        file: Path of its file, relative to the source; ``""`` if the source is that file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] = _BYTE
    content: Literal["numbers", "files", "texts", "unreadable"] = "numbers"
    chunk: int = 1
    alone: bool = False
    reversed: bool = False
    by_columns: bool = False
    flat: bool = False
    why: str = ""
    file: str = ""

    @property
    def shown(self) -> str:
        """Description for people: ``x_train (60000, 28, 28) uint8``."""
        where = f"{self.file}: " if self.file and not self.alone else ""
        kind = str(self.dtype) if self.content == "numbers" else self.content
        return printable(f"{where}{self.name} {self.shape} {kind}")

    @classmethod
    def of_numbers(cls, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], chunk: int = 1) -> ArrayInfo:
        """Describes an array of numbers, or an unreadable one if no column holds its dtype."""
        if dtype.kind in "uifb" and dtype.itemsize <= 8:
            return cls(name, shape, dtype, "numbers", chunk)
        return cls.unreadable(name, shape, f"{printable(name)} holds {dtype}, for which there is no type of column")

    @classmethod
    def unreadable(cls, name: str, shape: tuple[int, ...], why: str) -> ArrayInfo:
        """Describes an array that cannot be read, for the reason ``why``."""
        return cls(name, shape, content="unreadable", why=why)


@dataclass(frozen=True, slots=True)
class ColumnArray:
    """Array of a column, with the meaning of its axes.

    Attributes:
        file: Number of its file.
        info: Description of the array.
        axis: Axis of the samples.
        order: Axes of an image as ``(height, width[, channel])``; ``()`` for other columns.
    """

    file: int
    info: ArrayInfo
    axis: int = 0
    order: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        """Number of samples."""
        return self.info.shape[self.axis]

    @property
    def file_axis(self) -> int:
        """Axis of the samples in the file."""
        return min(self.axis, 1) if self.info.flat else self.axis


@dataclass(slots=True)
class FileArray(ABC):
    """Array of an open file.

    Attributes:
        info: Description of the array; :attr:`ArrayInfo.file` is empty.
    """

    info: ArrayInfo

    @abstractmethod
    def read_rows(self, axis: int, start: int, stop: int) -> NDArray[Any]:
        """Reads rows ``start`` to ``stop`` along ``axis``; the result has the array's axes in their order. Files and
        texts become an array of objects. Called by one thread at a time. Raises :class:`OSError` or
        :class:`ValueError` for damaged values."""

    def read_all(self) -> NDArray[Any]:
        """Reads all rows along the first axis, as :meth:`read_rows` does."""
        return self.read_rows(0, 0, self.info.shape[0])

    def list_written(self) -> tuple[Sequence[int], Iterable[Sequence[int]]] | None:
        """Returns the shape of the chunks of numbers, and the positions in their grid of those that were written.
        Returns None if all were, and in this base."""
        return None

    def find_unwritten(self, axis: int) -> tuple[int, NDArray[np.bool_]]:
        """Returns the number of chunks that were never written, and a mask of the samples without any written chunk."""
        found = self.list_written() if self.info.content == "numbers" else None
        if found is None:
            return 0, np.zeros(self.info.shape[axis], np.bool_)
        (chunk, places), shape = found, self.info.shape
        counts = [-(-size // step) for size, step in zip(shape, chunk, strict=True)]
        written = np.zeros(counts[axis], np.int64)
        for place in places:
            if all(0 <= number < count for number, count in zip(place, counts, strict=True)):
                written[place[axis]] += 1
        missing = math.prod(counts) - int(written.sum())
        return missing, np.repeat(written == 0, chunk[axis])[: shape[axis]]


@dataclass(slots=True)
class _ArrayInMemory(FileArray):
    """Array in memory."""

    values: NDArray[Any]

    def read_rows(self, axis: int, start: int, stop: int) -> NDArray[Any]:
        return self.values[(slice(None),) * axis + (slice(start, stop),)]


class OpenArrays(ExitStack):
    """Open file of named arrays. Its format fills it, and adds what :meth:`close` has to close.

    Attributes:
        arrays: The arrays by name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.arrays: dict[str, FileArray] = {}

    def add(self, name: str, values: NDArray[Any]) -> None:
        """Adds an array in memory."""
        self.arrays[name] = _ArrayInMemory(ArrayInfo(name, values.shape, values.dtype), values)

    def put(self, name: str, array: FileArray, **changes: Any) -> None:
        """Adds an array under another name, with ``changes`` of its description."""
        self.arrays[name] = replace(array, info=replace(array.info, name=name, **changes))

    def open_plain(self, path: Path) -> ReadRange:
        """Opens a file for reading until :meth:`close`, see :func:`_read_at`. Raises :class:`OSError`."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.callback(os.close, descriptor)
        return partial(_read_at, descriptor)


@dataclass(slots=True)
class StoredArray(FileArray):
    """Array whose values are one range of bytes.

    Attributes:
        read: Reads bytes of its file. Raises :class:`OSError` or :class:`ValueError` for damaged or missing ones.
        offset: Offset of the first value.
        fortran: The first axis is the fastest, else the last.
    """

    read: ReadRange
    offset: int = 0
    fortran: bool = False

    def read_rows(self, axis: int, start: int, stop: int) -> NDArray[Any]:
        info = self.info
        shape = info.shape[::-1] if self.fortran else info.shape
        axis = len(shape) - 1 - axis if self.fortran else axis
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :]) * info.dtype.itemsize
        size = (stop - start) * inner
        parts = [self.read(size, self.offset + (row * shape[axis] + start) * inner) for row in range(outer)]
        if any(len(part) != size for part in parts):
            raise ValueError(f"its file ends before {info.name} {stop}")
        values = np.frombuffer(b"".join(parts), info.dtype).reshape(*shape[:axis], stop - start, *shape[axis + 1 :])
        if info.content == "texts":
            return object_array([str(item) if values.dtype.kind == "U" else bytes(item) for item in values])
        return values.T if self.fortran else values


def verify_first(
    name: str, read: ReadRange, size: int, crc: int | None = None, end: Callable[[], int] | None = None
) -> ReadRange:
    """Returns a function that reads like ``read``, and proves the data first. Its first call reads all ``size``
    bytes, and raises :class:`ValueError` if they end elsewhere than ``end`` returns, or have another CRC-32 than
    ``crc``.
    """
    verified = False

    def read_verified(nbytes: int, offset: int) -> bytes:
        nonlocal verified
        if not verified:
            found = 0
            try:
                for start in range(0, size, _STEP):
                    found = zlib.crc32(read(min(_STEP, size - start), start), found)
                if crc not in (None, found) or (end is not None and end() != size):
                    raise ValueError(f"its CRC-32 is {found:08x}, or it has not {size:,} bytes")
            except (ValueError, EOFError, zlib.error) as error:
                raise ValueError(f"{name} is damaged: {error}") from None
            verified = True
        return read(nbytes, offset)

    return read_verified


class BlockCache:
    """Reads rows of arrays in several files, and caches blocks of rows. A compressed chunk is decompressed once. Keeps
    at most ``max_open`` files open. :meth:`read_row` is thread-safe."""

    def __init__(self, files: Sequence[Path], open_file: Any, max_open: int = 8) -> None:
        """``open_file`` opens a path as :class:`OpenArrays`."""
        self._paths = files
        self._open_file = open_file
        self._max_open = max_open
        self._lock = threading.Lock()
        self._open: OrderedDict[int, OpenArrays] = OrderedDict()
        self._kept: OrderedDict[tuple[int, str, int], NDArray[Any]] = OrderedDict()
        self._kept_bytes = 0

    def open_file(self, number: int) -> OpenArrays:
        """Returns file number ``number``, opened if it is not open. May close the file that was used least recently.
        The caller holds the lock, or is the only thread. Raises the errors of opening."""
        file = self._open.get(number)
        if file is None:
            while len(self._open) >= self._max_open:
                self._open.popitem(last=False)[1].close()
            file = self._open[number] = self._open_file(self._paths[number])
        self._open.move_to_end(number)
        return file

    def read_row(self, chosen: ColumnArray, row: int, columns: int) -> Any:
        """Reads a row of an array from its cached block, images with axes ``(height, width[, channel])``.

        The caller must not change the row. If the block is damaged, reads the row's chunk alone. ``columns`` is the
        number of arrays that are read side by side; at least twice as many blocks stay in the cache. Raises
        :class:`OSError` or :class:`ValueError` for a damaged chunk.
        """
        rows = rows_per_block(chosen.info, chosen.axis)
        key = (chosen.file, chosen.info.name, row // rows)
        with self._lock:
            block = self._kept.get(key)
            if block is None:
                try:
                    block = self._read_block(chosen, row // rows * rows, rows)
                except (OSError, ValueError):  # read one chunk alone, so that only the rows of the damaged one are lost
                    rows = chosen.info.chunk
                    block = self._read_block(chosen, row // rows * rows, rows)
                else:
                    self._cache_block(key, block, 2 * columns)
            else:
                self._kept.move_to_end(key)
        return block[row % rows]

    def _read_block(self, chosen: ColumnArray, start: int, rows: int) -> NDArray[Any]:
        """Reads ``rows`` rows of an array, fewer at its end, with the samples along the first axis."""
        info, axis = chosen.info, chosen.axis
        stop = min(start + rows, info.shape[axis])
        array = self.open_file(chosen.file).arrays[info.name]
        block = array.read_rows(chosen.file_axis, start, stop)
        if info.flat:
            # Each row becomes an image with height and width.
            shape = (*info.shape[:axis], stop - start, *info.shape[axis + 1 :])
            block = block.reshape(shape, order="F" if info.by_columns else "C")
        if chosen.order:  # much faster for all images together
            block = _move_axes(block, (axis, *chosen.order))
            block.setflags(write=False)
        return block

    def _cache_block(self, key: tuple[int, str, int], block: NDArray[Any], least: int) -> None:
        """Adds a block to the cache, and drops old ones over 64 MiB, but not the last ``least``."""
        self._kept[key] = block
        self._kept_bytes += _block_bytes(block)
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > least:
            self._kept_bytes -= _block_bytes(self._kept.popitem(last=False)[1])

    def close(self) -> None:
        """Closes all files, and drops all blocks."""
        with self._lock:
            for each in self._open.values():
                each.close()
            self._open.clear()
            self._kept.clear()
            self._kept_bytes = 0


def object_array(items: Sequence[Any]) -> NDArray[Any]:
    """Makes an array of Python objects ``(N,)`` from a sequence. NumPy would make further axes from nested
    sequences."""
    array = np.empty(len(items), object)
    array[:] = items
    return array


def decode_text(text: Any) -> str:
    """Decodes bytes as UTF-8, and converts any other value to a text. Raises :class:`ValueError` if the bytes are not
    UTF-8."""
    return text.decode("utf-8") if isinstance(text, bytes) else str(text)


def _move_axes(block: NDArray[Any], axes: tuple[int, ...]) -> NDArray[Any]:
    """Returns a contiguous array with the axes in another order; a view if the order is the same."""
    moved = block.transpose(axes)
    if moved.flags.c_contiguous or moved.ndim != 4 or moved.shape[3] > 4:
        return np.ascontiguousarray(moved)
    result = np.empty(moved.shape, moved.dtype)
    for channel in range(moved.shape[3]):  # four times as fast as one copy
        result[..., channel] = moved[..., channel]
    return result


def _block_bytes(block: NDArray[Any]) -> int:
    """Returns the bytes of a block; of objects, the sum of their lengths."""
    return sum(len(item) for item in block) if block.dtype == object else block.nbytes


def rows_per_block(info: ArrayInfo, axis: int) -> int:
    """Returns the number of rows to read at a time.

    - Files and texts: 8.
    - Numbers: 1 to 1,024 whole chunks, up to 1 MiB together.
    - Numbers in scattered rows (``axis`` above 0): at most 1,024 rows and up to 32 MiB.

    Raises :class:`SourceError` if one row or chunk exceeds 1 GiB.
    """
    if info.content != "numbers":
        return 8
    row = bytes_per_row(info, axis)
    chunk = info.chunk if axis == 0 else 1
    if row * chunk > _MAX_CHUNK_BYTES:
        raise SourceError(
            f"{info.shown}: {row * chunk:,} bytes have to be read at a time, more than {_MAX_CHUNK_BYTES:,}; write it "
            "again with smaller chunks"
        )
    target = _BLOCK_BYTES if axis == 0 else _STRIDED_BLOCK_BYTES
    return max(1, min(target // max(1, row) // chunk, _BLOCK_CHUNKS)) * chunk


def may_be_written(nbytes: int, stored: Iterable[int]) -> bool:
    """Tells if parts of so many stored bytes can hold an array of ``nbytes``. Compression saves at most a factor of
    1,100, as deflate. Further 256 MiB may be missing: parts that equal the fill value need not be stored."""
    found = _MAX_UNWRITTEN
    for size in stored:
        if found >= nbytes:
            break
        found += size * _MAX_RATIO
    return found >= nbytes


def parse_layout(layout: str | None) -> tuple[str, tuple[int, ...]] | None:
    """Splits a layout ``NHW:28x28`` into its axes, and the sizes of all axes but N, ``()`` without sizes. Returns None
    for None, and for a text that is no order of axes."""
    match = _LAYOUT.fullmatch(layout or "")
    if match is None or sorted(match[1]) not in (sorted("NHW"), sorted("NHWC")):
        return None
    sizes = tuple(map(int, match[2].split("x"))) if match[2] else ()
    fits = not sizes or (len(sizes) == len(match[1]) - 1 and "N" in (match[1][0], match[1][-1]))
    return (match[1], sizes) if fits else None


def bytes_per_row(info: ArrayInfo, axis: int) -> int:
    """Returns the bytes of one row of numbers, for rows along ``axis``."""
    return info.dtype.itemsize * math.prod(size for place, size in enumerate(info.shape) if place != axis)


def _read_at(descriptor: int, size: int, place: int) -> bytes:
    """Reads exactly ``size`` bytes at offset ``place`` of an open file."""
    if place < 0 or place + size > os.fstat(descriptor).st_size:
        raise ValueError(f"the file has no {size} bytes at byte {place}: it was cut off, or is damaged")
    data = os.pread(descriptor, size, place)
    if len(data) != size:
        raise ValueError(f"the file ends {size - len(data)} bytes before it should: it was cut off")
    return data

"""Named arrays of a file, and reading them block by block."""

from __future__ import annotations

import math
import os
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, printable

_BLOCK_BYTES = 1 << 20
_STRIDED_BLOCK_BYTES = 32 << 20  # whose rows lie all over the array: each block is a pass over it
_KEPT_BYTES = 64 << 20
_MAX_CHUNK_BYTES = 1 << 30
_MAX_ROW_BYTES = 1 << 30
_BLOCK_CHUNKS = 1024
"""Chunks of a block, at most: a library may take some kilobytes for each, whether or not it was written."""


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """What is known of an array before it is read.

    Attributes:
        file: Its file, relative to the source; ``""`` where the source is that file.
        name: Its name in the file; of an array that is a file of its own, the file's name without the suffix.
        shape: As it lies there.
        dtype: Of its numbers; of no meaning for what is no number.
        what: Numbers, files (bytes of any length each, such as encoded images), texts, or something that cannot be
            read, which :attr:`why` says.
        chunk: Rows along the first axis that have to be read together.
        alone: The array is a file of its own.
        reversed: MATLAB wrote it, whose axes are in reverse order in the file.
        by_columns: Its first axis is the fastest, as MATLAB flattens images.
        flat: It lies there as a matrix, whose other axis than that of the samples is all axes of an image.
        why: Why it cannot be read.
    """

    file: str
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    what: Literal["numbers", "files", "texts", "nothing"] = "numbers"
    chunk: int = 1
    alone: bool = False
    reversed: bool = False
    by_columns: bool = False
    flat: bool = False
    why: str = ""

    @property
    def shown(self) -> str:
        """For people: ``x_train (60000, 28, 28) uint8``."""
        where = f"{self.file}: " if self.file and not self.alone else ""
        kind = str(self.dtype) if self.what == "numbers" else self.what
        return printable(f"{where}{self.name} {self.shape} {kind}")


@dataclass(frozen=True, slots=True, eq=False)
class Unwritten:
    """What of an array was never written, so that its format reads fill values there.

    Attributes:
        chunks: Number of chunks.
        rows: By row along the axis of the samples: none of its chunks was written.
    """

    chunks: int
    rows: NDArray[np.bool_]


def find_unwritten(
    shape: Sequence[int], chunk: Sequence[int], axis: int, places: Iterable[Sequence[int]]
) -> Unwritten | None:
    """Compares the chunks that there are, by their places in the grid, with those that the shape takes."""
    counts = [-(-size // step) for size, step in zip(shape, chunk, strict=True)]
    written = np.zeros(counts[axis], np.int64)
    for place in places:
        if all(0 <= number < count for number, count in zip(place, counts, strict=True)):
            written[place[axis]] += 1
    missing = math.prod(counts) - int(written.sum())
    return Unwritten(missing, np.repeat(written == 0, chunk[axis])[: shape[axis]]) if missing else None


class OpenArrays(ABC):
    """The arrays of an open file."""

    @abstractmethod
    def infos(self) -> Sequence[ArrayInfo]:
        """All arrays, with an empty :attr:`ArrayInfo.file`. Raises :class:`SourceError`."""

    @abstractmethod
    def read(self, name: str, axis: int, start: int, stop: int) -> NDArray[Any]:
        """A part of an array along an axis; of files and texts an array of objects. Called by one thread at a time.

        Raises :class:`OSError` or :class:`ValueError`."""

    def attributes(self, name: str) -> Mapping[str, Any]:
        """The attributes of an array or a group (``""``: the file) that may name classes, see
        :data:`packstore.sources.arrays.classes.ATTRIBUTES`."""
        return {}

    def unwritten(self, name: str, axis: int) -> Unwritten | None:
        """What of an array of numbers was never written; None where all was, and for files that keep no such gaps."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Closes the file. Idempotent."""


class Blocks:
    """Rows of the arrays of several files. A block of rows is read at a time, and a few of them are kept, so that a
    compressed chunk is decompressed once. Safe for several threads."""

    def __init__(self, files: Sequence[Path], open_file: Any, max_open: int = 8) -> None:
        """``open_file`` makes :class:`OpenArrays` of a path."""
        self._paths = files
        self._open_file = open_file
        self._max_open = max_open
        self._lock = threading.Lock()
        self._open: OrderedDict[int, OpenArrays] = OrderedDict()
        self._kept: OrderedDict[tuple[int, str, int], NDArray[Any]] = OrderedDict()
        self._kept_bytes = 0

    def file(self, number: int) -> OpenArrays:
        """An open file; the lock is held by the caller, or there is one thread."""
        found = self._open.get(number)
        if found is None:
            found = self._open[number] = self._open_file(self._paths[number])
            while len(self._open) > self._max_open:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(number)
        return found

    def row(self, number: int, info: ArrayInfo, axis: int, row: int, columns: int) -> Any:
        """One row of an array along ``axis``, not to be changed. ``columns``: how many arrays are read side by side."""
        rows = block_rows(info, axis)
        key = (number, info.name, row // rows)
        with self._lock:
            block = self._kept.get(key)
            if block is None:
                start = row // rows * rows
                try:
                    block = self._read(number, info, axis, start, rows)
                except (OSError, ValueError):  # so that only the rows of what is damaged are lost
                    rows, start = info.chunk, row // info.chunk * info.chunk
                    block = self._read(number, info, axis, start, rows)
                else:
                    self._keep(key, block, 2 * columns)
            else:
                self._kept.move_to_end(key)
        return block[(slice(None),) * axis + (row % rows,)]

    def _read(self, number: int, info: ArrayInfo, axis: int, start: int, rows: int) -> NDArray[Any]:
        stop = min(start + rows, info.shape[axis])
        found = self.file(number).read(info.name, min(axis, 1) if info.flat else axis, start, stop)
        shape = (*info.shape[:axis], stop - start, *info.shape[axis + 1 :])
        return found.reshape(shape, order="F" if info.by_columns else "C") if info.flat else found

    def _keep(self, key: tuple[int, str, int], block: NDArray[Any], least: int) -> None:
        self._kept[key] = block
        self._kept_bytes += _nbytes(block)
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > least:
            self._kept_bytes -= _nbytes(self._kept.popitem(last=False)[1])

    def close(self) -> None:
        with self._lock:
            for each in self._open.values():
                each.close()
            self._open.clear()
            self._kept.clear()
            self._kept_bytes = 0


def _nbytes(block: NDArray[Any]) -> int:
    return sum(len(item) for item in block) if block.dtype == object else block.nbytes


def block_rows(info: ArrayInfo, axis: int) -> int:
    """How many rows of an array are read at a time. Raises :class:`SourceError` for one whose chunks are too large."""
    if info.what != "numbers":
        return 8
    row = row_bytes(info, axis)
    chunk = info.chunk if axis == 0 else 1
    if row > _MAX_ROW_BYTES or row * chunk > _MAX_CHUNK_BYTES:
        raise SourceError(
            f"{info.shown}: {row * chunk:,} bytes have to be read at a time, more than {_MAX_CHUNK_BYTES:,}; write it "
            "again with smaller chunks"
        )
    target = _BLOCK_BYTES if axis == 0 else _STRIDED_BLOCK_BYTES
    return max(1, min(target // max(1, row) // chunk, _BLOCK_CHUNKS)) * chunk


def row_bytes(info: ArrayInfo, axis: int) -> int:
    """Bytes of a row of numbers."""
    total = info.dtype.itemsize
    for place, size in enumerate(info.shape):
        total *= 1 if place == axis else size
    return total


def read_at(descriptor: int, size: int, place: int) -> bytes:
    """Exactly ``size`` bytes of a file. Raises :class:`OSError`, and :class:`ValueError` where it ends before."""
    if place < 0 or place + size > os.fstat(descriptor).st_size:
        raise ValueError(f"{size} bytes at byte {place} do not lie in the file: it was cut off, or is damaged")
    data = os.pread(descriptor, size, place)
    while len(data) < size and (more := os.pread(descriptor, size - len(data), place + len(data))):
        data += more
    if len(data) != size:
        raise ValueError(f"the file ends {size - len(data)} bytes before it should: it was cut off")
    return data

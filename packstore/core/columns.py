"""Columns in memory: ragged and lazy columns, conversion of values to and from their stored form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from packstore.core.column import Column
from packstore.core.column_types.forms import NUMPY_DTYPE as NUMPY_DTYPE
from packstore.core.column_types.forms import Buffer as Buffer
from packstore.core.column_types.forms import bfloat16_bits as bfloat16_bits
from packstore.core.errors import StoreError

OFFSET = np.dtype("<i8")
"""The numpy dtype of a ragged column's offsets."""
_OFFSETS_AT_ONCE = 16384


class MappedValues(Sequence[memoryview]):
    """Sequence of byte ranges of a memory map. Each item is a memoryview, made on access, and keeps the map open."""

    def __init__(self, data: memoryview, address: int, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """
        Args:
            data: The map.
            address: Address of its first byte.
            starts: Offset of each range in ``data``, ``(N,)``.
            sizes: Size of each range in bytes, ``(N,)``.
        """
        self._data = data
        self._address = address
        self._starts = starts
        self._sizes = sizes

    @property
    def places(self) -> NDArray[np.int64]:
        """Memory address and size in bytes of each range: int64 ``(N, 2)``."""
        return np.stack([self._address + self._starts, self._sizes], 1)

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[memoryview]:
        for start, size in zip(self._starts.tolist(), self._sizes.tolist(), strict=True):
            yield self._data[start : start + size]

    @overload
    def __getitem__(self, index: int) -> memoryview: ...
    @overload
    def __getitem__(self, index: slice) -> MappedValues: ...
    def __getitem__(self, index: int | slice) -> memoryview | MappedValues:
        if isinstance(index, slice):
            return MappedValues(self._data, self._address, self._starts[index], self._sizes[index])
        start = int(self._starts[index])
        return self._data[start : start + int(self._sizes[index])]


class Ragged(Sequence[memoryview]):
    """A ragged column: value ``i`` is ``data[offsets[i]:offsets[i + 1]]``.

    Access to a value raises :class:`StoreError` if its offsets are out of range.
    """

    def __init__(self, offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> None:
        self._offsets = offsets
        self._data = data

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Offsets in bytes, ``int64 (N + 1,)``. They begin with 0 and do not decrease unless damaged; not checked
        here."""
        return self._offsets

    @property
    def data(self) -> NDArray[np.uint8]:
        """All values one after the other: ``uint8``, shape ``(offsets[-1],)``."""
        return self._data

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return len(self._data)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def places(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns memory address and size in bytes of values, int64 ``(N, 2)``. They are valid while :attr:`data`
        exists.

        Raises :class:`StoreError` if an offset is out of range.
        """
        start, stop = self._offsets[numbers], self._offsets[numbers + 1]
        if ((start < 0) | (start > stop) | (stop > len(self._data))).any():
            raise StoreError("offsets of values are out of range")
        return np.stack([self._data.ctypes.data + start, stop - start], 1)

    def __getitem__(self, index: Any) -> Any:
        """Returns the bytes of value ``index`` as a memoryview; no copy. Does not support negative numbers.

        Raises :class:`StoreError` if its offsets are out of range.
        """
        offsets, data = self._offsets, self._data
        start, stop = int(offsets[index]), int(offsets[index + 1])
        # numpy would cut a wrong range short without an error.
        if not 0 <= start <= stop <= len(data):
            raise StoreError(f"offsets of value {index} are out of range: {start}, {stop} of {len(data)} bytes")
        return data[start:stop].data

    def __iter__(self) -> Iterator[memoryview]:
        return self.iterate(0, len(self))

    def iterate(self, start: int, stop: int) -> Iterator[memoryview]:
        """Yields values ``start`` to ``stop - 1``, several times faster than one by one.

        Raises :class:`StoreError` at a value whose offsets are out of range.
        """
        data = self._data.data
        for first in range(start, stop, _OFFSETS_AT_ONCE):
            offsets = self._offsets[first : min(first + _OFFSETS_AT_ONCE, stop) + 1].tolist()
            for number, (begin, end) in enumerate(pairwise(offsets), first):
                yield data[begin:end] if 0 <= begin <= end <= len(data) else self[number]  # which raises


class LazyRagged(Ragged):
    """A ragged column that reads each value on access.

    A loop over the values holds one at a time; :attr:`data` loads all of them. A negative index raises
    :class:`IndexError`.
    """

    def __init__(self, count: int, read: Callable[[int], Buffer]) -> None:
        """``read`` returns the bytes of a value by its number, 0 to ``count - 1``."""
        self._count = count
        self._read = read

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Computes the offsets of :class:`Ragged`. Each access reads all values, to learn their sizes."""
        sizes = np.fromiter((memoryview(value).nbytes for value in self), OFFSET, self._count)
        return np.concatenate([np.zeros(1, OFFSET), np.cumsum(sizes, dtype=OFFSET)])

    @property
    def data(self) -> NDArray[np.uint8]:
        """Reads all values into memory, one after the other, at each access."""
        return np.frombuffer(b"".join(self), np.uint8)

    @property
    def nbytes(self) -> int:
        """Bytes of all values; reads all values at each access."""
        return sum(map(len, self))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < self._count:
            raise IndexError(f"value {index} of {self._count}")
        return memoryview(self._read(index))

    def iterate(self, start: int, stop: int) -> Iterator[memoryview]:
        """Yields values ``start`` to ``stop - 1``."""
        return map(self.__getitem__, range(start, stop))


class LazyArray(Sequence[NDArray[Any]]):
    """A fixed column that reads each value on access. A negative index raises :class:`IndexError`.

    A loop over the values holds one at a time. Indexing by a slice or an array of numbers reads all these values into a
    new array.
    """

    def __init__(self, column: Column, count: int, read: Callable[[int], Buffer]) -> None:
        """``read`` returns the bytes of a value by its number, 0 to ``count - 1``."""
        self.dtype = NUMPY_DTYPE[column.dtype]
        self.shape = (count, *column.shape)
        self._column = column
        self._read = read

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return len(self) * self._column.record_nbytes

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        """Returns a value, ``column.shape``, read-only; for a slice or an array of numbers ``(n, *column.shape)``.

        Raises :class:`IndexError` for a number that is negative or too large.
        """
        if isinstance(index, slice):
            return self._read_values(range(*index.indices(len(self))))
        if isinstance(index, np.ndarray) and index.ndim:
            return self._read_values(index.tolist())
        if not 0 <= index < len(self):
            raise IndexError(f"value {index} of {len(self)}")
        return parse_fixed_value(self._column, self._read(int(index)))

    def _read_values(self, numbers: Sequence[int]) -> NDArray[Any]:
        """Reads the values of some records into a new array ``(n, *column.shape)``."""
        # Values are read before memory is allocated: a hostile manifest may claim any shape.
        values = [self[number] for number in numbers]
        return np.stack(values) if values else np.empty((0, *self._column.shape), self.dtype)


def parse_fixed_value(column: Column, raw: Buffer) -> NDArray[Any]:
    """Converts stored bytes to a read-only value of a fixed column. Copies them only if they are not aligned.

    Raises :class:`StoreError` for a wrong length.
    """
    view = memoryview(raw).toreadonly()
    if view.nbytes != column.record_nbytes:
        raise StoreError(f"a value of column {column.name!r} has {view.nbytes} bytes, not {column.record_nbytes}")
    value: NDArray[Any] = np.frombuffer(view, NUMPY_DTYPE[column.dtype]).reshape(column.shape)
    # LMDB's values begin at any byte.
    if not value.flags.aligned:
        value = value.copy()
        value.flags.writeable = False
    return value


def make_lazy_column(column: Column, count: int, read: Callable[[int], Buffer]) -> LazyRagged | LazyArray:
    """Returns a column that reads each value on access. ``read`` returns the bytes of a value by its number."""
    return LazyArray(column, count, read) if column.kind == "fixed" else LazyRagged(count, read)


WholeColumn = NDArray[Any] | Ragged
"""All values of a column: an array of shape ``(N, *column.shape)``, or :class:`Ragged`."""

ColumnData = WholeColumn | LazyArray
"""All values of a column, in memory or read on access."""


ImageData = bytes | memoryview | NDArray[Any]
"""An image from a source: the bytes of an image file; an array uint8 ``(H, W, 3)`` RGB; or, from a store of floats, an
array ``(3, H, W)`` in that store's dtype."""


def to_stored(column: Column, value: Any) -> bytes | NDArray[Any]:
    """Converts a user's value to its stored form.

    Args:
        column: The value's column.
        value: ``str`` for text; ``bytes`` for bytes and image files; anything JSON for json; an ``int`` for a label;
            else an array, a list of numbers or a tensor (a uint16 array for bfloat16: its bit patterns). None for a
            missing value of a nullable column.

    Returns:
        The bytes of a ragged value, or an array of the column's dtype and shape. A missing value becomes no bytes, or
        zeros.

    Raises:
        ValueError: The value does not fit the column; the message has what was found and what was expected.
    """
    if value is None and (column.nullable or not column.traits.none_is_value):
        if not column.nullable:
            raise ValueError(f"column {column.name!r} needs a value, got None; declare it optional")
        return b"" if column.kind == "ragged" else np.zeros(column.shape, NUMPY_DTYPE[column.dtype])
    return column.traits.to_stored(column, value)


def shape_to_stored(column: Column, value: Any) -> NDArray[np.int32]:
    """Returns a value's shape in the form of the companion column :attr:`Column.shape_name`; zeros if ``value`` is
    None."""
    shape = (0,) * len(column.layout or "") if value is None else np.shape(value)
    return np.array(shape, np.int32)


def from_stored(column: Column, raw: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Converts the stored form of a value to the user's form.

    Args:
        column: The value's column.
        raw: The stored value, as :meth:`packstore.stores.Reader.value` returns it.
        shape: Its shape, needed if the column is ragged with a layout.

    Returns:
        ``str`` for text, the object for json, ``int`` for a label, ``bytes`` for bytes and image files, else an array.
        An array that shares memory with ``raw`` is read-only. bfloat16 comes as uint16 bit patterns.

    Raises:
        StoreError: The bytes are damaged: not JSON, or not a whole number of rows.
    """
    return column.traits.from_stored(column, raw, shape)

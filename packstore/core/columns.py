"""Columns of a store: their types, their values in memory (also ragged and lazy), and the stored form of values.

==============  ============================================================================================
type            stored as
==============  ============================================================================================
``image``       image files (ragged uint8), or arrays: ``HWC`` whole numbers, ``CHW`` floating point
``images``      any number of image files (ragged uint8), see :mod:`packstore.core.column_types.pictures`
``mask``        PNG files (ragged uint8), or ``HW`` arrays of uint8, uint16, int32 or float32
``label``       fixed int64: a class number
``labels``      ragged int64: class numbers
``boxes``       ragged float32 ``(n, 4)``: left, top, right, bottom in pixels
``keypoints``   ragged float32 ``(n, k)`` or ``(n, points, k)``: x, y and with k = 3 visibility
``segments``    ragged uint8: polygons and run lengths, see :mod:`packstore.core.column_types.segments`
``text``        ragged uint8: UTF-8
``json``        ragged uint8: JSON in UTF-8
``bytes``       ragged uint8
``volume``      ``CHW`` or ``DCHW`` arrays of uint8, uint16, int16, int32 or float32, which move with the image
``clip``        the same, of pixels, which are resized as the image is
``array``       any dtype and shape, fixed or ragged in the first dimension
==============  ============================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from packstore.core.column_types.base import MAX_ARRAY_BYTES as MAX_ARRAY_BYTES
from packstore.core.column_types.base import Column as Column
from packstore.core.column_types.base import check as check
from packstore.core.column_types.forms import ITEM_SIZE as ITEM_SIZE
from packstore.core.column_types.forms import NUMPY_DTYPE as NUMPY_DTYPE
from packstore.core.column_types.forms import Buffer as Buffer
from packstore.core.column_types.forms import RowClasses
from packstore.core.column_types.forms import bfloat16_bits as bfloat16_bits
from packstore.core.errors import StoreError

KEY = Column("key", "ragged", "uint8", type="text")
CHECKSUM = Column("checksum", "fixed", "uint64")
ROW_CHECKSUM = Column("row_checksum", "fixed", "uint64")
SEEK_INDEX = Column("seek_index", "ragged", "uint8")
"""Seek index of each JPEG file; empty for other files. Derived from the file, so not part of the dataset's digest."""
LINK_COLUMNS = (
    Column("link_file", "ragged", "uint8", type="text"),
    Column("link_offset", "fixed", "int64"),
    Column("link_length", "fixed", "int64"),
    Column("link_file_bytes", "fixed", "int64"),
    Column("link_file_modified", "fixed", "int64"),
)
"""Locations of a linked store's images: a path (absolute, or relative to the folder of the store) or a URL, offset and
length in bytes; and the file's size in bytes and modification time in nanoseconds at packing (for an object, see
:func:`packstore.stores.linked.derive_object_state`). Not part of the dataset's digest."""
LINK_LENGTH = "link_length"
CROWD = "iscrowd"
"""Column of flags of boxes, as COCO names it: 1 for a region that is no ordinary object, such as a crowd or an area to
ignore."""
_CROWDS = re.compile(r"(^|_)is_?crowd$", re.I)
_FLOATS = ("float16", "bfloat16", "float32", "float64")
DIFFICULT = "difficult"
"""Column of flags of boxes, as Pascal VOC has them: 1 for an object that is hard to recognise."""
FLAGS = (CROWD, DIFFICULT)
"""Columns of class numbers that are flags of boxes, not their classes."""
DERIVED = (SEEK_INDEX.name, *(column.name for column in LINK_COLUMNS))
"""Names of the columns that follow from the image files and their places."""
INTERNAL = ("image", "key", "checksum", "row_checksum", "shape", *DERIVED)
"""Names of the columns that are not the user's own: the image, the key, and columns that packing creates."""


STORED, UPRIGHT = FRAMES = ("stored", "upright")
"""Frames of coordinates and masks: that of the pixels as stored, and of the image turned by its orientation."""


class Link(NamedTuple):
    """Location of a linked record: the values of :data:`LINK_COLUMNS`, in their order."""

    file: str
    offset: int
    length: int
    file_bytes: int
    file_modified: int


def join_hidden_boxes(columns: Iterable[Column]) -> bool | None:
    """Returns :attr:`Column.hides_boxes` of all values of the same column in several stores."""
    facts = {column.hides_boxes for column in columns}
    return True if True in facts else None if None in facts else False


def find_file_columns(columns: Sequence[Column]) -> list[Column]:
    """Returns the columns of image files, or lists of image files, beside the main image."""
    return [c for c in columns if c.name != "image" and c.traits.has_images and c.layout is None]


def is_crowd_name(name: str) -> bool:
    """Tells by its name if a column or an entry of objects flags crowd regions: ``iscrowd``, ``objects_is_crowd``."""
    return _CROWDS.search(name) is not None


def find_crowd_column(columns: Sequence[Column]) -> tuple[Column, str] | None:
    """Returns the column that flags crowd regions, and the name of the column of their boxes; None if there is none.

    A foreign column is known by its name, such as ``objects_is_crowd`` of TFDS. Its numbers then describe the only
    boxes of the store.
    """
    boxes = [column.name for column in columns if column.traits.rows_are_objects]
    for column in columns:
        # TFDS's ``objects_is_crowd`` does not say which boxes it describes.
        of = column.parallel or (boxes[0] if len(boxes) == 1 else None)
        flags = column.kind == "ragged" and not column.shape and column.dtype not in _FLOATS
        if of and flags and (column.traits.has_classes or column.type == "array") and is_crowd_name(column.name):
            return column, of
    return None


def without_companions(columns: Iterable[Column]) -> list[Column]:
    """Returns columns without the companions of others: lengths, shapes and validity."""
    listed = [*columns]
    companions = {each.name for column in listed for each in column.companions}
    return [column for column in listed if column.name not in companions]


def list_user_columns(columns: Iterable[Column]) -> list[Column]:
    """Returns the user's own columns: without :data:`INTERNAL` and companions."""
    return [column for column in without_companions(columns) if column.name not in INTERNAL]


def find_class_column(columns: Sequence[Column], objects: str | None) -> Column | None:
    """Returns the first column with the classes of the rows of ``objects``, such as boxes, or None. Flags such as
    ``iscrowd`` are no classes.
    """
    beside = (column for column in columns if objects is not None and column.parallel == objects)
    return next((column for column in beside if column.traits.has_classes and column.name not in FLAGS), None)


def read_row_classes(column: Column, columns: Sequence[Column], read: Callable[[str], Any]) -> RowClasses | None:
    """Reads the class of each row of a value, such as a box, and which rows are crowds; None if no column has them.

    The classes are in the first column of class numbers that describe the rows of ``column``. ``read`` returns the
    value of a column by name; if that is None, the result is None.
    """
    class_column = find_class_column(columns, column.name)
    numbers = None if class_column is None else read(class_column.name)
    if class_column is None or numbers is None:
        return None
    flags = find_crowd_column(columns)
    crowds = None if flags is None or flags[1] != column.name else read(flags[0].name)
    return RowClasses(np.asarray(numbers), class_column.classes, None if crowds is None else np.asarray(crowds))


def guess_column(
    name: str, kind: Literal["fixed", "ragged"], dtype: str, shape: tuple[int, ...] = (), nbytes: int = 0
) -> Column:
    """Makes a column for values whose manifest is lost. Guesses the type by name and dtype.

    - ``key``, ragged uint8: text.
    - ``label``, fixed int64 scalars: labels.
    - All others: arrays.
    """
    if name == KEY.name and (kind, dtype) == ("ragged", "uint8"):
        return Column(name, kind, dtype, shape, nbytes=nbytes, type="text")
    type = "label" if name == "label" and (kind, dtype, shape) == ("fixed", "int64", ()) else "array"
    return Column(name, kind, dtype, shape, nbytes=nbytes, type=type)


def is_moved(column: Column) -> bool:
    """Tells if the values of a column have coordinates or pixels of the main image, which move with its frame."""
    return column.traits.moves or (column.traits.is_object and column.frame is not None)


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

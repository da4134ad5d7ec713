"""A column of a store: its type, and the stored form of its values.

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
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from packstore.core.column_types.base import MAX_ARRAY_BYTES as MAX_ARRAY_BYTES
from packstore.core.column_types.base import Column as Column
from packstore.core.column_types.base import check as check
from packstore.core.column_types.forms import ITEM_SIZE as ITEM_SIZE
from packstore.core.column_types.forms import RowClasses

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

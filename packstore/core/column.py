"""What one column of a store is: its type, and how its values lie at rest.

==============  ============================================================================================
type            at rest
==============  ============================================================================================
``image``       image files (ragged uint8), or arrays: ``HWC`` whole numbers, ``CHW`` floating point
``mask``        PNG files (ragged uint8), or ``HW`` arrays of uint8, uint16 or int32
``label``       fixed int64: the number of a class
``labels``      ragged int64: numbers of classes
``boxes``       ragged float32 ``(n, 4)``: left, top, right, bottom in pixels
``keypoints``   ragged float32 ``(n, k)`` or ``(n, points, k)``: x, y and with k = 3 visibility
``text``        ragged uint8: UTF-8
``json``        ragged uint8: JSON in UTF-8
``bytes``       ragged uint8
``array``       any dtype and shape, fixed or ragged in the first dimension
==============  ============================================================================================
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from packstore.core.errors import ManifestError
from packstore.core.modes import RGB, Mode, parse_mode

ITEM_SIZE = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}
"""Bytes of one element by dtype name; these are the dtypes that a column may have. All are little-endian at rest."""

TYPES = ("image", "mask", "label", "labels", "boxes", "keypoints", "text", "json", "bytes", "array")

MAX_ARRAY_BYTES = 1 << 62
"""Bytes of a column, with each empty dimension counted as one: what numpy can address."""
_WHOLE_BYTES = 1 << 30
"""The most bytes of a column that an LMDB holds as one value, unless it is of single numbers; they have to be in memory
to be written."""
_SINGLE_BYTES = 8
"""The most bytes that a record's single number takes, such as a label or a checksum."""

_COLUMN_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_RESERVED = ("manifest",)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NEVER_MISSING = ("image", "key", "checksum", "row_checksum", "seek_index", "shape")
_FILES = ("ragged", "uint8", (), None)
_COORDINATES = {"boxes": ("xyxy",), "keypoints": ("xy", "xyv")}


def check(condition: bool, what: str, value: object) -> None:
    """Raises :class:`ManifestError` unless ``condition``."""
    if not condition:
        raise ManifestError(f"the manifest has an impossible {what}: {value!r:.200}")


@dataclass(frozen=True, slots=True)
class Column:
    """One field of all records.

    Attributes:
        name: ``image``, ``label``, ``key``, ``checksum``, ``shape`` or the user's own; lower-case identifier.
        kind: ``fixed`` (the same shape in every record) or ``ragged`` (any number of rows: ``(n, *shape)``).
        dtype: Name of the element type, a key of :data:`ITEM_SIZE`. Files and text are ``uint8``.
        shape: Shape of one record's value, or in a ragged column of one row; ``()`` for scalars, files and text.
        layout: ``HWC`` for pixels that are whole numbers, ``CHW`` for floating point ones, ``HW`` for masks that are
            arrays, else None. A ragged column with a layout has the shapes of its values in another column,
            :attr:`shape_name`.
        classes: Names of the classes where the column holds class numbers, else None.
        nbytes: Bytes of all values together, without any container's overhead.
        digest: SHA-256 (hexadecimal) of the values, see :mod:`packstore.core.checksums`; None for the image column,
            whose records are each covered by the ``checksum`` column, and in the manifest of a sharded store, whose
            shards have one each.
        type: What its values are, one of :data:`TYPES`.
        nullable: A record may have no value: then the column :attr:`valid_name` is False, and the value is zeros or,
            in a ragged column, empty.
        coordinates: ``xyxy`` for boxes, ``xy`` or ``xyv`` (with visibility) for keypoints, else None.
        parallel: For ``labels`` or ``keypoints`` that go with boxes, row by row: the name of the boxes' column.
        mode: Of images: the name of the :class:`~packstore.core.modes.Mode` that arrays have, or as which files are
            read; None for RGB of 8 bits.
    """

    name: str
    kind: Literal["fixed", "ragged"]
    dtype: str
    shape: tuple[int, ...] = ()
    layout: str | None = None
    classes: tuple[str, ...] | None = None
    nbytes: int = 0
    digest: str | None = None
    type: str = field(default="array", kw_only=True)
    nullable: bool = field(default=False, kw_only=True)
    coordinates: str | None = field(default=None, kw_only=True)
    parallel: str | None = field(default=None, kw_only=True)
    mode: str | None = field(default=None, kw_only=True, metadata={"optional": True})

    def __post_init__(self) -> None:
        check(_COLUMN_NAME.fullmatch(self.name) is not None and self.name not in _RESERVED, "column name", self.name)
        check(self.kind in ("fixed", "ragged"), "column kind", self.kind)
        check(self.dtype in ITEM_SIZE, "column dtype", self.dtype)
        check(len(self.shape) <= 8 and all(0 <= n < 2**40 for n in self.shape), "column shape", self.shape)
        largest = math.prod(max(n, 1) for n in self.shape) * ITEM_SIZE[self.dtype]
        check(max(largest, self.nbytes) < MAX_ARRAY_BYTES, "column size", self.shape)
        check(self.kind == "fixed" or 0 not in self.shape, "ragged column", self.shape)
        check(self.layout in (None, "HWC", "CHW", "HW"), "column layout", self.layout)
        check(self.nbytes >= 0, "column nbytes", self.nbytes)
        check(self.kind == "fixed" or self.nbytes % self.record_nbytes == 0, "column nbytes", self.nbytes)
        check(self.type in TYPES, "column type", self.type)
        check(self.mode is None or self.type == "image", f"mode of a {self.type} column", self.mode)
        check(self.mode != RGB.name, "mode: RGB is left out", self.mode)
        found = self.kind, self.dtype, self.shape, self.layout
        check(_fits(self.type, *found, self.pixels), f"{self.type} column", (self.name, *found, self.mode))
        check(not self.nullable or self.name not in _NEVER_MISSING, "column without values", self.name)
        if self.classes is not None:
            check(self.type in ("label", "labels"), f"{self.type} column with classes", self.name)
            object.__setattr__(self, "classes", _checked_classes(tuple(self.classes)))
        fits = self.coordinates is None or self.shape[-1:] == (len(self.coordinates),)
        good = self.coordinates in _COORDINATES.get(self.type, (None,)) and fits
        check(good, f"convention of coordinates of a {self.type} column", self.coordinates)
        goes_with_boxes = self.parallel is None or self.type in ("labels", "keypoints")
        check(goes_with_boxes, f"{self.type} column that goes with boxes", self.parallel)
        check(self.digest is None or _SHA256.fullmatch(self.digest) is not None, "column digest", self.digest)

    @property
    def pixels(self) -> Mode:
        """The mode of images."""
        return RGB if self.mode is None else parse_mode(self.mode)

    @property
    def record_nbytes(self) -> int:
        """Bytes of one record's value in a fixed column, of one row in a ragged one."""
        return math.prod(self.shape) * ITEM_SIZE[self.dtype]

    @property
    def valid_name(self) -> str:
        """The column that says which records have a value, where this one is nullable."""
        return f"{self.name}_valid"

    @property
    def shape_name(self) -> str:
        """The column with the shapes of the values, where this one is ragged with a layout."""
        return "shape" if self.name == "image" else f"{self.name}_shape"

    @property
    def companions(self) -> tuple[Column, ...]:
        """The columns that a store with this one needs besides: :attr:`shape_name` and :attr:`valid_name`, or none."""
        found = []
        if self.kind == "ragged" and self.layout is not None:
            found.append(Column(self.shape_name, "fixed", "int32", (len(self.layout),)))
        if self.nullable:
            found.append(Column(self.valid_name, "fixed", "bool"))
        return tuple(found)

    def size_of(self, records: int) -> int:
        """Bytes of the values of so many records; :attr:`nbytes` may not be known for a fixed column."""
        return self.record_nbytes * records if self.kind == "fixed" else self.nbytes

    @property
    def one_by_one(self) -> bool:
        """Whether an LMDB keeps each value under a key of its own: those that may be large, and those of a large
        column. Single numbers always lie together."""
        if self.kind == "fixed":
            return self.nbytes > _WHOLE_BYTES and self.record_nbytes > _SINGLE_BYTES
        return self.type in ("image", "mask", "bytes") or self.nbytes > _WHOLE_BYTES

    @property
    def declared(self) -> tuple[Any, ...]:
        """What the column is, without what its values are: all fields but size and digest."""
        return (
            self.name, self.kind, self.dtype, self.shape, self.layout, self.classes,
            self.type, self.nullable, self.coordinates, self.parallel, self.mode,
        )  # fmt: skip


def _fits(type: str, kind: str, dtype: str, shape: tuple[int, ...], layout: str | None, mode: Mode) -> bool:
    """Whether a column of a type may lie at rest so."""
    found = kind, dtype, shape, layout
    if type == "image" and layout is not None:
        if layout == "HWC":
            whole = dtype == mode.dtype and dtype != "float32"
            return whole and (shape == () if kind == "ragged" else len(shape) == 3 and shape[2] == mode.channels)
        floats = dtype in ("float16", "bfloat16", "float32")
        return layout == "CHW" and kind == "fixed" and floats and len(shape) == 3 and shape[0] == mode.channels
    if type == "mask" and layout is not None:
        return layout == "HW" and dtype in ("uint8", "uint16", "int32") and len(shape) == (2 if kind == "fixed" else 0)
    if type == "label":
        return found == ("fixed", "int64", (), None)
    if type == "labels":
        return found == ("ragged", "int64", (), None)
    if type == "boxes":
        return found == ("ragged", "float32", (4,), None)
    if type == "keypoints":
        good = 1 <= len(shape) <= 2 and shape[-1] in (2, 3)
        return good and found == ("ragged", "float32", shape, None)
    return layout is None if type == "array" else found == _FILES


@lru_cache(16)
def _checked_classes(classes: tuple[str, ...]) -> tuple[str, ...]:
    """Class names, checked once and kept once: those of the shards of a store are the same object."""
    check(all(type(c) is str for c in classes), "class names", classes)
    check(len(set(classes)) == len(classes), "class names: some are the same", classes)
    return classes


KEY = Column("key", "ragged", "uint8", type="text")
CHECKSUM = Column("checksum", "fixed", "uint64")
ROW_CHECKSUM = Column("row_checksum", "fixed", "uint64")
SEEK_INDEX = Column("seek_index", "ragged", "uint8")
"""Of image files; empty where one has none. It follows from the file, so it is no part of the dataset."""
LINK_COLUMNS = (
    Column("link_file", "ragged", "uint8", type="text"),
    Column("link_offset", "fixed", "int64"),
    Column("link_length", "fixed", "int64"),
    Column("link_file_bytes", "fixed", "int64"),
    Column("link_file_modified", "fixed", "int64"),
)
"""Where a linked store's images lie: a path (absolute, or relative to the folder of the store) or a URL, offset and
length in bytes; and size in bytes and time of modification in nanoseconds that the file had (of an object, see
:func:`packstore.stores.link_files.object_state`). No part of the dataset."""
LINK_LENGTH = "link_length"
INTERNAL = (
    *("image", "key", "checksum", "row_checksum", "seek_index", "shape"),
    *(column.name for column in LINK_COLUMNS),
)
"""Names of the columns that packing makes itself."""


def guessed(
    name: str, kind: Literal["fixed", "ragged"], dtype: str, shape: tuple[int, ...] = (), nbytes: int = 0
) -> Column:
    """A column without a manifest that says its type: by its name, else an array."""
    if name == KEY.name and (kind, dtype) == ("ragged", "uint8"):
        return Column(name, kind, dtype, shape, nbytes=nbytes, type="text")
    type = "label" if name == "label" and (kind, dtype, shape) == ("fixed", "int64", ()) else "array"
    return Column(name, kind, dtype, shape, nbytes=nbytes, type=type)

"""A column of a store: its type, and the stored form of its values.

==============  ============================================================================================
type            stored as
==============  ============================================================================================
``image``       image files (ragged uint8), or arrays: ``HWC`` whole numbers, ``CHW`` floating point
``mask``        PNG files (ragged uint8), or ``HW`` arrays of uint8, uint16, int32 or float32
``label``       fixed int64: a class number
``labels``      ragged int64: class numbers
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
"""Bytes of one element by dtype name, for all dtypes that a column may have. Stored values are little-endian."""

MASK_DTYPES = ("uint8", "uint16", "int32", "float32")
"""Of masks that are arrays; float32 for what is measured of each pixel, such as its depth."""
TYPES = ("image", "mask", "label", "labels", "boxes", "keypoints", "text", "json", "bytes", "array")

MAX_ARRAY_BYTES = 1 << 62
"""Most bytes of a column, with each empty dimension counted as one: numpy's limit."""
_WHOLE_BYTES = 1 << 30
"""Most bytes of a column that an LMDB holds as one value, unless it holds single numbers. Writing such a value needs
all of it in memory."""
_SINGLE_BYTES = 8
"""Most bytes of a record's single number, such as a label or a checksum."""

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
        name: ``image``, ``label``, ``key``, ``checksum``, ``shape`` or the user's own; a lower-case identifier.
        kind: ``fixed`` (the same shape in every record) or ``ragged`` (any number of rows: ``(n, *shape)``).
        dtype: Name of the element type, a key of :data:`ITEM_SIZE`. Files and text are ``uint8``.
        shape: Shape of one record's value; in a ragged column the shape of one row. ``()`` for scalars, files and text.
        layout: ``HWC`` for pixels that are whole numbers, ``CHW`` for floating point, ``HW`` for masks as arrays, else
            None. The shapes of a ragged column with a layout are in another column, :attr:`shape_name`.
        classes: Class names if the column holds class numbers, else None.
        nbytes: Bytes of all values, without any container's overhead.
        digest: SHA-256 (hexadecimal) of the values, see :mod:`packstore.core.checksums`. None for the image column,
            which the column ``checksum`` covers record by record, and in the manifest of a sharded store, whose shards
            have digests of their own.
        type: One of :data:`TYPES`.
        nullable: A record may have no value: then :attr:`valid_name` is False for it, and the value is zeros, or empty
            in a ragged column.
        coordinates: ``xyxy`` for boxes, ``xy`` or ``xyv`` (with visibility) for keypoints, else None.
        parallel: For ``labels`` or ``keypoints`` that describe boxes row by row: name of the column of boxes.
        mode: For images: name of the :class:`~packstore.core.modes.Mode` of arrays, or of the pixels into which files
            are decoded; None for RGB of 8 bits.
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
            object.__setattr__(self, "classes", _check_classes(tuple(self.classes)))
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
        """Bytes of one record's value in a fixed column, or of one row in a ragged column."""
        return math.prod(self.shape) * ITEM_SIZE[self.dtype]

    @property
    def valid_name(self) -> str:
        """Name of the companion column that tells which records have a value; it exists if :attr:`nullable`."""
        return f"{self.name}_valid"

    @property
    def shape_name(self) -> str:
        """Name of the companion column with the shapes of the values; it exists if ragged with a layout."""
        return "shape" if self.name == "image" else f"{self.name}_shape"

    @property
    def companions(self) -> tuple[Column, ...]:
        """The companion columns that a store needs for this column: :attr:`shape_name`, :attr:`valid_name`, or none."""
        found = []
        if self.kind == "ragged" and self.layout is not None:
            found.append(Column(self.shape_name, "fixed", "int32", (len(self.layout),)))
        if self.nullable:
            found.append(Column(self.valid_name, "fixed", "bool"))
        return tuple(found)

    def size_of(self, records: int) -> int:
        """Returns the bytes of the values of so many records, even if :attr:`nbytes` of a fixed column is not set."""
        return self.record_nbytes * records if self.kind == "fixed" else self.nbytes

    @property
    def one_by_one(self) -> bool:
        """Whether an LMDB keeps each value under a key of its own, because values may be large or the column is large.
        Single numbers are always kept together."""
        if self.kind == "fixed":
            return self.nbytes > _WHOLE_BYTES and self.record_nbytes > _SINGLE_BYTES
        return self.type in ("image", "mask", "bytes") or self.nbytes > _WHOLE_BYTES

    @property
    def declared(self) -> tuple[Any, ...]:
        """The declaration of the column: all fields except size and digest, which depend on the values."""
        return (
            self.name, self.kind, self.dtype, self.shape, self.layout, self.classes,
            self.type, self.nullable, self.coordinates, self.parallel, self.mode,
        )  # fmt: skip


def _fits(type: str, kind: str, dtype: str, shape: tuple[int, ...], layout: str | None, mode: Mode) -> bool:
    """Whether a column of a type may have this stored form."""
    found = kind, dtype, shape, layout
    if type == "image" and layout is not None:
        if layout == "HWC":
            whole = dtype == mode.dtype and dtype != "float32"
            return whole and (shape == () if kind == "ragged" else len(shape) == 3 and shape[2] == mode.channels)
        floats = dtype in ("float16", "bfloat16", "float32")
        return layout == "CHW" and kind == "fixed" and floats and len(shape) == 3 and shape[0] == mode.channels
    if type == "mask" and layout is not None:
        return layout == "HW" and dtype in MASK_DTYPES and len(shape) == (2 if kind == "fixed" else 0)
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
def _check_classes(classes: tuple[str, ...]) -> tuple[str, ...]:
    """Checks class names once and returns one shared tuple, which all shards of a store then use."""
    check(all(type(c) is str for c in classes), "class names", classes)
    check(len(set(classes)) == len(classes), "class names: some are the same", classes)
    return classes


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
:func:`packstore.stores.link_files.object_state`). Not part of the dataset's digest."""
LINK_LENGTH = "link_length"
INTERNAL = (
    *("image", "key", "checksum", "row_checksum", "seek_index", "shape"),
    *(column.name for column in LINK_COLUMNS),
)
"""Names of the columns that are not the user's own: the image, the key, and columns that packing creates."""


def guess_column(
    name: str, kind: Literal["fixed", "ragged"], dtype: str, shape: tuple[int, ...] = (), nbytes: int = 0
) -> Column:
    """Guesses the column for values without a manifest: text or label by its name, else an array."""
    if name == KEY.name and (kind, dtype) == ("ragged", "uint8"):
        return Column(name, kind, dtype, shape, nbytes=nbytes, type="text")
    type = "label" if name == "label" and (kind, dtype, shape) == ("fixed", "int64", ()) else "array"
    return Column(name, kind, dtype, shape, nbytes=nbytes, type=type)

"""A column of a store, and the base class of its type."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from packstore.core.column_types.forms import (
    ITEM_SIZE,
    Buffer,
    Canvas,
    Collation,
    Form,
    RowClasses,
    RowFaults,
    RowMoves,
    show_numbers,
)
from packstore.core.errors import ManifestError
from packstore.core.modes import RGB, Mode, parse_mode
from packstore.core.registry import COLUMN_TYPES

MAX_ARRAY_BYTES = 1 << 62
"""Most bytes of a column, with each empty dimension counted as one: numpy's limit."""
_WHOLE_BYTES = 1 << 30
"""Most bytes of a column that an LMDB holds as one value, unless it holds single numbers. Writing such a value needs
all of it in memory."""
_SINGLE_BYTES = 8
"""Most bytes of a record's single number, such as a label or a checksum."""

_COLUMN_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_RESERVED = ("manifest",)
SHA256 = re.compile(r"[0-9a-f]{64}")
_NEVER_MISSING = ("image", "key", "checksum", "row_checksum", "seek_index", "shape")


def check(condition: bool, what: str, value: object) -> None:
    """Raises :class:`ManifestError`, with ``what`` and ``value`` in its message, unless ``condition`` is true."""
    if not condition:
        raise ManifestError(f"the manifest has an impossible {what}: {value!r:.200}")


@dataclass(frozen=True, slots=True)
class Column:
    """One field of all records. Raises :class:`ManifestError` for an unknown type, and for attributes that are
    impossible or do not fit the type.

    Attributes:
        name: ``image``, ``label``, ``key``, ``checksum``, ``shape`` or the user's own; a lower-case identifier.
        kind: ``fixed`` (the same shape in every record) or ``ragged`` (any number of rows: ``(n, *shape)``).
        dtype: Name of the element type, a key of :data:`ITEM_SIZE`. Files and text are ``uint8``.
        shape: Shape of one record's value; in a ragged column the shape of one row. ``()`` for scalars, files and text.
        layout: Order of an array's axes: ``HWC`` for pixels that are whole numbers, ``CHW`` for floating point, ``HW``
            for masks, ``CHW`` or ``DCHW`` for volumes and clips. Else None. A ragged column with a layout has its
            shapes in another column, :attr:`shape_name`.
        classes: Class names if the column holds class numbers, else None.
        nbytes: Bytes of all values, without any container's overhead.
        digest: SHA-256 (hexadecimal) of the values, see :mod:`packstore.core.proof`. None for the image column,
            since the column ``checksum`` covers each image. None in the manifest of a sharded store, since each shard
            has its own.
        type: A name of :data:`packstore.core.registry.COLUMN_TYPES`.
        nullable: Whether a record may lack a value. Then :attr:`valid_name` is False for the record, and the stored
            value is zeros, or empty in a ragged column.
        coordinates: ``xyxy`` for boxes, ``xy`` or ``xyv`` (with visibility) for keypoints, ``pixels`` or ``fractions``
            (of the sides of the image) for segments, else None.
        parallel: For ``labels``, ``keypoints`` or ``segments`` that describe boxes row by row: name of the column of
            boxes.
        mode: For images: name of the :class:`~packstore.core.modes.Mode` of arrays, or of the pixels that files decode
            to. None for RGB of 8 bits.
        frame: Of boxes, points, masks and shapes: ``stored`` if coordinates count in the pixels as image files store
            them, ``upright`` if they count in the upright image (EXIF). Readers show images in the same frame. None
            for other columns, and in stores packed before it was recorded.
        hides_boxes: Whether a value seems to contain boxes or points that no operation moves, as JSON may. None: nobody
            has looked, or the type cannot hold them. Not part of the dataset's digest.
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
    frame: str | None = field(default=None, kw_only=True, metadata={"optional": True})
    hides_boxes: bool | None = field(default=None, kw_only=True, metadata={"optional": True})

    def __post_init__(self) -> None:
        check(_COLUMN_NAME.fullmatch(self.name) is not None and self.name not in _RESERVED, "column name", self.name)
        check(self.kind in ("fixed", "ragged"), "column kind", self.kind)
        check(self.dtype in ITEM_SIZE, "column dtype", self.dtype)
        check(len(self.shape) <= 8 and all(0 <= n < 2**40 for n in self.shape), "column shape", self.shape)
        largest = math.prod(max(n, 1) for n in self.shape) * ITEM_SIZE[self.dtype]
        check(max(largest, self.nbytes) < MAX_ARRAY_BYTES, "column size", self.shape)
        check(self.kind == "fixed" or 0 not in self.shape, "ragged column", self.shape)
        check(self.layout in (None, "HWC", "CHW", "DCHW", "HW"), "column layout", self.layout)
        check(self.nbytes >= 0, "column nbytes", self.nbytes)
        check(self.kind == "fixed" or self.nbytes % self.record_nbytes == 0, "column nbytes", self.nbytes)
        known = isinstance(self.type, str) and self.type in COLUMN_TYPES
        check(known, "column type, or one of a plug-in that is not installed", self.type)
        check(self.mode != RGB.name, "mode: RGB is left out", self.mode)
        traits = self.traits
        check(self.mode is None or traits.has_images, f"mode of a {self.type} column", self.mode)
        fields = self.kind, self.dtype, self.shape, self.layout
        check(traits.fits(self), f"{self.type} column", (self.name, *fields, self.mode))
        check(not self.nullable or self.name not in _NEVER_MISSING, "column without values", self.name)
        if self.classes is not None:
            check(traits.has_classes, f"{self.type} column with classes", self.name)
            object.__setattr__(self, "classes", _check_classes(tuple(self.classes)))
        fits = self.coordinates is None or traits.is_object or self.shape[-1:] == (len(self.coordinates),)
        good = self.coordinates in traits.coordinates and fits
        check(good, f"convention of coordinates of a {self.type} column", self.coordinates)
        goes_with_boxes = self.parallel is None or traits.goes_with_boxes
        check(goes_with_boxes, f"{self.type} column that goes with boxes", self.parallel)
        check(self.frame in (None, "stored", "upright"), "frame of a column", self.frame)
        check(self.digest is None or SHA256.fullmatch(self.digest) is not None, "column digest", self.digest)

    @property
    def traits(self) -> ColumnType:
        """The :class:`ColumnType` of the column's type name, which says how values are checked and stored."""
        traits: ColumnType = COLUMN_TYPES[self.type]
        return traits

    @property
    def form(self) -> Form:
        """Form of a stored value: ``file`` (an image file), ``files`` (several), ``text`` (UTF-8), ``bytes`` or
        ``numbers``.

        Images and masks stored as arrays are ``numbers``.
        """
        return "numbers" if self.layout is not None else self.traits.form

    @property
    def pixels(self) -> Mode:
        """Mode of the images, by the name in :attr:`mode`; RGB of 8 bits if that is None."""
        return RGB if self.mode is None else parse_mode(self.mode)

    @property
    def record_nbytes(self) -> int:
        """Bytes of one record's value in a fixed column, of one row in a ragged column."""
        return math.prod(self.shape) * ITEM_SIZE[self.dtype]

    @property
    def array_names(self) -> list[str]:
        """Names of the arrays that hold the column: ``label``, or if ragged ``key/bytes`` and ``key/offsets``."""
        return [self.name] if self.kind == "fixed" else [f"{self.name}/bytes", f"{self.name}/offsets"]

    @property
    def valid_name(self) -> str:
        """Name of the companion column that tells which records have a value. Exists if the column is nullable."""
        return f"{self.name}_valid"

    @property
    def shape_name(self) -> str:
        """Name of the companion column with the shapes of the values. A ragged column with a layout has such a
        companion."""
        return "shape" if self.name == "image" else f"{self.name}_shape"

    @property
    def holds_images(self) -> bool:
        """True if values are images, or lists of images; False for masks."""
        return self.traits.has_images

    @property
    def holds_masks(self) -> bool:
        """True if values are masks: pictures that lie on the image, as files or arrays."""
        return self.traits.is_picture and self.traits.lies_on_image

    @property
    def holds_class(self) -> bool:
        """True if each record has one class number; False for lists of class numbers."""
        return self.traits.has_classes and self.kind == "fixed"

    @property
    def holds_one_image(self) -> bool:
        """True if values are single images; False for lists of images and for masks."""
        return self.traits.has_images and self.traits.is_picture

    @property
    def collation(self) -> Collation:
        """Collation of the column's values in a loader."""
        return self.traits.collation(self)

    @property
    def companions(self) -> tuple[Column, ...]:
        """The companion columns that a store needs for this column: none, or those of :attr:`shape_name` and
        :attr:`valid_name`."""
        columns = []
        if self.kind == "ragged" and self.layout is not None:
            columns.append(Column(self.shape_name, "fixed", "int32", (len(self.layout),)))
        if self.nullable:
            columns.append(Column(self.valid_name, "fixed", "bool"))
        return tuple(columns)

    def size_of(self, records: int) -> int:
        """Returns the bytes of the values of ``records`` records. For a ragged column returns :attr:`nbytes` and
        ignores ``records``."""
        return self.record_nbytes * records if self.kind == "fixed" else self.nbytes

    @property
    def one_by_one(self) -> bool:
        """True if an LMDB keeps each value under its own key.

        It does for types of large values and for columns over 1 GiB, but never for columns of single numbers.
        """
        if self.kind == "fixed":
            return self.nbytes > _WHOLE_BYTES and self.record_nbytes > _SINGLE_BYTES
        # Writing one large value would need all of it in memory.
        return self.traits.large or self.nbytes > _WHOLE_BYTES

    @property
    def declaration(self) -> tuple[Any, ...]:
        """All attributes of the column that do not depend on the values, as size and digest do. Without the frame,
        which follows from the store's ``exif_transpose``.
        """
        return (
            self.name, self.kind, self.dtype, self.shape, self.layout, self.classes,
            self.type, self.nullable, self.coordinates, self.parallel, self.mode,
        )  # fmt: skip

    def blank(self) -> Column:
        """Returns the column without what depends on its values: size, digest, hidden boxes."""
        return replace(self, nbytes=0, digest=None, hides_boxes=None)


@lru_cache(16)  # shards of a store share one tuple
def _check_classes(classes: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the class names if each is a string and occurs once; else raises :class:`ManifestError`."""
    check(all(type(c) is str for c in classes), "class names", classes)
    check(len(set(classes)) == len(classes), "class names: some are the same", classes)
    return classes


class Field:
    """Base class of declarations of columns, such as :class:`~packstore.core.fields.Text`. Subclasses are dataclasses.

    Their attribute ``optional`` says whether a sample may have no value. Declarations check nothing themselves:
    :func:`packstore.core.fields.column_of` refuses impossible ones.
    """

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]
    optional: bool

    def column(self, name: str) -> Column:
        """Creates the field's column: ragged bytes. The column's type is the declaration's class name in lower case."""
        return Column(name, "ragged", "uint8", type=type(self).__name__.lower(), nullable=self.optional)


class ColumnType(ABC):
    """A column type. Each has a file of this folder and a line in the registry.

    Attributes:
        name: The type's name in manifests.
        stored: Kind, dtype and shape of every column of the type; None for any. A type with a choice overrides
            :meth:`fits`.
        form: Form of the stored values; arrays of images and masks are ``numbers`` anyway, see :attr:`Column.form`.
        large: An LMDB keeps each value under a key of its own, because values may be large.
        is_object: Values are given as Python objects, not as tensors.
        none_is_value: None is a value like any other, not a missing value.
        is_picture: Values are images or masks: files or arrays.
        has_images: Values are images, or lists of images.
        moves: Values have coordinates or pixels of the main image. They change if an operation moves its pixels.
        lies_on_image: Arrays have the main image's height and width as their last axes.
        blends: Resizing interpolates the values of arrays, like pixels. Otherwise it takes the nearest value.
        has_classes: Values are class numbers.
        rows_are_objects: Rows are objects of the image, such as boxes. Rows of other columns may describe them.
        goes_with_boxes: Rows may describe objects of another column, such as boxes.
        coordinates: Conventions of coordinates that a column may have, see :attr:`Column.coordinates`.
        field: Class of the declaration for which the type's name stands in ``fields``. None if a name is not enough.
            A subclass does not inherit it.
        meaning: Meaning of a value in a few words, for listings. Empty if dtype and shape say enough.
        extension: Extension of a file with one value, for exports: ``cls`` for a decimal number, ``npy`` for an array.
            A file of any other extension has the stored bytes. Image files have the extension of their content.
        drawn_as: Plural noun for shapes that :meth:`draw` draws over the image: ``boxes``. Empty if it draws nothing.
        drawn_by_default: A contact sheet draws the values unless other columns are named.
        layer: Place of the shapes above those of other types. Lower layers are drawn first.
        faults: Description of each kind of finding that an audit of the values may report.
    """

    name: ClassVar[str]
    stored: ClassVar[tuple[str, str, tuple[int, ...]] | None] = ("ragged", "uint8", ())
    form: ClassVar[Form] = "numbers"
    large: ClassVar[bool] = False
    is_object: ClassVar[bool] = False
    none_is_value: ClassVar[bool] = False
    is_picture: ClassVar[bool] = False
    has_images: ClassVar[bool] = False
    moves: ClassVar[bool] = False
    lies_on_image: ClassVar[bool] = False
    blends: ClassVar[bool] = False
    has_classes: ClassVar[bool] = False
    rows_are_objects: ClassVar[bool] = False
    goes_with_boxes: ClassVar[bool] = False
    coordinates: ClassVar[tuple[str | None, ...]] = (None,)
    field: ClassVar[type[Field] | None] = None
    meaning: ClassVar[str] = ""
    extension: ClassVar[str] = "npy"
    drawn_as: ClassVar[str] = ""
    drawn_by_default: ClassVar[bool] = False
    layer: ClassVar[int] = 3
    faults: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls) -> None:
        """Sets :attr:`field` of a subclass to None if the subclass does not set it."""
        cls.field = cls.__dict__.get("field")

    def fits(self, column: Column) -> bool:
        """Tells if the type allows the column's kind, dtype, shape, layout and mode. By default :attr:`stored`, without
        a layout."""
        return column.layout is None and self.stored in (None, (column.kind, column.dtype, column.shape))

    @abstractmethod
    def to_stored(self, column: Column, value: Any) -> bytes | NDArray[Any]:
        """Converts a value like :func:`packstore.core.columns.to_stored`; the value is not missing."""

    @abstractmethod
    def from_stored(self, column: Column, raw: Any, shape: tuple[int, ...] | None) -> Any:
        """Converts a stored value like :func:`packstore.core.columns.from_stored`."""

    def files(self, column: Column, raw: Buffer) -> Sequence[Buffer]:
        """Returns the image files in a stored value: one, or several for a list. Empty if the type holds no files.

        Raises :class:`StoreError` if a list is damaged.
        """
        return [raw] if column.form == "file" else []

    # Listings, drawings, the page, audits -----------------------------------------------------------------------------

    def describe(self, column: Column) -> str:
        """Describes a value in a few words, for listings. By default returns :attr:`meaning`, or dtype and shape if
        that is empty."""
        if self.meaning:
            return self.meaning
        each = " x ".join(map(str, column.shape)) or ("values" if column.kind == "ragged" else "a value")
        return f"{column.dtype}, {'any number of ' if column.kind == 'ragged' else ''}{each}"

    def draws(self, column: Column) -> bool:
        """Tells if sheets and thumbnails can draw a column's values over the image."""
        return self.drawn_as != ""

    def draw(self, canvas: Canvas, column: Column, value: Any, classes: RowClasses | None) -> None:
        """Draws a value over its image. The default follows :attr:`Column.coordinates`:

        - ``xyxy``: boxes.
        - ``xy``, ``xyv``: points.
        - None: nothing.

        Args:
            canvas: Takes the shapes.
            column: The column.
            value: The value as an array, of masks ``(H, W)``. Never a missing value.
            classes: Class numbers that describe the value's rows; None for none.
        """
        if column.coordinates == "xyxy":
            canvas.draw_boxes(value, classes)
        elif column.coordinates is not None:
            canvas.draw_points(value)

    def show(self, column: Column, value: Any) -> dict[str, Any]:
        """Converts a value to a JSON object for the page of ``packstore view``; the value is not missing.

        By default an array of numbers. Overrides cut long values, as :func:`show_text` does.

        Returns:
            ``as``: ``numbers``, ``classes``, ``text``, ``json``, ``bytes``, ``image``, ``images`` or ``mask``.
            ``value`` or ``nbytes``, or both: the content, and its size in bytes. ``cut``, only if something is left
            out: the number of all rows or characters.
        """
        array = np.asarray(value)
        if column.dtype == "bfloat16":
            # A bfloat16 is the upper half of a float32.
            array = (array.astype(np.uint32) << 16).view(np.float32)
        return {"as": "numbers", **show_numbers(array)}

    def name_checks(self, sizes_known: bool) -> str:
        """Names what :meth:`find_faults` checks, for the report of an audit. By default empty: an audit checks no rows.

        ``sizes_known``: the sizes of the images are known.
        """
        return ""

    def find_faults(self, column: Column, rows: NDArray[Any], sizes: NDArray[np.int32] | None) -> Iterable[RowFaults]:
        """Finds faulty rows of many records. Only called if :meth:`name_checks` names the check. By default none.

        Args:
            column: The column, of numbers without a layout.
            rows: ``(n, *column.shape)``. A fixed column has one row a record.
            sizes: Height and width of each row's image, ``(n, 2)``; zeros for unknown ones. None if all are unknown.
        """
        return ()

    def find_pixel_faults(
        self,
        column: Column,
        shape: tuple[int, ...],
        values: NDArray[Any] | None,
        size: tuple[int, ...],
        classes: int | None,
    ) -> Iterator[tuple[str, str]]:
        """Yields kind and text of each fault of a mask. By default none.

        Args:
            column: The column of masks.
            shape: Height and width of the mask.
            values: The mask ``(H, W)``. None for a file that is not decoded, since ``classes`` is None.
            size: Height and width of its image.
            classes: Number of classes; None if unknown.
        """
        yield from ()

    # Training: batches, and the geometry of values that move with the image ----------------------------------------

    def collation(self, column: Column) -> Collation:
        """Returns how a loader collates values. By default ``objects`` for Python objects, else ``stack`` or
        ``rows``."""
        if self.is_object:
            return "objects"
        return "stack" if column.kind == "fixed" else "rows"

    def move_rows(
        self, column: Column, rows: NDArray[Any], images: NDArray[np.int64], moves: RowMoves
    ) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """Moves rows of a ragged column with their images. Returns all rows, and bool ``(N,)``: rows to keep.

        The mask is None if all are kept. The default follows :attr:`Column.coordinates`:

        - ``xyxy``: rows are boxes.
        - ``xy``, ``xyv``: rows are points. Objects are kept if their :meth:`upright_boxes` are.
        - None: rows stay as they are.

        Args:
            column: The column.
            rows: Rows of all records of a batch, ``(N, *column.shape)``.
            images: int64 ``(N,)``: the image of each row.
            moves: Moves boxes and points.
        """
        if column.coordinates is None:
            return rows, None
        if column.coordinates == "xyxy":
            return moves.move_boxes(rows, images)
        # A rotated box or polygon is kept if the box around it is.
        keep = moves.move_boxes(self.upright_boxes(column, rows), images)[1] if self.rows_are_objects else None
        return moves.move_points(rows, images), keep

    def upright_boxes(self, column: Column, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Returns the upright box around each row: left, top, right, bottom, float32 ``(N, 4)``.

        Types of objects without :attr:`Column.coordinates` have to override it.
        """
        if column.coordinates == "xyxy":
            return np.asarray(rows, np.float32)
        points = np.asarray(rows, np.float32).reshape(len(rows), math.prod(column.shape[:-1]), column.shape[-1])
        return np.concatenate([points[..., :2].min(1), points[..., :2].max(1)], 1)

    def count_rows(self, column: Column, raw: Buffer) -> int:
        """Returns the number of rows of a stored ragged value."""
        return len(raw) // column.record_nbytes

    def keep_rows(self, column: Column, raw: Buffer, kept: NDArray[np.bool_]) -> Buffer:
        """Returns a stored ragged value with the rows ``kept`` alone; a value of another number of rows unchanged."""
        if len(raw) != len(kept) * column.record_nbytes:
            return raw  # damaged, which the caller reports
        return np.frombuffer(raw, np.uint8).reshape(len(kept), -1)[kept].tobytes()

    def find_hidden_boxes(self, column: Column, values: Iterable[Buffer]) -> bool | None:
        """Tells if a stored value seems to contain boxes or points, which no operation would move.

        By default None, for a type that cannot hold them; reads no value.
        """
        return None


def unfit_error(column: Column, expected: str, value: Any) -> ValueError:
    """Returns the error for a value that does not fit its column. It says what was expected, and what the value is."""
    shape = getattr(value, "shape", None)
    found = type(value).__name__ if shape is None else f"{getattr(value, 'dtype', '')} {tuple(shape)}".strip()
    if shape is None and isinstance(value, (list, tuple)):
        found = f"{found} of {len(value)}: {value!r:.60}"
    return ValueError(f"column {column.name!r} ({column.type}) needs {expected}, got {found}")

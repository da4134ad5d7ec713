"""Declarations of a sample's fields, for :class:`packstore.Writer` and ``convert(fields=…)``.

A string stands for a declaration with its defaults (``"boxes"``), or for one number of a dtype (``"float32"``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index as as_index
from typing import Literal, cast

from packstore.core.column import INTERNAL, ITEM_SIZE, Column
from packstore.core.column_types.base import Field as Field
from packstore.core.column_types.images import Images as Images
from packstore.core.column_types.pictures import MASK_DTYPES
from packstore.core.column_types.volumes import VOLUME_DTYPES
from packstore.core.errors import ManifestError, UsageError, printable
from packstore.core.modes import RGB, parse_mode
from packstore.core.registry import COLUMN_TYPES

RESERVED = (*(name for name in INTERNAL if name != "image"), "manifest")
"""Names that fields cannot have, because packstore's own columns have them. A sample's ``key`` is its key."""


@dataclass(frozen=True, slots=True)
class Image(Field):
    """An image of a sample.

    A path, the bytes of a file, a PIL image, an array ``(H, W)`` or ``(H, W, C)``, or a tensor ``(C, H, W)``.
    Packing checks the attributes, not this class.

    Attributes:
        encoding: Encoding of the stored image; None stores files unchanged. An image that is not a file needs
            ``uint8``, the name of another dtype, or ``jpeg``. The main image may have any of
            :data:`packstore.core.registry.ENCODINGS`; other images ``original``, ``uint8`` or ``jpeg``.
        optional: A sample may have no image; not allowed for the main image.
        mode: The :mod:`mode <packstore.core.modes>`, such as ``L``, ``I;16``, ``multi:5:float32``. Pixels have it;
            files beside the main image are converted to it when they are read. None for pixels: the mode of the first
            samples. None for files: gray if they become ``uint16``, ``int16`` or ``int32``, else RGB.
    """

    encoding: str | None = None
    optional: bool = False
    mode: str | None = None


@dataclass(frozen=True, slots=True)
class Mask(Field):
    """A mask with a class number for each pixel.

    A PNG file, as a path or bytes, is stored unchanged; the indices of a palette are its values. A PIL image or array
    ``(H, W)`` is stored as an array.

    Attributes:
        dtype: ``uint8``, ``uint16`` or ``int32`` for arrays; None for the dtype of the first sample.
        optional: A sample may have no mask.
    """

    dtype: str | None = None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Label(Field):
    """A class, as number or name.

    Attributes:
        classes: Class names by number; None if the numbers have no names.
        optional: A sample may have no label.
    """

    classes: Sequence[str] | None = None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Labels(Field):
    """A list of classes, as numbers or names.

    Attributes:
        classes: Class names by number, as in :class:`Label`.
        of: Name of the boxes column, if there is one class for each box; False if the classes do not describe boxes.
            None decides by the first samples. If each has as many classes as boxes, the classes describe the boxes,
            provided that there is only one boxes column. If only some have as many, that is an error.
        optional: A sample may have no list.
    """

    classes: Sequence[str] | None = None
    of: str | bool | None = None
    optional: bool = False


BOXES_ARE = b"packstore.boxes"
"""Key in the metadata of a Parquet field of boxes; its value is their convention. packstore's exports write it."""


@dataclass(frozen=True, slots=True)
class Boxes(Field):
    """Boxes: float32 ``(n, 4)`` in pixels of the image.

    Attributes:
        coordinates: ``xyxy``: left, top, right, bottom.
        optional: A sample may have no value. This differs from a value without boxes.
    """

    coordinates: str = "xyxy"
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Keypoints(Field):
    """Points: float32 ``(n, k)`` in pixels of the image.

    Attributes:
        k: 2 for x, y; 3 for x, y and visibility.
        of: Name of the boxes column to which the points belong, as in :class:`Labels`.
        points: Number of points of each object, for arrays ``(n, points, k)``; None for ``(n, k)``.
        optional: A sample may have no value.
    """

    k: int = 2
    of: str | bool | None = None
    points: int | None = None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Text(Field):
    """A string."""

    optional: bool = False


@dataclass(frozen=True, slots=True)
class Json(Field):
    """Any JSON value."""

    optional: bool = False


@dataclass(frozen=True, slots=True)
class Bytes(Field):
    """Bytes of any length."""

    optional: bool = False


@dataclass(frozen=True, slots=True)
class Array(Field):
    """Numbers of one dtype: a single one, or an array. :func:`column_of` checks the attributes, not this class.

    Attributes:
        dtype: Name of the dtype: ``bool``, ``int8`` … ``int64``, ``uint8`` … ``uint64``, ``float16``, ``bfloat16``,
            ``float32`` or ``float64``.
        shape: Shape of each sample's array; with ``ragged``, shape of one row.
        ragged: Arrays are ``(n, *shape)`` with any n.
        optional: A sample may have no array.
        spatial: Axes of an array that is cropped, resized, padded and mirrored with the image: ``"HW"`` (such as
            depth), ``"CHW"`` or ``"DCHW"`` (such as volumes and clips). H and W are the image's height and width. With
            True, ``shape`` decides: two sizes or none are ``"HW"``, three ``"CHW"``, four ``"DCHW"``. The dtype is
            ``uint8``, ``uint16``, ``int16`` (not of ``HW``), ``int32`` or ``float32``; parsing the declaration refuses
            others. The column gets the type ``mask``, ``volume`` or ``clip``.
        smooth: The values are pixels: resizing blends them. Else each resized value is one of the array's. Not for
            ``HW``, for which :class:`Image` does it.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    ragged: bool = False
    optional: bool = False
    spatial: bool | Literal["HW", "CHW", "DCHW"] = False
    smooth: bool = False


BY_NAME: dict[str, Field] = {
    "image": Image(),
    "mask": Mask(),
    "label": Label(),
    "labels": Labels(),
    "boxes": Boxes(),
    "keypoints": Keypoints(),
    "text": Text(),
    "json": Json(),
    "bytes": Bytes(),
}
"""The declaration that each string stands for; for the other column types :attr:`ColumnType.field` has it."""


def parse_fields(declared: Mapping[str, Field | str]) -> dict[str, Field]:
    """Returns declarations by field name. Replaces strings such as ``"boxes"`` by the declarations for which they
    stand.

    Raises :class:`UsageError` for a wrong declaration, and if ``declared`` is no mapping.
    """
    if not isinstance(declared, Mapping):
        raise UsageError(f"fields should be a dict of declarations by name, got {type(declared).__name__}")
    return {name: parse_field(name, field) for name, field in declared.items()}


def parse_field(name: str, declared: Field | str) -> Field:
    """Returns the declaration that a string stands for. Returns a declaration unchanged.

    The name of a dtype stands for a single number of that dtype. Raises :class:`UsageError` for anything else.
    """
    if isinstance(declared, str):
        if declared in BY_NAME:
            return BY_NAME[declared]
        if declared in ITEM_SIZE:
            return Array(declared)
        if declared in COLUMN_TYPES and (made := COLUMN_TYPES[declared].field) is not None:
            return cast(Field, made())
    elif isinstance(declared, Field):
        return declared
    further = (name for name in COLUMN_TYPES if name not in BY_NAME and COLUMN_TYPES[name].field is not None)
    known = ", ".join([*BY_NAME, *further, *ITEM_SIZE])
    raise UsageError(
        f"field {printable(str(name))!r}: {declared!r:.80} declares nothing; use one of {known}, or an object such as "
        "packstore.Label(classes) or packstore.Array('float32', (512,))"
    )


def column_of(name: str, field: Field, *, files: bool = True, dtype: str = "uint8") -> Column:
    """Creates the column of a field, without its :attr:`Column.companions`.

    Args:
        name: Name of the column.
        field: Its declaration; ``of`` is a name or False.
        files: Whether the values of an image or a mask are files.
        dtype: dtype of a mask that is an array.

    Raises:
        UsageError: The declaration is impossible.
    """
    nullable = field.optional
    try:
        match field:
            case Image():
                mode = None if field.mode in (None, RGB.name) else field.mode
                stored = "uint8" if mode is None or files else parse_mode(mode).dtype
                layout = None if files else "HWC"
                return Column(name, "ragged", stored, (), layout, type="image", nullable=nullable, mode=mode)
            case Mask():
                stored = "uint8" if files else dtype
                return Column(name, "ragged", stored, (), None if files else "HW", type="mask", nullable=nullable)
            case Label():
                return Column(name, "fixed", "int64", classes=_class_names(field), type="label", nullable=nullable)
            case Labels():
                return Column(
                    name, "ragged", "int64", classes=_class_names(field), type="labels", nullable=nullable,
                    parallel=_boxes_name(field.of),
                )  # fmt: skip
            case Boxes():
                coordinates = field.coordinates
                return Column(name, "ragged", "float32", (4,), type="boxes", nullable=nullable, coordinates=coordinates)
            case Keypoints():
                coordinates = {2: "xy", 3: "xyv"}.get(field.k, "")
                shape = (field.k,) if field.points is None else (as_index(field.points), field.k)
                return Column(
                    name, "ragged", "float32", shape, type="keypoints", nullable=nullable,
                    coordinates=coordinates, parallel=_boxes_name(field.of),
                )  # fmt: skip
            case Array() if field.spatial:
                return _spatial_column(name, field)
            case Array():
                if field.smooth:
                    raise ManifestError("smooth is for spatial arrays")
                kind: Literal["fixed", "ragged"] = "ragged" if field.ragged else "fixed"
                return Column(name, kind, field.dtype, tuple(map(as_index, field.shape)), nullable=nullable)
            case _:
                return field.column(name)
    except (ManifestError, TypeError) as error:
        raise UsageError(f"field {printable(name)!r}: {field!r:.200} cannot be kept: {error}") from None


_AXES = {2: "HW", 3: "CHW", 4: "DCHW"}


def _spatial_column(name: str, field: Array) -> Column:
    """Creates the mask, volume or clip column of an array that is cropped and mirrored like the image.

    Raises :class:`ManifestError` for impossible axes, shape or dtype, for ``ragged``, and for ``smooth`` with ``HW``.
    """
    shape = tuple(map(as_index, field.shape))
    layout = field.spatial if isinstance(field.spatial, str) else _AXES.get(len(shape) or 2, "")
    dtypes = MASK_DTYPES if layout == "HW" else VOLUME_DTYPES
    if field.dtype not in dtypes or field.ragged or layout not in _AXES.values() or len(shape) not in (0, len(layout)):
        raise ManifestError(
            f"spatial takes one of {', '.join(dtypes)}, and a shape of two to four sizes; or if sizes differ no shape "
            "and the axes: spatial='HW', 'CHW' or 'DCHW'"
        )
    if field.smooth and layout == "HW":
        raise ManifestError("smooth is for arrays CHW and DCHW; of (H, W) declare packstore.Image")
    kind = "mask" if layout == "HW" else "clip" if field.smooth else "volume"
    return Column(name, "fixed" if shape else "ragged", field.dtype, shape, layout, type=kind, nullable=field.optional)


def _class_names(field: Label | Labels) -> tuple[str, ...] | None:
    """Returns the classes of a field as a tuple; None if they have no names. Raises :class:`ManifestError` for a single
    string."""
    if field.classes is None:
        return None
    if isinstance(field.classes, str):
        raise ManifestError("classes should be a list of names, got one string")
    return tuple(field.classes)


def _boxes_name(of: str | bool | None) -> str | None:
    """Returns the name of the boxes column in ``of``; None for False and None. Raises :class:`ManifestError`
    for True."""
    if of is True:
        raise ManifestError("of should be the name of the boxes")
    return of or None

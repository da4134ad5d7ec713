"""Declarations of a sample's fields, for :class:`packstore.Writer` and ``convert(fields=…)``.

A string stands for a declaration with its defaults (``"boxes"``), or for one number of a dtype (``"float32"``). Each
declaration is in the file of its column type; :class:`Array`, which declares several types, is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import index as as_index
from typing import Literal, cast

from packstore.core.column_types.base import Field as Field
from packstore.core.column_types.numbers import Boxes as Boxes
from packstore.core.column_types.numbers import Keypoints as Keypoints
from packstore.core.column_types.numbers import Label as Label
from packstore.core.column_types.numbers import Labels as Labels
from packstore.core.column_types.objects import Bytes as Bytes
from packstore.core.column_types.objects import Json as Json
from packstore.core.column_types.objects import Text as Text
from packstore.core.column_types.pictures import MASK_DTYPES, VOLUME_DTYPES, PictureField
from packstore.core.column_types.pictures import Image as Image
from packstore.core.column_types.pictures import Images as Images
from packstore.core.column_types.pictures import Mask as Mask
from packstore.core.column_types.segments import Segments as Segments
from packstore.core.columns import INTERNAL, ITEM_SIZE, Column
from packstore.core.errors import ManifestError, UsageError, printable
from packstore.core.registry import COLUMN_TYPES

RESERVED = (*(name for name in INTERNAL if name != "image"), "manifest")
"""Names that fields cannot have, because packstore's own columns have them. A sample's ``key`` is its key."""

BOXES_ARE = b"packstore.boxes"
"""Key in the metadata of a Parquet field of boxes; its value is their convention. packstore's exports write it."""


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

    def column(self, name: str) -> Column:
        """Creates the column: of the type ``mask``, ``volume`` or ``clip`` if the field is spatial, else ``array``.

        Raises :class:`ManifestError` for an impossible declaration.
        """
        if self.spatial:
            return _spatial_column(name, self)
        if self.smooth:
            raise ManifestError("smooth is for spatial arrays")
        kind: Literal["fixed", "ragged"] = "ragged" if self.ragged else "fixed"
        return Column(name, kind, self.dtype, tuple(map(as_index, self.shape)), nullable=self.optional)


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
        if declared in ITEM_SIZE:
            return Array(declared)
        if declared in COLUMN_TYPES and (made := COLUMN_TYPES[declared].field) is not None:
            return cast("Field", made())
    elif isinstance(declared, Field):
        return declared
    known = ", ".join([*(name for name in COLUMN_TYPES if COLUMN_TYPES[name].field is not None), *ITEM_SIZE])
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
    try:
        return field.make_column(name, files, dtype) if isinstance(field, PictureField) else field.column(name)
    except (ManifestError, TypeError) as error:
        raise UsageError(f"field {printable(name)!r}: {field!r:.200} cannot be kept: {error}") from None


_AXES = {2: "HW", 3: "CHW", 4: "DCHW"}


def _spatial_column(name: str, field: Array) -> Column:
    """Creates the mask, volume or clip column of an array that is cropped and mirrored like the image."""
    shape = tuple(map(as_index, field.shape))
    # Without sizes, ``spatial=True`` means a value for each pixel.
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

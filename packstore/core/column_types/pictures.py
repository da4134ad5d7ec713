"""Types of pixels: images and masks, as files or as arrays."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from packstore.core.column_types.base import Collation, Column, ColumnType, unfit_error
from packstore.core.column_types.numbers import ArrayType
from packstore.core.column_types.objects import to_bytes

MASK_DTYPES = ("uint8", "uint16", "int32", "float32")
"""Of masks that are arrays; float32 for values measured at each pixel, such as depth."""


class PictureType(ArrayType):
    """Base of images and masks. Values are files, or arrays if the column has a layout: the order of the axes, such as
    ``HWC``."""

    form = "file"
    large = True
    is_picture = True

    def to_stored(self, column: Column, value: Any) -> bytes | NDArray[Any]:
        """Returns the bytes of a file; if the column has a layout, converts an array.

        Raises :class:`ValueError` for other values, and for an array that does not fit the layout.
        """
        return to_bytes(column, value) if column.layout is None else super().to_stored(column, value)

    def check_shape(self, column: Column, array: NDArray[Any], value: Any) -> NDArray[Any]:
        """Returns the array if it has the layout's dimensions and channels, else raises :class:`ValueError`."""
        dimensions = len(column.layout or "")
        if array.ndim != dimensions or (dimensions == 3 and array.shape[2] != column.pixels.channels):
            raise unfit_error(column, f"an array {column.layout}", value)
        return array

    def from_stored(self, column: Column, raw: Any, shape: tuple[int, ...] | None) -> Any:
        """Returns the bytes of a file, or the array if the column has a layout."""
        return bytes(raw) if column.layout is None else super().from_stored(column, raw, shape)


class ImageType(PictureType):
    """An image: a file, ``HWC`` whole numbers, or ``CHW`` floating point numbers."""

    name = "image"
    has_images = True
    meaning = "another image"

    def collation(self, column: Column) -> Collation:
        return "image"

    def fits(self, column: Column) -> bool:
        """Allows ragged bytes, ``HWC`` whole numbers, and fixed ``CHW`` floats, with the channels of the mode."""
        dtype, shape, mode = column.dtype, column.shape, column.pixels
        if column.layout == "HWC":
            whole = dtype == mode.dtype and dtype != "float32"
            return whole and (shape == () if column.kind == "ragged" else len(shape) == 3 and shape[2] == mode.channels)
        if column.layout is not None:
            floats = column.kind == "fixed" and dtype in ("float16", "bfloat16", "float32")
            return column.layout == "CHW" and floats and len(shape) == 3 and shape[0] == mode.channels
        return ColumnType.fits(self, column)


class MaskType(PictureType):
    """A mask: PNG files, or ``HW`` arrays."""

    name = "mask"
    moves = True
    lies_on_image = True
    meaning = "a value a pixel"

    def collation(self, column: Column) -> Collation:
        return "planes"

    def fits(self, column: Column) -> bool:
        """Allows ragged bytes, or ``HW`` arrays of the dtypes of masks."""
        if column.layout is None:
            return ColumnType.fits(self, column)
        dimensions = 2 if column.kind == "fixed" else 0
        return column.layout == "HW" and column.dtype in MASK_DTYPES and len(column.shape) == dimensions


IMAGE, MASK = ImageType(), MaskType()

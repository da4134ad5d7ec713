"""Types of arrays that lie on the pixels of the main image: channels, planes of volumes, frames of clips."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from packstore.core.column_types.base import Column, unfit_error
from packstore.core.column_types.forms import Collation
from packstore.core.column_types.numbers import ArrayType

VOLUME_DTYPES = ("uint8", "uint16", "int16", "int32", "float32")


class VolumeType(ArrayType):
    """An array ``CHW`` or ``DCHW`` with the height and width of the image. Resizing takes its nearest values, never a
    mean."""

    name = "volume"
    large = True
    moves = True
    lies_on_image = True
    meaning = "values a pixel"

    def fits(self, column: Column) -> bool:
        """Allows ``CHW`` and ``DCHW`` arrays of the dtypes of volumes, fixed or ragged."""
        axes = len(column.shape) or len(column.layout or "")
        known = column.layout in ("CHW", "DCHW") and column.dtype in VOLUME_DTYPES
        return known and axes == len(column.layout or "") and bool(column.shape) == (column.kind == "fixed")

    def collation(self, column: Column) -> Collation:
        return "planes"

    def check_shape(self, column: Column, array: NDArray[Any], value: Any) -> NDArray[Any]:
        """Returns the array if it has the layout's dimensions, else raises :class:`ValueError`."""
        if array.ndim != len(column.layout or ""):
            raise unfit_error(column, f"an array {column.layout}", value)
        return array


class ClipType(VolumeType):
    """A volume of pixels. Resizing blends its values like the image's."""

    name = "clip"
    meaning = "frames or planes"
    blends = True


VOLUME, CLIP = VolumeType(), ClipType()

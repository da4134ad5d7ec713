"""Rows of a batch buffer: their dtype, memory layout and normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from packstore.core.errors import UsageError
from packstore.core.manifest import Column, Manifest
from packstore.core.modes import Mode
from packstore.images.engine import MODES, OutputFormat
from packstore.training.augment.base import Crops, Size
from packstore.training.augment.operations import ONE_SIZE
from packstore.training.loader.normalizer import Normalizer
from packstore.training.pictures import TENSOR_DTYPES

BY_ENGINE = (torch.float32, torch.float16, torch.bfloat16)
"""Floating point types that the engine can write."""


@dataclass(frozen=True, eq=False)
class RowFormat:
    """Format of the rows of a batch buffer; a row is an image.

    Attributes:
        dtype: Dtype of the rows.
        planes: Rows are ``(C, h, w)``, not ``(h, w, C)``.
        normalizer: Converts bytes to floating point; None for uint8 rows, and for floating point stores.
        channels: Channels of a pixel.
    """

    dtype: torch.dtype
    planes: bool
    normalizer: Normalizer | None = None
    channels: int = 3

    def row_shape(self, size: Sequence[int]) -> tuple[int, int, int]:
        """Returns the shape of a row whose image has height and width ``size``."""
        height, width = size
        return (self.channels, height, width) if self.planes else (height, width, self.channels)

    def image_size(self, shape: Sequence[int]) -> tuple[int, int]:
        """Returns height and width of the image in a row of this shape."""
        height, width = shape[1:] if self.planes else shape[:2]
        return height, width

    def engine_format(self, crops: Crops | None = None) -> OutputFormat:
        """Describes this format for the engine: layout, normalisation, and the padding that ``crops`` need."""
        form = OutputFormat(self.planes) if crops is None else OutputFormat(self.planes, crops.pads, crops.fill)
        return form if self.normalizer is None else self.normalizer.add_to_format(form)

    def write_rows(self, pixels: torch.Tensor, out: torch.Tensor) -> None:
        """Normalises uint8 ``(B, h, w, C)`` on the CPU into ``out``, which has this format. Uses no other thread.

        Without a normalizer, copies pixels of any dtype."""
        target = out.permute(0, 2, 3, 1) if self.planes else out
        if self.normalizer is None:
            target.copy_(pixels)
        elif target.is_contiguous():
            self.normalizer.write_rows(pixels, target)
        else:
            values = torch.empty(pixels.shape, dtype=self.dtype, device="cpu")
            self.normalizer.write_rows(pixels, values)
            target.copy_(values)

    def as_images(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns rows as ``(B, C, h, w)``, a view."""
        return rows if self.planes else rows.permute(0, 3, 1, 2)


def final_format(
    manifest: Manifest, normalizer: Normalizer | None, channels_last: bool, mode: Mode
) -> RowFormat | None:
    """Returns the final format of a loader's images if the decoding threads can write it.

    Returns None if they cannot, or if the stored pixels are in that format already."""
    floats = manifest.holds_floats
    stored = getattr(torch, manifest.image.dtype) if floats else torch.uint8
    dtype = stored if normalizer is None else normalizer.dtype
    if mode not in MODES or dtype not in (torch.uint8, *BY_ENGINE) or (dtype == stored and channels_last != floats):
        return None
    return RowFormat(dtype, not channels_last, None if floats else normalizer, mode.channels)


def stored_format(column: Column, mode: Mode) -> RowFormat:
    """Returns the format of rows that hold pixels as stored. Image files are decoded to ``mode``."""
    floats = column.layout == "CHW"
    dtype = getattr(torch, column.dtype) if floats else TENSOR_DTYPES[mode.dtype]
    return RowFormat(dtype, floats, channels=mode.channels)


_CHANNELS = [mode.channels for mode in MODES]


def engine_supports(image: Column) -> bool:
    """Tells if the engine can process a column's stored pixels. They must be arrays of one shape, with 1 or 3 channels;
    whole numbers must be uint8."""
    if image.kind != "fixed" or image.layout is None or len(image.shape) != 3:
        return False
    return image.pixels in MODES if image.layout == "HWC" else image.shape[0] in _CHANNELS


def height_width(image: Column) -> Size:
    """Returns height and width of the images of a column whose arrays have one shape."""
    height, width = image.shape[1:] if image.layout == "CHW" else image.shape[:2]
    return height, width


def split_flat(values: torch.Tensor, shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Returns consecutive parts of one-dimensional ``values`` as views of ``shapes``."""
    ends = np.cumsum([math.prod(shape) for shape in shapes]).tolist()
    return [values[start:stop].view(*shape) for start, stop, shape in zip([0, *ends], ends, shapes, strict=False)]


class SizeError(UsageError):
    """Error for images of different sizes in one batch."""

    @classmethod
    def between(cls, found: Sequence[int], expected: Sequence[int]) -> SizeError:
        """Returns the error for two unequal shapes that begin with height and width. It advises to crop or resize."""
        return cls(
            f"images differ in size ({found[0]}x{found[1]}, {expected[0]}x{expected[1]}), so they make no batch: "
            f"begin augment= with operations that give them one, {ONE_SIZE}; or put a function for images of any size "
            "into PerImage"
        )

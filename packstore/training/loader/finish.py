"""Finishes cropped pixels in the decoding threads: normalisation, dtype and memory layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from packstore.core.manifest import Column, Manifest
from packstore.core.modes import Mode
from packstore.images.engine import MODES, OutputFormat
from packstore.training.augment.base import Crops
from packstore.training.loader.normalizer import Normalizer
from packstore.training.pictures import TENSOR_DTYPES

BY_ENGINE = (torch.float32, torch.float16, torch.bfloat16)
"""Floating point types that the engine can write."""


@dataclass(frozen=True, eq=False)
class RowFormat:
    """Format of the rows of a batch buffer.

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

    def shape(self, size: Sequence[int]) -> tuple[int, int, int]:
        """Returns the shape of a row with this height and width."""
        height, width = size
        return (self.channels, height, width) if self.planes else (height, width, self.channels)

    def size(self, shape: Sequence[int]) -> tuple[int, int]:
        """Returns height and width of a row with this shape."""
        height, width = shape[1:] if self.planes else shape[:2]
        return height, width

    def form(self, crops: Crops | None = None) -> OutputFormat:
        """Returns this format for the engine, with the padding of ``crops``."""
        form = OutputFormat(self.planes) if crops is None else OutputFormat(self.planes, crops.pads, crops.fill)
        return form if self.normalizer is None else self.normalizer.form(form)

    def rows(self, pixels: torch.Tensor, out: torch.Tensor) -> None:
        """Converts uint8 ``(B, h, w, C)`` on the CPU to this format, into ``out``, on the calling thread alone."""
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
    """Returns the final format of a loader's images, if threads can write it, or None if they cannot, or if pixels stay
    as they are."""
    floats = manifest.holds_floats
    stored = getattr(torch, manifest.image.dtype) if floats else torch.uint8
    dtype = stored if normalizer is None else normalizer.dtype
    if mode not in MODES or dtype not in (torch.uint8, *BY_ENGINE) or (dtype == stored and channels_last != floats):
        return None
    return RowFormat(dtype, not channels_last, None if floats else normalizer, mode.channels)


def stored_format(column: Column, mode: Mode) -> RowFormat:
    """Returns the format of rows whose pixels stay as a column stores them, or as files of ``mode`` decode."""
    floats = column.layout == "CHW"
    dtype = getattr(torch, column.dtype) if floats else TENSOR_DTYPES[mode.dtype]
    return RowFormat(dtype, floats, channels=mode.channels)

"""What pixels become in the threads that crop them: normalised, in a dtype and a memory layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from packstore.images.engine import Form
from packstore.training.augment.base import Crops
from packstore.training.loader.normalizer import Normalizer

BY_ENGINE = (torch.float32, torch.float16, torch.bfloat16)
"""Types that the engine can make."""


@dataclass(frozen=True, eq=False)
class Finish:
    """What rows of a batch buffer are.

    Attributes:
        dtype: Their dtype.
        planes: Whether they are ``(C, h, w)`` and not ``(h, w, C)``.
        normalizer: From bytes to floating point; None where the dtype is uint8, or the store's is floating point.
        channels: Of a pixel.
    """

    dtype: torch.dtype
    planes: bool
    normalizer: Normalizer | None = None
    channels: int = 3

    def shape(self, size: Sequence[int]) -> tuple[int, int, int]:
        """Shape of a row of ``size``: height and width."""
        height, width = size
        return (self.channels, height, width) if self.planes else (height, width, self.channels)

    def size(self, shape: Sequence[int]) -> tuple[int, int]:
        """Height and width of a row of ``shape``."""
        height, width = shape[1:] if self.planes else shape[:2]
        return height, width

    def form(self, crops: Crops | None = None) -> Form:
        """The same for the engine, with the padding of ``crops``."""
        form = Form(self.planes) if crops is None else Form(self.planes, crops.pads, crops.fill)
        return form if self.normalizer is None else self.normalizer.form(form)

    def rows(self, pixels: torch.Tensor, out: torch.Tensor) -> None:
        """Of uint8 ``(B, h, w, C)`` on the CPU, into rows ``out``, on the calling thread alone."""
        target = out.permute(0, 2, 3, 1) if self.planes else out
        if self.normalizer is None:
            target.copy_(pixels)
        elif target.is_contiguous():
            self.normalizer.rows(pixels, target)
        else:
            values = torch.empty(pixels.shape, dtype=self.dtype, device="cpu")
            self.normalizer.rows(pixels, values)
            target.copy_(values)

    def as_images(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows as ``(B, C, h, w)``, a view."""
        return rows if self.planes else rows.permute(0, 3, 1, 2)

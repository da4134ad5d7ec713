"""Flips, and operations that change pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.training.augment.base import Crops, GeometricOperation, Operation
from packstore.training.augment.crop import mirror
from packstore.training.random_draws import Array, Draws


@dataclass(frozen=True)
class RandomHorizontalFlip(GeometricOperation):
    """Mirrors images left to right with probability ``p``, as torchvision's ``RandomHorizontalFlip``.

    Args:
        p: Probability, 0 … 1.
        alternating: Draw in epoch 0 only; in every odd epoch all images are mirrored against that. So each two epochs
            show every image both ways (Keller Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU", 2024).

    Raises:
        UsageError: ``p`` is not a probability.
    """

    p: float = 0.5
    alternating: bool = False

    mirrors: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise UsageError(f"RandomHorizontalFlip: p should be 0 … 1, got {self.p!r}")

    def flags(self, draws: Draws) -> Array:
        """Mirrored images, bool ``(B,)``."""
        threshold = round(self.p * 2**32)
        if not self.alternating:
            return draws.bits(0) < threshold
        first = draws.replace(epoch=0).bits(0) < threshold
        return ~first if draws.epoch % 2 else first

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        return mirror(images, self.flags(draws))

    def composes(self, before: Sequence[GeometricOperation]) -> bool:
        return True

    def plan(self, crops: Crops, draws: Draws) -> Crops:
        flags = self.flags(draws)
        return crops.replace(flip=flags if crops.flip is None else crops.flip ^ flags)


@dataclass(frozen=True)
class Cutout(Operation):
    """Fills a square at a random place (DeVries and Taylor, "Improved regularization … with Cutout", 2017).

    The square's centre is uniform over the image's pixels, and what lies outside is cut off, as in their paper.

    Args:
        size: Side of the square in pixels.
        fill: Its value, in the images' own units: 0 is black for pixels, and the mean for normalised images.

    Raises:
        UsageError: A size that is not positive.
    """

    size: int
    fill: float = 0

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < 1:
            raise UsageError(f"Cutout: size should be a positive integer, got {self.size!r}")

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        rows = self._covered(draws, images.shape[-2], 0)
        columns = self._covered(draws, images.shape[-1], 1)
        return images.clone().masked_fill_((rows[:, :, None] & columns[:, None, :])[:, None], self.fill)

    def _covered(self, draws: Draws, length: int, draw: int) -> Tensor:
        start = (draws.integers(length, draw) - self.size // 2)[:, None]
        place = torch.arange(length, device=draws.records.device)
        covered: Tensor = (place >= start) & (place < start + self.size)
        return covered

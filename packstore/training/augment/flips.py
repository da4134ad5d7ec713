"""Random horizontal flips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from packstore.images.programs import Code, Program, step
from packstore.training.augment.base import Crops, GeometricOperation, Size
from packstore.training.augment.crop import mirror_images
from packstore.training.augment.program_operation import check_probability
from packstore.training.random_draws import Array, Draws


@dataclass(frozen=True)
class RandomHorizontalFlip(GeometricOperation):
    """Mirrors images left to right with probability ``p``, as torchvision's ``RandomHorizontalFlip``.

    Args:
        p: Probability, 0 … 1.
        alternating: Even epochs repeat the draws of epoch 0, and odd epochs mirror exactly the other images. So two
            consecutive epochs show each image both ways (Keller Jordan, "94% on CIFAR-10 in 3.29 seconds on a single
            GPU", 2024).

    Raises:
        UsageError: ``p`` is not a probability.
    """

    p: float = 0.5
    alternating: bool = False

    mirrors: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_probability(self, self.p)

    def flip_mask(self, draws: Draws) -> Array:
        """Draws which images to mirror, bool ``(B,)``."""
        threshold = round(self.p * 2**32)
        if not self.alternating:
            return draws.bits(0) < threshold
        # Alternating: odd epochs mirror the images that epoch 0 did not.
        first = draws.replace(epoch=0).bits(0) < threshold
        return ~first if draws.epoch % 2 else first

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        return mirror_images(images, self.flip_mask(draws))

    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Draws the flips as a program of one step, for operations such as :class:`RandomApply`."""
        return step(len(draws), Code.MIRROR, where=self.flip_mask(draws))

    def composes_after(self, before: Sequence[GeometricOperation]) -> bool:
        """Returns True: a flip combines with all geometric operations."""
        return True

    def plan_crops(self, crops: Crops, draws: Draws) -> Crops:
        """Returns ``crops`` with the drawn images mirrored."""
        flags = self.flip_mask(draws)
        # A second flip turns an image back.
        return crops.replace(flip=flags if crops.flip is None else crops.flip ^ flags)

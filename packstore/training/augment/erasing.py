"""Operations that overwrite parts of an image, and masks of hidden patches (``masking=`` of a loader)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.images.programs import Code, Program, join_programs, new_program, step
from packstore.training.arguments import CheckedArguments
from packstore.training.augment.base import Size, check_number, parse_range
from packstore.training.augment.colour import seed_parameters
from packstore.training.augment.crop import fill_like
from packstore.training.augment.kernels import IMAGENET_BYTES
from packstore.training.augment.program_operation import ProgramOperation
from packstore.training.random_draws import Array, Draws, chance, draw_box_sides, normal, pick_first_fitting

_ATTEMPTS = 10
_DRAWS = 2 * _ATTEMPTS + 9
"""Number of draws per box."""


@dataclass(frozen=True)
class RandomErasing(ProgramOperation):
    """Overwrites boxes of random area and aspect ratio with probability ``p``, as torchvision's ``RandomErasing``.

    Tries ten boxes, and takes the first that is lower and narrower than the image. If none is, erases nothing.

    Args:
        p: Probability.
        scale: Smallest and largest area of a box, as fractions of the image's.
        ratio: Smallest and largest aspect ratio of a box, height / width. Its logarithm is drawn uniformly.
        value: Colour, a number or one for each channel, as ``fill`` of :class:`RandomCrop`. The default 0 is black.
            torchvision's scripts erase after normalisation, where 0 is the mean colour: for the same, give the mean,
            such as ``value=(123.675, 116.28, 103.53)`` for ImageNet. ``"random"`` fills with random pixels,
            ``"color"`` with one random colour a box. Random values are normally distributed with the mean and deviation
            of ImageNet's pixels, and clipped to 0 … 255. After normalisation they are like torchvision's and timm's.
        count: Number of boxes, at most 100, or ``(least, most)``. Several boxes share the area, as in timm.

    Raises:
        UsageError: Numbers out of range, or an unknown value. When called: random values for images other than RGB of
            8 bits, normalised or not, or different values for images that do not have three channels.
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: float | tuple[float, float, float] | str = 0
    count: int | tuple[int, int] = 1

    def __post_init__(self) -> None:
        check_number(self, "p", 0, 1)
        object.__setattr__(self, "scale", parse_range(self, "scale", self.scale, 0, 1))
        object.__setattr__(self, "ratio", parse_range(self, "ratio", self.ratio, 1e-6, 1e6))
        if isinstance(self.value, str):
            fits = self.value in ("random", "color")
        else:
            fits = len(self._channel_values) == 3 and all(isinstance(n, int | float) for n in self._channel_values)
        if not fits:
            raise UsageError(
                "RandomErasing: value should be a number, one for each of 3 channels, 'random' or 'color', got "
                f"{self.value!r}"
            )
        least, most = self._count_range
        if not (isinstance(least, int) and isinstance(most, int) and 1 <= least <= most <= 100):
            raise UsageError(f"RandomErasing: count should be 1 … 100 or (least, most), got {self.count!r}")

    @property
    def _channel_values(self) -> tuple[Any, ...]:
        """The value of each of the three channels."""
        return tuple(self.value) if isinstance(self.value, list | tuple) else (self.value,) * 3

    @property
    def _count_range(self) -> tuple[int, int]:
        """Least and greatest number of boxes."""
        if isinstance(self.count, list | tuple):
            # A list of another length than two becomes an invalid range, which is refused.
            return tuple(self.count) if len(self.count) == 2 else (0, 0)  # type: ignore[return-value]
        return self.count, self.count

    @property
    def possible_steps(self) -> Collection[tuple[Code, int]]:
        """Erasing, if its values are random; else none, since all images support it."""
        return [(Code.ERASE, ERASE_FLAGS[self.value])] if isinstance(self.value, str) else []

    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Draws which images are erased, and a step for each box."""
        least, most = self._count_range
        happens = chance(draws, self.p, 0)
        count = least + draws.integers(most - least + 1, 1) if most > least else np.full(len(draws), least)
        # Steps beyond an image's number of boxes do nothing.
        boxes = [self._draw_boxes(draws, size, count, 2 + n * _DRAWS, happens & (n < count)) for n in range(most)]
        return join_programs(boxes, len(draws))

    def _draw_boxes(self, draws: Draws, size: Size, count: Any, draw: int, where: Any) -> Program:
        """Draws a step for one box of each image with true ``where``."""
        program, rows = new_program(len(draws), 1), np.flatnonzero(where)
        # Other images keep empty steps, which do nothing.
        if len(rows):
            program[rows] = self._draw_box_steps(draws[rows], size, count[rows], draw)
        return program

    def _draw_fitting_sizes(self, draws: Draws, size: Size, count: Any, draw: int, first: int, attempts: int) -> Any:
        """Returns height and width of the first of ``attempts`` boxes that fits, and whether one does, per image."""
        height, width = size
        heights, widths = draw_box_sides(
            draws, draw + 2 * first, attempts, total=height * width, scale=self.scale, ratio=self.ratio, parts=count
        )
        return pick_first_fitting((heights < height) & (widths < width), heights, widths)

    def _draw_box_steps(self, draws: Draws, size: Size, count: Any, draw: int) -> Program:
        """Draws a box for each image, and its values."""
        height, width = size
        tall, wide, has_box = self._draw_fitting_sizes(draws, size, count, draw, 0, 1)
        left = np.flatnonzero(~has_box)
        if len(left):  # most need one attempt only
            others = self._draw_fitting_sizes(draws[left], size, count[left], draw, 1, _ATTEMPTS - 1)
            tall[left], wide[left], has_box[left] = others
        draw += 2 * _ATTEMPTS
        bits = draws.bits(draw, 3)
        top, left = bits[0] * (height - tall + 1).clip(1) >> 32, bits[1] * (width - wide + 1).clip(1) >> 32
        values: tuple[Any, ...] = self._channel_values
        if self.value == "random":
            values = seed_parameters(bits[2])
        elif self.value == "color":
            values = tuple(
                (mean + deviation * normal(draws, draw + 3 + 2 * c)).round().clip(0, 255)
                for c, (mean, deviation) in enumerate(zip(*IMAGENET_BYTES, strict=True))
            )
        flags = ERASE_FLAGS.get(self.value, 0) if isinstance(self.value, str) else 0
        # Where no attempt fits, the step does nothing.
        return step(len(draws), Code.ERASE, top, left, tall, wide, *values, flags=flags, where=has_box)


ERASE_FLAGS = {"random": 1, "color": 2}
"""``flags`` of :attr:`Code.ERASE` for random uint8 values."""


@dataclass(frozen=True)
class Cutout(ProgramOperation):
    """Fills a square at a random position (DeVries and Taylor, "Improved regularization … with Cutout", 2017).

    The square's centre is uniform over the image's pixels. The square is clipped to the image, as in their paper.

    Args:
        size: Side of the square in pixels.
        fill: Its colour, as for :class:`RandomCrop`.

    Raises:
        UsageError: A size that is not positive.
    """

    draws_on_host = False
    size: int
    fill: float | Sequence[float] = 0

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < 1:
            raise UsageError(f"Cutout: size should be a positive integer, got {self.size!r}")
        if isinstance(self.fill, list | tuple) and len(self.fill) != 3:
            raise UsageError(f"Cutout: fill should be a number, or one for each of 3 channels, got {self.fill!r}")

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        """Fills the squares; never waits for the device."""
        rows = self._draw_square_masks(draws, images.shape[-2], 0)
        columns = self._draw_square_masks(draws, images.shape[-1], 1)
        covered = (rows[:, :, None] & columns[:, None, :])[:, None]
        return torch.where(covered, fill_like(self.convert_colour(self.fill), images), images)

    def draw_program(self, draws: Draws, size: Size) -> Program:
        """Draws the squares as boxes, clipped to images of ``size``."""
        starts = [self._draw_square_starts(draws, length, draw) for draw, length in enumerate(size)]
        first = [start.clip(0) for start in starts]
        sides = [
            (start + self.size).clip(max=length) - at for start, at, length in zip(starts, first, size, strict=True)
        ]
        colour = self.fill if isinstance(self.fill, list | tuple) else (self.fill,) * 3
        return step(len(draws), Code.ERASE, *first, *sides, *colour)

    def _draw_square_starts(self, draws: Draws, length: int, draw: int) -> Array:
        """Draws the first row or column of each square."""
        return draws.integers(length, draw) - self.size // 2  # negative if it exceeds the image

    def _draw_square_masks(self, draws: Draws, length: int, draw: int) -> Tensor:
        """Draws which of ``length`` rows or columns each square covers, bool ``(B, length)``."""
        start = self._draw_square_starts(draws, length, draw)[:, None]
        place = torch.arange(length, device=draws.records.device)
        covered: Tensor = (place >= start) & (place < start + self.size)
        return covered


class Masking(NamedTuple):
    """Shown and hidden patches of each image of a batch. Patches are numbered row by row.

    Attributes:
        keep: int64 ``(B, kept)``: the patches that are shown, in random order.
        mask: bool ``(B, patches)``: True for hidden patches.
        restore: int64 ``(B, patches)``: position of each patch in the list of the kept patches and, after them, the
            hidden ones.
    """

    keep: Tensor
    mask: Tensor
    restore: Tensor


@dataclass(frozen=True)
class RandomMasking(CheckedArguments):
    """Hides a random part of the patches of each image (He et al., "Masked autoencoders …", 2021).

    With ``masking=`` of a loader, each batch has a :class:`Masking` as its last value, or as ``"masking"`` of a dict.

    Args:
        ratio: Fraction of the patches that are hidden. The number of shown patches is rounded down.
        patch: Side of a patch in pixels. It must divide height and width of the images.

    Raises:
        UsageError: ``ratio`` is not from 0 to below 1, or ``patch`` is not positive. When called: ``patch`` does not
            divide the images.
    """

    ratio: float = 0.75
    patch: int = 16

    def __post_init__(self) -> None:
        if isinstance(self.ratio, bool) or not isinstance(self.ratio, int | float) or not 0 <= self.ratio < 1:
            raise UsageError(f"RandomMasking: ratio should be from 0 to below 1, got {self.ratio!r}")
        if not isinstance(self.patch, int) or self.patch < 1:
            raise UsageError(f"RandomMasking: patch should be a positive number of pixels, got {self.patch!r}")

    def __call__(self, draws: Draws, size: tuple[int, int]) -> Masking:
        """Draws the masks of records.

        Args:
            draws: Draws of the records, numpy or torch.
            size: Height and width of their images. Raises :class:`UsageError` if the patch does not divide them.
        """
        if size[0] % self.patch or size[1] % self.patch:
            raise UsageError(
                f"RandomMasking: images of {size[0]}x{size[1]} are no whole number of patches of {self.patch}"
            )
        patches = size[0] // self.patch * (size[1] // self.patch)
        noise = torch.as_tensor(draws.bits(0, patches)).T
        order = noise.argsort(dim=1, stable=True)
        restore = order.argsort(1)
        kept = int(patches * (1 - self.ratio))
        return Masking(order[:, :kept].contiguous(), restore >= kept, restore)

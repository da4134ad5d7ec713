"""Operations after which images differ in size: resizes to a size drawn per image, and padding.

A crop to one size must follow, such as ``RandomCrop(480, pad_if_needed=True)``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.training.augment.base import (
    SAMPLINGS,
    Crops,
    GeometricOperation,
    PaddingMode,
    Size,
    check_padding,
    check_padding_mode,
    join_columns,
    parse_positive_range,
    parse_size,
    where,
)
from packstore.training.augment.crop import pad_constant, source_index
from packstore.training.augment.geometry import (
    CenterCrop,
    RandomCrop,
    ResizingOperation,
    padding_composes_after,
)
from packstore.training.augment.resample import resize
from packstore.training.random_draws import Array, Draws, to_float64, to_int64


class _DrawnSize(ResizingOperation):
    """Resizes each image to a drawn size of its own."""

    gives_sizes: ClassVar[bool] = True

    @abstractmethod
    def draw_size(self, height: Array, width: Array, draws: Draws) -> tuple[Array, Array]:
        """Draws new heights and widths in float64, which the caller truncates, from heights and widths ``(B,)``."""

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        """Resizes one image, or several that get the same size.

        Raises :class:`UsageError` for images that get different sizes or interpolations."""
        whole = torch.stack([draws.records * 0 + n for n in images.shape[-2:]], 1)
        crops = self.plan_crops(Crops.full(whole), draws)
        sizes = crops.size.unique(dim=0).tolist()
        samplings = [0] if crops.sampling is None else crops.sampling.unique().tolist()
        if len(sizes) != 1 or len(samplings) != 1:
            raise UsageError(
                f"{type(self).__name__} gives each image a size of its own, so it cannot run on whole batches: put it "
                "first in the list, with a crop behind it"
            )
        return resize(images, (sizes[0][0], sizes[0][1]), SAMPLINGS[samplings[0]])

    def plan_crops(self, crops: Crops, draws: Draws) -> Crops:
        """Draws the size of each image by :meth:`draw_size`, at least one pixel, and the interpolation.

        Raises :class:`UsageError` if numpy crops are resized already, or exceed the image.
        """
        box = crops.find_visible_box(type(self).__name__)
        sides = self.draw_size(to_float64(box[:, 2]), to_float64(box[:, 3]), draws)
        size = join_columns([to_int64(each).clip(1) for each in sides])
        return Crops(box, size, join_columns([size * 0, size]), crops.flip, sampling=self.draw_sampling(draws, 1))


@dataclass(frozen=True)
class RandomResize(_DrawnSize):
    """Resizes images to a random length of the shorter side, as torchvision's ``RandomResize``.

    Args:
        min_size: Minimum length.
        max_size: Maximum length, exclusive.
        interpolation: As for :class:`Resize`.
        antialias: As for :class:`Resize`.

    Raises:
        UsageError: A range that is empty or not positive, an unknown interpolation.
    """

    min_size: int
    max_size: int
    interpolation: str = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        self.check_interpolation()
        if not all(type(n) is int for n in (self.min_size, self.max_size)) or not 0 < self.min_size < self.max_size:
            raise UsageError(
                "RandomResize: min_size and max_size should be integers, 0 < min_size < max_size, got "
                f"{self.min_size!r} and {self.max_size!r}"
            )

    def draw_size(self, height: Array, width: Array, draws: Draws) -> tuple[Array, Array]:
        """Draws the length of the shorter side, and keeps the aspect ratio."""
        shorter = to_float64(self.min_size + draws.integers(self.max_size - self.min_size, 0))
        upright = width <= height
        return where(upright, shorter * height / width, shorter), where(upright, shorter, shorter * width / height)


@dataclass(frozen=True)
class RandomShortestSize(_DrawnSize):
    """Resizes images to one of several lengths of the shorter side, as torchvision's ``RandomShortestSize``.

    Args:
        min_size: The lengths, or one.
        max_size: Limit of the longer side. Images that exceed it become smaller on both sides. None for no limit.
        interpolation: As for :class:`Resize`.
        antialias: As for :class:`Resize`.

    Raises:
        UsageError: A length that is not positive, an unknown interpolation.
    """

    min_size: int | Sequence[int]
    max_size: int | None = None
    interpolation: str = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        self.check_interpolation()
        sizes = tuple(self.min_size) if isinstance(self.min_size, list | tuple) else (self.min_size,)
        given = sizes if self.max_size is None else (*sizes, self.max_size)
        if not sizes or not all(type(n) is int and n > 0 for n in given):
            raise UsageError(
                "RandomShortestSize: min_size and max_size should be positive integers, got "
                f"{self.min_size!r} and {self.max_size!r}"
            )
        object.__setattr__(self, "min_size", sizes)

    def draw_size(self, height: Array, width: Array, draws: Draws) -> tuple[Array, Array]:
        """Draws one of the lengths for the shorter side."""
        assert not isinstance(self.min_size, int)
        chosen, shorter = draws.integers(len(self.min_size), 0), height * 0
        for number, size in enumerate(self.min_size):
            shorter = where(chosen == number, shorter + size, shorter)
        upright = width <= height
        ratio = shorter / where(upright, width, height)
        # Both sides shrink if the longer one would exceed the limit.
        if self.max_size is not None:
            # Arrays by arrays: torch divides by Python numbers differently.
            most = (height * 0 + self.max_size) / where(upright, height, width)
            ratio = where(most < ratio, most, ratio)
        return height * ratio, width * ratio


@dataclass(frozen=True)
class ScaleJitter(_DrawnSize):
    """Resizes images to fit a target times a random factor, as torchvision's ``ScaleJitter``. Keeps the aspect ratio.

    Args:
        target_size: Two numbers. As in torchvision, the first bounds widths and the second heights. A single number
            bounds both.
        scale_range: Smallest and largest factor.
        interpolation: As for :class:`Resize`.
        antialias: As for :class:`Resize`.

    Raises:
        UsageError: A size that is not positive, a range that is not positive and ascending, an unknown interpolation.
    """

    target_size: int | Size
    scale_range: tuple[float, float] = (0.1, 2.0)
    interpolation: str = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        self.check_interpolation()
        object.__setattr__(self, "target_size", parse_size(self.target_size, "ScaleJitter"))
        object.__setattr__(self, "scale_range", parse_positive_range(self, "scale_range", self.scale_range))

    def draw_size(self, height: Array, width: Array, draws: Draws) -> tuple[Array, Array]:
        """Draws a factor, and returns the size that fits the target times this factor."""
        assert not isinstance(self.target_size, int)
        low, high = self.scale_range
        # Arrays by arrays: torch multiplies a number by the reciprocal.
        tall, wide = (height * 0 + self.target_size[1]) / height, (width * 0 + self.target_size[0]) / width
        ratio = where(tall < wide, tall, wide) * (low + draws.uniform(0) * (high - low))
        return height * ratio, width * ratio


@dataclass(frozen=True)
class Pad(GeometricOperation):
    """Pads the sides of images, as torchvision's ``Pad``.

    Args:
        padding: Number of pixels on each side; ``(left and right, top and bottom)``; or ``(left, top, right, bottom)``.
        fill: Colour of constant padding, as for :class:`RandomCrop`.
        padding_mode: As for :class:`RandomCrop`.

    Raises:
        UsageError: Invalid padding, an unknown mode. When called: images too small to reflect them into the padding.
    """

    padding: int | Sequence[int]
    fill: float | Sequence[float] = 0
    padding_mode: PaddingMode = "constant"

    def __post_init__(self) -> None:
        given = tuple(self.padding) if isinstance(self.padding, list | tuple) else (self.padding,)
        if len(given) not in (1, 2, 4) or not all(type(n) is int and n >= 0 for n in given):
            raise UsageError(f"Pad: padding should be 1, 2 or 4 integers of at least 0, got {self.padding!r}")
        check_padding_mode(self, self.padding_mode)
        object.__setattr__(self, "padding", given * (4 // len(given)))

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        left, top, right, bottom = self._paddings
        height, width = images.shape[-2:]
        check_padding(self, (left, right, top, bottom), (height, width))
        if self.padding_mode == "constant":
            return pad_constant(images, (left, right, top, bottom), self.convert_colour(self.fill))
        least = 1 if self.padding_mode == "reflect" else 0
        if self.padding_mode != "edge" and max(top - height, bottom - height, left - width, right - width) > -least:
            raise UsageError(
                f"Pad: padding {self._paddings} with padding_mode {self.padding_mode!r} needs larger images than "
                f"{height}x{width}"
            )
        rows = source_index(torch.arange(-top, height + bottom), height, self.padding_mode)
        columns = source_index(torch.arange(-left, width + right), width, self.padding_mode)
        return images[..., rows.to(images.device)[:, None], columns.to(images.device)]

    def size_after(self, size: Size | None) -> Size | None:
        """Returns ``size`` plus the padding; None for images of unknown or different sizes."""
        left, top, right, bottom = self._paddings
        return None if size is None else (size[0] + top + bottom, size[1] + left + right)

    def composes_after(self, before: Sequence[GeometricOperation]) -> bool:
        """Returns True for constant padding without a crop before it, see :func:`padding_composes_after`."""
        # After a crop, the padding would show pixels beside the crop.
        cropped = any(isinstance(op, CenterCrop | RandomCrop) for op in before)
        return self.padding_mode == "constant" and not cropped and padding_composes_after(self, self.fill, before)

    def plan_crops(self, crops: Crops, draws: Draws) -> Crops:
        """Enlarges the windows of ``crops`` by the padding, and sets mode and fill. Draws nothing.

        Does not check if images are too small to reflect them into the padding.
        """
        (left, top, right, bottom), fill = self._paddings, self.convert_colour(self.fill)
        zero = crops.window[:, 2] * 0
        size: tuple[Any, Any] = (crops.window[:, 2] + top + bottom, crops.window[:, 3] + left + right)
        return crops.replace(pads=self.padding_mode, fill=fill).cut_window(zero - top, zero - left, size)

    @property
    def pads(self) -> PaddingMode:
        """The option ``padding_mode``."""
        return self.padding_mode

    @property
    def _paddings(self) -> tuple[int, int, int, int]:
        """Pixels to add at the left, top, right and bottom."""
        assert not isinstance(self.padding, int)
        left, top, right, bottom = self.padding
        return left, top, right, bottom

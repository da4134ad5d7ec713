"""Operations after which images differ in size: resizes to a drawn size, padding, and crops of detection.

A crop or resize to one size must follow, such as ``RandomCrop(480, pad_if_needed=True)``.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.training.arguments import parse_numbers
from packstore.training.augment.base import (
    SAMPLINGS,
    Crops,
    GeometricOperation,
    PaddingMode,
    Size,
    check_number,
    check_padding,
    check_padding_mode,
    join_columns,
    parse_positive_range,
    parse_range,
    parse_size,
    where,
)
from packstore.training.augment.crop import pad_constant, source_index
from packstore.training.augment.geometry import CenterCrop, RandomCrop, ResizingOperation, padding_composes_after
from packstore.training.augment.resample import resize
from packstore.training.random_draws import Array, Draws, chance, to_float64, to_int64


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
        return replace(crops, pads=self.padding_mode, fill=fill).cut_window(zero - top, zero - left, size)

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


class BatchBoxes(NamedTuple):
    """Boxes of all images of a batch.

    Attributes:
        corners: float32 ``(N, 4)``: left, top, right, bottom, in pixels.
        rows: int64 ``(N,)``, ascending: the image of each box.
    """

    corners: NDArray[np.float32]
    rows: NDArray[np.int64]


class _ImageByImage(GeometricOperation):
    """Crop or padding that gives images different sizes. A loader runs it image by image."""

    gives_sizes: ClassVar[bool] = True

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        """Raises :class:`UsageError`: a loader runs this operation image by image."""
        raise UsageError(f"{self!r} gives images different sizes, so a loader has to run it image by image")

    def composes_after(self, before: Sequence[GeometricOperation]) -> bool:
        """Returns False: these operations run image by image."""
        return False


@dataclass(frozen=True)
class RandomZoomOut(_ImageByImage):
    """Places an image at random on a larger image of one colour, as torchvision's ``RandomZoomOut``.

    Liu et al., "SSD: Single Shot MultiBox Detector" (2016).

    Args:
        fill: Colour, as for :class:`RandomCrop`.
        side_range: Smallest and largest ratio of new to old sides.
        p: Probability of a larger image.

    Raises:
        UsageError: A range that is not ascending within 1 … 100, an invalid probability or colour.
    """

    fill: float | Sequence[float] = 0
    side_range: tuple[float, float] = (1.0, 4.0)
    p: float = 0.5

    def __post_init__(self) -> None:
        check_number(self, "p", 0, 1)
        object.__setattr__(self, "side_range", parse_range(self, "side_range", self.side_range, 1, 100))
        if not isinstance(self.fill, int | float):
            parse_numbers("RandomZoomOut: fill", self.fill)
            object.__setattr__(self, "fill", tuple(self.fill))

    def plan_crops(self, crops: Crops, draws: Draws) -> Crops:
        """Draws windows that contain the whole image at a random place.

        With probability ``p`` their sides are longer by a ratio from ``side_range``. Other windows are the image
        itself.
        """
        height, width = crops.window[:, 2], crops.window[:, 3]
        low, high = self.side_range
        ratio = draws.uniform(1) * (high - low) + low
        happens = chance(draws, self.p, 0)
        tall, wide = (where(happens, to_int64(to_float64(length) * ratio), length) for length in (height, width))
        left, top = (
            to_int64(to_float64(more) * draws.uniform(draw)) for draw, more in ((2, wide - width), (3, tall - height))
        )
        return replace(crops, fill=self.convert_colour(self.fill)).cut_window(-top, -left, (tall, wide))


_MOST_TRIALS = 10_000


@dataclass(frozen=True)
class RandomIoUCrop(_ImageByImage):
    """Crops a part that overlaps enough with a box, as torchvision's ``RandomIoUCrop``.

    Draws a minimum IoU from ``sampler_options``, and ``trials`` parts of the image. Takes the first part that contains
    the centre of a box and overlaps that box by at least the minimum IoU. If no part does, draws another minimum and
    other parts, up to 100 times. A minimum of 1 or more keeps the whole image. Images without boxes stay whole, too.

    Boxes whose centres are outside the crop are dropped. Liu et al., "SSD: Single Shot MultiBox Detector" (2016).

    Needs a column of boxes in ``columns=``.

    Args:
        min_scale: Smallest fraction of each side.
        max_scale: Largest fraction of each side.
        min_aspect_ratio: Smallest width / height.
        max_aspect_ratio: Largest width / height.
        sampler_options: Minimum IoUs to draw from.
        trials: Number of parts that are drawn per option.

    Raises:
        UsageError: A range that is not ascending, options that are no numbers, no options, no trials.
    """

    min_scale: float = 0.3
    max_scale: float = 1.0
    min_aspect_ratio: float = 0.5
    max_aspect_ratio: float = 2.0
    sampler_options: Sequence[float] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    trials: int = 40

    def __post_init__(self) -> None:
        parse_range(self, "min_scale, max_scale", (self.min_scale, self.max_scale), 0, 1)
        parse_range(self, "min_aspect_ratio, max_aspect_ratio", (self.min_aspect_ratio, self.max_aspect_ratio), 0, 1e6)
        object.__setattr__(
            self, "sampler_options", parse_numbers("RandomIoUCrop: sampler_options", self.sampler_options)
        )
        check_number(self, "trials", 1, _MOST_TRIALS, whole=True)

    def plan_crops(self, crops: Crops, draws: Draws) -> Crops:
        """Raises :class:`UsageError`, because this crop cannot be drawn without boxes. See :meth:`plan_around`."""
        raise UsageError("RandomIoUCrop chooses by boxes: load a column of them, columns=(..., 'boxes')")

    def plan_around(self, sizes: NDArray[np.int64], boxes: BatchBoxes, draws: Draws) -> Crops:
        """Draws crops of images of ``sizes``, int64 ``(B, 2)``, that overlap enough with their ``boxes``.

        Images without boxes stay whole. ``draws`` are numpy."""
        crops = Crops.full(sizes)
        crops = replace(crops, window=crops.window.copy())
        bounds = np.searchsorted(boxes.rows, np.arange(len(sizes) + 1)).tolist()
        for row, (first, stop) in enumerate(itertools.pairwise(bounds)):
            if first < stop:
                crops.window[row] = self._draw_window(sizes[row], boxes.corners[first:stop], draws[row : row + 1])
        return crops

    def _draw_window(self, size: NDArray[np.int64], boxes: NDArray[np.float32], draws: Draws) -> Any:
        """Draws top, left, height and width of one image's crop."""
        height, width = size.tolist()
        for attempt in range(_ROUNDS):
            draw = attempt * (1 + 4 * self.trials)
            least = self.sampler_options[int(draws.integers(len(self.sampler_options), draw)[0])]
            # Such an option keeps the whole image.
            if least >= 1:
                break
            uniform = draws.uniform(draw + 1, 4 * self.trials).reshape(4, -1)
            scale = self.min_scale + (self.max_scale - self.min_scale) * uniform[:2]
            wide, tall = (width * scale[0]).astype(np.int64), (height * scale[1]).astype(np.int64)
            left = ((width - wide) * uniform[2]).astype(np.int64)
            top = ((height - tall) * uniform[3]).astype(np.int64)
            some = (wide > 0) & (tall > 0)
            aspect = wide / np.where(some, tall, 1)
            some &= (aspect >= self.min_aspect_ratio) & (aspect <= self.max_aspect_ratio)
            parts = np.stack([left, top, left + wide, top + tall], 1).astype(np.float32)
            overlaps = np.where(centres_inside(boxes, parts[:, None]), _box_iou(boxes, parts[:, None]), -1).max(1)
            some &= (overlaps >= 0) & (overlaps >= least)
            if some.any():
                chosen = int(some.argmax())
                return top[chosen], left[chosen], tall[chosen], wide[chosen]
        return 0, 0, height, width  # no option gave a crop


@dataclass(frozen=True)
class RandomSizeCrop(_ImageByImage):
    """Crops a part of random size at a random position, as the ``RandomSizeCrop`` of DETR.

    Carion et al., "End-to-end object detection with transformers" (2020); facebookresearch/detr,
    ``datasets/transforms.py``. A side shorter than ``min_size`` is kept whole.

    Args:
        min_size: Minimum length of a side.
        max_size: Maximum length of a side.

    Raises:
        UsageError: A length that is not positive, or a range that is not ascending.
    """

    min_size: int
    max_size: int

    def __post_init__(self) -> None:
        if not all(type(n) is int for n in (self.min_size, self.max_size)) or not 0 < self.min_size <= self.max_size:
            raise UsageError(
                "RandomSizeCrop: min_size and max_size should be integers, 0 < min_size <= max_size, got "
                f"{self.min_size!r} and {self.max_size!r}"
            )

    def plan_crops(self, crops: Crops, draws: Draws) -> Crops:
        """Draws the width, the height, and the position of each crop."""
        lengths, places = [], []
        for draw, column in ((1, 2), (0, 3)):  # widths are drawn first
            length = crops.window[:, column]
            least = length.clip(max=self.min_size)
            cut = least + draws.integers(length.clip(max=self.max_size) - least + 1, draw)
            lengths.append(cut)
            places.append(draws.integers(length - cut + 1, draw + 2))
        return crops.cut_window(places[0], places[1], (lengths[0], lengths[1]))


_ROUNDS = 100
"""Maximum number of options that are drawn. By default every seventh option keeps the whole image, so more would be
needed with a probability of 2e-7."""


def box_areas(boxes: NDArray[np.float32]) -> NDArray[np.float64]:
    """Computes the area of each box, float64. A box whose right or bottom is before its left or top has area 0."""
    sides = (boxes[:, 2:] - boxes[:, :2]).clip(0).astype(np.float64)
    area: NDArray[np.float64] = sides[:, 0] * sides[:, 1]
    return area


def centres_inside(boxes: NDArray[np.float32], part: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Tells which centres of ``boxes`` ``(N, 4)`` are inside the rectangles ``part`` ``(…, 4)``. Borders are outside.

    Both are left, top, right, bottom.
    """
    x, y = 0.5 * (boxes[:, 0] + boxes[:, 2]), 0.5 * (boxes[:, 1] + boxes[:, 3])
    inside: NDArray[np.bool_] = (part[..., 0] < x) & (x < part[..., 2]) & (part[..., 1] < y) & (y < part[..., 3])
    return inside


def _box_iou(boxes: NDArray[np.float32], part: NDArray[np.float32]) -> NDArray[np.float32]:
    """Computes the intersection over union of ``boxes`` and ``part``, float32, as torchvision's ``box_iou``."""
    shared = (np.minimum(boxes[:, 2:], part[..., 2:]) - np.maximum(boxes[:, :2], part[..., :2])).clip(0).prod(-1)
    areas = [(each[..., 2:] - each[..., :2]).prod(-1) for each in (boxes, part)]
    with np.errstate(divide="ignore", invalid="ignore"):
        # 0 / 0, of two empty boxes, becomes -1.
        ratio: NDArray[np.float32] = np.nan_to_num(shared / (areas[0] + areas[1] - shared), nan=-1)
    return ratio

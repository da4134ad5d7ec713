"""Operations of detection: zooming out, and crops that depend on boxes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.training.arguments import parse_numbers
from packstore.training.augment.base import Crops, GeometricOperation, check_number, parse_range, where
from packstore.training.random_draws import Draws, chance, to_float64, to_int64


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
        return crops.replace(fill=self.convert_colour(self.fill)).cut_window(-top, -left, (tall, wide))


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
        crops = crops.replace(window=crops.window.copy())
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

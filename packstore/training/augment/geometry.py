"""Crops, resizes and flips. Each runs on batches, or is planned and runs while images are decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.images.programs import Code, Program, step
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
    parse_size,
    unmirror_left,
    where,
)
from packstore.training.augment.crop import crop, mirror_images, pad_constant
from packstore.training.augment.resample import crop_and_resize, resize
from packstore.training.random_draws import (
    MASK,
    Array,
    Draws,
    chance,
    draw_box_sides,
    pick_first_fitting,
    to_float64,
    to_int64,
)


class ResizingOperation(GeometricOperation):
    """Geometric operation that resizes images, by an interpolation that may be drawn for each image.

    Attributes:
        interpolation: One of the first five of :data:`SAMPLINGS`, or ``"random"`` for bilinear or bicubic.
        antialias: Widen bilinear and bicubic filters by the factor that images shrink.
    """

    resizes: ClassVar[bool] = True
    interpolation: str
    antialias: bool

    def check_interpolation(self) -> None:
        """Raises :class:`UsageError` for an unknown ``interpolation``, or an ``antialias`` that is not a bool."""
        known = (*SAMPLINGS[:5], "random")
        name = type(self).__name__
        if self.interpolation not in known:
            raise UsageError(f"{name}: interpolation should be one of {', '.join(known)}, got {self.interpolation!r}")
        if not isinstance(self.antialias, bool):
            raise UsageError(f"{name}: antialias should be True or False, got {self.antialias!r}")

    @property
    def samplings(self) -> set[int]:
        plain = {} if self.antialias else {"bilinear": "plain bilinear", "bicubic": "plain bicubic"}
        names = ("bilinear", "bicubic") if self.interpolation == "random" else (self.interpolation,)
        return {SAMPLINGS.index(plain.get(name, name)) for name in names}

    def draw_sampling(self, draws: Draws, draw: int) -> Array | None:
        """Returns the interpolation of each image, ``(B,)``: indices in :data:`SAMPLINGS`. None if all are bilinear.

        Draws them if the operation has two.
        """
        numbers = sorted(self.samplings)
        if numbers == [0]:
            return None
        if len(numbers) == 1:
            return draws.records * 0 + numbers[0]
        return numbers[0] + draws.integers(2, draw) * (numbers[1] - numbers[0])

    def composes_after(self, before: Sequence[GeometricOperation]) -> bool:
        """Tells if all operations before this one are flips. A resize cannot follow a crop or another resize."""
        return all(op.mirrors for op in before)


@dataclass(frozen=True)
class Resize(ResizingOperation):
    """Resizes images, as torchvision's ``Resize``.

    Args:
        size: ``(height, width)``. A single number is the length of the shorter side, and keeps the aspect ratio.
        interpolation: ``"bilinear"``, ``"nearest"``, ``"bicubic"``, ``"box"`` or ``"lanczos"``. ``"random"`` draws
            bilinear or bicubic for each image, as timm does.
        antialias: Widen bilinear and bicubic filters by the factor that images shrink.

    Raises:
        UsageError: A size that is not positive, an unknown interpolation.
    """

    size: int | Size
    interpolation: str = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        self.check_interpolation()
        pair = parse_size(self.size, "Resize")
        if not isinstance(self.size, int):
            object.__setattr__(self, "size", pair)

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        size = self.size_after((images.shape[-2], images.shape[-1]))
        assert size is not None
        sampling = self.draw_sampling(draws, 0)
        if sampling is None:
            return resize(images, size)
        whole = torch.stack([draws.records * 0 + n for n in (0, 0, *images.shape[-2:])], 1)
        return crop_and_resize(images, whole, size, sampling)

    def size_after(self, size: Size | None) -> Size | None:
        """Returns height and width of the results; None if they depend on an unknown ``size``.

        If the option ``size`` is a single length, images keep their aspect ratio, and the longer side is rounded down,
        to at least 1.
        """
        if not isinstance(self.size, int):
            return self.size
        if size is None:
            return None
        height, width = size
        if width <= height:
            return max(1, int(self.size * height / width)), self.size
        return self.size, max(1, int(self.size * width / height))

    def plan_crops(self, crops: Crops, draws: Draws) -> Crops:
        """Returns crops that resize the visible box of ``crops``. Draws only a ``"random"`` interpolation.

        Raises :class:`UsageError` if numpy crops are resized already, or exceed the image.
        """
        box = crops.find_visible_box("Resize")
        height, width = box[:, 2], box[:, 3]
        if isinstance(self.size, int):
            # The same float64 arithmetic as in size_after, so the same rounding.
            tall = to_int64(self.size * to_float64(height) / to_float64(width))
            wide = to_int64(self.size * to_float64(width) / to_float64(height))
            upright = width <= height
            shorter = height * 0 + self.size
            size = join_columns([where(upright, tall, shorter), where(upright, shorter, wide)]).clip(1)
        else:
            size = join_columns([height * 0 + self.size[0], height * 0 + self.size[1]])
        return Crops(box, size, join_columns([size * 0, size]), crops.flip, sampling=self.draw_sampling(draws, 0))


@dataclass(frozen=True)
class FixedSizeOperation(GeometricOperation):
    """Base of operations whose results all have one size.

    Replaces ``size`` by ``(height, width)``. Raises :class:`UsageError` if it is not positive.
    """

    size: int | Size

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", parse_size(self.size, type(self).__name__))

    def size_after(self, size: Size | None) -> Size | None:
        """Returns the operation's own size, whatever ``size`` is."""
        return self._size_pair

    @property
    def _size_pair(self) -> Size:
        """Height and width of the results."""
        assert not isinstance(self.size, int)
        return self.size


@dataclass(frozen=True)
class CenterCrop(FixedSizeOperation):
    """Crops the centre, as torchvision's ``CenterCrop``. Pads smaller images with black.

    Args:
        size: ``S`` for a square, or ``(height, width)``.

    Raises:
        UsageError: A size that is not positive.
    """

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        (rows, columns), (height, width) = self._size_pair, images.shape[-2:]
        top, left = find_centred_start(height, rows), find_centred_start(width, columns)
        if rows > height or columns > width:
            edges = max(0, -left), max(0, columns - width + left), max(0, -top), max(0, rows - height + top)
            check_padding(self, edges, (height, width))
            images = pad_constant(images, edges, self.convert_colour(0))
            top, left = max(0, top), max(0, left)
        return images[..., top : top + rows, left : left + columns]

    def composes_after(self, before: Sequence[GeometricOperation]) -> bool:
        """Tells if no earlier crop is smaller, and the padding, if any is needed, can follow ``before``."""
        if not crop_composes_after(self._size_pair, before):
            return False
        return fits_after_resize(self._size_pair, before) or padding_composes_after(self, 0, before)

    def plan_crops(self, crops: Crops, draws: Draws) -> Crops:
        """Cuts a centred window of this size from the present window, which may be smaller. Draws nothing."""
        rows, columns = self._size_pair
        top, left = find_centred_start(crops.window[:, 2], rows), find_centred_start(crops.window[:, 3], columns)
        return replace(crops, fill=self.convert_colour(0)).cut_window(top, left, self._size_pair)


@dataclass(frozen=True)
class RandomCrop(FixedSizeOperation):
    """Crops a part at a uniformly random position, as torchvision's ``RandomCrop``.

    A crop with ``padding`` cannot run while files are decoded. It runs on batches, or while the engine crops stored
    arrays.

    Args:
        size: ``S`` for a square, or ``(height, width)``.
        padding: Number of pixels that are first added on each side.
        pad_if_needed: Pad smaller images with ``fill``, each side by the whole difference. Not with ``padding`` or a
            ``padding_mode`` other than ``"constant"``.
        padding_mode: ``"constant"`` (``fill``), ``"edge"`` (the outermost pixel), ``"reflect"`` (mirrored without the
            outermost pixel) or ``"symmetric"`` (mirrored with it).
        fill: Colour of added pixels, a number or one for each channel: 0 … 255, or as pixels of another mode are. It
            is the same in stores that are normalised already.

    Raises:
        UsageError: Invalid size or padding, or an unknown mode. ``pad_if_needed`` with padding, or with another mode
            than ``"constant"``. When called: images smaller than the crop, or too small to reflect them into the
            padding.
    """

    padding: int = 0
    padding_mode: PaddingMode = "constant"
    fill: float | Sequence[float] = 0
    pad_if_needed: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pad_if_needed and (self.padding or self.padding_mode != "constant"):
            raise UsageError("RandomCrop: pad_if_needed stands without padding, and fills with one value")
        if not isinstance(self.padding, int) or self.padding < 0:
            raise UsageError(f"RandomCrop: padding should be an integer of at least 0, got {self.padding!r}")
        check_padding(self, (self.padding,) * 4)
        check_padding_mode(self, self.padding_mode)

    def __call__(self, images: Tensor, draws: Draws, flip: Tensor | None = None) -> Tensor:
        """Crops the images. Mirrors the crops with true ``flip``, bool ``(B,)``."""
        height, width = images.shape[-2:]
        fill = self.convert_colour(self.fill)
        if self.pad_if_needed:
            tall, wide = (max(0, n - m) for n, m in zip(self._size_pair, (height, width), strict=True))
            check_padding(self, (wide, wide, tall, tall), (height, width))
            images = pad_constant(images, (wide, wide, tall, tall), fill)
            height, width = images.shape[-2:]
        top, left = self._draw_corners((height, width), draws)
        return crop(images, top, left, self._size_pair, self.padding, self.padding_mode, fill, flip)

    def _draw_corners(self, size: Size, draws: Draws) -> tuple[Tensor, Tensor]:
        """Draws top and left of each crop in images of ``size``, int64 ``(B,)``."""
        self._check_size(size)
        (rows, columns), padding = self._size_pair, self.padding
        # Negative corners are in the padding.
        top = draws.integers(size[0] + 2 * padding - rows + 1, 0) - padding
        return top, draws.integers(size[1] + 2 * padding - columns + 1, 1) - padding

    def _check_size(self, size: Sequence[int]) -> None:
        """Raises :class:`UsageError` unless the size of images suits the crop and its padding."""
        check_padding(self, (self.padding,) * 4, (size[0], size[1]))
        (rows, columns), (height, width) = self._size_pair, size
        padded = height + 2 * self.padding, width + 2 * self.padding
        if rows > padded[0] or columns > padded[1]:
            raise UsageError(
                f"RandomCrop: images of {height}x{width} with padding {self.padding} are smaller than the crop of "
                f"{rows}x{columns}; use a smaller one, or more padding"
            )
        # Reflection can add at most as many pixels as the image has.
        reach = {"reflect": min(height, width) - 1, "symmetric": min(height, width)}.get(self.padding_mode)
        if reach is not None and self.padding > reach:
            raise UsageError(
                f"RandomCrop: padding {self.padding} with padding_mode {self.padding_mode!r} needs larger images than "
                f"{height}x{width}; for these at most {reach}"
            )

    def composes_after(self, before: Sequence[GeometricOperation]) -> bool:
        """Tells if this crop can follow the operations ``before`` in one :class:`Crops`.

        - With padding: never.
        - With ``pad_if_needed``: as the first crop, see :func:`padding_composes_after`.
        - Otherwise: if no earlier crop is smaller.
        """
        if self.pad_if_needed and any(isinstance(op, CenterCrop | RandomCrop) for op in before):
            return False
        if self.pad_if_needed and not padding_composes_after(self, self.fill, before):
            return False
        return self.padding == 0 and crop_composes_after(self._size_pair, before)

    def plan_crops(self, crops: Crops, draws: Draws) -> Crops:
        """Draws the position of a window within the present window and its padding.

        Raises :class:`UsageError` for a numpy record that is too small. Neither checks records on a device, nor if
        records are too small to reflect them into the padding.
        """
        window, padding = crops.window, self.padding
        rows, columns = self._size_pair
        if self.pad_if_needed:
            tall, wide = (rows - window[:, 2]).clip(0), (columns - window[:, 3]).clip(0)
            top = draws.integers(window[:, 2] + 2 * tall - rows + 1, 0) - tall
            left = draws.integers(window[:, 3] + 2 * wide - columns + 1, 1) - wide
            return replace(crops, fill=self.convert_colour(self.fill)).cut_window(top, left, self._size_pair)
        small = (window[:, 2] + 2 * padding < rows) | (window[:, 3] + 2 * padding < columns)
        if isinstance(small, np.ndarray) and small.any():
            at = int(small.argmax())
            height, width = window[at, 2:].tolist()
            raise UsageError(
                f"RandomCrop: record {int(draws.records[at]) & MASK} is {height}x{width} there, smaller than the crop "
                "of "
                f"{rows}x{columns}; put a Resize before it"
            )
        top = draws.integers(window[:, 2] + 2 * padding - rows + 1, 0) - padding
        left = draws.integers(window[:, 3] + 2 * padding - columns + 1, 1) - padding
        if padding:
            crops = replace(crops, pads=self.padding_mode, fill=self.convert_colour(self.fill))
        return crops.cut_window(top, left, self._size_pair)

    @property
    def pads(self) -> PaddingMode:
        """The option ``padding_mode``."""
        return self.padding_mode


@dataclass(frozen=True)
class RandomResizedCrop(FixedSizeOperation, ResizingOperation):
    """Crops a box of random area and aspect ratio, and resizes it, as torchvision's ``RandomResizedCrop``.

    Args:
        size: ``S`` for a square, or ``(height, width)``.
        scale: Smallest and largest area of the box, as fractions of the image's.
        ratio: Smallest and largest aspect ratio of the box, width / height. Its logarithm is drawn uniformly.
        interpolation: As for :class:`Resize`.
        antialias: As for :class:`Resize`.

    Raises:
        UsageError: A size that is not positive, a range that is not ascending and positive, an unknown interpolation.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: str = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        self.check_interpolation()
        super().__post_init__()
        for name in ("scale", "ratio"):
            object.__setattr__(self, name, parse_positive_range(self, name, getattr(self, name)))

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        whole = torch.stack([draws.records * 0 + n for n in images.shape[-2:]], 1)
        crops = self.plan_crops(Crops.full(whole), draws)
        return crop_and_resize(images, crops.box, self._size_pair, crops.sampling)

    def plan_crops(self, crops: Crops, draws: Draws) -> Crops:
        """Draws a box of each image as torchvision's ``get_params`` does, in float64.

        Takes the first of ten boxes that fits. If none fits, takes the largest centred box that ``ratio`` allows. Draws
        the interpolation last, if it is ``"random"``.

        Raises :class:`UsageError` if numpy crops are resized already, or exceed the image.
        """
        box = crops.find_visible_box("RandomResizedCrop")
        height, width = box[:, 2], box[:, 3]
        here = isinstance(box, np.ndarray)
        rows, columns, fit = self._draw_fitting_sizes(draws, height, width, 0, _FIRST_ATTEMPTS if here else _ATTEMPTS)
        if here and not fit.all():  # most images need no more attempts; on a device, checking would make the host wait
            left = np.flatnonzero(~fit)
            others = self._draw_fitting_sizes(
                draws[left], height[left], width[left], _FIRST_ATTEMPTS, _ATTEMPTS - _FIRST_ATTEMPTS
            )
            rows[left], columns[left], fit[left] = others
        all_fit = here and fit.all()
        if not all_fit:
            whole_rows, whole_columns = self._find_central_size(height, width)
            rows, columns = where(fit, rows, whole_rows), where(fit, columns, whole_columns)
        spare = (np.stack if here else torch.stack)([height - rows, width - columns])
        drawn = draws.integers(spare + 1, 2 * _ATTEMPTS, 2)
        # Boxes that no attempt has drawn lie in the middle.
        top, left = drawn if all_fit else where(fit, drawn, spare // 2)
        size = join_columns([height * 0 + self._size_pair[0], width * 0 + self._size_pair[1]])
        boxes = join_columns(
            [box[:, 0] + top, box[:, 1] + unmirror_left(left, columns, width, crops.flip), rows, columns]
        )
        sampling = self.draw_sampling(draws, 2 * _ATTEMPTS + 2)
        return Crops(boxes, size, join_columns([size * 0, size]), crops.flip, sampling=sampling)

    def _draw_fitting_sizes(
        self, draws: Draws, height: Array, width: Array, first: int, count: int
    ) -> tuple[Array, Array, Array]:
        """Returns height and width of the first of ``count`` boxes that fits, and whether one does, per image."""
        widths, heights = draw_box_sides(
            draws, 2 * first, count, total=height * width, scale=self.scale, ratio=self.ratio
        )
        fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
        return pick_first_fitting(fits, heights, widths)

    def _find_central_size(self, height: Array, width: Array) -> tuple[Array, Array]:
        """Returns height and width of the largest box in each image whose aspect ratio is in :attr:`ratio`."""
        low, high = self.ratio
        ratio = to_float64(width) / to_float64(height)
        rows = where(ratio < low, to_int64((to_float64(width) / low).round()), height)
        columns = where(ratio > high, to_int64((to_float64(height) * high).round()), width)
        return rows.clip(1), columns.clip(1)


_ATTEMPTS = 10
_FIRST_ATTEMPTS = 2
"""Number of attempts that are drawn for all images; nine of ten ImageNet photos need no more."""


def find_centred_start(length: Any, cut_length: int) -> Any:
    """Returns the index at which a centred cut of ``cut_length`` pixels begins, as in torchvision.

    - If the cut fits: ``(length - cut_length) / 2``, rounded, halves to even.
    - If not: minus half of the missing pixels, rounded towards 0. That is the padding before the image.

    ``length``: length of the image, an integer or an array.
    """
    spare = length - cut_length
    half = spare >> 1
    # If negative, floor(spare / 2) rounds away from zero: add 1 if it is odd.
    return half + ((spare & 1) & (half & 1 | (spare < 0) * 1))


def crop_composes_after(size: Size, before: Sequence[GeometricOperation]) -> bool:
    """Tells if a crop of ``size`` can follow the operations ``before`` in one :class:`Crops`.

    It cannot if an earlier crop has fewer rows or columns. A :class:`Crops` keeps only the last window: around the
    earlier crop it would show pixels instead of zeros.
    """
    crops = [op.output_size for op in before if isinstance(op, CenterCrop | RandomCrop)]
    return all(c is not None and size[0] <= c[0] and size[1] <= c[1] for c in crops)


def fits_after_resize(size: Size, before: Sequence[GeometricOperation]) -> bool:
    """Tells if an operation in ``before`` resizes all images to at least ``size``, so that a crop needs no padding."""
    for op in before:
        least = op.output_size if op.resizes else None
        if isinstance(op, Resize) and isinstance(op.size, int):
            least = op.size, op.size  # the shorter side
        if least is not None and size[0] <= least[0] and size[1] <= least[1]:
            return True
    return False


def padding_composes_after(operation: GeometricOperation, fill: Any, before: Sequence[GeometricOperation]) -> bool:
    """Tells if padding with the colour ``fill`` can follow the operations ``before`` in one :class:`Crops`.

    Files and resized boxes are padded with zeros, and a :class:`Crops` has one fill.
    """
    if any(getattr(op, "fill", fill) != fill for op in before):
        return False
    return operation.convert_colour(fill) == 0 or (
        operation.image_units is not None and not any(op.resizes for op in before)
    )


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
        check_number(self, "p", 0, 1)

    def flip_mask(self, draws: Draws) -> Array:
        """Draws which images to mirror, bool ``(B,)``."""
        if not self.alternating:
            return chance(draws, self.p, 0)
        # Alternating: odd epochs mirror the images that epoch 0 did not.
        first = chance(draws.replace(epoch=0), self.p, 0)
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
        return replace(crops, flip=flags if crops.flip is None else crops.flip ^ flags)

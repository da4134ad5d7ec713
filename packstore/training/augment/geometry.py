"""Crops and resizes. Each runs on batches, or is planned and runs while images are decoded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import numpy as np
import torch
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.training.augment.base import SAMPLINGS, Crops, GeometricOperation, PaddingMode, Size, join
from packstore.training.augment.crop import crop
from packstore.training.augment.resample import crop_and_resize, resize
from packstore.training.random_draws import MASK, Array, Draws, to_float64, to_int64


def parse_size(size: Any, what: str) -> Size:
    """Converts a user's size, one number for a square or ``(height, width)``, to ``(height, width)``.

    Raises :class:`UsageError`, which names the operation ``what``, for other values."""
    pair = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, list | tuple) else ()
    if len(pair) != 2 or not all(isinstance(n, int) and n > 0 for n in pair):
        raise UsageError(f"{what}: size should be a positive integer or (height, width), got {size!r}")
    return pair


def check_sampling(operation: GeometricOperation, interpolation: Any, antialias: Any) -> None:
    """Raises :class:`UsageError` for an unknown ``interpolation``, or an ``antialias`` that is no bool."""
    known = (*SAMPLINGS[:5], "random")
    name = type(operation).__name__
    if interpolation not in known:
        raise UsageError(f"{name}: interpolation should be one of {', '.join(known)}, got {interpolation!r}")
    if not isinstance(antialias, bool):
        raise UsageError(f"{name}: antialias should be True or False, got {antialias!r}")


def sampling_indices(interpolation: str, antialias: bool) -> set[int]:
    """Returns the indices in :data:`SAMPLINGS` that an interpolation may use: two for ``"random"``, else one."""
    plain = {} if antialias else {"bilinear": "plain bilinear", "bicubic": "plain bicubic"}
    names = ("bilinear", "bicubic") if interpolation == "random" else (interpolation,)
    return {SAMPLINGS.index(plain.get(name, name)) for name in names}


def draw_sampling(operation: GeometricOperation, draws: Draws, draw: int) -> Array | None:
    """Draws the interpolation of each image, an index in :data:`SAMPLINGS` ``(B,)``, if an operation has two; else
    repeats the one. Returns None for bilinear."""
    numbers = sorted(operation.samplings)
    if numbers == [0]:
        return None
    if len(numbers) == 1:
        return draws.records * 0 + numbers[0]
    return numbers[0] + draws.integers(2, draw) * (numbers[1] - numbers[0])


@dataclass(frozen=True)
class Resize(GeometricOperation):
    """Resizes images, as torchvision's ``Resize``.

    Args:
        size: ``(height, width)``; or the length of the shorter side, which keeps the aspect ratio.
        interpolation: ``"bilinear"``, ``"nearest"``, ``"bicubic"``, ``"box"`` or ``"lanczos"``; ``"random"`` draws
            bilinear or bicubic for each image, as timm does.
        antialias: Widen bilinear and bicubic filters by the factor that images shrink.

    Raises:
        UsageError: A size that is not positive, an unknown interpolation.
    """

    size: int | Size
    interpolation: str = "bilinear"
    antialias: bool = True

    resizes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_sampling(self, self.interpolation, self.antialias)
        pair = parse_size(self.size, "Resize")
        if not isinstance(self.size, int):
            object.__setattr__(self, "size", pair)

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        size = self.size_after((images.shape[-2], images.shape[-1]))
        assert size is not None
        sampling = draw_sampling(self, draws, 0)
        if sampling is None:
            return resize(images, size)
        whole = torch.stack([draws.records * 0 + n for n in (0, 0, *images.shape[-2:])], 1)
        return crop_and_resize(images, whole, size, sampling)

    def size_after(self, size: Size | None) -> Size | None:
        if not isinstance(self.size, int):
            return self.size
        if size is None:
            return None
        height, width = size
        if width <= height:
            return max(1, int(self.size * height / width)), self.size
        return self.size, max(1, int(self.size * width / height))

    def composes_after(self, before: Sequence[GeometricOperation]) -> bool:
        return all(op.mirrors for op in before)

    def plan_crops(self, crops: Crops, draws: Draws) -> Crops:
        """Returns crops that resize the visible box of ``crops``. Draws the interpolation alone."""
        box = visible_box(crops, "Resize")
        height, width = box[:, 2], box[:, 3]
        if isinstance(self.size, int):
            # The same float64 arithmetic as in size_after, so the same rounding.
            tall = to_int64(self.size * to_float64(height) / to_float64(width))
            wide = to_int64(self.size * to_float64(width) / to_float64(height))
            upright = width <= height
            shorter = height * 0 + self.size
            size = join([where(upright, tall, shorter), where(upright, shorter, wide)]).clip(1)
        else:
            size = join([height * 0 + self.size[0], height * 0 + self.size[1]])
        return Crops(box, size, join([size * 0, size]), crops.flip, sampling=draw_sampling(self, draws, 0))

    @property
    def samplings(self) -> set[int]:
        return sampling_indices(self.interpolation, self.antialias)


@dataclass(frozen=True)
class CenterCrop(GeometricOperation):
    """Crops the centre, as torchvision's ``CenterCrop``; centres smaller images on zeros.

    Args:
        size: ``S`` for a square, or ``(height, width)``.

    Raises:
        UsageError: A size that is not positive.
    """

    size: int | Size

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", parse_size(self.size, "CenterCrop"))

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        (rows, columns), (height, width) = self._size_pair, images.shape[-2:]
        top, left = centred_start(height, rows), centred_start(width, columns)
        if rows > height or columns > width:
            edges = (-left, columns - width + left, -top, rows - height + top)
            images = torch.nn.functional.pad(images, [max(0, n) for n in edges])
            top, left = max(0, top), max(0, left)
        return images[..., top : top + rows, left : left + columns]

    def size_after(self, size: Size | None) -> Size | None:
        return self._size_pair

    def composes_after(self, before: Sequence[GeometricOperation]) -> bool:
        return crop_composes_after(self._size_pair, before)

    def plan_crops(self, crops: Crops, draws: Draws) -> Crops:
        """Sets the windows of ``crops`` to their centres. Draws nothing."""
        rows, columns = self._size_pair
        top, left = centred_start(crops.window[:, 2], rows), centred_start(crops.window[:, 3], columns)
        return with_window(crops, top, left, self._size_pair)

    @property
    def _size_pair(self) -> Size:
        assert not isinstance(self.size, int)
        return self.size


@dataclass(frozen=True)
class RandomCrop(GeometricOperation):
    """Crops a part at a uniformly random position, as torchvision's ``RandomCrop``.

    With padding it runs on batches only.

    Args:
        size: ``S`` for a square, or ``(height, width)``.
        padding: Pixels that are first added on each side.
        pad_if_needed: Pad smaller images with ``fill`` on both sides, by as much as they lack.
        padding_mode: ``"constant"`` (``fill``), ``"edge"`` (the outermost pixel), ``"reflect"`` (mirrored without the
            outermost pixel) or ``"symmetric"`` (mirrored with it).
        fill: Value of added pixels, in the images' own units.

    Raises:
        UsageError: Invalid size or padding, an unknown mode. When called: images smaller than the crop, or than the
            padding that reflects them.
    """

    size: int | Size
    padding: int = 0
    padding_mode: PaddingMode = "constant"
    fill: float = 0
    pad_if_needed: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", parse_size(self.size, "RandomCrop"))
        if self.pad_if_needed and (self.padding or self.padding_mode != "constant"):
            raise UsageError("RandomCrop: pad_if_needed stands without padding, and fills with one value")
        if not isinstance(self.padding, int) or self.padding < 0:
            raise UsageError(f"RandomCrop: padding should be an integer of at least 0, got {self.padding!r}")
        if self.padding_mode not in get_args(PaddingMode):
            modes = ", ".join(get_args(PaddingMode))
            raise UsageError(f"RandomCrop: padding_mode should be one of {modes}, got {self.padding_mode!r}")

    def __call__(self, images: Tensor, draws: Draws, flip: Tensor | None = None) -> Tensor:
        """Crops the images; with ``flip``, bool ``(B,)``, mirrors those images after that."""
        height, width = images.shape[-2:]
        if self.pad_if_needed:
            tall, wide = (max(0, n - m) for n, m in zip(self._size_pair, (height, width), strict=True))
            images = torch.nn.functional.pad(images, (wide, wide, tall, tall), value=self.fill)
            height, width = images.shape[-2:]
        top, left = self._draw_corners((height, width), draws)
        return crop(images, top, left, self._size_pair, self.padding, self.padding_mode, self.fill, flip)

    def _draw_corners(self, size: Size, draws: Draws) -> tuple[Tensor, Tensor]:
        """Draws top and left of the crops, int64 ``(B,)``, for images of ``size``."""
        self._check_size(size)
        (rows, columns), padding = self._size_pair, self.padding
        top = draws.integers(size[0] + 2 * padding - rows + 1, 0) - padding
        return top, draws.integers(size[1] + 2 * padding - columns + 1, 1) - padding

    def _check_size(self, size: Sequence[int]) -> None:
        """Raises :class:`UsageError` if images of ``size`` are smaller than the crop with its padding, or than the
        padding mode needs."""
        (rows, columns), (height, width) = self._size_pair, size
        padded = height + 2 * self.padding, width + 2 * self.padding
        if rows > padded[0] or columns > padded[1]:
            raise UsageError(
                f"RandomCrop: images of {height}x{width} with padding {self.padding} are smaller than the crop of "
                f"{rows}x{columns}; use a smaller one, or more padding"
            )
        reach = {"reflect": min(height, width) - 1, "symmetric": min(height, width)}.get(self.padding_mode)
        if reach is not None and self.padding > reach:
            raise UsageError(
                f"RandomCrop: padding {self.padding} with padding_mode {self.padding_mode!r} needs larger images than "
                f"{height}x{width}; for these at most {reach}"
            )

    def size_after(self, size: Size | None) -> Size | None:
        return self._size_pair

    def composes_after(self, before: Sequence[GeometricOperation]) -> bool:
        """Returns True without padding if no earlier crop is smaller; with black ``pad_if_needed`` only as the first
        crop."""
        if self.pad_if_needed and (self.fill != 0 or any(isinstance(op, CenterCrop | RandomCrop) for op in before)):
            return False
        return self.padding == 0 and crop_composes_after(self._size_pair, before)

    def plan_crops(self, crops: Crops, draws: Draws) -> Crops:
        """Draws the position of a window within ``crops`` and the padding. Raises :class:`UsageError` if a record is
        too small; does not check on a device."""
        window, padding = crops.window, self.padding
        rows, columns = self._size_pair
        if self.pad_if_needed:
            tall, wide = (rows - window[:, 2]).clip(0), (columns - window[:, 3]).clip(0)
            top = draws.integers(window[:, 2] + 2 * tall - rows + 1, 0) - tall
            left = draws.integers(window[:, 3] + 2 * wide - columns + 1, 1) - wide
            return with_window(crops.replace(fill=self.fill), top, left, self._size_pair)
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
            crops = crops.replace(pads=self.padding_mode, fill=self.fill)
        return with_window(crops, top, left, self._size_pair)

    @property
    def pads(self) -> PaddingMode:
        return self.padding_mode

    @property
    def _size_pair(self) -> Size:
        assert not isinstance(self.size, int)
        return self.size


@dataclass(frozen=True)
class RandomResizedCrop(GeometricOperation):
    """Crops a box of random area and aspect ratio, and resizes it, as torchvision's ``RandomResizedCrop``.

    Args:
        size: ``S`` for a square, or ``(height, width)``.
        scale: Smallest and largest area of the box, as fractions of the image's.
        ratio: Smallest and largest aspect ratio of the box, width / height; its logarithm is uniform.
        interpolation: As for :class:`Resize`.
        antialias: As for :class:`Resize`.

    Raises:
        UsageError: A size that is not positive, a range that is not ascending and positive, an unknown interpolation.
    """

    size: int | Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: str = "bilinear"
    antialias: bool = True

    resizes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_sampling(self, self.interpolation, self.antialias)
        object.__setattr__(self, "size", parse_size(self.size, "RandomResizedCrop"))
        for name in ("scale", "ratio"):
            pair = tuple(float(n) for n in getattr(self, name))
            if len(pair) != 2 or not 0 < pair[0] <= pair[1] < math.inf:
                raise UsageError(f"RandomResizedCrop: {name} should be (low, high), 0 < low <= high, got {pair}")
            object.__setattr__(self, name, pair)

    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        whole = torch.stack([draws.records * 0 + n for n in images.shape[-2:]], 1)
        crops = self.plan_crops(Crops.full(whole), draws)
        return crop_and_resize(images, crops.box, self._size_pair, crops.sampling)

    def size_after(self, size: Size | None) -> Size | None:
        return self._size_pair

    def composes_after(self, before: Sequence[GeometricOperation]) -> bool:
        return all(op.mirrors for op in before)

    def plan_crops(self, crops: Crops, draws: Draws) -> Crops:
        """Draws a box of each image in the arithmetic of torchvision's ``get_params``, in float64.

        Tries ten boxes and takes the first that fits; else the largest centred box that ``ratio`` allows.
        """
        box = visible_box(crops, "RandomResizedCrop")
        height, width = box[:, 2], box[:, 3]
        here = isinstance(box, np.ndarray)
        rows, columns, fit = self._try_boxes(draws, height, width, 0, _FIRST_ATTEMPTS if here else _ATTEMPTS)
        if here and not fit.all():  # most images need no more attempts; on a device, checking would make the host wait
            left = np.flatnonzero(~fit)
            others = self._try_boxes(
                draws[left], height[left], width[left], _FIRST_ATTEMPTS, _ATTEMPTS - _FIRST_ATTEMPTS
            )
            rows[left], columns[left], fit[left] = others
        if not here or not fit.all():
            whole_rows, whole_columns = self._central_box(height, width)
            rows, columns = where(fit, rows, whole_rows), where(fit, columns, whole_columns)
        spare = (np.stack if here else torch.stack)([height - rows, width - columns])
        top, left = where(fit, draws.integers(spare + 1, 2 * _ATTEMPTS, 2), spare // 2)
        size = join([height * 0 + self._size_pair[0], width * 0 + self._size_pair[1]])
        found = join([box[:, 0] + top, box[:, 1] + unmirror_left(left, columns, width, crops.flip), rows, columns])
        sampling = draw_sampling(self, draws, 2 * _ATTEMPTS + 2)
        return Crops(found, size, join([size * 0, size]), crops.flip, sampling=sampling)

    def _try_boxes(
        self, draws: Draws, height: Array, width: Array, first: int, count: int
    ) -> tuple[Array, Array, Array]:
        """Draws ``count`` boxes for each image, from attempt ``first`` on; returns height and width of the first that
        fits, and if any does. Without one, height and width are meaningless."""
        low, high = self.scale
        uniform = draws.uniform(2 * first, 2 * count)
        areas = to_float64(height * width) * (uniform[0::2] * (high - low) + low)
        ratios = log_uniform(uniform[1::2], *self.ratio)
        widths = to_int64(((areas * ratios) ** 0.5).round())
        heights = to_int64(((areas / ratios) ** 0.5).round())
        fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
        chosen = fits.argmax(0) if isinstance(fits, np.ndarray) else fits.byte().argmax(0)
        return pick_attempt(heights, chosen), pick_attempt(widths, chosen), fits.any(0)

    @property
    def samplings(self) -> set[int]:
        return sampling_indices(self.interpolation, self.antialias)

    def _central_box(self, height: Array, width: Array) -> tuple[Array, Array]:
        """Returns height and width of the largest box in each image whose aspect ratio :attr:`ratio` allows."""
        low, high = self.ratio
        ratio = to_float64(width) / to_float64(height)
        rows = where(ratio < low, to_int64((to_float64(width) / low).round()), height)
        columns = where(ratio > high, to_int64((to_float64(height) * high).round()), width)
        return rows.clip(1), columns.clip(1)

    @property
    def _size_pair(self) -> Size:
        assert not isinstance(self.size, int)
        return self.size


_ATTEMPTS = 10
_FIRST_ATTEMPTS = 2
"""Number of attempts that are drawn for all images; nine of ten ImageNet photos need no more."""


def log_uniform(uniform: Array, low: float, high: float) -> Array:
    """Maps uniform numbers in [0, 1) to log-uniform ones between ``low`` and ``high``; float64.

    Uses only additions and multiplications, which are bit-exact across numpy and torch, CPU and GPU; exp is not. The
    relative error is below 1e-14.
    """
    middle, half = math.sqrt(low * high), math.log(high / low) / 2
    halvings = max(0, math.ceil(math.log2(half / 0.25))) if half > 0.25 else 0
    exponent = (uniform * 2 - 1) * (half / 2**halvings)
    result = exponent * 0 + 1 / math.factorial(11)
    for n in range(10, -1, -1):  # Taylor's series by Horner's scheme; 0.25**12 / 12! is 1e-16
        result *= exponent
        result += 1 / math.factorial(n)
    for _ in range(halvings):
        result *= result
    result *= middle
    return result


def where(condition: Array, yes: Array, no: Array) -> Array:
    """Calls ``numpy.where`` or ``torch.where``."""
    return np.where(condition, yes, no) if isinstance(condition, np.ndarray) else torch.where(condition, yes, no)


def pick_attempt(values: Array, index: Array) -> Array:
    """Returns ``values[index[b], b]`` for each ``b``: of the attempts of each image the one at ``index``."""
    if isinstance(values, np.ndarray):
        return values[index, np.arange(len(index))]
    return values.gather(0, index[None])[0]


def centred_start(length: Any, cut_length: int) -> Any:
    """Returns the first of the centred ``cut_length`` pixels of ``length``, an integer or an array; negative if that is
    shorter.

    torchvision takes ``round((length - cut_length) / 2)``, halves to even; for shorter images it puts the rounded-down
    half of the missing pixels first.
    """
    spare = length - cut_length
    half = spare >> 1
    # If negative, floor(spare / 2) rounds away from zero: add 1 if it is odd.
    return half + ((spare & 1) & (half & 1 | (spare < 0) * 1))


def unmirror_left(left: Array, cut_width: Any, width: Array, flip: Array | None) -> Array:
    """Returns the first column of a crop of ``cut_width`` at ``left`` before the images with true ``flip``, of
    ``width`` columns, are mirrored."""
    return left if flip is None else where(flip, width - cut_width - left, left)


def with_window(crops: Crops, top: Array, left: Array, size: tuple[Any, Any]) -> Crops:
    """Returns ``crops`` with a window of ``size``, numbers or arrays, at ``top`` and ``left`` of their present window.
    Takes account of mirroring."""
    window = crops.window
    left = window[:, 1] + unmirror_left(left, size[1], window[:, 3], crops.flip)
    return crops.replace(window=join([window[:, 0] + top, left, top * 0 + size[0], top * 0 + size[1]]))


def crop_composes_after(size: Size, before: Sequence[GeometricOperation]) -> bool:
    """Tells if a crop of ``size`` can follow the operations ``before`` in one :class:`Crops`.

    It may not be larger than an earlier crop, outside of which are zeros while the image has pixels there.
    """
    crops = [op.output_size for op in before if isinstance(op, CenterCrop | RandomCrop)]
    return all(c is not None and size[0] <= c[0] and size[1] <= c[1] for c in crops)


def visible_box(crops: Crops, name: str) -> Array:
    """Returns the box of source pixels that ``crops`` show, int64 ``(B, 4)``, for an operation ``name`` that resizes.

    Raises :class:`UsageError` if numpy crops are resized already or exceed the source: two resizes cannot be combined
    into one.
    """
    box, window = crops.box, crops.window
    outside = (window[:, :2] < 0) | (window[:, :2] + window[:, 2:] > crops.size)
    if isinstance(box, np.ndarray) and (crops.has_resizes or outside.any()):
        raise UsageError(f"{name} of what is resized or padded already runs on batches, not while decoding")
    return join([box[:, :2] + window[:, :2], window[:, 2:]])

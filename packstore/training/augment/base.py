"""The contracts of augmentations: all run on batches, geometric ones also while images are decoded.

Also checks of options, whose errors name the operation and the option.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.core.manifest import Column, Normalization
from packstore.core.options import show_value
from packstore.images.sniff import MAX_PIXELS
from packstore.training.arguments import CheckedArguments, parse_numbers
from packstore.training.random_draws import Array, Draws

Size = tuple[int, int]
"""``(height, width)``."""

PaddingMode = Literal["constant", "reflect", "edge", "symmetric"]

SAMPLINGS = ("bilinear", "nearest", "bicubic", "box", "lanczos", "plain bilinear", "plain bicubic")
"""Interpolations; the first five are antialiased (nearest needs none), the plain ones are not."""

Values = float | tuple[float, ...]
"""One number for all channels, or one for each."""


@dataclass(frozen=True)
class Units:
    """Units of normalised images: a pixel value ``x`` is stored as ``x * scale + shift``, for each channel."""

    scale: tuple[float, ...]
    shift: tuple[float, ...]

    @classmethod
    def of_normalization(cls, normalization: Normalization | None, white: float, channels: int) -> Units:
        """Returns the units of ``(x / white - mean) / std``; without a normalisation, of ``x / white``."""
        mean, std = ((0.0,) * channels, (1.0,) * channels)
        if normalization is not None:
            mean, std = normalization.mean, normalization.std
        return cls(
            tuple(1 / (white * each) for each in std),
            tuple(-middle / each for middle, each in zip(mean, std, strict=True)),
        )

    @classmethod
    def of_column(cls, column: Column, normalization: Normalization | None) -> Units | None:
        """Returns the units of a column of images; None for files and whole numbers, whose values are the pixels'."""
        if column.layout != "CHW":
            return None
        return cls.of_normalization(normalization, column.pixels.white, column.pixels.channels)

    def convert(self, colour: Any) -> tuple[float, ...]:
        """Converts a colour, a number or one for each channel, to values of each channel.

        Raises :class:`UsageError` for another number of channels.
        """
        count = len(self.scale)
        each = tuple(colour) if isinstance(colour, list | tuple) else (colour,) * count
        if len(each) == 3 and len({*each}) == 1:
            # A gray colour fits any number of channels.
            each = each[:1] * count
        if len(each) != count:
            raise UsageError(
                f"the colour {colour!r} has {len(each)} channels, and the images have {count}: give one number"
            )
        return tuple(n * scale + shift for n, scale, shift in zip(each, self.scale, self.shift, strict=True))


def convert_colour(colour: Any, units: Units | None) -> Values:
    """Converts a colour to values of images in ``units``: a single number if all channels have the same."""
    values = units.convert(colour) if units is not None else colour
    if not isinstance(values, list | tuple):
        return float(values) if units is not None else values
    return values[0] if len({*values}) == 1 else tuple(values)


def with_units(operations: Iterable[Any], units: Units | None) -> tuple[Any, ...]:
    """Returns operations that convert their ``fill`` and ``value`` to ``units``, at any depth. None converts nothing.

    Copies operations that have other units. Other functions stay as they are.
    """
    return tuple(_copy_with_units(each, units) for each in operations)


def _copy_with_units(operation: Any, units: Units | None) -> Any:
    """Returns a copy of an operation, and of operations in it, with ``units``."""
    if getattr(operation, "image_units", units) == units:  # also of functions, which have none
        return operation
    copied = copy.copy(operation)
    object.__setattr__(copied, "image_units", units)
    for name, value in vars(operation).items():
        if type(value) is tuple:
            object.__setattr__(copied, name, with_units(value, units))
        elif hasattr(type(value), "image_units"):
            object.__setattr__(copied, name, _copy_with_units(value, units))
    return copied


Step = Callable[..., Any]
"""Entry of a user's list: an :class:`Operation`, or any callable from a batch to a batch."""


class Operation(CheckedArguments, ABC):
    """Augmentation of a batch of images.

    Its random numbers depend only on seed, epoch, record, and its index in the user's list. Subclasses are immutable,
    picklable and stateless: threads may share an instance.

    Operations of packstore raise :class:`UnknownArgumentError`, with advice, for an unknown argument, and
    :class:`UsageError` for numbers that are not finite or too large.
    """

    @abstractmethod
    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        """Returns augmented images; leaves ``images`` unchanged, but may return them or a view of them.

        Args:
            images: ``(B, C, H, W)``, uint8 or floating point, on any device, in any memory format.
            draws: Draws of the batch's records, in the same order and on the same device.

        Returns:
            A batch of the same dtype, on the same device.
        """

    image_units: Units | None = None
    """Units of the images if they are normalised already; set by :func:`with_units`. Colours are converted."""

    def convert_colour(self, colour: Any) -> Values:
        """Converts a colour, such as a ``fill``, to values of the images: one number, or one for each channel."""
        return convert_colour(colour, self.image_units)

    calls_each_image: ClassVar[bool] = False
    """The operation is a :class:`PerImage`, whose module is imported only with one."""

    works_on_records: ClassVar[bool] = False
    """It works on finished records, with all their columns, as :class:`Albumentations` does."""

    gives_sizes: ClassVar[bool] = False
    """Images of equal size may come out of this operation in different sizes."""

    def size_after(self, size: Size | None) -> Size | None:
        """Returns the ``(height, width)`` of results for images of ``size``; by default ``size`` itself.

        Returns None if results may differ in size. ``size`` is None for images of unknown or different sizes.
        """
        return None if self.gives_sizes else size

    @property
    def moves_pixels(self) -> bool:
        """True if pixels may move, so that masks, boxes and keypoints have to follow. By default False."""
        return False

    @property
    def mixes_places(self) -> bool:
        """True if copies of an image in different places are mixed, so that boxes cannot follow. By default False."""
        return False

    @property
    def output_size(self) -> Size | None:
        """Output ``(height, width)`` for any input; None if it depends on the input."""
        return self.size_after(None)


class GeometricOperation(Operation):
    """Crop, resize or flip, which a :class:`Crops` can describe. It may run while images are decoded."""

    mirrors: ClassVar[bool] = False
    """True if the operation mirrors images; other geometric operations select pixels."""

    resizes: ClassVar[bool] = False
    """True if the operation resizes images, one by one."""

    @property
    def samplings(self) -> set[int]:
        """Interpolations that the operation may use: indices in :data:`SAMPLINGS`. By default only bilinear."""
        return {0}

    @property
    def moves_pixels(self) -> bool:
        """True: crops, resizes and flips move pixels."""
        return True

    @abstractmethod
    def composes_after(self, before: Sequence[GeometricOperation]) -> bool:
        """Tells if one :class:`Crops`, with at most one resize, can describe the operations ``before`` and then this
        one."""

    @abstractmethod
    def plan_crops(self, crops: Crops, draws: Draws) -> Crops:
        """Draws this operation, and returns ``crops`` followed by it.

        Args:
            crops: Crops by the operations before this one, numpy or torch.
            draws: Draws of the records, of the same kind, on the same device.

        Raises:
            UsageError: A record is too small for a crop, or this operation cannot follow the earlier ones.
        """

    def plan_whole_images(self, sizes: Array, draws: Draws) -> Crops:
        """Draws this operation for whole images of ``sizes``, int64 ``(B, 2)``, to move their masks, boxes and
        keypoints.

        Works for operations that cannot run while decoding, too. The crops may exceed the image, see :attr:`pads`.
        """
        return self.plan_crops(Crops.full(sizes), draws)

    @property
    def pads(self) -> PaddingMode:
        """Padding mode of crops by :meth:`plan_whole_images` that exceed the image."""
        return "constant"


@dataclass(frozen=True, eq=False)
class Crops:
    """Crops of B images. A box of each image is resized. A window is cut from the resized box, and perhaps mirrored.

    All arrays are numpy (while decoding), or all torch.

    Attributes:
        box: int64 ``(B, 4)``: top, left, height, width in the source image, within it.
        size: int64 ``(B, 2)``: height and width to which the box is resized. If they are the box's, nothing is resized.
        window: int64 ``(B, 4)``: top, left, height, width in the resized box; may exceed it.
        flip: bool ``(B,)``: mirrored left to right, as the last step; None for no image.
        pads: Padding outside the resized box; always ``"constant"`` for boxes that are resized.
        fill: Value of constant padding, in the units of the images: a number, or a tuple with one for each channel.
        sampling: int64 ``(B,)``: interpolation of each box, indices of :data:`SAMPLINGS`; None for bilinear.
    """

    box: Array
    size: Array
    window: Array
    flip: Array | None = None
    pads: PaddingMode = "constant"
    fill: Any = 0
    sampling: Array | None = None

    @classmethod
    def full(cls, sizes: Array) -> Crops:
        """Returns the crops that show whole images of ``sizes``, int64 ``(B, 2)``: height, width."""
        sizes = np.asarray(sizes, np.int64) if not isinstance(sizes, Tensor) else sizes
        whole = join_columns([sizes * 0, sizes])
        return cls(whole, sizes, whole)

    def __len__(self) -> int:
        return len(self.box)

    def select_rows(self, rows: slice | Array) -> Crops:
        """Returns the crops of the images ``rows``; of a slice, as views of these arrays."""
        return Crops(
            *(self.box[rows], self.size[rows], self.window[rows]),
            None if self.flip is None else self.flip[rows],
            *(self.pads, self.fill),
            None if self.sampling is None else self.sampling[rows],
        )

    @property
    def has_resizes(self) -> bool:
        """True if any box is resized. Waits for the device if the arrays are on one."""
        return bool((self.size != self.box[:, 2:]).any())

    def cut_window(self, top: Array, left: Array, size: tuple[Any, Any]) -> Crops:
        """Returns these crops with a window of ``size``, at ``top`` and ``left`` in the present window.

        The new window may be smaller or larger. ``size`` has numbers or arrays. Positions are in the mirrored images.
        """
        window = self.window
        left = window[:, 1] + unmirror_left(left, size[1], window[:, 3], self.flip)
        return replace(self, window=join_columns([window[:, 0] + top, left, top * 0 + size[0], top * 0 + size[1]]))

    def find_visible_box(self, name: str) -> Array:
        """Returns the box of source pixels that these crops show, int64 ``(B, 4)``, for the operation ``name``.

        That operation will resize the box. Raises :class:`UsageError` if numpy crops are already resized or exceed the
        source: two resizes cannot become one.
        """
        box, window = self.box, self.window
        outside = (window[:, :2] < 0) | (window[:, :2] + window[:, 2:] > self.size)
        if isinstance(box, np.ndarray) and (self.has_resizes or outside.any()):
            raise UsageError(f"{name} of what is resized or padded already runs on batches, not while decoding")
        return join_columns([box[:, :2] + window[:, :2], window[:, 2:]])


def join_columns(columns: Sequence[Array]) -> Array:
    """Concatenates int64 columns ``(B,)`` or ``(B, k)`` to ``(B, n)``, numpy or torch."""
    columns = [c if c.ndim == 2 else c[:, None] for c in columns]
    return np.concatenate(columns, 1) if isinstance(columns[0], np.ndarray) else torch.cat(list(columns), 1)


def where(condition: Array, yes: Array, no: Array) -> Array:
    """Calls ``numpy.where`` or ``torch.where``."""
    return np.where(condition, yes, no) if isinstance(condition, np.ndarray) else torch.where(condition, yes, no)


def unmirror_left(left: Array, cut_width: Any, width: Array, flip: Array | None) -> Array:
    """Returns where a crop of ``cut_width`` at ``left`` begins in the image before mirroring.

    ``flip`` tells which images of ``width`` columns are mirrored; None mirrors nothing.
    """
    return left if flip is None else where(flip, width - cut_width - left, left)


def parse_size(size: Any, what: str) -> Size:
    """Converts a user's size to ``(height, width)``. One number stands for a square.

    Raises :class:`UsageError`, which names the operation ``what``, for anything but positive integers, and for
    more pixels than an image may have.
    """
    pair = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, list | tuple) else ()
    if len(pair) != 2 or not all(isinstance(n, int) and n > 0 for n in pair):
        raise UsageError(f"{what}: size should be a positive integer or (height, width), got {show_value(size)}")
    if pair[0] * pair[1] > MAX_PIXELS:
        raise UsageError(
            f"{what}: a size of {pair[0]}x{pair[1]} has more than the {MAX_PIXELS:,} pixels that an image may have"
        )
    return pair


def check_padding(operation: GeometricOperation, edges: tuple[int, int, int, int], size: Size | None = None) -> None:
    """Raises :class:`UsageError` if padding would give images of ``size`` more pixels than an image may have.

    ``edges``: pixels at the left, right, top and bottom. A ``size`` of None stands for the smallest image.
    """
    left, right, top, bottom = edges
    height, width = size or (1, 1)
    tall, wide = height + top + bottom, width + left + right
    if tall * wide > max(MAX_PIXELS, height * width):
        raise UsageError(
            f"{type(operation).__name__}: padding makes images of {'at least ' * (size is None)}{tall}x{wide} pixels, "
            f"more than the {MAX_PIXELS:,} that an image may have: choose less"
        )


def check_padding_mode(operation: GeometricOperation, mode: Any) -> None:
    """Raises :class:`UsageError` unless ``mode`` is a :data:`PaddingMode`."""
    if mode not in get_args(PaddingMode):
        modes = ", ".join(get_args(PaddingMode))
        raise UsageError(f"{type(operation).__name__}: padding_mode should be one of {modes}, got {mode!r}")


def check_number(operation: Any, name: str, low: float, high: float, whole: bool = False) -> None:
    """Raises :class:`UsageError` unless the option ``name`` is a (``whole``) number from ``low`` to ``high``."""
    value = getattr(operation, name)
    is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        raise UsageError(f"{type(operation).__name__}: {name} should be {low:,.10g} … {high:,.10g}, got {value!r}")


def parse_range(operation: Any, name: str, pair: Any, low: float, high: float) -> tuple[float, float]:
    """Returns a user's pair as floats.

    Raises :class:`UsageError`, which names ``operation`` and the option ``name``, unless it is two ascending numbers
    from ``low`` to ``high``.
    """
    values = tuple(pair) if isinstance(pair, list | tuple) else ()
    numbers = len(values) == 2 and all(isinstance(n, int | float) and not isinstance(n, bool) for n in values)
    if not numbers or not low <= values[0] <= values[1] <= high:
        raise UsageError(
            f"{type(operation).__name__}: {name} should be (least, most) within {low:g} … {high:g}, got {pair!r}"
        )
    return float(values[0]), float(values[1])


def parse_positive_range(operation: Any, name: str, pair: Any) -> tuple[float, float]:
    """Returns a user's pair of positive, ascending numbers as floats. Raises :class:`UsageError` for anything else."""
    title = f"{type(operation).__name__}: {name}"
    numbers = parse_numbers(title, pair)
    if len(numbers) != 2 or not 0 < numbers[0] <= numbers[1] < math.inf:
        raise UsageError(f"{title} should be (low, high), 0 < low <= high, got {numbers}")
    return numbers[0], numbers[1]


def is_channels_last(images: Tensor) -> bool:
    """Tells if ``images`` ``(B, C, H, W)`` have the memory layout ``(B, H, W, C)``.

    False if they are contiguous as well, for example with one channel.
    """
    return not images.is_contiguous() and images.is_contiguous(memory_format=torch.channels_last)

"""The contracts of augmentations: all run on batches, geometric ones also while images are decoded."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from packstore.training.arguments import CheckedArguments
from packstore.training.augment.units import Units, Values, convert_colour
from packstore.training.random_draws import Array, Draws

Size = tuple[int, int]
"""``(height, width)``."""

PaddingMode = Literal["constant", "reflect", "edge", "symmetric"]

SAMPLINGS = ("bilinear", "nearest", "bicubic", "box", "lanczos", "plain bilinear", "plain bicubic")
"""Interpolations; the first five are antialiased (nearest needs none), the plain ones are not."""

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
    """Units of the images if they are normalised already; set by :func:`.units.with_units`. Colours are converted."""

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
        return size

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

    def replace(self, **changes: Any) -> Crops:
        """Returns a copy with some attributes replaced."""
        return dataclasses.replace(self, **changes)

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


def join_columns(columns: Sequence[Array]) -> Array:
    """Concatenates int64 columns ``(B,)`` or ``(B, k)`` to ``(B, n)``, numpy or torch."""
    columns = [c if c.ndim == 2 else c[:, None] for c in columns]
    return np.concatenate(columns, 1) if isinstance(columns[0], np.ndarray) else torch.cat(list(columns), 1)


def is_channels_last(images: Tensor) -> bool:
    """Tells if ``images`` ``(B, C, H, W)`` have the memory layout ``(B, H, W, C)``.

    False if they are contiguous as well, for example with one channel.
    """
    return not images.is_contiguous() and images.is_contiguous(memory_format=torch.channels_last)

"""The contracts of augmentations: they run on batches, and geometric ones also while images are decoded."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from packstore.training.arguments import unknown_of_operation
from packstore.training.random_draws import Array, Draws

Size = tuple[int, int]
"""``(height, width)``."""

PaddingMode = Literal["constant", "reflect", "edge", "symmetric"]

SAMPLINGS = ("bilinear", "nearest", "bicubic", "box", "lanczos", "plain bilinear", "plain bicubic")
"""Ways of resizing; the first five antialiased (nearest needs none), the plain ones not."""

Step = Callable[..., Any]
"""One entry of a user's list: an :class:`Operation`, or anything that is called with a batch and returns one."""


class Operation(ABC):
    """A batch operation whose random numbers are a pure function of (seed, epoch, record, its place in the list).

    Subclasses are immutable, travel by pickle, and keep nothing between calls, so threads may share one.
    """

    def __new__(cls, *args: Any, **named: Any) -> Self:
        if dataclasses.is_dataclass(cls) and cls.__module__.startswith("packstore."):
            unknown = named.keys() - {each.name for each in dataclasses.fields(cls)}
            if unknown:
                raise unknown_of_operation(cls, min(unknown))
        return super().__new__(cls)

    @abstractmethod
    def __call__(self, images: Tensor, draws: Draws) -> Tensor:
        """``images`` augmented; they themselves are left as they are, and may be what is returned.

        Args:
            images: ``(B, C, H, W)``, uint8 or floating point, on any device, in any memory format.
            draws: Of the batch's records, in the same order and on the same device.

        Returns:
            A batch of the same dtype, on the same device.
        """

    gives_sizes: ClassVar[bool] = False
    """Whether images of one size come out in different sizes."""

    def size_after(self, size: Size | None) -> Size | None:
        """``(height, width)`` of what comes out where ``size`` goes in; None when that differs between images.

        ``size`` None stands for images of any and different sizes.
        """
        return size

    @property
    def moves_pixels(self) -> bool:
        """Whether pixels may come to other places, so that masks, boxes and keypoints have to follow."""
        return False

    @property
    def output_size(self) -> Size | None:
        """``(height, width)`` of what comes out whatever goes in; None when that depends on what goes in."""
        return self.size_after(None)


class GeometricOperation(Operation):
    """An operation that can be planned: it says where pixels come from, so it can run while images are decoded."""

    mirrors: ClassVar[bool] = False
    """Whether it mirrors images; all others say which pixels there are."""

    resizes: ClassVar[bool] = False
    """Whether it resizes images, one by one."""

    @property
    def samplings(self) -> set[int]:
        """How it may resize: numbers of :data:`SAMPLINGS`."""
        return {0}

    @property
    def moves_pixels(self) -> bool:
        return True

    @abstractmethod
    def composes(self, before: Sequence[GeometricOperation]) -> bool:
        """Whether :class:`Crops` can describe this operation after those."""

    @abstractmethod
    def plan(self, crops: Crops, draws: Draws) -> Crops:
        """``crops`` after this operation; ``draws`` of their records, both numpy or both on one device.

        Raises:
            UsageError: Some crop is too small (names the record), or this does not compose with what came before.
        """

    def crops_of_whole(self, sizes: Array, draws: Draws) -> Crops:
        """The crops that this makes of whole images of ``sizes``, int64 ``(B, 2)``, also where it runs on batches.

        For what goes with an image. Of padding it says only where it is: see :attr:`pads`.
        """
        return self.plan(Crops.full(sizes), draws)

    @property
    def pads(self) -> PaddingMode:
        """What it shows where a window of :meth:`crops_of_whole` reaches out of the image."""
        return "constant"


@dataclass(frozen=True, eq=False)
class Crops:
    """Where the pixels of B images come from: a box of the source, resized, then a window of that, then mirrored.

    All arrays are of the same kind, numpy (while decoding) or torch.

    Attributes:
        box: int64 ``(B, 4)``: top, left, height, width in the source image, within it.
        size: int64 ``(B, 2)``: height and width to which the box is resized, as ``sampling`` says. Where that is the
            box's own size, nothing is resized.
        window: int64 ``(B, 4)``: top, left, height, width in the resized box. It may reach out of it.
        flip: bool ``(B,)``: mirrored left to right, after all the others; None when no image is.
        pads: What is shown where the window reaches out; of boxes that are resized always ``"constant"``.
        fill: The value of that, in the units of the images; or one for each channel, which only :class:`Cut` knows.
        sampling: int64 ``(B,)``: how boxes are resized, numbers of :data:`SAMPLINGS`; None for all ``"bilinear"``.
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
        """All of images of ``sizes``, int64 ``(B, 2)``: height, width."""
        sizes = np.asarray(sizes, np.int64) if not isinstance(sizes, Tensor) else sizes
        whole = join([sizes * 0, sizes])
        return cls(whole, sizes, whole)

    def __len__(self) -> int:
        return len(self.box)

    def replace(self, **changes: Any) -> Crops:
        """These crops with some attributes exchanged."""
        return dataclasses.replace(self, **changes)

    @property
    def resized(self) -> bool:
        """Whether any box is resized. Waits for the device where the arrays are on one."""
        return bool((self.size != self.box[:, 2:]).any())


def join(columns: Sequence[Array]) -> Array:
    """int64 columns ``(B,)`` or ``(B, k)`` side by side as ``(B, n)``."""
    columns = [c if c.ndim == 2 else c[:, None] for c in columns]
    return np.concatenate(columns, 1) if isinstance(columns[0], np.ndarray) else torch.cat(list(columns), 1)


def is_channels_last(images: Tensor) -> bool:
    """Whether ``images`` ``(B, C, H, W)`` lie as ``(B, H, W, C)``."""
    return not images.is_contiguous() and images.is_contiguous(memory_format=torch.channels_last)

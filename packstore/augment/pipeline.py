"""A user's list of augmentations: what of it runs where, and running it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from packstore.augment.base import Frames, Geometry, Operation, Size, Step
from packstore.augment.geometry import RandomCrop
from packstore.augment.pixels import RandomHorizontalFlip
from packstore.counter import Draws
from packstore.errors import UsageError


def plan_ops(ops: Sequence[Geometry], sizes: NDArray[np.int64], draws: Draws) -> Frames:
    """The frames that ``ops``, the first ones of a list, make of images.

    Args:
        ops: As :func:`split_ops` gives them first.
        sizes: int64 ``(B, 2)``: heights and widths of the images.
        draws: Of their records; the streams are set here.

    Raises:
        UsageError: As :meth:`Geometry.plan`.
    """
    frames = Frames.full(sizes)
    for stream, op in enumerate(ops):
        frames = op.plan(frames, draws.replace(stream=stream))
    return frames


def apply_ops(ops: Sequence[Step], images: Tensor, draws: Draws, first: int = 0) -> Tensor:
    """``images`` ``(B, C, H, W)`` after ``ops``, of which the first stands at place ``first`` of the user's list."""
    steps = list(enumerate(ops, first))
    while steps:
        stream, op = steps.pop(0)
        here = draws.replace(stream=stream)
        if not isinstance(op, Operation):
            images = op(images)
        elif isinstance(op, RandomCrop) and steps and isinstance(flip := steps[0][1], RandomHorizontalFlip):
            # Together they read and write each pixel once.
            images = op(images, here, flip.flags(draws.replace(stream=steps.pop(0)[0])))
        else:
            images = op(images, here)
    return images


def split_ops(ops: Sequence[Step], flip: bool = False) -> tuple[tuple[Geometry, ...], tuple[Step, ...]]:
    """A user's list, split into what runs while images are decoded and what runs on batches.

    The first part is the longest start of the list that is exactly one resize, then one window, then one mirroring: a
    resize only as the first operation, then crops without padding that do not grow beyond a crop before them.

    Args:
        ops: The user's list.
        flip: Whether random flips that follow run while decoding too. The result is the same either way.

    Raises:
        UsageError: Something in the list is neither an operation nor callable.
    """
    for place, op in enumerate(ops):
        if not callable(op):
            raise UsageError(f"augment[{place}] is not callable: {op!r}; put an operation or a function there")
    planned: list[Geometry] = []
    for op in ops:
        if not isinstance(op, Geometry) or not op.composes(planned) or (op.mirrors and not flip):
            break
        planned.append(op)
    return tuple(planned), tuple(ops[len(planned) :])


def output_size(ops: Sequence[Step], size: Size | None = None) -> Size | None:
    """``(height, width)`` of the batches that leave ``ops``; None where that differs between images or is not known.

    Args:
        ops: The user's list, or a part of it.
        size: That of all images, where they have one.
    """
    for op in ops:
        # Of a stranger's function it is not known; what comes after it may fix the size again.
        size = op.size_after(size) if isinstance(op, Operation) else None
    return size

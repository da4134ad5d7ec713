"""A user's list of augmentations: what of it runs where, and running it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packstore.augment.base import Frames, Geometry, Operation, Size, Step
from packstore.augment.geometry import RandomCrop
from packstore.augment.pixels import RandomHorizontalFlip
from packstore.augment.resample import resize
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


def render(pixels: NDArray[np.uint8], frames: Frames, index: int, out: NDArray[np.uint8]) -> None:
    """Image ``index`` of ``frames`` from the pixels of its box: resized, cut, mirrored, written to ``out``.

    Args:
        pixels: uint8 ``(h, w, 3)`` with the height and width of the box, in any strides but negative ones.
        frames: numpy frames.
        index: Which of them.
        out: uint8 ``(H, W, 3)`` with the height and width of the window; every byte is written.
    """
    height, width = frames.size[index].tolist()
    if pixels.shape[:2] != (height, width):
        # torch warns of arrays that are not writable, although it only reads this one.
        source = torch.from_numpy(pixels if pixels.flags.writeable else np.array(pixels))
        pixels = resize(source.permute(2, 0, 1)[None], (height, width))[0].permute(1, 2, 0).numpy()
    top, left, rows, columns = frames.window[index].tolist()
    y0, y1 = max(0, -top), min(rows, height - top)
    x0, x1 = max(0, -left), min(columns, width - left)
    if (y0, y1, x0, x1) != (0, rows, 0, columns):
        out[:] = 0
    if y0 < y1 and x0 < x1:
        out[y0:y1, x0:x1] = pixels[top + y0 : top + y1, left + x0 : left + x1]
    if frames.flip is not None and frames.flip[index]:
        # torch mirrors pixels of three bytes 15 times as fast as numpy. In pieces below 32,768 elements, because larger
        # ones it would share out to other threads, of which there is one for each image already.
        step = max(1, 32767 // max(1, columns * 3))
        for start in range(0, rows, step):
            piece = torch.from_numpy(out[start : start + step])
            piece.copy_(piece.flip(1))

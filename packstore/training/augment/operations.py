"""A user's list of operations: where each runs, and running them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.training.augment.base import SAMPLINGS, Crops, GeometricOperation, Operation, Size, Step
from packstore.training.augment.crop import source_index
from packstore.training.augment.flips import RandomHorizontalFlip
from packstore.training.augment.geometry import RandomCrop
from packstore.training.augment.resample import resize
from packstore.training.random_draws import Draws


def plan_operations(ops: Sequence[GeometricOperation], sizes: NDArray[np.int64], draws: Draws) -> Crops:
    """The crops that ``ops``, the first ones of a list, make of images: the last of :func:`plan_each`."""
    return plan_each(ops, sizes, draws)[-1]


def plan_each(ops: Sequence[GeometricOperation], sizes: NDArray[np.int64], draws: Draws) -> list[Crops]:
    """The crops of images before the first of ``ops``, and after each of them.

    Args:
        ops: As :func:`split_operations` gives them first.
        sizes: int64 ``(B, 2)``: heights and widths of the images.
        draws: Of their records; the streams are set here.

    Raises:
        UsageError: As :meth:`GeometricOperation.plan`.
    """
    crops = [Crops.full(sizes)]
    for stream, op in enumerate(ops):
        crops.append(op.plan(crops[-1], draws.replace(stream=stream)))
    return crops


def apply_operations(ops: Sequence[Step], images: Tensor, draws: Draws, first: int = 0) -> Tensor:
    """``images`` ``(B, C, H, W)`` after ``ops``, of which the first stands at place ``first`` of the user's list."""
    place = 0
    while place < len(ops):
        op, here = ops[place], draws.replace(stream=first + place)
        place += 1
        if not isinstance(op, Operation):
            images = op(images)
        elif isinstance(op, RandomCrop):
            flip = _flip_after(ops, place, draws, first)
            images = op(images, here, flip)
            place += flip is not None
        else:
            images = op(images, here)
    return images


def _flip_after(ops: Sequence[Step], place: int, draws: Draws, first: int) -> Any:
    """Which images the operation at ``place`` mirrors, if it is a flip: a crop before it then mirrors them, which
    reads and writes each pixel once."""
    if place == len(ops) or not isinstance(flip := ops[place], RandomHorizontalFlip):
        return None
    return flip.flags(draws.replace(stream=first + place))


def split_operations(
    ops: Sequence[Step], flip: bool = False, padded: bool = False
) -> tuple[tuple[GeometricOperation, ...], tuple[Step, ...]]:
    """A user's list, split into what runs while images are decoded and what runs on batches.

    The first part is the longest start of the list that is exactly one resize, then one window, then one mirroring: a
    resize only before all crops, then crops without padding that do not grow beyond a crop before them. Mirrorings may
    stand anywhere: to cut or resize a mirrored image is to mirror what is cut on its other side.

    Args:
        ops: The user's list.
        flip: Whether random flips run while decoding too. The result is the same either way.
        padded: Whether a first crop may have padding, too.

    Raises:
        UsageError: Something in the list is neither an operation nor callable.
    """
    for place, op in enumerate(ops):
        if not callable(op):
            raise UsageError(f"augment[{place}] is not callable: {op!r}; put an operation or a function there")
    planned: list[GeometricOperation] = []
    for op in ops:
        if not isinstance(op, GeometricOperation) or (op.mirrors and not flip):
            break
        if isinstance(op, RandomCrop) and op.padding:
            if not padded or not all(before.mirrors for before in planned):
                break
        elif not op.composes(planned):
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
        # A user's function may return any size; an operation after it may fix the size again.
        size = op.size_after(size) if isinstance(op, Operation) else None
    return size


def render(pixels: NDArray[Any], crops: Crops, index: int, out: NDArray[Any]) -> None:
    """Image ``index`` of ``crops`` from the pixels of its box: resized, cropped, mirrored, written to ``out``.

    Args:
        pixels: ``(h, w, C)`` with the height and width of the box, in any strides but negative ones.
        crops: numpy crops.
        index: Which of them.
        out: ``(H, W, C)`` of that dtype with the height and width of the window; every byte is written.
    """
    height, width = crops.size[index].tolist()
    if pixels.shape[:2] != (height, width):
        # torch warns of arrays that are not writable, although it only reads this one.
        source = torch.from_numpy(pixels if pixels.flags.writeable else np.array(pixels))
        sampling = SAMPLINGS[0 if crops.sampling is None else crops.sampling[index]]
        pixels = resize(source.permute(2, 0, 1)[None], (height, width), sampling)[0].permute(1, 2, 0).numpy()
    top, left, rows, columns = crops.window[index].tolist()
    y0, y1 = max(0, -top), min(rows, height - top)
    x0, x1 = max(0, -left), min(columns, width - left)
    if (y0, y1, x0, x1) != (0, rows, 0, columns):
        out[:] = crops.fill
    if crops.pads != "constant":
        inner_y, inner_x = (
            source_index(np.arange(first, first + count), length, crops.pads).clip(0, length - 1)
            for first, count, length in ((top, rows, height), (left, columns, width))
        )
        out[:] = pixels[inner_y[:, None], inner_x]
    elif y0 < y1 and x0 < x1:
        out[y0:y1, x0:x1] = pixels[top + y0 : top + y1, left + x0 : left + x1]
    if crops.flip is not None and crops.flip[index]:
        # torch mirrors pixels of three bytes 15 times as fast as numpy. In pieces below 32,768 elements, because larger
        # ones it would share out to other threads, of which there is one for each image already.
        step = max(1, 32767 // max(1, columns * out.shape[2]))
        for start in range(0, rows, step):
            piece = torch.from_numpy(out[start : start + step])
            piece.copy_(piece.flip(1))

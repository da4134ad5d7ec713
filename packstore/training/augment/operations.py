"""Splits a user's list of operations by where they run, and runs them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from packstore.core.errors import UsageError
from packstore.images.sniff import MAX_PIXELS
from packstore.training.augment.base import Crops, GeometricOperation, Operation, Size, Step
from packstore.training.augment.geometry import RandomCrop, RandomHorizontalFlip
from packstore.training.augment.program_operation import contains_geometry
from packstore.training.augment.steps import InPlace, is_per_image
from packstore.training.random_draws import Draws

ONE_SIZE = "RandomResizedCrop(224) to train, or Resize(256) and CenterCrop(224) to validate"
"""Operations that give images one size, for messages."""

HOW_TO_COLLATE = (
    "end it with operations that give one size, such as Resize((height, width)), CenterCrop or RandomCrop; or say "
    "collate={'image': 'list'} for a list of images, or 'padded' for a batch of the largest size"
)
"""Advice for images that differ in size after all operations."""


def plan_operations(ops: Sequence[GeometricOperation], sizes: NDArray[np.int64], draws: Draws) -> Crops:
    """Draws the crops of images after all of ``ops``, the first operations of a list. See :func:`plan_each`."""
    return plan_each(ops, sizes, draws)[-1]


def plan_each(ops: Sequence[GeometricOperation], sizes: NDArray[np.int64], draws: Draws) -> list[Crops]:
    """Draws the crops of images after each of ``ops``. The first crops in the list show whole images.

    Args:
        ops: The first part of :func:`split_operations`.
        sizes: int64 ``(B, 2)``: heights and widths of the images.
        draws: Random numbers of the records. Operation ``i`` draws from stream ``i`` of them.

    Raises:
        UsageError: As :meth:`GeometricOperation.plan_crops`.
    """
    crops = [Crops.full(sizes)]
    for stream, op in enumerate(ops):
        crops.append(op.plan_crops(crops[-1], draws.replace(stream=stream)))
    return crops


def apply_operations(ops: Sequence[Step], images: Tensor, draws: Draws, first: int = 0) -> Tensor:
    """Applies ``ops`` to ``images`` ``(B, C, H, W)``, one after another, and returns the result.

    ``first``: index of ``ops[0]`` in the user's list. An operation's random numbers depend on its index in that list.
    """
    place = 0
    while place < len(ops):
        op, here = ops[place], draws.replace(stream=first + place)
        place += 1
        if not isinstance(op, Operation):
            images = op(images)
        elif isinstance(op, RandomCrop):
            # The crop mirrors for a flip that follows, so that each pixel is read and written once.
            flip = _flip_mask_after(ops, place, draws, first)
            images = op(images, here, flip)
            place += flip is not None
        else:
            images = op(images, here)
    return images


def _flip_mask_after(ops: Sequence[Step], place: int, draws: Draws, first: int) -> Any:
    """Draws which images a horizontal flip at ``place`` mirrors; None if there is no such flip."""
    if place == len(ops) or not isinstance(flip := ops[place], RandomHorizontalFlip):
        return None
    return flip.flip_mask(draws.replace(stream=first + place))


def split_operations(
    ops: Sequence[Step], flip: bool = False, padded: bool = False
) -> tuple[tuple[GeometricOperation, ...], tuple[Step, ...]]:
    """Splits a user's list: operations that run while images are decoded, and operations that run on batches.

    The first part is the longest prefix that combines into one resize, one crop and one flip. In this prefix, all
    resizes come before all crops, and no crop has ``padding`` or exceeds an earlier crop. Flips may be anywhere.

    Args:
        ops: The user's list.
        flip: Allow random flips in the first part. It does not change results.
        padded: Allow padding in the first crop.

    Raises:
        UsageError: An entry is neither an operation nor callable.
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
        elif not op.composes_after(planned):
            break
        planned.append(op)
    return tuple(planned), tuple(ops[len(planned) :])


def need_one_by_one(ops: Sequence[Step], planned: int, size: Size | None) -> bool:
    """Tells if images must be augmented one by one.

    They must if operations give them different sizes, or if a function per image gets them in different sizes.

    Args:
        ops: The user's list.
        planned: Number of operations at its beginning that run while decoding, at any size.
        size: Common height and width of the images; None if they differ or are unknown.
    """
    if any(getattr(op, "gives_sizes", False) or contains_geometry(op) for op in ops[planned:]):
        return True
    size = output_size(ops[:planned], size)
    if size is None and any(not getattr(op, "mirrors", False) for op in ops[:planned]):
        return True
    left = ops[planned:] if size is None else ()
    known = takewhile(lambda op: isinstance(op, Operation) and not isinstance(op, InPlace), left)
    return any(is_per_image(op) or getattr(op, "resizes", False) for op in known)


def output_size(ops: Sequence[Step], size: Size | None = None) -> Size | None:
    """Returns ``(height, width)`` of the batches after ``ops``.

    None if sizes differ between images, or are unknown, as after a user's function.

    Args:
        ops: The user's list, or a part of it.
        size: Common size of all images; None without a common size.

    Raises:
        UsageError: The batches' images would have more pixels than any image may have, and than these images.
    """
    most = max(MAX_PIXELS, 0 if size is None else size[0] * size[1])
    for op in ops:
        # A user's function may return any size; an operation after it may fix the size again.
        size = op.size_after(size) if isinstance(op, Operation) else None
    if size is not None and size[0] * size[1] > most:
        raise too_large_error(size)
    return size


def too_large_error(size: Size) -> UsageError:
    """Returns the error for operations that make images of ``size``, more pixels than an image may have."""
    return UsageError(
        f"augment= makes images of {size[0]}x{size[1]} pixels, more than the {MAX_PIXELS:,} that an image may have: "
        "choose smaller sizes"
    )

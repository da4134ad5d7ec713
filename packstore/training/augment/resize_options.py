"""Options of operations that crop and resize: sizes, and interpolations, which may be drawn per image."""

from __future__ import annotations

from typing import Any

from packstore.core.errors import UsageError
from packstore.core.options import show_value
from packstore.images.sniff import MAX_PIXELS
from packstore.training.augment.base import SAMPLINGS, GeometricOperation, Size
from packstore.training.random_draws import Array, Draws


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


def check_sampling(operation: GeometricOperation, interpolation: Any, antialias: Any) -> None:
    """Raises :class:`UsageError` for an unknown ``interpolation``, or an ``antialias`` that is not a bool."""
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
    """Returns the interpolation of each image, ``(B,)``: indices in :data:`SAMPLINGS`. None if all are bilinear.

    Draws them if the operation has two.
    """
    numbers = sorted(operation.samplings)
    if numbers == [0]:
        return None
    if len(numbers) == 1:
        return draws.records * 0 + numbers[0]
    return numbers[0] + draws.integers(2, draw) * (numbers[1] - numbers[0])

"""Arithmetic of crops that numpy and torch, CPU and GPU, compute alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from packstore.core.errors import UsageError
from packstore.training.augment.base import Crops, join_columns
from packstore.training.random_draws import Array


def log_uniform(uniform: Array, low: float, high: float) -> Array:
    """Maps uniform numbers in [0, 1) to log-uniform numbers between ``low`` and ``high``, float64.

    Uses only additions and multiplications: unlike exp, they are bit-exact across numpy and torch, CPU and GPU. The
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
    """Returns ``values[index[b], b]`` for each image ``b``. The rows of ``values`` are attempts."""
    if isinstance(values, np.ndarray):
        return values[index, np.arange(len(index))]
    return values.gather(0, index[None])[0]


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


def unmirror_left(left: Array, cut_width: Any, width: Array, flip: Array | None) -> Array:
    """Returns where a crop of ``cut_width`` at ``left`` begins in the image before mirroring.

    ``flip`` tells which images of ``width`` columns are mirrored; None mirrors nothing.
    """
    return left if flip is None else where(flip, width - cut_width - left, left)


def with_window(crops: Crops, top: Array, left: Array, size: tuple[Any, Any]) -> Crops:
    """Returns ``crops`` with a window of ``size``, at ``top`` and ``left`` in the present window.

    The new window may be smaller or larger. ``size`` has numbers or arrays. Positions are in the mirrored images.
    """
    window = crops.window
    left = window[:, 1] + unmirror_left(left, size[1], window[:, 3], crops.flip)
    return crops.replace(window=join_columns([window[:, 0] + top, left, top * 0 + size[0], top * 0 + size[1]]))


def visible_box(crops: Crops, name: str) -> Array:
    """Returns the box of source pixels that ``crops`` show, int64 ``(B, 4)``. ``name``: operation that will resize it.

    Raises :class:`UsageError` if numpy crops are already resized or exceed the source: two resizes cannot become one.
    """
    box, window = crops.box, crops.window
    outside = (window[:, :2] < 0) | (window[:, :2] + window[:, 2:] > crops.size)
    if isinstance(box, np.ndarray) and (crops.has_resizes or outside.any()):
        raise UsageError(f"{name} of what is resized or padded already runs on batches, not while decoding")
    return join_columns([box[:, :2] + window[:, :2], window[:, 2:]])

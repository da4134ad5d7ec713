"""Describes as text how a record differs from a new encoding of the same image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DecodeError
from packstore.images.decoders import Decoder
from packstore.images.resize import Pixels

RESIZE_TOLERANCE = 1
"""Largest difference of a pixel value (of 255) between resizing here and with another torch or processor
(AVX-512, AVX2 and plain code of torch 2.13 do not differ at all)."""


def describe_byte_difference(found: memoryview, expected: memoryview) -> str:
    """Describes how two unequal records differ, by size or by number of bytes and first place."""
    if found.nbytes != expected.nbytes:
        return f"it has {found.nbytes} bytes, the source {expected.nbytes}"
    unequal = np.frombuffer(found, np.uint8) != np.frombuffer(expected, np.uint8)
    return f"{np.count_nonzero(unequal)} of {found.nbytes} bytes differ, the first at {int(unequal.argmax())}"


def describe_file_difference(
    decoder: Decoder, wanted: Pixels, found: memoryview, measure: Callable[[Pixels, Pixels], str | None]
) -> str | None:
    """Describes how the image file ``found`` differs from the pixels ``wanted``. Returns None if there is no
    difference.

    Describes damage or another size, or returns ``measure`` of both pixels."""
    try:
        pixels = decoder.decode(found)
    except DecodeError as error:
        return f"it does not decode: {error}"
    if pixels.shape != wanted.shape:
        return f"it has {pixels.shape[0]}x{pixels.shape[1]} pixels, expected {wanted.shape[0]}x{wanted.shape[1]}"
    return measure(pixels, wanted)


def describe_pixel_difference(pixels: Pixels, wanted: Pixels, allowed: int = 0) -> str | None:
    """Returns a text with the number of pixels that differ by more than ``allowed`` of 255 in any channel.

    Returns None if there are none. Both images must have one shape; not checked here."""
    differ = np.abs(pixels.astype(np.int16) - wanted) > allowed if allowed else pixels != wanted
    unequal = differ.any(2)
    if not unequal.any():
        return None
    margin = f" by more than {allowed} of 255" if allowed else ""
    return f"{np.count_nonzero(unequal)} of {unequal.size} pixels differ{margin}"


def describe_value_difference(difference: NDArray[Any], limit: Any, tolerance: str) -> str | None:
    """Returns a text with the number of values whose ``difference`` exceeds ``limit`` or is not a number. Returns None
    if there are none.

    ``limit``: an array or a number. ``tolerance``: the limit as text."""
    wrong = ~(difference <= limit)
    if not wrong.any():
        return None
    worst = float("nan") if np.isnan(difference).any() else float(np.where(wrong, difference, 0).max())
    return f"{np.count_nonzero(wrong)} of {wrong.size} values differ by up to {worst:g}, allowed are {tolerance}"

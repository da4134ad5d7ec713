"""Converts images of any mode to 8-bit RGB to look at: deep values through a window, alpha over white."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.manifest import Column, Normalization
from packstore.core.modes import Mode, mode_of
from packstore.images.reading import Reading, bring

Window = tuple[float, float]
"""The values that are shown black and white."""

PERCENTILES = (1.0, 99.0)
"""Percentiles of an image's values between which it is shown unless a window is given."""
_GRAY_OR_COLOUR = (1, 3)


def find_window(pixels: NDArray[Any], mode: Mode) -> Window | None:
    """The window through which an image is shown: its 1st and 99th percentile; None for 8 bits, which are shown as they
    are."""
    if mode.dtype == "uint8":
        return None
    values = pixels[np.isfinite(pixels)] if pixels.dtype.kind == "f" else pixels
    if not values.size:
        return (0.0, 1.0)
    low, high = (float(each) for each in np.percentile(values, PERCENTILES))
    return (low, high) if low < high else (low, low + 1.0)


def to_display(pixels: NDArray[Any], mode: Mode, window: Window | None = None) -> NDArray[np.uint8]:
    """Converts an image to uint8 ``(H, W, 3)``, RGB.

    Args:
        pixels: ``(H, W, C)`` of the mode.
        mode: Of ``multi``, the first three channels are shown as red, green and blue, or the first as gray.
        window: Of values that are not uint8; None for :func:`find_window`.
    """
    if mode.name.startswith("multi"):
        count = 3 if mode.channels >= _GRAY_OR_COLOUR[1] else 1
        pixels, mode = pixels[..., :count], mode_of(count, mode.dtype)
    if mode.dtype != "uint8":
        low, high = window or find_window(pixels, mode) or (0.0, 1.0)
        return bring(pixels, mode, Reading("RGB", f"window:{low!r},{high!r}", "drop"))
    shown: NDArray[np.uint8] = bring(pixels, mode, Reading("RGB", alpha="over:white"))
    return shown


def from_planes(array: NDArray[Any], column: Column, normalization: Normalization | None) -> NDArray[Any]:
    """Undoes the normalisation of a floating point image: ``(H, W, C)`` in the dtype of its mode, rounded.

    Args:
        array: ``(C, H, W)`` as it lies in a store; bfloat16 as uint16.
        column: Its column.
        normalization: The store's.
    """
    if column.dtype == "bfloat16":  # the upper half of a float32
        array = (array.astype(np.uint32) << 16).view(np.float32)
    mode, pixels = column.pixels, array.astype(np.float32).transpose(1, 2, 0)
    if normalization is not None:
        pixels = pixels * np.array(normalization.std, np.float32) + np.array(normalization.mean, np.float32)
    if mode.dtype == "float32":
        return pixels
    limits = np.iinfo(mode.dtype)
    scaled = np.nan_to_num(pixels * np.float32(mode.white)).round()
    whole: NDArray[Any] = scaled.astype(np.float64).clip(limits.min, limits.max).astype(mode.dtype)
    return whole

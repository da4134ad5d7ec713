"""Converts images of any mode to 8-bit RGB for display: deep values through a window, alpha over white."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.core.manifest import Column, Normalization
from packstore.core.modes import Mode, mode_of
from packstore.images.reading import Reading, convert_pixels

Window = tuple[float, float]
"""Values that are shown as black and as white."""

PERCENTILES = (1.0, 99.0)
"""Percentiles of an image's values that become the window by default."""
_GRAY_OR_COLOUR = (1, 3)


def check_window(window: Window | None) -> None:
    """Raises :class:`UsageError` if the value shown as black is not below the value shown as white."""
    if window is not None and not window[0] < window[1]:
        raise UsageError(f"window should be a lower and a higher value, got {window[0]:g} and {window[1]:g}")


def find_window(pixels: NDArray[Any], mode: Mode) -> Window | None:
    """Computes the display window of an image: its 1st and 99th percentile. Ignores values that are not finite.

    Returns None for 8 bits, which need no window. If no value is finite, returns ``(0, 1)``. If both percentiles are
    equal, the upper bound is 1 more."""
    if mode.dtype == "uint8":
        return None
    values = pixels[np.isfinite(pixels)] if pixels.dtype.kind == "f" else pixels
    if not values.size:
        return (0.0, 1.0)
    low, high = (float(each) for each in np.percentile(values, PERCENTILES))
    return (low, high) if low < high else (low, low + 1.0)


def to_display(pixels: NDArray[Any], mode: Mode, window: Window | None = None) -> NDArray[np.uint8]:
    """Converts an image to uint8 ``(H, W, 3)``, RGB.

    Alpha of uint8 images is blended over white. Alpha of other dtypes is dropped.

    Args:
        pixels: ``(H, W, C)`` of the mode.
        mode: Mode of the pixels. ``multi`` shows its first three channels as red, green and blue. With fewer channels,
            it shows the first as gray.
        window: Window of values other than uint8; None for :func:`find_window`.
    """
    if mode.name.startswith("multi"):
        count = 3 if mode.channels >= _GRAY_OR_COLOUR[1] else 1
        pixels, mode = pixels[..., :count], mode_of(count, mode.dtype)
    if mode.dtype != "uint8":
        low, high = window or find_window(pixels, mode) or (0.0, 1.0)
        return convert_pixels(pixels, mode, Reading("RGB", f"window:{low!r},{high!r}", "drop"))
    shown: NDArray[np.uint8] = convert_pixels(pixels, mode, Reading("RGB", alpha="over:white"))
    return shown


def denormalize(array: NDArray[Any], column: Column, normalization: Normalization | None) -> NDArray[Any]:
    """Undoes the normalisation of a floating point image. Returns ``(H, W, C)`` in the dtype of its mode.

    Values of a mode of whole numbers are scaled to its range, rounded and clipped. Values that are not numbers become
    0.

    Args:
        array: ``(C, H, W)`` as stored; bfloat16 as uint16.
        column: Column of the image.
        normalization: Normalisation of the store; None for pixels that were only scaled.
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

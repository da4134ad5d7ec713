"""Resizes images with antialiased bilinear interpolation, as torchvision does.

``torch.nn.functional.interpolate(antialias=True)`` does the work, on channels-last uint8. That kernel releases the GIL.
It runs on the calling thread alone: for one image it uses no OpenMP, whatever ``torch.set_num_threads`` says.

The pixels equal torchvision's for uint8 tensors. For Pillow images torchvision calls ``Image.resize``, whose weights
have more bits. Measured on 600 ImageNet files at four sizes: 99.86% of the values are equal, the others differ by 1 of
255, and one in four million by 2 (never more, on noise neither). AVX-512, AVX2 and plain code give the same pixels.
torch is imported on first use.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.images.sniff import MAX_PIXELS

Pixels = NDArray[Any]
"""Shape ``(H, W, C)``; RGB is uint8 with three channels."""

Size = int | tuple[int, int]
"""``S`` for a square of side S, or ``(height, width)``."""

Fit = Literal["crop", "pad", "squash"]
FITS: tuple[Fit, ...] = ("crop", "pad", "squash")


class TooLargeError(ValueError):
    """Error if resizing would need too many pixels on the way.

    Attributes:
        reason: Text that follows the name of a file in messages.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def target_size(size: Size) -> tuple[int, int]:
    """Returns ``size`` as ``(height, width)``; one number is a square."""
    return (size, size) if isinstance(size, int) else size


def size_by_shorter_side(height: int, width: int, size: int) -> tuple[int, int]:
    """Returns the ``(height, width)`` whose shorter side is ``size``, by the formula of torchvision's ``Resize``."""
    if width <= height:
        return max(1, int(size * height / width)), size
    return size, max(1, int(size * width / height))


def resize(image: Pixels, height: int, width: int) -> Pixels:
    """Resizes ``image``, ``(H, W, C)``, to ``(height, width, C)``; returns ``image`` itself if it has that size.

    Values other than uint8 are resized in floating point (float32, for int32 float64) and rounded to their dtype.

    Raises:
        TooLargeError: An intermediate image has more than :data:`packstore.images.sniff.MAX_PIXELS` pixels, and more
            than ``image``.
    """
    if image.shape[:2] == (height, width):
        return image
    # torch resizes the rows first. An array above the limit may still be shrunk.
    if (most := max(len(image), height) * width) > max(MAX_PIXELS, len(image) * image.shape[1]):
        raise TooLargeError(
            f"is {len(image)} x {image.shape[1]} pixels (height x width), and {most} pixels would be made on the way "
            f"to {height} x {width}, more than the limit of {MAX_PIXELS}; use the fit crop, or another size"
        )
    if image.dtype not in (np.uint8, np.float32, np.float64):
        exact = np.float64 if image.dtype.itemsize > 2 else np.float32
        limits = np.iinfo(image.dtype)
        values = np.rint(resize(image.astype(exact), height, width))
        return np.clip(values, limits.min, limits.max).astype(image.dtype)
    interpolate, from_numpy = _import_torch()
    # torch warns of arrays that are not writable, although it only reads this one.
    source = image if image.flags.writeable and image.flags.c_contiguous else np.array(image, order="C")
    channels_last = from_numpy(source)[None].permute(0, 3, 1, 2)
    resized = interpolate(channels_last, (height, width), mode="bilinear", align_corners=False, antialias=True)
    result: Pixels = resized[0].permute(1, 2, 0).numpy()
    return np.ascontiguousarray(result)


def shrink_to_limits(image: Pixels, resize_to: int | None = None, max_side: int | None = None) -> Pixels:
    """Shrinks ``image`` until its shorter side is at most ``resize_to`` and its longer side at most ``max_side``
    pixels.

    Keeps the aspect ratio, and never enlarges. Returns ``image`` itself if it is small enough. Raises as
    :func:`resize`."""
    height, width = image.shape[:2]
    return resize(image, *compute_limited_size(height, width, resize_to, max_side))


def compute_limited_size(height: int, width: int, resize_to: int | None, max_side: int | None) -> tuple[int, int]:
    """Returns the ``(height, width)`` that :func:`shrink_to_limits` gives an image of this size."""
    if resize_to is not None and min(height, width) > resize_to:
        height, width = size_by_shorter_side(height, width, resize_to)
    longer = max(height, width)
    if max_side is not None and longer > max_side:
        # torchvision's formula for max_size: the longer side exactly, the shorter rounded down.
        if width <= height:
            height, width = max_side, max(1, int(max_side * width / height))
        else:
            height, width = max(1, int(max_side * height / width)), max_side
    return height, width


def resize_to_fit(image: Pixels, size: Size, mode: str = "crop") -> Pixels:
    """Resizes ``image``, ``(H, W, C)``, to exactly ``size``; enlarges smaller images.

    - ``crop``: resizes to cover the target, and crops the centre. As torchvision's ``CenterCrop``, for a square after
      ``Resize(S)``.
    - ``pad``: resizes to fit within the target, centred on zeros.
    - ``squash``: ignores the aspect ratio.

    Raises:
        UsageError: An unknown mode.
        TooLargeError: As :func:`resize`.
    """
    target_height, target_width = target_size(size)
    height, width = image.shape[:2]
    if mode == "squash":
        return resize(image, target_height, target_width)
    if mode == "crop":
        wide = target_height * width >= target_width * height  # wider than the target: its height decides
        if wide:
            covering = target_height, max(target_width, int(target_height * width / height))
        else:
            covering = max(target_height, int(target_width * height / width)), target_width
        # A panorama would be enlarged far beyond the crop: 60,000 x 1 pixels to 3 GPixel, for 224 x 224.
        large = covering[0] * covering[1] > max(height * width, min(4 * target_height * target_width, MAX_PIXELS))
        if large and image.dtype == np.uint8:
            return resize_centre(image, covering, (target_height, target_width))
        resized = resize(image, *covering)
        top, left = _find_centre_start(covering[0], target_height), _find_centre_start(covering[1], target_width)
        return np.ascontiguousarray(resized[top : top + target_height, left : left + target_width])
    if mode == "pad":
        if target_height * width >= target_width * height:
            within = max(1, int(target_width * height / width)), target_width
        else:
            within = target_height, max(1, int(target_height * width / height))
        padded = np.zeros((target_height, target_width, image.shape[2]), image.dtype)
        top, left = (target_height - within[0]) // 2, (target_width - within[1]) // 2
        padded[top : top + within[0], left : left + within[1]] = resize(image, *within)
        return padded
    raise UsageError(f"fit should be one of {', '.join(FITS)}, got {mode!r}")


def resize_centre(image: Pixels, covering: tuple[int, int], size: tuple[int, int]) -> Pixels:
    """Computes the central ``size`` of ``resize(image, *covering)``, as :func:`resize_window`."""
    top, left = (_find_centre_start(*lengths) for lengths in zip(covering, size, strict=True))
    return resize_window(image, covering, (top, left, *size))


def resize_window(image: Pixels, covering: tuple[int, int], window: tuple[int, int, int, int]) -> Pixels:
    """Computes a part of ``resize(image, *covering)`` with equal pixels, without computing the rest.

    Args:
        image: uint8 ``(H, W, C)``.
        covering: ``(height, width)``, neither smaller than the image's.
        window: Top, left, height and width of the part, which lies within ``covering`` and has pixels.
    """
    # As torch: first along the rows, then along the columns, rounded to uint8 in between.
    (height, width), (top, left, tall, wide) = image.shape[:2], window
    rows = _compute_taps(height, covering[0], top, tall)
    image = image[rows.first : rows.last]
    if covering[1] == wide:
        image = resize(image, len(image), wide)
    else:
        columns = _compute_taps(width, covering[1], left, wide)
        image = _apply_taps(image[:, columns.first : columns.last], columns, 1)
    return _apply_taps(image, rows, 0)


class _Taps(NamedTuple):
    """Source pixels and weights for the pixels of an enlarged axis.

    Attributes:
        first: First source pixel that is needed.
        last: End of the source pixels, exclusive.
        places: int64 ``(3, n)``: the three source pixels of each pixel, counted from ``first``.
        weights: int32 ``(3, n)``: their weights, in units of ``2**-14``; 0 for pixels outside the image.
    """

    first: int
    last: int
    places: NDArray[np.int64]
    weights: NDArray[np.int32]


def _compute_taps(source: int, target: int, start: int, count: int) -> _Taps:
    """Returns source pixels and weights for ``count`` pixels, from ``start`` on, of an axis enlarged from ``source`` to
    ``target``."""
    # The arithmetic is that of _compute_index_ranges_int16_weights in ATen's UpSampleKernel.cpp.
    centre = source / target * (np.arange(start, start + count) + 0.5)
    lowest = np.maximum((centre - 1 + 0.5).astype(np.int64), 0)
    beyond = np.minimum((centre + 1 + 0.5).astype(np.int64), source)
    places = lowest + np.arange(3)[:, None]
    weights = np.maximum(1 - np.abs(places - centre + 0.5), 0) * (places < beyond)
    weights /= weights.sum(0)
    first, last = int(lowest[0]), int(beyond[-1])
    places = np.minimum(places, last - 1) - first  # pixels beyond the border have weight 0
    # ATen chooses the unit, 2**-14, so that the largest weight, here 1, fits into int16.
    return _Taps(first, last, places, (weights * (1 << 14) + 0.5).astype(np.int32))


def _apply_taps(image: Pixels, taps: _Taps, axis: int) -> Pixels:
    """Enlarges an axis of a uint8 image by weighted sums of source pixels."""
    count, channels = taps.places.shape[1], image.shape[2]
    result = np.empty((count, image.shape[1], channels) if axis == 0 else (len(image), count, channels), np.uint8)
    # Blocks of rows bound the memory.
    step = max(1, _BLEND_VALUES // max(1, result.shape[1] * channels))
    for first in range(0, len(result), step):
        rows = slice(first, first + step)
        part, chosen, shape = (image, rows, (-1, 1, 1)) if axis == 0 else (image[rows], slice(None), (-1, 1))
        total = np.int32(1 << 13)  # rounds to nearest
        for places, weights in zip(taps.places[:, chosen], taps.weights[:, chosen], strict=True):
            total = total + part.take(places, axis) * weights.reshape(shape)
        # Rounded one by one, the weights of a pixel can add up to a little more than 1.
        result[rows] = np.minimum(total >> 14, 255)
    return result


_BLEND_VALUES = 1 << 20
"""Maximum number of int32 values that :func:`_apply_taps` holds in memory."""


def _find_centre_start(length: int, part: int) -> int:
    """Returns the start of the middle ``part`` of ``length`` pixels, by the formula of torchvision's ``CenterCrop``."""
    return round((length - part) / 2.0)


@functools.cache
def _import_torch() -> tuple[Any, Any]:
    """Imports torch. Returns its functions ``interpolate`` and ``from_numpy``."""
    import torch

    return torch.nn.functional.interpolate, torch.from_numpy

"""The encoding ``jpeg``: re-encodes images, usually after resizing them."""

from __future__ import annotations

import functools
from typing import cast

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import ImageData
from packstore.core.errors import SampleError, UsageError
from packstore.images.encode.base import EncodedImage, Encoding
from packstore.images.encode.differences import describe_file_difference
from packstore.images.encode.options import GEOMETRY, MAX_SIDE
from packstore.images.resize import Pixels

MEAN_TOLERANCE = 0.5
"""Largest mean difference of pixel values (of 255) between a JPEG record and the same image encoded again.

Measured on 600 ImageNet files at shorter side 256, as mean difference of an image, largest of all images: after another
resizing (Pillow's, within 1 of 255 before encoding) 0.11 at quality 10, 0.19 at 50, 0.27 at 75, 0.33 at 90, 0.36 at 95,
0.14 at 100; so one value does for every quality. libjpeg-turbo 2.1 and 3.1 give the same bytes for the same pixels. A
quality that is off by 5 gives 2.5 (median). Comparing with the pixels before encoding would need 24 of 255."""

PATCH_TOLERANCES = {1: 45, 10: 32, 30: 24, 50: 20, 75: 11, 85: 8, 90: 6.2, 95: 3.8, 100: 1.4}
"""Largest mean difference (of 255) of any 8 x 8 pixels between a JPEG record and the same image encoded again, by
quality, linear in between. It sees what :data:`MEAN_TOLERANCE` averages away: a coefficient that is rounded the other
way changes one block, and no further than a quantisation step.

Measured as above on the 600 files (at shorter side 256 or 100) and on 50 images of noise, largest of all: 32 at
quality 1, 22 at 10, 17 at 30, 14 at 50, 8.3 at 75, 6.2 at 85, 4.5 at 90, 2.7 at 95, 0.9 at 100. In these files, 4 x 4
pixels that are off by 38 give at least 8.5 at quality 90 to 95, 8.0 at 100; below 85 they may pass for a rounded
coefficient. TurboJPEG and simplejpeg give the same bytes. Pillow encodes with another DCT below quality 96, which is
another image (up to 5 of 255 on average, 30 in a patch): packstore never encodes with it, and such records differ."""


class Jpeg(Encoding):
    """Baseline JPEG files, YCbCr 4:2:0 or gray. Refuses other modes, and sides above 65,535 pixels.

    A record with other bytes than expected may be right. It must have the same size, and differ by at most
    :data:`MEAN_TOLERANCE` on average. No patch of 8 x 8 pixels may differ by more than :data:`PATCH_TOLERANCES`."""

    name = "jpeg"
    accepts = GEOMETRY | {"quality"}

    def encode(self, key: str, image: ImageData) -> EncodedImage:
        """Decodes, resizes and re-encodes the image.

        Raises :class:`SampleError` for a side above 65,535 pixels, and the errors of :meth:`SourceImages.pixels`."""
        pixels = self.images.pixels(key, image)
        height, width, channels = pixels.shape
        if max(height, width) > MAX_SIDE:
            raise SampleError(key, f"{height}x{width} pixels are too many for a JPEG; shrink it with max-side")
        return EncodedImage(self.encode_pixels(pixels), (height, width, channels))

    def _check_mode(self) -> None:
        """Raises :class:`UsageError` for modes other than RGB and L."""
        if self.mode.name not in ("RGB", "L"):
            raise UsageError(
                f"a JPEG does not hold images of mode {self.mode}; use --encoding original or {self.mode.dtype}, or "
                "say with --mode RGB or L and --depth how they become 8 bits"
            )

    def encode_pixels(self, pixels: Pixels) -> bytes:
        """Encodes pixels at the quality of the options."""
        return encode_jpeg(pixels, self.options.quality)

    def difference(self, expected: EncodedImage, found: memoryview) -> str | None:
        """Describes differences of decoded pixels beyond :data:`MEAN_TOLERANCE` and :data:`PATCH_TOLERANCES`. Returns
        None if there are none."""
        decoder = self.images.decoder
        measure = functools.partial(describe_jpeg_difference, quality=self.options.quality)
        return describe_file_difference(decoder, decoder.decode(expected.record), found, measure)


def encode_jpeg(pixels: Pixels, quality: int) -> bytes:
    """Encodes ``pixels``, uint8, as a baseline JPEG. Releases the GIL.

    ``(H, W, 3)`` RGB becomes YCbCr 4:2:0, ``(H, W, 1)`` gray becomes luma alone.

    Always uses simplejpeg, so that records do not depend on installed libraries. The DCT is libjpeg-turbo's default,
    the fast one below quality 96 (measured on 300 images: 0.06 dB less than the accurate one at 90, 0.27 dB at 95)."""
    import simplejpeg

    pixels = np.ascontiguousarray(pixels)
    colours = ("RGB", "420") if pixels.shape[2] == 3 else ("GRAY", "Gray")
    return cast(bytes, simplejpeg.encode_jpeg(pixels, quality, *colours, fastdct=False))


def describe_jpeg_difference(pixels: Pixels, wanted: Pixels, quality: int) -> str | None:
    """Describes how decoded pixels differ beyond the tolerances for ``quality``. Returns None if they do not.

    Both images have one shape."""
    difference = np.abs(pixels.astype(np.int16) - wanted)
    mean = float(difference.mean())
    if mean > MEAN_TOLERANCE:
        return f"its pixels differ by {mean:.2f} of 255 on average, allowed are {MEAN_TOLERANCE:g}"
    tolerance = float(np.interp(quality, list(PATCH_TOLERANCES), list(PATCH_TOLERANCES.values())))
    worst, row, column = worst_patch(difference)
    if worst <= tolerance:
        return None
    return (
        f"its pixels differ by {worst:.1f} of 255 on average around row {row}, column {column}, allowed are "
        f"{tolerance:g} in any 8 x 8 pixels"
    )


def worst_patch(difference: NDArray[np.int16]) -> tuple[float, int, int]:
    """Finds the patch of 8 x 8 pixels with the largest mean of absolute differences, over all channels.

    Returns the mean, and row and column of the patch's centre. Patches overlap by half, so that any 4 x 4 pixels are
    within one. At the image's border, pixels outside count as equal."""
    channels = difference.shape[2]
    sums = difference.sum(2, dtype=np.int32)
    for axis in (0, 1):
        sums = np.add.reduceat(sums, np.arange(0, sums.shape[axis], 4), axis)
    for axis in (0, 1):
        if sums.shape[axis] > 1:
            sums = np.take(sums, range(sums.shape[axis] - 1), axis) + np.take(sums, range(1, sums.shape[axis]), axis)
    row, column = divmod(int(sums.argmax()), sums.shape[1])
    return float(sums[row, column]) / (8 * 8 * channels), row * 4 + 4, column * 4 + 4

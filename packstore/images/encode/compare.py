"""Is a record what its source would give? The rule behind ``verify --against``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE, Buffer, ImageData
from packstore.core.errors import DecodeError, SampleError
from packstore.core.manifest import FLOAT_ENCODINGS
from packstore.images.decoders import TOLERANCE, Decoder
from packstore.images.encode.encoder import Encoded, Encoder
from packstore.images.encode.pixels import moments, to_float32

RESIZE_TOLERANCE = 1
"""Largest difference of a pixel value (of 255) between this resizing and that of another torch or processor
(AVX-512, AVX2 and plain code of torch 2.13 do not differ at all)."""

JPEG_TOLERANCE = 0.5
"""Largest mean difference of pixel values (of 255) between a JPEG record and the same image encoded again.

Measured on 600 ImageNet files at shorter side 256, as mean difference of an image, largest of all images: after another
resizing (Pillow's, within 1 of 255 before encoding) 0.11 at quality 10, 0.19 at 50, 0.27 at 75, 0.33 at 90, 0.36 at 95,
0.14 at 100; so one value does for every quality. libjpeg-turbo 2.1 and 3.1 give the same bytes for the same pixels. A
quality that is off by 5 gives 2.5 (median). Comparing with the pixels before encoding would need 24 of 255."""

PATCH_TOLERANCES = {1: 45, 10: 32, 30: 24, 50: 20, 75: 11, 85: 8, 90: 6.2, 95: 3.8, 100: 1.4}
"""Largest mean difference (of 255) of any 8 x 8 pixels between a JPEG record and the same image encoded again, by
quality, linear in between. It sees what :data:`JPEG_TOLERANCE` averages away: a coefficient that is rounded the other
way changes one block, and no further than a quantisation step.

Measured as above on the 600 files (at shorter side 256 or 100) and on 50 images of noise, largest of all: 32 at
quality 1, 22 at 10, 17 at 30, 14 at 50, 8.3 at 75, 6.2 at 85, 4.5 at 90, 2.7 at 95, 0.9 at 100. In these files, 4 x 4
pixels that are off by 38 give at least 8.5 at quality 90 to 95, 8.0 at 100; below 85 they may pass for a rounded
coefficient. TurboJPEG and simplejpeg give the same bytes. Pillow encodes with another DCT below quality 96, which is
another image (up to 5 of 255 on average, 30 in a patch): packstore never encodes with it, and such records differ."""

HALF_ULP = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}
"""Largest relative error of a value by rounding."""


def compare(
    encoder: Encoder, key: str, image: ImageData, record: Buffer, shape: Sequence[int] | None = None
) -> str | None:
    """What is wrong with ``record``, which ``encoder`` should have made of ``image``; None when nothing is.

    The record is made again. Where its bytes come out the same (as they do with the same library versions), all is
    well. Otherwise:

    - records that pass through must be the same, byte for byte;
    - JPEG files that were made seekable must have the same pixels, without any tolerance: these are compared at once;
    - uint8 pixels may differ by :data:`packstore.images.decoders.TOLERANCE`, by :data:`RESIZE_TOLERANCE` where they
      were resized;
    - floating point values by that divided by 255 and the channel's standard deviation, plus rounding;
    - JPEG records must have the same size, and differ from the JPEG made again by at most :data:`JPEG_TOLERANCE` of
      255 on average, and in no patch of 8 x 8 pixels by more than :data:`PATCH_TOLERANCES` says.

    Args:
        encoder: As the store was made.
        key: The sample's key, for errors.
        image: As the source gives it.
        record: The bytes in the store's image column.
        shape: What the store's ``shape`` column says, where it has one.

    Raises:
        SampleError: The source's image cannot be read or decoded.
        UsageError: As the encoder.
    """
    found = memoryview(record).cast("B")
    if encoder.rewrites(image):
        return _pixel_difference(encoder.decoder, key, image, found)
    expected = encoder(key, image)
    if shape is not None and expected.shape is not None and tuple(shape) != expected.shape:
        return f"its shape is {tuple(int(n) for n in shape)}, expected {expected.shape}"
    if found == memoryview(expected.record):
        return None
    if encoder.passes_through:
        return _bytes_difference(found, memoryview(expected.record))
    if encoder.encoding in ("jpeg", "seekable"):
        return _jpeg_difference(encoder, expected, found)
    if found.nbytes != memoryview(expected.record).nbytes:
        return f"it has {found.nbytes} bytes, expected {memoryview(expected.record).nbytes} (shape {expected.shape})"
    return _value_difference(encoder, expected, found)


def _bytes_difference(found: memoryview, expected: memoryview) -> str:
    if found.nbytes != expected.nbytes:
        return f"it has {found.nbytes} bytes, the source {expected.nbytes}"
    unequal = np.frombuffer(found, np.uint8) != np.frombuffer(expected, np.uint8)
    return f"{np.count_nonzero(unequal)} of {found.nbytes} bytes differ, the first at {int(unequal.argmax())}"


def _pixel_difference(decoder: Decoder, key: str, image: Any, found: memoryview) -> str | None:
    if found == memoryview(image):  # kept as it was
        return None
    try:
        wanted = decoder.decode(image)
    except DecodeError as error:
        raise SampleError(key, str(error)) from error
    try:
        pixels = decoder.decode(found)
    except DecodeError as error:
        return f"it does not decode: {error}"
    if pixels.shape != wanted.shape:
        return f"it has {pixels.shape[0]}x{pixels.shape[1]} pixels, expected {wanted.shape[0]}x{wanted.shape[1]}"
    unequal = (pixels != wanted).any(2)
    return f"{np.count_nonzero(unequal)} of {unequal.size} pixels differ" if unequal.any() else None


def _jpeg_difference(encoder: Encoder, expected: Encoded, found: memoryview) -> str | None:
    try:
        pixels = encoder.decoder.decode(found)
    except DecodeError as error:
        return f"it does not decode: {error}"
    wanted = encoder.decoder.decode(expected.record)
    if pixels.shape != wanted.shape:
        return f"it has {pixels.shape[0]}x{pixels.shape[1]} pixels, expected {wanted.shape[0]}x{wanted.shape[1]}"
    difference = np.abs(pixels.astype(np.int16) - wanted)
    mean = float(difference.mean())
    if mean > JPEG_TOLERANCE:
        return f"its pixels differ by {mean:.2f} of 255 on average, allowed are {JPEG_TOLERANCE:g}"
    qualities, tolerances = list(PATCH_TOLERANCES), list(PATCH_TOLERANCES.values())
    tolerance = float(np.interp(encoder.options.quality, qualities, tolerances))
    worst, row, column = _worst_patch(difference)
    if worst <= tolerance:
        return None
    return (
        f"its pixels differ by {worst:.1f} of 255 on average around row {row}, column {column}, allowed are "
        f"{tolerance:g} in any 8 x 8 pixels"
    )


def _worst_patch(difference: NDArray[np.int16]) -> tuple[float, int, int]:
    """The largest mean of 8 x 8 pixels (at a border, of the pixels that there are, as if the others did not differ),
    and its middle. The patches overlap by half, so that any 4 x 4 pixels lie within one."""
    sums = difference.sum(2, dtype=np.int32)
    for axis in (0, 1):
        sums = np.add.reduceat(sums, np.arange(0, sums.shape[axis], 4), axis)
    for axis in (0, 1):
        if sums.shape[axis] > 1:
            sums = np.take(sums, range(sums.shape[axis] - 1), axis) + np.take(sums, range(1, sums.shape[axis]), axis)
    row, column = divmod(int(sums.argmax()), sums.shape[1])
    return float(sums[row, column]) / (8 * 8 * 3), row * 4 + 4, column * 4 + 4


def _value_difference(encoder: Encoder, expected: Encoded, found: memoryview) -> str | None:
    encoding = encoder.encoding
    allowed = RESIZE_TOLERANCE if encoder.options.resizes else TOLERANCE
    pixels = expected.shape[0] * expected.shape[1] if expected.shape is not None else 0
    values, wanted = _values(found, encoding), _values(memoryview(expected.record), encoding)
    if encoding not in FLOAT_ENCODINGS:
        difference = np.abs(values - wanted)
        limit: Any = allowed
    else:
        shape = (3, pixels)
        values, wanted = values.reshape(shape), wanted.reshape(shape)
        with np.errstate(invalid="ignore"):  # not-a-number is wrong, and says so below
            difference = np.abs(values - wanted)
        mean, std = (np.array(m)[:, None] for m in moments(encoder.options.normalization))
        arithmetic = 2.0**-22 * (1 + np.abs(mean)) / std  # float32, before the value was rounded to its encoding
        limit = allowed / 255 / std + arithmetic + HALF_ULP[encoding] * (np.abs(wanted) + np.abs(values))
    wrong = ~(difference <= limit)
    if not wrong.any():
        return None
    worst = float(np.nanmax(np.where(wrong, difference, 0))) if not np.isnan(values).any() else float("nan")
    tolerance = f"{allowed} of 255" if encoding == "uint8" else f"{float(np.max(limit)):.3g}"
    return f"{np.count_nonzero(wrong)} of {wrong.size} values differ by up to {worst:g}, allowed are {tolerance}"


def _values(data: memoryview, encoding: str) -> NDArray[Any]:
    if encoding in FLOAT_ENCODINGS:
        return to_float32(np.frombuffer(data, NUMPY_DTYPE[encoding]), encoding)
    return np.frombuffer(data, np.uint8).astype(np.int16)

"""Encodings as arrays: ``uint8``, ``uint16``, ``int16`` and ``int32`` are decoded pixels, ``float16``, ``bfloat16`` and
``float32`` normalised pixels. :class:`DatasetStatistics` computes mean and standard deviation for these.

Before pixels are normalised, they are scaled to 0 … 1 by the maximum of their dtype, 255 or 65,535. Dtypes without an
upper bound (int16, int32, float32) are not scaled.

A uint8 channel has 256 values, so ``(x / 255 - mean) / std`` is computed 256 times a channel, in float32, and then
looked up. The result is bit-identical to computing it per pixel and takes 105 µs for 224 x 224 pixels whatever the
dtype (computing: 84 µs for float32, 288 µs for float16), on the calling thread alone: torch would start a thread pool
in every worker.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE, ImageData, bfloat16_bits
from packstore.core.errors import UsageError
from packstore.core.manifest import Normalization
from packstore.core.modes import RGB, Mode
from packstore.images.decoders import TOLERANCE
from packstore.images.encode.base import (
    RESIZE_TOLERANCE,
    EncodedImage,
    Encoding,
    SourceImages,
    describe_value_difference,
)
from packstore.images.encode.options import GEOMETRY


class Uint8(Encoding):
    """Pixels ``(H, W, C)``. A fixed array if all images have one size, else ragged with a ``shape`` column."""

    name = dtype = "uint8"
    layout = "HWC"

    def encode(self, key: str, image: ImageData) -> EncodedImage:
        """Decodes, orients and resizes the image to pixels."""
        return self.of_array(key, self.images.pixels(key, image))


class Uint16(Uint8):
    """Pixels of 16 bits without sign."""

    name = dtype = "uint16"


class Int16(Uint8):
    """Pixels of 16 bits with sign."""

    name = dtype = "int16"


class Int32(Uint8):
    """Pixels of 32 bits with sign."""

    name = dtype = "int32"


_BY_TABLE = {"uint8": 1 << 8, "uint16": 1 << 16}
"""Number of values of the dtypes that are normalised by lookup."""


class Floats(Encoding):
    """Images of one size as ``(C, H, W)``, normalised: ``(x / white - mean) / std``.

    ``white`` is 255 for uint8, 65,535 for uint16, else 1. Values of a source of floats are only rounded to the dtype.

    Attributes:
        half_ulp: Largest relative rounding error of a value.
        normalization: Normalisation of the records.

    Raises:
        UsageError: A source of floats has another normalisation; the normalisation has another number of channels;
            values exceed the dtype.
    """

    layout = "CHW"
    accepts = GEOMETRY | {"normalization"}
    half_ulp: ClassVar[float]

    def __init__(self, images: SourceImages, shape: tuple[int, ...] | None = None) -> None:
        super().__init__(images, shape)
        asked = self.options.encoding == self.name  # else `original` of a source of floats
        self.normalization = self.options.normalization if asked else images.normalization
        if images.encoding.layout != "CHW":
            self._prepare_normalization()
        elif self.normalization != images.normalization:
            raise UsageError(
                f"the source is normalised with {_describe_normalization(images.normalization)}, not with "
                f"{_describe_normalization(self.normalization)}; keep its normalisation, or pack from the images"
            )

    def encode(self, key: str, image: ImageData) -> EncodedImage:
        """Normalises the pixels. If the source is of floats already, converts its dtype.

        Raises :class:`UsageError` for values beyond the range of this encoding."""
        source = self.images.encoding
        if source.layout == "CHW":
            return self.of_array(key, cast_floats(self.images.check_array(key, image), source.dtype, self.dtype))
        return self.of_array(key, self._normalize(self.images.pixels(key, image)))

    def _normalize(self, pixels: NDArray[Any]) -> NDArray[Any]:
        """Normalises pixels ``(H, W, C)`` to ``(C, H, W)``: looks up values of uint8 and uint16, computes others."""
        if self._tables is not None:
            return normalize(pixels, self._tables)
        planes = pixels.transpose(2, 0, 1).astype(np.float32)
        if pixels.dtype == np.int32 and not np.array_equal(planes.astype(np.int64), pixels.transpose(2, 0, 1)):
            raise UsageError("float32 holds whole numbers up to 16,777,216, and some pixels are larger: use int32")
        mean, std = self._mean_and_std
        return from_float32((planes - mean) / std, self.dtype)

    def difference(self, expected: EncodedImage, found: memoryview) -> str | None:
        """Describes differences beyond rounding errors of float32, of the encoding, of decoding and of resizing.
        Returns None if there are none."""
        allowed = RESIZE_TOLERANCE if self.options.resizes else TOLERANCE
        values, wanted = (
            to_float32(np.frombuffer(data, NUMPY_DTYPE[self.dtype]), self.dtype).reshape(self.mode.channels, -1)
            for data in (found, expected.record)
        )
        with np.errstate(invalid="ignore"):  # not-a-number counts as wrong
            difference = np.abs(values - wanted)
        mean, std = (np.array(m)[:, None] for m in mean_and_std(self.normalization, self.mode.channels))
        arithmetic = 2.0**-22 * (1 + np.abs(mean)) / std  # float32, before the value was rounded to its encoding
        limit = allowed / self.mode.white / std + arithmetic + self.half_ulp * (np.abs(wanted) + np.abs(values))
        return describe_value_difference(difference, limit, f"{float(np.max(limit)):.3g}")

    def _prepare_normalization(self) -> None:
        """Computes what :meth:`_normalize` needs. Raises :class:`UsageError` for another number of channels."""
        channels, given = self.mode.channels, self.normalization
        if given is not None and len(given.mean) != channels:
            raise UsageError(
                f"the images have {channels} channel{'s' if channels > 1 else ''} (mode {self.mode}), and the "
                f"normalisation has {len(given.mean)}; give --normalize auto, none, or {channels} means and standard "
                "deviations"
            )
        self._mean_and_std = [np.array(each, np.float32)[:, None, None] for each in mean_and_std(given, channels)]
        by_table = self.mode.dtype in _BY_TABLE
        self._tables = normalization_tables(self.dtype, given, self.mode) if by_table else None


class Float16(Floats):
    """Values of 16 bits."""

    name = dtype = "float16"
    half_ulp = 2.0**-11


class BFloat16(Floats):
    """Values of bfloat16, as uint16 bit patterns."""

    name = dtype = "bfloat16"
    half_ulp = 2.0**-8


class Float32(Floats):
    """Values of 32 bits."""

    name = dtype = "float32"
    half_ulp = 2.0**-24


def normalization_tables(encoding: str, normalization: Normalization | None, mode: Mode = RGB) -> NDArray[Any]:
    """Computes the encoded value of each (channel, pixel value).

    Args:
        encoding: ``float16``, ``bfloat16`` or ``float32``.
        normalization: Normalisation; None gives ``x / 255``, or ``x / 65535`` for 16 bits.
        mode: Mode of the pixels, uint8 or uint16.

    Returns:
        Shape ``(C, 256)`` or ``(C, 65536)``, float16, float32, or uint16 bit patterns for bfloat16.

    Raises:
        UsageError: A value exceeds the encoding's range.
    """
    mean, std = (np.array(values, np.float32)[:, None] for values in mean_and_std(normalization, mode.channels))
    values = (np.arange(_BY_TABLE[mode.dtype], dtype=np.float32) / np.float32(mode.white) - mean) / std
    return from_float32(values, encoding)


def normalize(pixels: NDArray[Any], tables: NDArray[Any]) -> NDArray[Any]:
    """Looks up normalised values: pixels ``(H, W, C)`` become ``(C, H, W)`` of the dtype of ``tables``.

    ``tables``: from :func:`normalization_tables`."""
    height, width, channels = pixels.shape
    values = np.empty((channels, height, width), tables.dtype)
    for channel in range(channels):
        # A pixel is never out of range; "clip" spares numpy a buffer that mode="raise" needs with out=.
        np.take(tables[channel], pixels[..., channel], out=values[channel], mode="clip")
    return values


def to_float32(values: NDArray[Any], encoding: str) -> NDArray[np.float32]:
    """Converts values of an encoding to float32, exactly. Values of bfloat16 are uint16 bit patterns."""
    if encoding == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def from_float32(values: NDArray[np.float32], encoding: str) -> NDArray[Any]:
    """Rounds float32 values to an encoding: to nearest, ties to even. Values of bfloat16 are uint16 bit patterns.

    Raises:
        UsageError: A finite value exceeds the encoding's range and would become infinite.
    """
    with np.errstate(over="ignore"):  # reported below, with what to do about it
        result = bfloat16_bits(values) if encoding == "bfloat16" else values.astype(NUMPY_DTYPE[encoding])
        lost = np.isinf(to_float32(result, encoding)) & np.isfinite(values)
    if lost.any():
        worst = float(np.abs(values[np.isfinite(values)]).max())
        raise UsageError(f"{encoding} cannot hold values up to {worst:g}; use float32, or another normalisation")
    return result


def cast_floats(values: NDArray[Any], source: str, target: str) -> NDArray[Any]:
    """Converts values from one floating point encoding to another. Raises as :func:`from_float32`."""
    return from_float32(to_float32(values, source), target)


def mean_and_std(normalization: Normalization | None, channels: int = 3) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns means and standard deviations of the channels; 0 and 1 without a normalisation."""
    if normalization is None:
        return (0.0,) * channels, (1.0,) * channels
    return normalization.mean, normalization.std


def _describe_normalization(normalization: Normalization | None) -> str:
    """Returns a normalisation as text, for messages."""
    if normalization is None:
        return "nothing (plain 0 to 1)"
    return f"mean {normalization.mean} and standard deviation {normalization.std}"


_VALUES = {"uint8": 1 << 8, "uint16": 1 << 16}
"""Number of values of the dtypes whose values are counted."""


class DatasetStatistics:
    """Accumulates mean and standard deviation, independent of the order of images and threads.

    Pixels of 8 and 16 bits are counted by value, so the result is exact. For other dtypes each image is summed in
    float64, and the sums are added exactly. Takes 6 KiB for RGB, 512 KiB per channel of 16 bits.

    Not thread-safe: each thread has its own object, and :meth:`merge` joins them.

    Attributes:
        mode: Mode of the images.
        pixels: Number of pixels counted.
    """

    def __init__(self, mode: Mode = RGB) -> None:
        self.mode = mode
        self.pixels = 0
        values = _VALUES.get(mode.dtype)
        self._counts = None if values is None else np.zeros((mode.channels, values), np.int64)
        self._sums = [[Fraction(0), Fraction(0)] for _ in range(0 if values else mode.channels)]

    def update(self, image: NDArray[Any]) -> None:
        """Adds an image, ``(H, W, C)`` of the mode. Raises :class:`UsageError` for values that are not finite."""
        self.pixels += image.shape[0] * image.shape[1]
        for channel in range(self.mode.channels):
            values = image[..., channel].reshape(-1)
            if self._counts is not None:
                self._counts[channel] += np.bincount(values, minlength=self._counts.shape[1])
                continue
            wide = values.astype(np.float64)
            sums = float(wide.sum()), float((wide * wide).sum())
            if not all(map(math.isfinite, sums)):
                raise UsageError("some pixels are infinite or not a number, so there is no mean; give the values")
            for place, value in enumerate(sums):
                self._sums[channel][place] += Fraction(value)

    def merge(self, other: DatasetStatistics) -> None:
        """Adds the counts and sums of ``other``. Does not check that both have the same mode."""
        self.pixels += other.pixels
        if self._counts is not None and other._counts is not None:
            self._counts += other._counts
        for own, others in zip(self._sums, other._sums, strict=True):
            own[0], own[1] = own[0] + others[0], own[1] + others[1]

    def normalization(self) -> Normalization:
        """Returns mean and population standard deviation of pixels scaled as :class:`Normalization` says.

        Raises:
            UsageError: No pixels, or a channel whose pixels are all equal, so that its deviation is 0.
        """
        if self.pixels == 0:
            raise UsageError("there are no pixels to compute mean and standard deviation from; name a normalisation")
        means, deviations = [], []
        number, white = self.pixels, int(self.mode.white)
        for total, squares in self._compute_totals():
            # Whole numbers and fractions: sums of squares of 10^12 pixels leave neither int64 room nor float64 digits.
            variance = number * squares - total * total  # times number squared
            if variance <= 0:
                raise UsageError("all pixels of a channel are the same, so it has no standard deviation; use none")
            means.append(float(total / (number * white)))
            deviations.append(math.sqrt(variance / (number * number)) / white)
        return Normalization(tuple(means), tuple(deviations))

    def _compute_totals(self) -> list[tuple[Any, Any]]:
        """Returns the sum and the sum of squares of each channel."""
        if self._counts is None:
            return [(total, squares) for total, squares in self._sums]
        return [
            (
                sum(value * count for value, count in enumerate(counts)),
                sum(value * value * count for value, count in enumerate(counts)),
            )
            for counts in self._counts.tolist()
        ]

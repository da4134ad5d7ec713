"""The encodings ``float16``, ``bfloat16`` and ``float32``: normalised pixels.

One uint8 channel has 256 values, so ``(x / 255 - mean) / std`` is computed 256 times a channel, in float32, and looked
up from then on. That gives the same bits as computing it for each pixel, in 105 µs for 224 x 224 pixels whatever the
dtype (computing: 84 µs for float32, 288 µs for float16), on the calling thread alone: torch would start a pool of
threads in every worker.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE, ImageData, bfloat16_bits
from packstore.core.errors import UsageError
from packstore.core.manifest import Normalization
from packstore.images.decoders import TOLERANCE
from packstore.images.encode.base import Encoded, Encoding, SourceImages
from packstore.images.encode.differences import RESIZE_TOLERANCE, value_difference
from packstore.images.encode.options import GEOMETRY
from packstore.images.resize import Pixels

_PLAIN = Normalization((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


class Floats(Encoding):
    """``(x / 255 - mean) / std`` of all images at one size, as ``(3, H, W)``.

    Attributes:
        half_ulp: Largest relative error of a value by rounding.
        normalization: What the records are normalised with.
    """

    layout = "CHW"
    accepts = GEOMETRY | {"normalization"}
    half_ulp: ClassVar[float]

    def __init__(self, images: SourceImages, shape: tuple[int, ...] | None = None) -> None:
        super().__init__(images, shape)
        asked = self.options.encoding == self.name  # else for the original of a source of floats
        self.normalization = self.options.normalization if asked else images.normalization
        if images.encoding.layout != "CHW":
            self._tables = normalization_tables(self.dtype, self.normalization)
        elif self.normalization != images.normalization:
            raise UsageError(
                f"the source is normalised with {_describe(images.normalization)}, not with "
                f"{_describe(self.normalization)}; keep its normalisation, or pack from the images"
            )

    def encode(self, key: str, image: ImageData) -> Encoded:
        source = self.images.encoding
        if source.layout == "CHW":
            return self.of_array(key, cast_floats(self.images.array(key, image), source.dtype, self.dtype))
        return self.of_array(key, normalize(self.images.pixels(key, image), self._tables))

    def difference(self, expected: Encoded, found: memoryview) -> str | None:
        allowed = RESIZE_TOLERANCE if self.options.resizes else TOLERANCE
        values, wanted = (
            to_float32(np.frombuffer(data, NUMPY_DTYPE[self.dtype]), self.dtype).reshape(3, -1)
            for data in (found, expected.record)
        )
        with np.errstate(invalid="ignore"):  # not-a-number counts as wrong
            difference = np.abs(values - wanted)
        mean, std = (np.array(m)[:, None] for m in moments(self.normalization))
        arithmetic = 2.0**-22 * (1 + np.abs(mean)) / std  # float32, before the value was rounded to its encoding
        limit = allowed / 255 / std + arithmetic + self.half_ulp * (np.abs(wanted) + np.abs(values))
        return value_difference(difference, limit, f"{float(np.max(limit)):.3g}")


class Float16(Floats):
    name = dtype = "float16"
    half_ulp = 2.0**-11


class BFloat16(Floats):
    name = dtype = "bfloat16"
    half_ulp = 2.0**-8


class Float32(Floats):
    name = dtype = "float32"
    half_ulp = 2.0**-24


def normalization_tables(encoding: str, normalization: Normalization | None) -> NDArray[Any]:
    """The value of each (channel, uint8 pixel) in a floating point encoding.

    Args:
        encoding: ``float16``, ``bfloat16`` or ``float32``.
        normalization: None gives ``x / 255``.

    Returns:
        Shape ``(3, 256)``, float16, float32, or uint16 bit patterns for bfloat16.

    Raises:
        UsageError: The values are too large for the encoding.
    """
    mean, std = (np.array(values, np.float32)[:, None] for values in moments(normalization))
    values = (np.arange(256, dtype=np.float32) / np.float32(255) - mean) / std
    return from_float32(values, encoding)


def normalize(pixels: Pixels, tables: NDArray[Any]) -> NDArray[Any]:
    """uint8 ``(H, W, 3)`` to ``(3, H, W)`` of the dtype of ``tables``, see :func:`normalization_tables`."""
    height, width, _ = pixels.shape
    values = np.empty((3, height, width), tables.dtype)
    for channel in range(3):
        # A uint8 is never out of range; "clip" spares numpy a buffer that mode="raise" needs with out=.
        np.take(tables[channel], pixels[..., channel], out=values[channel], mode="clip")
    return values


def to_float32(values: NDArray[Any], encoding: str) -> NDArray[np.float32]:
    """Exact: every value of the three encodings is a float32. ``values`` of bfloat16 are uint16 bit patterns."""
    if encoding == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def from_float32(values: NDArray[np.float32], encoding: str) -> NDArray[Any]:
    """Rounded to nearest, ties to even, as torch does; bfloat16 as uint16 bit patterns.

    Raises:
        UsageError: A finite value that is beyond the range of the encoding, where it would become infinite.
    """
    with np.errstate(over="ignore"):  # reported below, with what to do about it
        result = bfloat16_bits(values) if encoding == "bfloat16" else values.astype(NUMPY_DTYPE[encoding])
        lost = np.isinf(to_float32(result, encoding)) & np.isfinite(values)
    if lost.any():
        worst = float(np.abs(values[np.isfinite(values)]).max())
        raise UsageError(f"{encoding} cannot hold values up to {worst:g}; use float32, or another normalisation")
    return result


def cast_floats(values: NDArray[Any], source: str, target: str) -> NDArray[Any]:
    """``values`` of encoding ``source`` in encoding ``target``. Raises as :func:`from_float32`."""
    return from_float32(to_float32(values, source), target)


def moments(normalization: Normalization | None) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Means and standard deviations; 0 and 1 for None."""
    chosen = normalization or _PLAIN
    return chosen.mean, chosen.std


def _describe(normalization: Normalization | None) -> str:
    if normalization is None:
        return "nothing (plain 0 to 1)"
    return f"mean {normalization.mean} and standard deviation {normalization.std}"

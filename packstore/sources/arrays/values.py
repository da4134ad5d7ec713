"""Values of rows of arrays: pixels, class numbers and texts, without any change of a value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.modes import Mode, mode_of
from packstore.sources.arrays.stored import ColumnArray

_PIXEL_DTYPES = {
    "bool": "uint8",
    "uint8": "uint8",
    "int8": "int16",
    "uint16": "uint16",
    "int16": "int16",
    **dict.fromkeys(("int32", "uint32", "int64", "uint64"), "int32"),
    **dict.fromkeys(("float16", "float32", "float64"), "float32"),
}
"""Dtype of the mode by dtype of the array."""
MASK_DTYPES = {"bool": "uint8", "uint8": "uint8", "int8": "int32", "uint16": "uint16", "int16": "int32"}
"""Dtype of a column of masks by dtype of the array."""


def pixel_mode(chosen: ColumnArray) -> Mode:
    """Returns the mode (channels and dtype) in which an array of images is stored.

    - Integers of 32 or 64 bits become int32, and a larger value makes a bad sample.
    - Floating-point numbers become float32, and a value that float32 does not hold makes a bad sample.
    - int8 becomes int16, and bool becomes uint8.
    """
    channels = chosen.info.shape[chosen.order[2]] if len(chosen.order) == 3 else 1
    return mode_of(channels, _PIXEL_DTYPES.get(chosen.info.dtype.name, "uint8"))


def cast_exactly(pixels: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Converts values to a dtype. Raises :class:`ValueError` if a value would change."""
    if pixels.dtype == dtype:
        return pixels
    values = pixels.astype(dtype)
    if not np.array_equal(values, pixels, equal_nan=pixels.dtype.kind == "f"):
        raise ValueError(
            f"image: found {pixels.dtype} from {pixels.min()} to {pixels.max()}, which {dtype} does not hold: write "
            f"the array again as {dtype}"
        )
    return values


def to_file(name: str, limit: int, value: Any) -> bytes:
    """Returns the bytes of a file. Raises :class:`ValueError` for more than ``limit`` bytes."""
    if len(value) > limit:
        raise ValueError(f"{name} has {len(value)} bytes, more than the {limit} of an image within max_pixels")
    return bytes(value)


def to_native(dtype: np.dtype[Any], is_mask: bool, value: Any) -> NDArray[Any]:
    """Copies a row of numbers in native byte order; ``is_mask`` makes bool uint8."""
    native = np.asarray(value).astype(dtype.newbyteorder("="), copy=True)
    return native.astype(np.uint8) if is_mask and native.dtype == np.bool_ else native


def to_class_number(value: Any) -> int:
    """Converts a label to a class number. Raises :class:`ValueError` for a fraction, infinity or NaN, and for other
    than one number. Negative and too large numbers are not refused here."""
    array = np.asarray(value)
    if array.size != 1:
        raise ValueError(f"label: found {array.size} numbers, expected one")
    number = array.reshape(-1)[0].item()
    if not math.isfinite(number) or number != int(number):
        raise ValueError(f"label: found {number}, expected a whole number")
    return int(number)


def decode_text(text: Any) -> str:
    """Decodes bytes as UTF-8, and converts any other value to a text. Raises :class:`ValueError` if the bytes are not
    UTF-8."""
    return text.decode("utf-8") if isinstance(text, bytes) else str(text)


def is_jpeg_or_png(data: bytes) -> bool:
    """Tells if data begin like a JPEG or PNG file."""
    return data.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"))

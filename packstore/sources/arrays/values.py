"""Values of rows of arrays: pixels, class numbers and texts, without any change of a value. Layouts with sizes, such as
``NHW:28x28``, for images that are rows or columns of a matrix."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.modes import Mode, mode_of
from packstore.sources.arrays.stored import ArrayInfo, ColumnArray

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
_LEAST = 64
"""Least numbers of a flat image, 8 x 8."""
_SIZED = re.compile(r"(N[HWC]{2,3}|[HWC]{2,3}N):(\d{1,6}(?:x\d{1,6}){1,2})")
_PROPOSED = 4


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


def find_class_number(numbers: Mapping[str, int], value: Any) -> int:
    """Returns the number of a class by its text. Raises :class:`ValueError` for a text that was not a class when the
    source was opened."""
    text = decode_text(value)
    if text not in numbers:
        raise ValueError(f"label: {printable(text[:40])!r} is not one of the classes: its file has changed")
    return numbers[text]


def is_jpeg_or_png(data: Any = b"") -> bool:
    """Tells if the bytes of a file begin like a JPEG or PNG file."""
    return bytes(data).startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"))


def parse_layout(layout: str) -> tuple[str, tuple[int, ...]]:
    """Splits a layout ``NHW:28x28`` into its axes, and the sizes of all axes but N. Returns ``layout`` unchanged and
    ``()`` if it has no valid sizes."""
    match = _SIZED.fullmatch(layout)
    return (layout, ()) if match is None else (match[1], tuple(map(int, match[2].split("x"))))


def is_layout(layout: str) -> bool:
    """Tells if a text is an order of axes, with or without sizes."""
    axes, sizes = parse_layout(layout)
    named = sorted(axes) in (sorted("NHW"), sorted("NHWC"))
    return named and len(sizes) in (0, len(axes) - 1)


def may_be_flat_images(info: ArrayInfo) -> bool:
    """Tells if an array is a matrix of numbers with a side of at least 64, enough for an image."""
    return info.content == "numbers" and len(info.shape) == 2 and min(info.shape) >= 1 and max(info.shape) >= _LEAST


def unflatten_images(shown: str, info: ArrayInfo, layout: str | None, length: int | None) -> ArrayInfo:
    """Returns the description of a matrix as an array of images, by a layout such as ``NHW:28x28``.

    Raises :class:`AmbiguousSourceError` for None or a layout without sizes; its answers are possible layouts. Raises
    :class:`SourceError` if the sizes do not fit. ``length``: number of labels, None if unknown; layouts with another
    number of images are not proposed.
    """
    axes, sizes = parse_layout(layout or "")
    if not sizes:
        proposed = _propose_layouts(info, length)
        asked = " or ".join(f"--layout {each}" for each in proposed) or "--layout NHW:28x28"
        raise AmbiguousSourceError(
            f"{shown}: {info.shown} is a matrix: give the sizes of its images, in the order of their numbers, by "
            f"{asked}",
            [Answer(("--layout", each)) for each in proposed],
        )
    first = axes[0] == "N"
    count, pixels = info.shape if first else info.shape[::-1]
    if math.prod(sizes) != pixels:
        raise SourceError(
            f"{shown}: {info.shown} has {pixels:,} numbers an image, but --layout {layout} needs {math.prod(sizes):,}"
        )
    return replace(info, shape=(count, *sizes) if first else (*sizes, count), flat=True)


def _propose_layouts(info: ArrayInfo, length: int | None) -> list[str]:
    """Proposes up to eight layouts with the sizes closest to a square, for gray or RGB images. One side is at most
    twice the other. If ``length`` is known, proposes only layouts with ``length`` images."""
    layouts = []
    for place in (0, 1):
        count, pixels = info.shape[place], info.shape[1 - place]
        if pixels < _LEAST or (length is not None and count != length):
            continue
        for colours in (1, 3):
            for side in sorted(range(1, math.isqrt(pixels // colours) + 1), reverse=True):
                other, rest = divmod(pixels, side * colours)
                if rest or other > 2 * side:
                    continue
                sizes = [(other, side)] if other == side else [(other, side), (side, other)]
                if colours == 1:
                    orders = ("HW", "WH") if info.by_columns else ("HW",)
                    named = [f"{order}:{a}x{b}" for a, b in sizes for order in orders]
                else:
                    named = [f"HWC:{a}x{b}x3" for a, b in sizes] + [f"CHW:3x{a}x{b}" for a, b in sizes]
                layouts += [f"N{each}" if place == 0 else each.replace(":", "N:") for each in named]
                break
    return layouts[: 2 * _PROPOSED]

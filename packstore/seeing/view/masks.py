"""Masks as pictures: each value in its own colour, the background transparent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DecodeError
from packstore.core.manifest import Column
from packstore.core.modes import parse_mode
from packstore.images.display import to_display
from packstore.images.masks import decode_mask, read_mask_header
from packstore.seeing.colors import class_color
from packstore.seeing.view.images import WebFile, encode_png
from packstore.stores.base import Reader

_MOST_LISTED = 256
_MOST_PIXELS = 1 << 24
"""Most pixels of a mask's picture; of a larger mask every second, third … row and column is taken."""


def read_mask(reader: Reader, column: Column, record: int) -> NDArray[Any]:
    """Reads a record's mask, ``(H, W)``.

    Raises :class:`DecodeError` if it is missing or cannot be decoded, :class:`StoreError` if it is damaged."""
    if not reader.has_value(column.name, record):
        raise DecodeError(f"record {record} has no {column.name}")
    if column.layout is not None:
        return np.asarray(reader.item(column.name, record))
    data = reader.value(column.name, record)
    return decode_mask(data, read_mask_header(data))


def color_mask(values: NDArray[Any]) -> WebFile:
    """Converts a mask ``(H, W)`` to an RGBA picture. The value 0, usually the background, is transparent.

    Floating point values, such as depth, become an opaque gray picture. Its black and white are the 1st and the 99th
    percentile. Leaves out rows and columns of a mask with more than 2**24 pixels.
    """
    step = 1 + math.isqrt(max(0, values.size - 1) // _MOST_PIXELS)
    values = values[::step, ::step]
    if values.dtype.kind == "f":
        return encode_png(to_display(values[..., None].astype(np.float32), parse_mode("F")))
    numbers, places = np.unique(values, return_inverse=True)
    palette = np.array([(0, 0, 0, 0) if n == 0 else (*class_color(int(n)), 255) for n in numbers.tolist()], np.uint8)
    return encode_png(palette[places.reshape(values.shape)])


def list_values(values: NDArray[Any]) -> list[int]:
    """Returns the values that occur in a mask, ascending; at most the smallest 256. Returns none for floating point."""
    if values.dtype.kind == "f":
        return []
    return [int(n) for n in np.unique(values)[:_MOST_LISTED]]

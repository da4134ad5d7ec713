"""Converts masks to PNG files that any viewer shows in colours."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

from packstore.images.masks import open_mask, read_mask_header
from packstore.images.sniff import HeaderError, sniff

_MOST = (1 << 16) - 1


def make_mask_file(mask: Any) -> bytes | None:
    """Converts a mask, a PNG file or an array ``(H, W)``, to a PNG file.

    - Gray of 8 bits gets Pascal VOC's palette.
    - Arrays of other dtypes become gray of 16 bits.
    - Any other file is returned unchanged.

    Returns None without a mask, for an empty array, and for values that PNG cannot store. Raises :class:`DecodeError`
    for a damaged file of gray.
    """
    if mask is None:
        return None
    if isinstance(mask, np.ndarray):
        if not mask.size or mask.dtype.kind == "f":
            return None
        if mask.dtype != np.uint8 and not 0 <= mask.min() <= mask.max() <= _MOST:
            return None
        image = Image.fromarray(mask if mask.dtype == np.uint8 else mask.astype(np.uint16))
    else:
        try:
            info = sniff(mask)
        except HeaderError:
            return bytes(mask)
        if (info.kind, info.components, info.precision) != ("png", 1, 8):
            return bytes(mask)
        # Decoded before putpalette(): Pillow before 10 decodes into the image that putpalette() changes.
        image = open_mask(mask, read_mask_header(mask))
        if image.mode != "L":
            return bytes(mask)
    if image.mode == "L":
        image.putpalette(make_voc_palette())
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


@cache
def make_voc_palette() -> bytes:
    """Returns Pascal VOC's palette of 256 colours.

    Bits 3i, 3i+1 and 3i+2 of a class number are bit 7-i of red, green and blue."""
    colours = np.zeros((256, 3), np.uint8)
    numbers = np.arange(256)
    for bit in range(8):
        for channel in range(3):
            colours[:, channel] |= ((numbers >> (3 * bit + channel) & 1) << (7 - bit)).astype(np.uint8)
    return colours.tobytes()

"""Encodes pixels as PNG files, without loss."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.modes import Mode

_COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}
"""Colour type in a PNG header (third edition, 11.2.1), by number of channels."""


def fits_png(mode: Mode) -> bool:
    """Tells if PNG can store every pixel value of a mode."""
    return mode.dtype in ("uint8", "uint16") and mode.channels in _COLOUR_TYPES and not mode.name.startswith("multi")


def encode_png(pixels: NDArray[Any]) -> bytes:
    """Encodes pixels, uint8 or uint16 ``(H, W, C)`` with 1 to 4 channels, as a PNG file.

    Pillow writes 8 bits and 16-bit gray. It has no mode for other 16-bit images: these are written here without row
    filters."""
    if pixels.dtype == np.uint16 and pixels.shape[2] > 1:
        return _encode_16_bit(pixels)
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)).save(out, "PNG")
    return out.getvalue()


def _encode_16_bit(pixels: NDArray[np.uint16]) -> bytes:
    """Encodes 16-bit pixels as a PNG file without row filters."""
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 16, _COLOUR_TYPES[channels], 0, 0, 0)
    rows = np.zeros((height, 1 + width * channels * 2), np.uint8)  # byte 0 of a row: filter type none
    rows[:, 1:] = pixels.astype(">u2").reshape(height, -1).view(np.uint8)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_make_chunk(name, content) for name, content in chunks)


def _make_chunk(name: bytes, content: bytes) -> bytes:
    """Returns a PNG chunk with its length and checksum."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

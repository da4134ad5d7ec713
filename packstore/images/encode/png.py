"""Pixels as a PNG file, without loss."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.modes import Mode

_COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}
"""Of a PNG's header (third edition, 11.2.1), by the number of channels."""


def png_holds(mode: Mode) -> bool:
    """Whether a PNG file holds every pixel of a mode."""
    return mode.dtype in ("uint8", "uint16") and mode.channels in _COLOUR_TYPES and not mode.name.startswith("multi")


def encode_png(pixels: NDArray[Any]) -> bytes:
    """Writes pixels, uint8 or uint16 ``(H, W, C)`` with 1 to 4 channels, as a PNG file.

    Pillow writes 8 bits and gray of 16. It has no mode for more channels of 16 bits: these rows are not filtered."""
    if pixels.dtype == np.uint16 and pixels.shape[2] > 1:
        return _encode_deep(pixels)
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)).save(out, "PNG")
    return out.getvalue()


def _encode_deep(pixels: NDArray[np.uint16]) -> bytes:
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 16, _COLOUR_TYPES[channels], 0, 0, 0)
    rows = np.zeros((height, 1 + width * channels * 2), np.uint8)  # each begins with its filter: none
    rows[:, 1:] = pixels.astype(">u2").reshape(height, -1).view(np.uint8)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, content) for name, content in chunks)


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

"""Decodes PNG of 16 bits a sample in colour or with alpha; Pillow reads only their high bytes.

Written after the PNG specification (third edition): chunks in 5, interlacing in 8, filters in 9.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DecodeError
from packstore.images.engine import engine_problem, png_rows

_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}
_ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
"""Passes of an interlaced file: first row, first column, steps down and across."""


def decode_png(data: memoryview) -> NDArray[np.uint16]:
    """Decodes a PNG of 16 bits to ``(H, W, C)`` with C from 1 to 4. Raises :class:`DecodeError` for damaged files, and
    without the engine."""
    try:
        packed, width, height, colour, interlaced = _read_chunks(data)
    except (struct.error, IndexError):
        raise DecodeError("damaged image: a PNG that ends within a chunk") from None
    if (problem := engine_problem()) is not None:
        raise DecodeError(f"a PNG of 16 bits in colour, which takes packstore's engine: {problem}")
    channels = _CHANNELS[colour]
    step = 2 * channels
    if not interlaced:
        return _to_samples(png_rows(packed, height, width * step, step, True), height, width, channels)
    pixels = np.empty((height, width, channels), np.uint16)
    raw, at = _inflate_interlaced(packed, width, height, step), 0
    for top, left, down, across in _ADAM7:
        rows, columns = -(-(height - top) // down), -(-(width - left) // across)
        if rows < 1 or columns < 1:
            continue
        length = rows * (1 + columns * step)
        # Deflated again without compression, since the engine inflates and then undoes the filters of this pass.
        lines = png_rows(zlib.compress(raw[at : at + length], 0), rows, columns * step, step, True)
        pixels[top::down, left::across] = _to_samples(lines, rows, columns, channels)
        at += length
    return pixels


def split_transparent_colour(data: memoryview) -> tuple[memoryview, NDArray[np.int64]] | None:
    """Splits a PNG in gray or RGB that has a transparent colour. Returns the file without that colour, and the colour
    as decoded.

    Returns None for other PNG files. Needed because Pillow leaves pixels of that colour opaque for 1, 2, 4 and 16 bits.
    """
    if len(data) < 33 or data[25] not in (0, 2):
        return None
    channels, bits, at = _CHANNELS[data[25]], data[24], 33
    while at + 12 <= len(data):
        length, name = struct.unpack_from(">I4s", data, at)
        if name in (b"IDAT", b"IEND"):
            return None
        if name == b"tRNS" and length == 2 * channels and at + 12 + length <= len(data):
            colour = np.frombuffer(data, ">u2", channels, at + 8).astype(np.int64) & ((1 << bits) - 1)
            scaled = colour * (255 // ((1 << bits) - 1)) if bits < 8 else colour
            return memoryview(bytes(data[:at]) + bytes(data[at + 12 + length :])), scaled
        at += 12 + length
    return None


def _to_samples(lines: NDArray[np.uint8] | None, height: int, width: int, channels: int) -> NDArray[np.uint16]:
    """Converts rows of big-endian bytes to uint16 ``(height, width, channels)``.

    Raises :class:`DecodeError` if ``lines`` is None: the rows could not be inflated."""
    if lines is None:
        raise DecodeError("damaged image: the pixels of a PNG cannot be inflated")
    samples: NDArray[np.uint16] = np.ascontiguousarray(lines).view(">u2").astype(np.uint16)
    return samples.reshape(height, width, channels)


def _inflate_interlaced(packed: bytes, width: int, height: int, step: int) -> bytes:
    """Inflates the rows of all passes of an interlaced PNG. Raises :class:`DecodeError` for damaged data or too few
    bytes."""
    most = width * height * step + 7 * height + 7  # each row of each pass has a filter byte
    try:
        raw = zlib.decompressobj().decompress(packed, most)
    except zlib.error as error:
        raise DecodeError(f"damaged image: {error}") from None
    if len(raw) < width * height * step:
        raise DecodeError("damaged image: a PNG with fewer pixels than its header says")
    return raw


def _read_chunks(data: memoryview) -> tuple[bytes, int, int, int, int]:
    """Returns the content of the IDAT chunks, width, height, colour type and interlacing. Verifies the checksums of
    chunks on which pixels depend.

    Raises :class:`DecodeError` for a wrong checksum, or a PNG of other than 16 bits. A truncated file raises
    :class:`struct.error`."""
    parts: list[Any] = []
    header, at, name = None, 8, b""
    while name != b"IEND":
        length, name = struct.unpack_from(">I4s", data, at)
        content = data[at + 8 : at + 8 + length]
        (checksum,) = struct.unpack_from(">I", data, at + 8 + length)
        is_needed = not name[0] & 0x20 or name == b"tRNS"  # pixels do not depend on other chunks
        if is_needed and zlib.crc32(data[at + 4 : at + 8 + length]) != checksum:
            raise DecodeError(f"damaged image: the checksum of a PNG's chunk {name!r:.12} at byte {at} is wrong")
        if name == b"IHDR" and header is None:
            header = struct.unpack(">IIBBBBB", content)
        elif name == b"IDAT":
            parts.append(content)
        at += 12 + length
    if header is None or header[2] != 16 or header[3] not in _CHANNELS or header[6] > 1:
        raise DecodeError("damaged image: no PNG of 16 bits a sample")
    width, height, _, colour, _, _, interlaced = header
    return b"".join(parts), width, height, colour, interlaced

"""Decodes masks: PNG files of one channel whose values are class or instance numbers, unchanged.

The values of a palette file are its indices. The engine decodes files of 8 or 16 bits a pixel, down to the last row
that is needed; Pillow decodes what the engine refuses, or reports the flaw.
"""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import Buffer
from packstore.core.errors import DecodeError
from packstore.images.engine import png_rows
from packstore.images.sniff import MAX_PIXELS, excess_pixels_message

if TYPE_CHECKING:
    from PIL.Image import Image

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">8xI4sIIBBBBB")
_GREY, _PALETTE = 0, 3
_ANIMATION = (b"acTL", b"fcTL", b"fdAT")
_CHANNELS = {2: "RGB", 4: "grey levels with alpha", 6: "RGB with alpha"}


@dataclass(frozen=True, slots=True)
class MaskHeader:
    """Header of a mask's PNG file.

    Attributes:
        height: Height in pixels.
        width: Width in pixels.
        bits: Bits of a pixel: 1, 2, 4, 8 or 16.
        palette: Pixels are indices of a palette.
        interlaced: Rows are interlaced.
    """

    height: int
    width: int
    bits: int
    palette: bool
    interlaced: bool

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values: uint16 for 16 bits, else uint8."""
        return np.dtype(np.uint16) if self.bits == 16 else np.dtype(np.uint8)


def read_mask_header(data: Buffer, max_pixels: int = MAX_PIXELS) -> MaskHeader:
    """Reads the header of a mask's PNG file.

    Raises:
        DecodeError: The file is not a PNG of one channel, is damaged, or has more than ``max_pixels`` pixels.
    """
    if len(data) < _HEADER.size or bytes(data[:8]) != _SIGNATURE:
        raise DecodeError("the mask is not a PNG file")
    _, kind, width, height, bits, colour, _, _, interlace = _HEADER.unpack_from(data)
    if kind != b"IHDR" or not width or not height:
        raise DecodeError("the mask is damaged: its PNG header cannot be read")
    if colour not in (_GREY, _PALETTE):
        raise DecodeError(
            f"the mask holds {_CHANNELS.get(colour, f'pixels of kind {colour}')}; a mask has one channel: grey levels "
            "or a palette's indices"
        )
    if reason := excess_pixels_message(width, height, max_pixels):
        raise DecodeError(f"the mask: {reason}")
    return MaskHeader(height, width, bits, colour == _PALETTE, interlace != 0)


def decode_mask(data: Buffer, header: MaskHeader, rows: int | None = None) -> NDArray[Any]:
    """Decodes the values of a mask to ``(H, W)``. The array may be read-only.

    Args:
        data: The file.
        header: Its header, from :func:`read_mask_header`.
        rows: Number of rows that are needed, from the top; None for all. The result has at least these, and at least 1.

    Raises:
        DecodeError: The file is damaged, in the rows that are decoded.
    """
    needed = header.height if rows is None else max(1, min(rows, header.height))
    known = header.bits == 8 or (header.bits == 16 and not header.palette)
    packed = _read_idat(data, header) if known and not header.interlaced else None
    if packed is not None:
        step = header.bits // 8
        samples = png_rows(packed, needed, header.width * step, step, needed == header.height)
        if samples is not None:
            return samples if step == 1 else samples.view(">u2").astype(np.uint16)
    values: NDArray[Any] = np.asarray(open_mask(data, header))
    if values.shape != (header.height, header.width):
        raise DecodeError(f"the mask has {values.shape} values, and its header says {(header.height, header.width)}")
    return values.astype(header.dtype, copy=False)


def open_mask(data: Buffer, header: MaskHeader) -> Image:
    """Opens a mask with Pillow: with its palette, in mode ``P``, ``L``, ``1`` or ``I;16``.

    Raises :class:`DecodeError` for a damaged file. Does not check the number of pixels."""
    from PIL.PngImagePlugin import PngImageFile

    from packstore.images.image_files import strip_metadata

    try:
        # Image.open would check the image against a limit of the whole process, which is not the dataset's.
        image: Image = PngImageFile(io.BytesIO(strip_metadata(memoryview(data))))
        image.load()
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises many kinds for damaged files
        raise DecodeError(f"the mask is damaged: {error}") from error
    return image.convert("I;16") if header.bits == 16 and image.mode != "I;16" else image


def _read_idat(data: Buffer, header: MaskHeader) -> bytes | None:
    """Returns the content of the IDAT chunks, with verified checksums of all chunks on which pixels depend.

    Returns None for any such chunk that Pillow might refuse. Pillow then judges the file."""
    view, place, kind = memoryview(data), len(_SIGNATURE), b""
    chunks: list[memoryview] = []
    while kind != b"IEND":
        end = place + 8 + int.from_bytes(view[place : place + 4], "big")
        before, kind = kind, bytes(view[place + 4 : place + 8])
        content = view[place + 8 : end]
        if end + 4 > len(view):
            return None
        if kind[0] & 0x20 and kind not in (b"tRNS", *_ANIMATION):  # metadata
            kind, place = before, end + 4
            continue
        if zlib.crc32(view[place + 4 : end]) != int.from_bytes(view[end : end + 4], "big"):
            return None
        if kind == b"IDAT":
            if chunks and before != kind:
                return None
            chunks.append(content)
        elif kind == b"IHDR":
            if before or len(content) != 13 or content[10] or content[11]:
                return None
        elif kind == b"PLTE":
            if chunks or len(content) % 3 or not 0 < len(content) <= 768:
                return None
        elif kind == b"tRNS":
            if chunks or not (1 if header.palette else 2) <= len(content) <= 256:
                return None
        elif kind != b"IEND" or len(content):
            return None
        place = end + 4
    return b"".join(chunks)

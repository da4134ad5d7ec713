"""Masks: PNG files of one channel whose values are class or instance numbers. Decodes them unchanged, and makes files
of them that any viewer shows in colours.

The values of a palette file are its indices. The engine decodes files of 8 or 16 bits a pixel, down to the last row
that is needed; Pillow decodes what the engine refuses, or reports the flaw.
"""

from __future__ import annotations

import colorsys
import io
import struct
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import Buffer
from packstore.core.errors import DecodeError
from packstore.images.engine import png_rows
from packstore.images.sniff import MAX_PIXELS, HeaderError, excess_pixels_message, sniff

if TYPE_CHECKING:
    from PIL.Image import Image

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">8xI4sIIBBBBB")
_GREY, _PALETTE = 0, 3
_ANIMATION = (b"acTL", b"fcTL", b"fdAT")
_MOST = (1 << 16) - 1
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
    _, name, width, height, bits, colour, _, _, interlace = _HEADER.unpack_from(data)
    if name != b"IHDR" or not width or not height:
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
    """Returns the content of the IDAT chunks, or None if Pillow should judge the file."""
    from packstore.images.kinds.png import is_sound_chunk, list_chunks

    view, before = memoryview(data), b""
    chunks: list[memoryview] = []
    for name, start, end in list_chunks(view):
        content = view[start + 8 : end - 4]
        if end > len(view):
            return None
        if name[0] & 0x20 and name not in (b"tRNS", *_ANIMATION):  # metadata
            continue
        # Pixels depend on all other chunks: return None for any that Pillow might refuse.
        if not is_sound_chunk(view, start, end):
            return None
        if name == b"IDAT":
            if chunks and before != name:
                return None
            chunks.append(content)
        elif name == b"IHDR":
            if before or len(content) != 13 or content[10] or content[11]:
                return None
        elif name == b"PLTE":
            if chunks or len(content) % 3 or not 0 < len(content) <= 768:
                return None
        elif name == b"tRNS":
            if chunks or not (1 if header.palette else 2) <= len(content) <= 256:
                return None
        elif name != b"IEND" or len(content):
            return None
        before = name
    return b"".join(chunks) if before == b"IEND" else None


def make_mask_file(mask: Any) -> bytes | None:
    """Converts a mask, a PNG file or an array ``(H, W)``, to a PNG file.

    - Gray of 8 bits gets Pascal VOC's palette.
    - Arrays of other dtypes become gray of 16 bits.
    - Any other file is returned unchanged.

    Returns None without a mask, for an empty array, and for values that PNG cannot store. Raises :class:`DecodeError`
    for a damaged file of gray.
    """
    from PIL import Image

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


def class_color(number: int) -> tuple[int, int, int]:
    """Returns the RGB colour of a class number. Neighbouring numbers get different hues."""
    # record.js of the page computes the same colours.
    hue = number * 0.618033988749895 % 1
    red, green, blue = colorsys.hsv_to_rgb(hue, (0.85, 0.6)[number // 8 % 2], (1.0, 0.8)[number // 16 % 2])
    return round(red * 255), round(green * 255), round(blue * 255)

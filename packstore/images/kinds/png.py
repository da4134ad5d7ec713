"""PNG, after its specification (third edition): chunks in 5, interlacing in 8, filters in 9, metadata in 11.

Pillow reads only the high bytes of 16 bits a sample in colour or with alpha; these are decoded here.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DecodeError
from packstore.core.modes import Mode, mode_of
from packstore.images.engine import engine_problem, png_rows
from packstore.images.header import Data, HeaderError, ImageInfo
from packstore.images.kinds.base import GRAY_TO_COLOUR, Frames, ImageDescription, ImageFile, UnusualError

_PALETTE = 3
_FIRST_FRAME = "a PNG of 16 bits a channel, of which packstore reads the first frame"
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_CHECKED = frozenset((b"IHDR", b"PLTE", b"tRNS"))
_ANIMATION = {b"acTL": 8, b"fcTL": 26}
"""Chunks of an animated PNG with their lengths; ``fdAT`` has any."""
_TEXTS = (b"tEXt", b"zTXt", b"iTXt", b"eXIf")
_ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
"""Passes of an interlaced file: first row, first column, steps down and across."""


def list_chunks(data: bytes | bytearray | memoryview) -> Iterator[tuple[bytes, int, int]]:
    """Yields name, start and end of each chunk of a PNG up to IEND, or to the end of the data. The last one may end
    beyond the data."""
    at, name = 8, b""
    while name != b"IEND" and at + 12 <= len(data):
        length, name = struct.unpack_from(">I4s", data, at)
        yield name, at, at + 12 + length
        at += 12 + length


def is_sound_chunk(data: bytes | memoryview, start: int, end: int) -> bool:
    """Tells if the checksum of a PNG's chunk is right."""
    return zlib.crc32(data[start + 4 : end - 4]) == int.from_bytes(data[end - 4 : end], "big")


def _check_chunks(data: bytes, palette: bool) -> None:
    """Raises :class:`HeaderError` unless a PNG has all chunks up to IEND, with pixels and ``palette``."""
    names, view = set(), memoryview(data)
    for name, start, end in list_chunks(data):
        if not name.isalpha():
            raise HeaderError(f"is damaged: a PNG chunk {name!r} at byte {start}")
        if end > len(data):
            raise HeaderError(f"is truncated: a PNG chunk {name!r} that ends at byte {end}, the file has {len(data)}")
        # Pixels depend on these, and on IDAT, which only decoding proves.
        if name in _CHECKED and not is_sound_chunk(view, start, end):
            raise HeaderError(f"is damaged: the checksum of a PNG's chunk {name!r} at byte {start} is wrong")
        names.add(name)
    if b"IEND" not in names:
        raise HeaderError(f"is truncated: PNG without {'IDAT and ' if b'IDAT' not in names else ''}IEND")
    missing = {b"IDAT", *([b"PLTE"] if palette else [])} - names
    if missing:
        raise HeaderError(f"is damaged: a PNG without {' and '.join(sorted(each.decode() for each in missing))}")


def _strip(data: memoryview, texts: bool) -> bytes | memoryview:
    """Keeps critical chunks, transparency and a sound animation; with ``texts``, also texts and EXIF."""
    chunks = [*list_chunks(data)]
    if not chunks or chunks[-1][0] != b"IEND" or chunks[-1][2] > len(data):
        return data
    animated = all(
        is_sound_chunk(data, start, end) and end - start - 12 == _ANIMATION.get(name, end - start - 12)
        for name, start, end in chunks
        if name in (*_ANIMATION, b"fdAT")
    )
    kept = [
        data[start:end]
        for name, start, end in chunks
        if not name[0] & 0x20  # critical
        or name == b"tRNS"
        or (animated and (name in _ANIMATION or name == b"fdAT"))
        or (texts and name in _TEXTS and is_sound_chunk(data, start, end))
    ]
    return data if len(kept) == len(chunks) else b"".join((data[:8], *kept))


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
    """Takes the transparent colour out of a gray or RGB PNG. Returns the rest, and the colour as decoded.

    Returns None for other PNG files. Needed because Pillow leaves pixels of that colour opaque for 1, 2, 4 and 16 bits.
    """
    if len(data) < 33 or data[25] not in (0, 2):
        return None
    channels, bits = _CHANNELS[data[25]], data[24]
    for name, start, end in list_chunks(data):
        if name == b"IDAT":
            return None
        if name == b"tRNS" and end - start == 12 + 2 * channels and end <= len(data):
            colour = np.frombuffer(data, ">u2", channels, start + 8).astype(np.int64) & ((1 << bits) - 1)
            scaled = colour * (255 // ((1 << bits) - 1)) if bits < 8 else colour
            return memoryview(bytes(data[:start]) + bytes(data[end:])), scaled
    return None


def _to_samples(lines: NDArray[np.uint8] | None, height: int, width: int, channels: int) -> NDArray[np.uint16]:
    """Converts rows of big-endian bytes to uint16 ``(height, width, channels)``."""
    if lines is None:
        raise DecodeError("damaged image: the pixels of a PNG cannot be inflated")
    samples: NDArray[np.uint16] = np.ascontiguousarray(lines).view(">u2").astype(np.uint16)
    return samples.reshape(height, width, channels)


def _inflate_interlaced(packed: bytes, width: int, height: int, step: int) -> bytes:
    """Inflates the rows of all passes of an interlaced PNG."""
    most = width * height * step + 7 * height + 7  # each row of each pass has a filter byte
    try:
        raw = zlib.decompressobj().decompress(packed, most)
    except zlib.error as error:
        raise DecodeError(f"damaged image: {error}") from None
    if len(raw) < width * height * step:
        raise DecodeError("damaged image: a PNG with fewer pixels than its header says")
    return raw


def _read_chunks(data: memoryview) -> tuple[bytes, int, int, int, int]:
    """Returns the content of the IDAT chunks, width, height, colour type and interlacing."""
    parts, header, name = [], None, b""
    for name, start, end in list_chunks(data):
        if end > len(data):
            raise struct.error  # truncated
        is_needed = not name[0] & 0x20 or name == b"tRNS"  # pixels do not depend on other chunks
        if is_needed and not is_sound_chunk(data, start, end):
            raise DecodeError(f"damaged image: the checksum of a PNG's chunk {name!r:.12} at byte {start} is wrong")
        if name == b"IHDR" and header is None:
            header = struct.unpack(">IIBBBBB", data[start + 8 : end - 4])
        elif name == b"IDAT":
            parts.append(data[start + 8 : end - 4])
    if name != b"IEND":
        raise struct.error  # truncated
    if header is None or header[2] != 16 or header[3] not in _CHANNELS or header[6] > 1:
        raise DecodeError("damaged image: no PNG of 16 bits a sample")
    width, height, _, colour, _, _, interlaced = header
    return b"".join(parts), width, height, colour, interlaced


class Png(ImageFile):
    """A PNG file. Of 16 bits in colour or with alpha, it reads the first frame."""

    plugin = "PngImagePlugin", "PngImageFile"
    hides_depth = True

    @staticmethod
    def read_header(data: bytes, whole: bool) -> ImageInfo:
        length, name, width, height, depth, color = struct.unpack_from(">I4sIIBB", data, 8)
        if name != b"IHDR" or length != 13 or color not in _CHANNELS:
            raise HeaderError(f"is damaged: a PNG that begins with {name!r} of {length} bytes and color type {color}")
        if depth not in _DEPTHS[color]:
            raise HeaderError(f"is damaged: a PNG of {depth} bits and color type {color}")
        if whole:
            _check_chunks(data, color == _PALETTE)
        return ImageInfo("png", width, height, _CHANNELS[color], depth)

    @staticmethod
    def find_conversion_to_rgb(data: Data, info: ImageInfo) -> tuple[str, ...] | None:
        pixels = bytes(data).find(b"IDAT")
        head = bytes(data[: max(0, pixels)])
        if pixels < 0 or info.precision > 8 or info.components in (2, 4) or b"tRNS" in head or b"acTL" in head:
            return None
        return GRAY_TO_COLOUR if info.components == 1 and data[25] != _PALETTE else ()

    @staticmethod
    def find_exif(data: Data, info: ImageInfo | None) -> tuple[bytes, bytes]:
        exif = b""
        for name, start, end in list_chunks(data):
            if name == b"eXIf":
                if exif:
                    raise UnusualError
                exif = bytes(data[start + 8 : end - 4])
            elif name in _TEXTS:
                keyword, _, rest = bytes(data[start + 8 : end - 4]).partition(b"\0")
                if keyword == b"Raw profile type exif":
                    raise UnusualError
                if keyword == b"XML:com.adobe.xmp" and (rest[:1] != b"\0" or b"tiff:Orientation" in rest):
                    raise UnusualError
        return exif, b""

    @staticmethod
    def strip(data: memoryview) -> bytes | memoryview:
        return _strip(data, False)

    @staticmethod
    def strip_to_texts(data: memoryview) -> bytes | memoryview:
        return _strip(data, True)

    def count_frames(self) -> Frames:
        frames, default, name = 0, b"", b""
        for name, start, _ in list_chunks(self.data):
            if name == b"acTL":
                (frames,) = struct.unpack_from(">I", self.data, start + 8)
            elif name in (b"fcTL", b"IDAT"):
                default = default or name
        if name != b"IEND":
            raise IndexError
        if frames > len(self.data) // 26:  # bytes of a frame's header
            raise HeaderError(f"is damaged: a PNG of {frames:,} frames in {len(self.data):,} bytes")
        # A default image outside of the animation counts as one more frame.
        return Frames(max(1, frames + (default == b"IDAT" and frames > 0)))

    def _is_deep(self) -> bool:
        """Tells if Pillow reads only the high bytes of the samples."""
        return self.info.precision == 16 and self.info.components > 1

    def refuse_further_frames(self) -> str | None:
        return _FIRST_FRAME if self._is_deep() else None

    def describe(self, frame: int = 0) -> ImageDescription | None:
        if frame or (rest := split_transparent_colour(self.data)) is None:
            return super().describe(frame)
        plain = Png(rest[0], self.info).describe()
        if plain is None:
            return None
        try:
            file = Png(self.data, self.info)
            file.check_limits()
            pixels, mode = file.read_frame()
        except DecodeError:
            return None
        return ImageDescription(mode, plain.frames, bool((pixels[..., -1] < mode.white).any()))

    def read_frame(self, frame: int = 0, *, gray: bool = False) -> tuple[NDArray[Any], Mode]:
        if not frame and (rest := split_transparent_colour(self.data)) is not None:
            colours, mode = Png(rest[0], self.info, self.max_pixels).read_frame()
            mode = mode_of(mode.channels + 1, mode.dtype)
            alpha = (colours != rest[1]).any(-1, keepdims=True) * np.array(mode.white, mode.dtype)
            return np.concatenate([colours, alpha.astype(mode.dtype)], -1), mode
        if self._is_deep():
            if frame:
                raise DecodeError(_FIRST_FRAME)
            pixels = decode_png(self.data)
            return pixels, mode_of(pixels.shape[2], "uint16")
        return super().read_frame(frame, gray=gray)

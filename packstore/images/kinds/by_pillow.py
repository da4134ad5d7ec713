"""Kinds of image files whose pixels Pillow decodes: BMP, GIF, netpbm and WebP. Netpbm of 16 bits is decoded here."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DecodeError
from packstore.core.modes import Mode, mode_of
from packstore.images.header import Data, HeaderError, ImageInfo
from packstore.images.kinds.base import GRAY_TO_COLOUR, Frames, ImageFile, UnusualError, damaged_image


class Bmp(ImageFile):
    """A BMP file."""

    plugin = "BmpImagePlugin", "BmpImageFile"

    @staticmethod
    def read_header(data: bytes, whole: bool) -> ImageInfo:
        start, header = struct.unpack_from("<II", data, 10)
        compression = image_bytes = 0
        if header == 12:
            width, height, _, bits = struct.unpack_from("<HHHH", data, 18)
        elif 16 <= header <= 124:
            width, height, _, bits = struct.unpack_from("<iiHH", data, 18)
            if header >= 40:
                compression, image_bytes = struct.unpack_from("<II", data, 30)
        else:
            raise HeaderError(
                f"is not an image (begins with {data[:2]!r}, but its BMP header would have {header} bytes)"
            )
        if bits not in (0, 1, 2, 4, 8, 16, 24, 32):
            raise HeaderError(f"is damaged: a BMP of {bits} bits a pixel")
        height = abs(height)  # negative: rows from the top
        if compression in (0, 3, 6):  # plain, and plain with bit masks
            image_bytes = (width * bits + 31) // 32 * 4 * height
        if whole and start + image_bytes > len(data):
            raise HeaderError(f"is truncated: BMP pixels end at byte {start + image_bytes}, the file has {len(data)}")
        return ImageInfo("bmp", width, height, *((bits // 8, 8) if bits in (24, 32) else (1, bits)))

    @staticmethod
    def find_conversion_to_rgb(data: Data, info: ImageInfo) -> tuple[str, ...] | None:
        return None if info.components == 4 else ()


_IMAGE, _EXTENSION, _TRAILER = 0x2C, 0x21, 0x3B
_GRAPHIC_CONTROL, _LOOPS = 0xF9, b"\x0bNETSCAPE2.0\x03\x01"
_BACKGROUND, _PREVIOUS = 2, 3  # disposals after which pixels may be transparent


class Gif(ImageFile):
    """A GIF file, after the specification of GIF89a."""

    plugin = "GifImagePlugin", "GifImageFile"

    @staticmethod
    def read_header(data: bytes, whole: bool) -> ImageInfo:
        width, height, flags = struct.unpack_from("<HHB", data, 6)
        try:
            if whole and _IMAGE not in [data[start] for start, _ in _list_blocks(data)]:
                raise HeaderError("is damaged: a GIF without any image")
        except IndexError:
            raise HeaderError("is truncated: GIF without trailer") from None
        return ImageInfo("gif", width, height, 1, (flags & 7) + 1 if flags & 0x80 else 8)

    @staticmethod
    def find_exif(data: Data, info: ImageInfo | None) -> tuple[bytes, bytes]:
        if b"tiff:Orientation" in bytes(data):
            raise UnusualError
        return b"", b""

    @staticmethod
    def strip(data: memoryview) -> bytes | memoryview:
        blocks = [*_list_blocks(data)]
        # Images, graphic controls and the count of loops.
        kept = [
            data[start:end]
            for start, end in blocks
            if data[start] == _IMAGE or data[start + 1] == _GRAPHIC_CONTROL or data[start + 2 : start + 16] == _LOOPS
        ]
        first, last = _find_first_block(data), blocks[-1][1] if blocks else len(data)
        return data if len(kept) == len(blocks) else b"".join((data[:first], *kept, data[last:]))

    def count_frames(self) -> Frames:
        data, count, transparent = self.data, 0, False
        for start, _ in _list_blocks(data):
            if data[start] == _IMAGE:
                count += 1
                left, top, width, height = struct.unpack_from("<HHHH", data, start + 1)
                transparent |= (left, top) != (0, 0) or width < self.info.width or height < self.info.height
            elif data[start + 1] == _GRAPHIC_CONTROL:
                transparent |= bool(data[start + 3] & 1) or data[start + 3] >> 2 & 7 in (_BACKGROUND, _PREVIOUS)
        return Frames(max(1, count), (0,), transparent and count > 1)


def _find_first_block(data: bytes | memoryview) -> int:
    """Returns the offset of the first block, after the screen's palette."""
    return 13 + _measure_palette(data[10])


def _measure_palette(flags: int) -> int:
    """Returns the bytes of the palette that flags announce."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _list_blocks(data: bytes | memoryview) -> Iterator[tuple[int, int]]:
    """Yields start and end of each block: an image with its palette, or an extension."""
    at = _find_first_block(data)
    while (block := data[at]) != _TRAILER:  # IndexError without a trailer
        start = at
        if block == _IMAGE:
            at += 11 + _measure_palette(data[at + 9])
        elif block == _EXTENSION:
            at += 2
        else:
            raise HeaderError(f"is damaged: a GIF with a block of unknown kind 0x{block:02x} at byte {at}")
        while size := data[at]:
            at += 1 + size
        at += 1
        yield start, at


_ALPHA, _ANIMATION, _EXIF, _XMP, _PROFILE = 0x10, 0x02, 0x08, 0x04, 0x20
_PIXELS = (b"VP8X", b"VP8 ", b"VP8L", b"ALPH", b"ANIM", b"ANMF")


class WebP(ImageFile):
    """A WebP file, after RFC 9649."""

    plugin = "WebPImagePlugin", "WebPImageFile"
    decodes_at_opening = True

    @staticmethod
    def read_header(data: bytes, whole: bool) -> ImageInfo:
        size, form, name, length = struct.unpack_from("<I4s4sI", data, 4)
        if form != b"WEBP":
            raise HeaderError(f"is not an image (a RIFF file of kind {form!r})")
        if whole and size + 8 > len(data):
            raise HeaderError(f"is truncated: RIFF says {size + 8} bytes, the file has {len(data)}")
        if name == b"VP8X":  # an extended file need only have an image
            alpha, width, height = data[20] & _ALPHA, _read_u24(data, 24) + 1, _read_u24(data, 27) + 1
            images = (b"VP8 ", b"VP8L", b"ANMF")
            if whole and not any(name in images for name, _, _ in _list_chunks(data, size + 8)):
                raise HeaderError("is damaged: a WebP without any image")
            return ImageInfo("webp", width, height, 4 if alpha else 3)
        if whole and 12 + 8 + length > size + 8:
            raise HeaderError(f"is truncated: a WebP image of {length} bytes in {size + 8} bytes of RIFF")
        if name == b"VP8L" and data[20] == 0x2F:
            bits = struct.unpack_from("<I", data, 21)[0]
            return ImageInfo("webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, 4 if bits >> 28 & 1 else 3)
        if name == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
            width, height = struct.unpack_from("<HH", data, 26)
            return ImageInfo("webp", width & 0x3FFF, height & 0x3FFF, 3)
        if len(data) < 30:
            raise IndexError
        raise HeaderError(f"is damaged: a WebP whose first chunk is {name!r}, without an image header")

    @staticmethod
    def find_conversion_to_rgb(data: Data, info: ImageInfo) -> tuple[str, ...] | None:
        is_more = info.components == 4 or (data[12:16] == b"VP8X" and data[20] & (_ANIMATION | _ALPHA))
        return None if is_more else ()

    @staticmethod
    def find_exif(data: Data, info: ImageInfo | None) -> tuple[bytes, bytes]:
        found = {b"EXIF": b"", b"XMP ": b""}
        if bytes(data[8:16]) == b"WEBPVP8X":
            wanted = {name for name, flag in ((b"EXIF", _EXIF), (b"XMP ", _XMP)) if data[20] & flag}
            for name, start, end in _list_chunks(data, len(data)):
                if name in wanted:
                    found[name] = bytes(data[start + 8 : end])
                    wanted.remove(name)
        return found[b"EXIF"], found[b"XMP "]

    @staticmethod
    def strip(data: memoryview) -> bytes | memoryview:
        chunks = [*_list_chunks(data)] if bytes(data[8:12]) == b"WEBP" else []
        kept = [data[start:end] for name, start, end in chunks if name in _PIXELS]
        flags = _PROFILE | _EXIF | _XMP
        extended = bool(kept) and bytes(kept[0][:4]) == b"VP8X"
        if not kept or (len(kept) == len(chunks) and not (extended and kept[0][8] & flags)):
            return data
        if extended:  # announces nothing else
            first = bytearray(kept[0])
            first[8] &= ~flags & 0xFF
            kept[0] = memoryview(first)
        body = b"".join(kept)
        return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body

    def count_frames(self) -> Frames:
        return Frames(max(1, sum(name == b"ANMF" for name, _, _ in _list_chunks(self.data))))


def _list_chunks(data: bytes | bytearray | memoryview, end: int | None = None) -> Iterator[tuple[bytes, int, int]]:
    """Yields name, start and padded end of each chunk up to ``end``."""
    at = 12
    # The default is the end of RIFF, or the end of the data if that comes first.
    end = min(len(data), 8 + int.from_bytes(data[4:8], "little")) if end is None else end
    while at + 8 <= end:
        name, length = struct.unpack_from("<4sI", data, at)
        stop = at + 8 + length + (length & 1)
        yield name, at, stop
        at = stop


def _read_u24(data: bytes, at: int) -> int:
    """Reads a little-endian number of 3 bytes."""
    return data[at] | data[at + 1] << 8 | data[at + 2] << 16


# Numbers of at most nine digits after blanks or comments; one blank ends the header.
_GAP = rb"(?:\s|#[^\r\n]*[\r\n])+"
_PBM = re.compile(rb"P[14]%s(\d{1,9})%s(\d{1,9})\s" % (_GAP, _GAP))
_PGM = re.compile(rb"P[2356]%s(\d{1,9})%s(\d{1,9})%s(\d{1,9})\s" % (_GAP, _GAP, _GAP))
_PLAIN_HEADER = re.compile(rb"P([2356])((?:\s|#[^\r\n]*[\r\n])+)(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})\s")


class Netpbm(ImageFile):
    """A netpbm file, P1 to P6, after netpbm's pages about them.

    Reads more than 8 bits as stored; Pillow would scale them to 16.
    """

    plugin = "PpmImagePlugin", "PpmImageFile"
    hides_depth = True

    @staticmethod
    def read_header(data: bytes, whole: bool) -> ImageInfo:
        form = data[1] - 0x30
        header = (_PBM if form in (1, 4) else _PGM).match(data)
        if header is None:
            if len(data) < 4096 and len(data.split()) < 5:
                raise IndexError
            raise HeaderError(f"is not an image (begins with {data[:8]!r}, but has no netpbm header)")
        width, height = int(header[1]), int(header[2])
        limit = 1 if form in (1, 4) else int(header[3])
        if not 1 <= limit <= 65535:
            raise HeaderError(f"is damaged: a netpbm image with the maximum {limit}")
        components = 3 if form in (3, 6) else 1
        samples = width * height * components
        if whole:
            found = len(data) - header.end()
            if form == 4:
                need = (width + 7) // 8 * height
            elif form >= 5:
                need = samples * (1 if limit < 256 else 2)
            else:  # plain text: values between blanks, or in P1 digits that need none
                need, rest = samples, data[header.end() :]
                found = sum(map(len, rest.split())) if form == 1 else len(rest.split())
            if found < need:
                unit = "bytes" if form >= 4 else "values"
                raise HeaderError(f"is truncated: netpbm pixels take {need} {unit}, the file has {found}")
        return ImageInfo("pnm", width, height, components, limit.bit_length())

    @staticmethod
    def find_conversion_to_rgb(data: Data, info: ImageInfo) -> tuple[str, ...] | None:
        return None if info.precision > 8 else GRAY_TO_COLOUR if info.components == 1 else ()

    def read_frame(self, frame: int = 0, *, gray: bool = False) -> tuple[NDArray[Any], Mode]:
        info = self.info
        if info.precision <= 8 or frame:
            return super().read_frame(frame, gray=gray)
        data, count = bytes(self.data), info.width * info.height * info.components
        match = _PLAIN_HEADER.match(data)
        if match is None:
            raise DecodeError("damaged image: a netpbm header with comments between its numbers; write it without them")
        with damaged_image():
            if match[1] in b"56":
                values = np.frombuffer(data, ">u2", count, match.end()).astype(np.uint16)
            else:
                values = np.array(data[match.end() :].split()[:count], np.uint16)
            values = values.reshape(info.height, info.width, info.components)
        return values, mode_of(info.components, "uint16")

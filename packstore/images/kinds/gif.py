"""GIF, after the specification of GIF89a."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from packstore.images.header import Data, HeaderError, ImageInfo
from packstore.images.kinds.base import Frames, ImageFile, UnusualError

_IMAGE, _EXTENSION, _TRAILER = 0x2C, 0x21, 0x3B
_GRAPHIC_CONTROL, _LOOPS = 0xF9, b"\x0bNETSCAPE2.0\x03\x01"
_BACKGROUND, _PREVIOUS = 2, 3  # disposals after which pixels may be transparent


class Gif(ImageFile):
    """A GIF file."""

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

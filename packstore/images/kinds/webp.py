"""WebP, after RFC 9649."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from packstore.images.header import Data, HeaderError, ImageInfo
from packstore.images.kinds.base import Frames, ImageFile

_ALPHA, _ANIMATION, _EXIF, _XMP, _PROFILE = 0x10, 0x02, 0x08, 0x04, 0x20
_PIXELS = (b"VP8X", b"VP8 ", b"VP8L", b"ALPH", b"ANIM", b"ANMF")


class WebP(ImageFile):
    """A WebP file."""

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

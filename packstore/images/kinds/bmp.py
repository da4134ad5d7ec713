"""BMP, after Microsoft's BITMAPINFOHEADER."""

from __future__ import annotations

import struct

from packstore.images.header import Data, HeaderError, ImageInfo
from packstore.images.kinds.base import ImageFile


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

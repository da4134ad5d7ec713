"""Seek indexes of JPEG files, taken apart by their documented layout."""

from __future__ import annotations

import struct
import zlib

from packstore.images.seekable.markers import segments

HEAD = 20
_CRC_AT = 16


def repaired(index: bytes, data: bytes) -> bytes:
    """``index`` with the checksum of what it says, for the file ``data``."""
    crc = zlib.crc32(index[HEAD:], zlib.crc32(index[:_CRC_AT], zlib.crc32(_facts(data))))
    return index[:_CRC_AT] + crc.to_bytes(4, "little") + index[HEAD:]


def _facts(data: bytes) -> bytes:
    """What of the file's length and headers goes into the checksum."""
    tables: dict[int, bytes] = {}
    interval = 0
    for segment in segments(data):
        content = data[segment.start + 4 : segment.stop]
        if segment.marker == 0xC4:
            while content:
                size = 17 + sum(content[1:17])
                tables[content[0]], content = content[1:size], content[size:]
        elif segment.marker == 0xDD:
            interval = int.from_bytes(content, "big")
        elif segment.marker in (0xC0, 0xC1):
            height, width, components = struct.unpack(">HHB", content[1:6])
            factors = content[7] if components == 3 else 0x11
        elif segment.marker == 0xDA:
            chosen = [content[2 + 2 * i] for i in range(content[0])]
            scan = segment.stop
    mcu = 8 * (factors & 15), 8 * (factors >> 4)
    facts = struct.pack("<8q", len(data), scan, height, width, interval, components, *mcu)
    return facts + b"".join(tables[number >> 4] + tables[16 | number & 15] for number in chosen)

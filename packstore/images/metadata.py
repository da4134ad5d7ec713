"""Removes from image files what is not pixels: decoders then neither fail at damaged metadata, nor spend memory on it.

Chunks, blocks and tags are those of the PNG specification (third edition), RFC 9649 (WebP), GIF89a and TIFF 6.0.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterator

from packstore.images import jpeg
from packstore.images.tiff_header import PIXEL_TAGS

_PNG = b"\x89PNG\r\n\x1a\n"
_ANIMATION = {b"acTL": 8, b"fcTL": 26}
"""Chunks of an animated PNG with their lengths; ``fdAT`` has any."""
_TEXTS = (b"tEXt", b"zTXt", b"iTXt", b"eXIf")
_WEBP_METADATA = (b"ICCP", b"EXIF", b"XMP ")
_WEBP_FLAGS = 0x20 | 0x08 | 0x04
_WEBP_PIXELS = (b"VP8X", b"VP8 ", b"VP8L", b"ALPH", b"ANIM", b"ANMF")
_GRAPHIC_CONTROL, _LOOPS = 0xF9, b"\x0bNETSCAPE2.0\x03\x01"
_EXIF_ITEM = re.compile(rb"infe[\2\3]\0\0.(?:..|....)\0\0(Exif)", re.DOTALL)
"""The entry of an item of EXIF in a HEIF file (ISO 14496-12, 8.11.6)."""
_MOST_PAGES = 1 << 16


def strip_metadata(data: memoryview, *, texts: bool = False) -> memoryview:
    """Returns an image file without profiles, texts, EXIF, comments and other data on which no pixel depends.

    Returns ``data`` itself if it has none of these, and if its structure is damaged: a decoder reports that.

    ``texts``: keep the texts and EXIF of a PNG, which may hold an orientation, and the metadata of all other kinds.
    """
    start = bytes(data[:8])
    stripped: bytes | bytearray | memoryview = data
    try:
        if start.startswith(_PNG):
            stripped = _strip_png(data, texts)
        elif not texts and start[4:] == b"ftyp":
            stripped = _strip_avif(data)
        elif not texts:
            strip = next((each for magic, each in _KINDS if start.startswith(magic)), None)
            stripped = data if strip is None else strip(data)
    except (struct.error, IndexError, _DamagedError):
        pass  # a decoder reports the damage
    return data if stripped is data else memoryview(stripped)


class _DamagedError(Exception):
    """The structure of a file is damaged."""


def list_png_chunks(data: memoryview) -> Iterator[tuple[bytes, int, int]]:
    """Yields name, start and end of each chunk of a PNG up to IEND. Raises :class:`struct.error` at its end without
    IEND."""
    at, name, size = 8, b"", len(data)
    while name != b"IEND":
        length, name = struct.unpack_from(">I4s", data, at)
        yield name, at, at + 12 + length
        at += 12 + length
        if at > size:
            raise struct.error


def is_sound_chunk(data: memoryview, start: int, end: int) -> bool:
    """Tells if the checksum of a PNG's chunk is right."""
    return zlib.crc32(data[start + 4 : end - 4]) == int.from_bytes(data[end - 4 : end], "big")


def _strip_png(data: memoryview, texts: bool) -> bytes | memoryview:
    """Keeps critical chunks, transparency and a sound animation."""
    chunks = [*list_png_chunks(data)]
    animated = all(
        is_sound_chunk(data, start, end) and end - start - 12 == _ANIMATION.get(name, end - start - 12)
        for name, start, end in chunks
        if name in (*_ANIMATION, b"fdAT")
    )
    kept = [
        data[start:end]
        for name, start, end in chunks
        if not name[0] & 0x20
        or name == b"tRNS"
        or (animated and (name in _ANIMATION or name == b"fdAT"))
        or (texts and name in _TEXTS and is_sound_chunk(data, start, end))
    ]
    return data if len(kept) == len(chunks) else b"".join((data[:8], *kept))


def _strip_webp(data: memoryview) -> bytes | memoryview:
    """Keeps the chunks of pixels and animation; VP8X then announces nothing else."""
    at, kept, dropped = 12, [], False
    end = min(len(data), 8 + int.from_bytes(data[4:8], "little")) if bytes(data[8:12]) == b"WEBP" else 0
    while at + 8 <= end:
        name, length = struct.unpack_from("<4sI", data, at)
        stop = at + 8 + length + (length & 1)
        if name in _WEBP_PIXELS:
            kept.append(data[at:stop])
        else:
            dropped = True
        at = stop
    if not kept or (not dropped and not (bytes(kept[0][:4]) == b"VP8X" and kept[0][8] & _WEBP_FLAGS)):
        return data
    if bytes(kept[0][:4]) == b"VP8X":
        first = bytearray(kept[0])
        first[8] &= ~_WEBP_FLAGS & 0xFF
        kept[0] = memoryview(first)
    body = b"".join(kept)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def _strip_gif(data: memoryview) -> bytes | memoryview:
    """Keeps images, graphic controls and the count of loops."""
    at = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)
    kept = [data[:at]]
    dropped = False
    while (block := data[at]) != 0x3B:
        start = at
        if block == 0x2C:
            flags = data[at + 9]
            at += 11 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
        elif block == 0x21:
            at += 2
        else:
            raise _DamagedError
        while size := data[at]:
            at += 1 + size
        at += 1
        is_needed = block == 0x2C or data[start + 1] == _GRAPHIC_CONTROL
        if is_needed or bytes(data[start + 2 : start + 16]) == _LOOPS:
            kept.append(data[start:at])
        else:
            dropped = True
    return b"".join((*kept, data[at:])) if dropped else data


def _strip_avif(data: memoryview) -> bytearray | memoryview:
    """Calls the items of EXIF by another type, which decoders skip. Nothing moves."""
    places = [match.start(1) for match in _EXIF_ITEM.finditer(data)]
    if not places:
        return data
    stripped = bytearray(data)
    for place in places:
        stripped[place : place + 4] = b"skip"
    return stripped


_XMP = 700


def _strip_tiff(data: memoryview) -> bytearray | memoryview:
    """Removes entries from the directories of all pages. Nothing else moves."""
    order, big = "<" if bytes(data[:2]) == b"II" else ">", 43 in bytes(data[2:4])
    offset, count_format, entry = ("Q", "Q", 20) if big else ("I", "H", 12)
    width = struct.calcsize(offset)
    stripped = bytearray(data)
    (at,) = struct.unpack_from(order + offset, data, 8 if big else 4)
    seen: set[int] = set()
    while at and at not in seen and len(seen) < _MOST_PAGES and at < len(data):
        seen.add(at)
        (count,) = struct.unpack_from(order + count_format, data, at)
        first = at + struct.calcsize(count_format)
        end = first + count * entry
        if end + width > len(data):
            raise _DamagedError
        places = range(first, end, entry)
        kept = [
            data[place : place + entry]
            for place in places
            if (tag := struct.unpack_from(order + "H", data, place)[0]) in PIXEL_TAGS
            or (tag == _XMP and _names_orientation(data, place, order, offset))
        ]
        rest = b"".join((*kept, data[end : end + width]))
        struct.pack_into(order + count_format, stripped, at, len(kept))
        stripped[first : first + len(rest)] = rest
        (at,) = struct.unpack_from(order + offset, data, end)
    return data if stripped == data else stripped


def _names_orientation(data: memoryview, place: int, order: str, offset: str) -> bool:
    """Tells if the XMP of the entry at ``place`` lies within the file and names an orientation, which Pillow applies.
    ``offset``: struct's letter of offsets and lengths."""
    length, at = struct.unpack_from(order + 2 * offset, data, place + 4)
    return at + length <= len(data) and b"tiff:Orientation" in bytes(data[at : at + length])


_KINDS: tuple[tuple[bytes, Callable[[memoryview], bytes | bytearray | memoryview]], ...] = (
    (b"\xff\xd8\xff", jpeg.without_metadata),
    (b"RIFF", _strip_webp),
    (b"GIF8", _strip_gif),
    *((magic, _strip_tiff) for magic in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")),
)

"""Counts the frames of image files by their headers.

GIF89a, APNG (PNG third edition, 11.3.6), RFC 9649 (WebP), TIFF 6.0. The numbers agree with Pillow's, except that
smaller versions of pages of a TIFF are not counted.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from packstore.images.mpf import find_pictures
from packstore.images.sniff import HeaderError, ImageInfo

_MOST = 1 << 20
_LAYOUT = (258, 262, 277, 284, 338, 339)  # bits, colours, samples, planes, extra samples, sample format
_SUBFILE = 254
_WIDTHS = {1: 1, 3: 2, 4: 4, 16: 8}
_REDUCED = 1
_BACKGROUND, _PREVIOUS = 2, 3  # disposals of GIF after which pixels may be transparent


class Frames(NamedTuple):
    """Number and layouts of a file's frames.

    Attributes:
        total: Number of frames, at least 1.
        layouts: The first frame of each layout (bits, channels) in the file, by its number.
        transparent: Later frames may have transparent pixels, even if the first has none.
    """

    total: int = 1
    layouts: tuple[int, ...] = (0,)
    transparent: bool = False


def count_frames(data: bytes, info: ImageInfo) -> Frames:
    """Counts the frames of a GIF, PNG, WebP or TIFF, and the views of a JPEG. Returns one frame for any other kind,
    also AVIF and HEIF.

    Raises :class:`HeaderError` for damaged headers.
    """
    try:
        if info.kind == "jpeg":
            views = len(find_pictures(data, info).views)
            return Frames(views, tuple(range(views)))
        if info.kind == "gif":
            return _count_gif_frames(data, info)
        if info.kind == "png":
            return _count_png_frames(data)
        if info.kind == "webp":
            return _count_webp_frames(data)
        if info.kind == "tiff":
            seen: dict[tuple[bytes, ...], int] = {}
            pages = [layout for _, layout in list_tiff_pages(data)]
            for number, layout in enumerate(pages):
                seen.setdefault(layout, number)
            return Frames(max(1, len(pages)), tuple(seen.values()) or (0,))
    except (struct.error, IndexError):
        raise HeaderError("is truncated: its frames cannot be counted") from None
    return Frames()


def list_tiff_pages(data: bytes | memoryview) -> list[tuple[int, tuple[bytes, ...]]]:
    """Lists the pages of a TIFF: index in the file, and layout. Leaves out reduced-resolution pages.

    A layout is the raw values of six tags: bits, colours, samples and the like. Values are cut to 64 bytes.

    Raises :class:`HeaderError` for a damaged list of pages, :class:`struct.error` for a truncated file."""
    order, big = "<" if bytes(data[:2]) == b"II" else ">", 43 in bytes(data[2:4])
    offset, count_format, entry, inline = ("Q", "Q", 20, 8) if big else ("I", "H", 12, 4)
    (at,) = struct.unpack_from(order + offset, data, 8 if big else 4)
    pages: list[tuple[int, tuple[bytes, ...]]] = []
    seen: set[int] = set()
    while at:
        if at in seen or len(seen) >= _MOST:
            raise HeaderError("is damaged: its pages go round in a circle")
        seen.add(at)
        # An offset of 2**63 or more would raise OverflowError.
        (count,) = struct.unpack_from(order + count_format, data, min(at, len(data)))
        at += struct.calcsize(count_format)
        if at + count * entry > len(data):
            raise HeaderError(f"is truncated: TIFF directory of {count} entries at byte {at}")
        values = {}
        for place in range(at, at + count * entry, entry):
            tag, kind, length = struct.unpack_from(order + ("HHQ" if big else "HHI"), data, place)
            if tag in _LAYOUT or tag == _SUBFILE:
                size, value = length * _WIDTHS.get(kind, 1), place + entry - inline
                if size > inline:
                    (value,) = struct.unpack_from(order + offset, data, value)
                values[tag] = bytes(data[value : value + min(size, 64)])
        if not int.from_bytes(values.get(_SUBFILE, b""), "little" if order == "<" else "big") & _REDUCED:
            pages.append((len(seen) - 1, tuple(values.get(tag, b"") for tag in _LAYOUT)))
        (at,) = struct.unpack_from(order + offset, data, at + count * entry)
    return pages


def _count_gif_frames(data: bytes, info: ImageInfo) -> Frames:
    """Counts the image blocks of a GIF, at least 1.

    ``transparent``: there are several frames, and pixels may be transparent. A frame is smaller than the image, has a
    transparent colour, or removes an earlier frame.

    Raises :class:`IndexError` or :class:`struct.error` for a truncated file."""
    at = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)
    count, transparent = 0, False
    while (block := data[at]) != 0x3B:
        if block == 0x2C:
            count += 1
            left, top, width, height, flags = struct.unpack_from("<HHHHB", data, at + 1)
            transparent |= (left, top) != (0, 0) or width < info.width or height < info.height
            at += 11 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
        else:
            if data[at + 1] == 0xF9:
                transparent |= bool(data[at + 3] & 1) or data[at + 3] >> 2 & 7 in (_BACKGROUND, _PREVIOUS)
            at += 2
        while size := data[at]:
            at += 1 + size
        at += 1
    return Frames(max(1, count), (0,), transparent and count > 1)


def _count_png_frames(data: bytes) -> Frames:
    """Reads the number of frames of a PNG: 1 without animation.

    A default image outside of the animation counts as one more frame.

    Raises :class:`HeaderError` for more frames than the file has room for, :class:`IndexError` or :class:`struct.error`
    for a truncated file."""
    at, frames, default = 8, 0, 0
    while (name := data[at + 4 : at + 8]) != b"IEND":
        (length,) = struct.unpack_from(">I", data, at)
        if name == b"acTL":
            (frames,) = struct.unpack_from(">I", data, at + 8)
        elif name == b"fcTL" and not default:
            default = 1  # the image itself is the first frame
        elif name == b"IDAT" and not default:
            default = 2
        at += 12 + length
        if at + 8 > len(data):
            raise IndexError
    if frames > len(data) // 26:  # bytes of a frame's header
        raise HeaderError(f"is damaged: a PNG of {frames:,} frames in {len(data):,} bytes")
    return Frames(max(1, frames + (default == 2 and frames > 0)))


def _count_webp_frames(data: bytes) -> Frames:
    """Counts the ``ANMF`` chunks of a WebP; 1 without animation. A truncated file gives the frames that it still
    has."""
    at, count, end = 12, 0, min(len(data), 8 + int.from_bytes(data[4:8], "little"))
    while at + 8 <= end:
        name, length = struct.unpack_from("<4sI", data, at)
        count += name == b"ANMF"
        at += 8 + length + (length & 1)
    return Frames(max(1, count))

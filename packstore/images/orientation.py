"""EXIF orientation: reads it from image files, and rotates and flips images by it.

Phones store photos as the sensor lay, and note in EXIF (TIFF 6.0, tag 274) how to show them upright. The parser here
takes microseconds for ordinary files. Pillow parses all others, damaged EXIF among them, so the result always equals
Pillow's ``getexif``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.images.header import TIFF
from packstore.images.pillow_tags import ORIENTATION, parse_exif_orientation
from packstore.images.sniff import HeaderError, ImageInfo, sniff

Box = tuple[int, int, int, int]
Buffer = bytes | bytearray | memoryview

_COLUMNS_REVERSED = frozenset((2, 3, 7, 8))
_ROWS_REVERSED = frozenset((3, 4, 6, 7))

_SEGMENT = struct.Struct(">BBH")
_CHUNK = struct.Struct(">L4s")
_HEADERS = {b"II*\0": "<", b"MM\0*": ">"}
_LONG, _SHORT = ({order: struct.Struct(order + kind) for order in "<>"} for kind in "LH")
_WIDTHS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}  # bytes a value
_EXIF = b"Exif\0\0"
_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_IN_XMP = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')


class _Unusual(Exception):  # noqa: N818 - Pillow decides then
    """A structure that ordinary writers of files do not produce; Pillow parses the file instead."""


def count_oriented(images: Iterable[Buffer]) -> int:
    """Counts the image files whose orientation asks for a rotation or flip, as :func:`read_orientation` reads it."""
    return sum(read_orientation(image) != 1 for image in images)


def read_orientation(data: Buffer, info: ImageInfo | None = None) -> int:
    """Reads the orientation of an image file, 1 … 8, from EXIF, else from XMP.

    Returns 1 if it is missing or unreadable, and for kinds without EXIF. Always 1 for TIFF and HEIF, whose decoders
    apply the orientation themselves.

    Args:
        data: The bytes of one image file.
        info: Its header by :mod:`packstore.images.sniff`, if the caller has it.
    """
    jpeg = info is not None and info.kind == "jpeg"
    if info is not None and jpeg and not info.app1_at:
        return 1
    start = b"" if jpeg else bytes(data[:16])
    try:
        if jpeg or start[:3] == b"\xff\xd8\xff":
            exif, xmp = (
                _find_jpeg_metadata(data, 2, False)
                if info is None
                else _find_jpeg_metadata(data, info.app1_at, info.app1_alone)
            )
        elif start[:8] == b"\x89PNG\r\n\x1a\n":
            exif, xmp = _find_png_metadata(data)
        elif start[:4] + start[8:] == b"RIFFWEBPVP8X":
            exif, xmp = _find_webp_metadata(data)
        elif start[4:8] == b"ftyp":
            return _read_heif_orientation(data)
        elif start[:4] == b"GIF8" and b"tiff:Orientation" in bytes(data):
            return _read_with_pillow(data)
        else:
            return 1
    except (_Unusual, struct.error, IndexError):
        return _read_with_pillow(data)
    try:
        orientation = _parse_exif(exif) if exif else None
    except (_Unusual, struct.error):
        orientation = parse_exif_orientation(exif)
    if orientation is None:
        match = _IN_XMP.search(xmp) if xmp else None
        orientation = 1 if match is None else int(match[1])
    return orientation if 1 <= orientation <= 8 else 1


def _read_heif_orientation(data: Buffer) -> int:
    """Reads the orientation of an AVIF file with Pillow. Returns 1 for HEIF, and for damaged boxes."""
    from packstore.images.heif import BadBoxesError, parse_heif_header

    try:
        kind = parse_heif_header(bytes(data)).kind
    except BadBoxesError:
        return 1
    return _read_with_pillow(data) if kind == "avif" else 1


def _read_with_pillow(data: Buffer) -> int:
    """Reads the orientation of an image file with Pillow."""
    from packstore.images.decoders import pillow

    return pillow.read_orientation(memoryview(data))


def read_annotation_orientation(data: Buffer, info: ImageInfo | None = None) -> int:
    """Reads the orientation that relates the stored pixels of an image file to the upright image, 1 … 8.

    It includes a TIFF's own, which every decoder applies. Always 1 for HEIF, whose size is that of the upright image.
    Otherwise as :func:`read_orientation`."""
    if bytes(data[:4]) not in TIFF:
        return read_orientation(data, info)
    with suppress(HeaderError):
        return (info or sniff(data)).tiff_orientation
    return 1


def upright(image: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Rotates and flips ``image``, ``(H, W, C)``, by its ``orientation``. Returns ``image`` itself for 1, else a
    C-contiguous copy."""
    if orientation == 1:
        return image
    rows, columns = (slice(None, None, -1 if orientation in way else 1) for way in (_ROWS_REVERSED, _COLUMNS_REVERSED))
    turned = image[rows, columns]
    return np.ascontiguousarray(turned.transpose(1, 0, 2) if swaps_sides(orientation) else turned)


def turn_points(points: NDArray[np.float64], orientation: int, right: float, bottom: float) -> NDArray[np.float64]:
    """Moves points ``(…, 2)``, x and y, as :func:`upright` moves pixels. ``right``, ``bottom``: the largest coordinates
    before."""
    x, y = points[..., 0], points[..., 1]
    x = right - x if orientation in _COLUMNS_REVERSED else x
    y = bottom - y if orientation in _ROWS_REVERSED else y
    return np.stack((y, x) if swaps_sides(orientation) else (x, y), -1)


def swaps_sides(orientation: int) -> bool:
    """Tells if the orientation swaps height and width: those from 5 on."""
    return orientation >= 5


def upright_size(data: bytes) -> tuple[int, int]:
    """Reads width and height of the upright image from the header of its file. Raises :class:`HeaderError`."""
    info = sniff(data)
    swapped = swaps_sides(read_orientation(data, info))
    return (info.height, info.width) if swapped else (info.width, info.height)


def map_to_stored_box(box: Box, orientation: int, height: int, width: int) -> Box:
    """Maps ``box`` of the upright image to the stored image, of size ``height`` x ``width`` when upright."""
    top, left, rows, columns = box
    if swaps_sides(orientation):
        top, left, rows, columns, height, width = left, top, columns, rows, width, height
    if orientation in _ROWS_REVERSED:
        top = height - top - rows
    if orientation in _COLUMNS_REVERSED:
        left = width - left - columns
    return top, left, rows, columns


def _parse_exif(exif: bytes) -> int | None:
    """Returns the orientation in the first directory of EXIF data, or None if it has none.

    Raises :class:`_Unusual` for anything that ordinary cameras do not write. Truncated data raise it, or
    :class:`struct.error`."""
    start = len(_EXIF) if exif.startswith(_EXIF) else 0
    order = _HEADERS.get(exif[start : start + 4])
    if order is None:
        raise _Unusual
    first = start + _LONG[order].unpack_from(exif, start + 4)[0]
    end = first + 2 + 12 * _SHORT[order].unpack_from(exif, first)[0]
    if end > len(exif):
        raise _Unusual
    orientation, least = _parse_directory(order, exif[first + 2 : end])
    if len(exif) < start + least:
        raise _Unusual
    return orientation


@lru_cache(256)  # photos of one camera have equal directories; their values are stored outside of these
def _parse_directory(order: str, entries: bytes) -> tuple[int | None, int]:
    """Returns the orientation among a directory's entries, or None.

    Also returns how long EXIF data must be to contain the values of all entries. Raises :class:`_Unusual` for an
    orientation of another type, or a second one."""
    orientation, elsewhere, least = None, 0, 0
    for tag, kind, values, at in struct.iter_unpack(order + "HHLL", entries):
        size = _WIDTHS.get(kind, 0) * values
        if size > 4:
            elsewhere += size
            least = max(least, at + size, elsewhere)
        if tag == ORIENTATION:
            if kind != 3 or values != 1 or orientation is not None:
                raise _Unusual
            orientation = at >> 16 if order == ">" else at & 0xFFFF
    return orientation, least


def _find_jpeg_metadata(data: Buffer, at: int, alone: bool) -> tuple[bytes, bytes]:
    """Returns EXIF and XMP of a JPEG file, empty if missing. Reads its segments from ``at`` on.

    ``alone``: the segment at ``at`` is the only one to read.

    Raises :class:`_Unusual` for stray bytes and for a second EXIF, :class:`struct.error` for a truncated file."""
    exif = xmp = b""
    while True:
        mark, marker, length = _SEGMENT.unpack_from(data, at)
        if marker == 0xDA and mark == 0xFF:
            return exif, xmp
        if mark != 0xFF or length < 2 or marker < 0xC0 or 0xD0 <= marker <= 0xD9 or marker == 0xFF:
            raise _Unusual
        if marker == 0xE1:
            content = bytes(data[at + 4 : at + 2 + length])
            if content.startswith(_EXIF):
                if exif:
                    raise _Unusual
                exif = content
            elif content.startswith(_XMP):
                xmp = content
        if alone:
            return exif, xmp
        at += 2 + length


def _find_png_metadata(data: Buffer) -> tuple[bytes, bytes]:
    """Returns the EXIF of a PNG file, and empty XMP.

    Raises :class:`_Unusual` for a second EXIF, and for text chunks that may contain EXIF or an orientation: Pillow
    reads these."""
    exif, at, size = b"", 33, len(data)  # behind the header
    while at < size:
        length, name = _CHUNK.unpack_from(data, at)
        if name == b"IDAT":
            at += 12 + length
            continue
        if name == b"IEND":
            break
        if name == b"eXIf":
            if exif:
                raise _Unusual
            exif = bytes(data[at + 8 : at + 8 + length])
        elif name in (b"iTXt", b"zTXt", b"tEXt"):
            text = bytes(data[at + 8 : at + 8 + length])
            keyword, _, rest = text.partition(b"\0")
            if keyword == b"Raw profile type exif":
                raise _Unusual
            if keyword == b"XML:com.adobe.xmp" and (rest[:1] != b"\0" or b"tiff:Orientation" in rest):
                raise _Unusual
        at += 12 + length
    return exif, b""


def _find_webp_metadata(data: Buffer) -> tuple[bytes, bytes]:
    """Returns EXIF and XMP of a WebP file in the extended format (RFC 9649), empty if missing.

    Reads the first chunk of each that the file's flags announce."""
    flags = data[20]
    wanted = {name for name, flag in ((b"EXIF", 0x08), (b"XMP ", 0x04)) if flags & flag}
    chunks = {b"EXIF": b"", b"XMP ": b""}
    at = 12
    while wanted and at + 8 <= len(data):
        name, length = struct.unpack_from("<4sL", data, at)
        if name in wanted:
            chunks[name] = bytes(data[at + 8 : at + 8 + length])
            wanted.remove(name)
        at += 8 + length + (length & 1)
    return chunks[b"EXIF"], chunks[b"XMP "]

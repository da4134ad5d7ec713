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

from packstore.core.manifest import Manifest
from packstore.core.registry import ENCODINGS
from packstore.images.kinds.base import UnusualError
from packstore.images.sniff import KINDS, HeaderError, ImageInfo, find_kind, get_kind, sniff

Box = tuple[int, int, int, int]
Buffer = bytes | bytearray | memoryview

_COLUMNS_REVERSED = frozenset((2, 3, 7, 8))
_ROWS_REVERSED = frozenset((3, 4, 6, 7))

_ORIENTATION = 274
_TIFF = KINDS["tiff"].magics + KINDS["tiff"].unsure
_HEADERS = {b"II*\0": "<", b"MM\0*": ">"}
_LONG, _SHORT = ({order: struct.Struct(order + kind) for order in "<>"} for kind in "LH")
_WIDTHS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}  # bytes a value
_EXIF = b"Exif\0\0"
_IN_XMP = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')


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
    kind = get_kind(info.kind) if info is not None else find_kind(bytes(data[:16]))
    if kind is None:
        return 1
    try:
        exif, xmp = kind.find_exif(data, info)
    except (UnusualError, struct.error, IndexError):
        return _read_with_pillow(data)
    try:
        orientation = _parse_exif(exif) if exif else None
    except (UnusualError, struct.error):
        orientation = _parse_with_pillow(exif)
    if orientation is None:
        match = _IN_XMP.search(xmp) if xmp else None
        orientation = 1 if match is None else int(match[1])
    return orientation if 1 <= orientation <= 8 else 1


def _read_with_pillow(data: Buffer) -> int:
    """Reads the orientation of an image file with Pillow."""
    from packstore.images.image_files import read_pillow_orientation

    return read_pillow_orientation(memoryview(data))


def _parse_with_pillow(exif: bytes) -> int | None:
    """Reads the orientation from EXIF data with Pillow. Returns None if it is missing."""
    from packstore.images import pillow

    return pillow.parse_exif_orientation(exif)


def read_annotation_orientation(data: Buffer, info: ImageInfo | None = None) -> int:
    """Reads the orientation that relates the stored pixels of an image file to the upright image, 1 … 8.

    It includes a TIFF's own, which every decoder applies. Always 1 for HEIF, whose size is that of the upright image.
    Otherwise as :func:`read_orientation`."""
    if not bytes(data[:4]).startswith(_TIFF):
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
    """Returns the orientation in the first directory of EXIF data, or None without one."""
    start = len(_EXIF) if exif.startswith(_EXIF) else 0
    order = _HEADERS.get(exif[start : start + 4])
    if order is None:
        raise UnusualError
    first = start + _LONG[order].unpack_from(exif, start + 4)[0]
    end = first + 2 + 12 * _SHORT[order].unpack_from(exif, first)[0]
    if end > len(exif):
        raise UnusualError
    orientation, least = _parse_directory(order, exif[first + 2 : end])
    if len(exif) < start + least:
        raise UnusualError
    return orientation


@lru_cache(256)  # photos of one camera have equal directories; their values are stored outside of these
def _parse_directory(order: str, entries: bytes) -> tuple[int | None, int]:
    """Returns the orientation among a directory's entries, or None, and the least length of EXIF data."""
    orientation, elsewhere, least = None, 0, 0
    for tag, kind, values, at in struct.iter_unpack(order + "HHLL", entries):
        size = _WIDTHS.get(kind, 0) * values
        if size > 4:
            elsewhere += size
            # EXIF data must contain the values of all entries.
            least = max(least, at + size, elsewhere)
        if tag == _ORIENTATION:
            if kind != 3 or values != 1 or orientation is not None:
                raise UnusualError
            orientation = at >> 16 if order == ">" else at & 0xFFFF
    return orientation, least


def keeps_exif(manifest: Manifest) -> bool:
    """Tells if a store's image files still contain the EXIF orientation of the source's files.

    False if they were resized, and for an unknown encoding."""
    resized = any(manifest.options.get(name) is not None for name in ("size", "resize", "max_side"))
    return manifest.encoding in ENCODINGS and ENCODINGS[manifest.encoding].keeps_exif and not resized


def readers_transpose(manifest: Manifest) -> bool:
    """Tells if readers must apply the EXIF orientation to a store's images."""
    return bool(manifest.options.get("exif_transpose")) and keeps_exif(manifest)

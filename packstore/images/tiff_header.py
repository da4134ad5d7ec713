"""Parses the first directory of a TIFF or BigTIFF file (TIFF 6.0)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from packstore.images.header import HeaderError, ImageInfo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

READABLE_TIFF_BITS = (1, 2, 4, 8, 16, 32, 64)
"""Bits per sample of TIFF files that packstore reads."""
PIXEL_TAGS = frozenset((
    *(254, 255, 256, 257, 258, 259, 262, 266, 273, 274, 277, 278, 279, 284, 292, 293, 317, 320, 322, 323, 324, 325),
    *(332, 333, 334, 336, 338, 339, 340, 341, 347, *range(512, 522), *range(529, 533), 32995, 32996, 32997, 32998),
    *(34016, 34017, 34018, *range(34022, 34030), 42113, 50674),
))  # fmt: skip
"""Tags on which the pixels depend; others are metadata."""
_MAX_SAMPLES = 16
_TAGS = frozenset((256, 257, 258, 273, 277, 279, 324, 325))
_MAX_TAGS = 0xFFFF  # the maximum of a TIFF; a BigTIFF could claim more
_WIDTHS = {**dict(enumerate((1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4), 1)), 16: 8, 17: 8, 18: 8}  # bytes a value
_NUMBERS = {1: "B", 3: "H", 4: "I", 16: "Q"}  # unsigned integers, for struct and numpy alike


def parse_tiff_header(data: bytes, whole: bool) -> ImageInfo:
    """Parses the first directory. With ``whole``, also checks that strips, tiles and other values on which pixels
    depend lie within the file.

    Raises :class:`HeaderError`, and :class:`struct.error` for a truncated header."""
    order = "<" if data[:2] == b"II" else ">"
    big = 43 in data[2:4]
    at = struct.unpack_from(order + ("Q" if big else "I"), data, 8 if big else 4)[0]
    count_format, size, inline = (order + "Q", 20, 8) if big else (order + "H", 12, 4)
    if at + struct.calcsize(count_format) > len(data):
        raise HeaderError(f"is truncated: TIFF directory at byte {at}, the file has {len(data)}")
    count = struct.unpack_from(count_format, data, at)[0]
    at += struct.calcsize(count_format)
    if at + count * size > len(data):
        raise HeaderError(f"is truncated: TIFF directory of {count} entries at byte {at}, the file has {len(data)}")
    if count > _MAX_TAGS:
        raise HeaderError(f"is damaged: a TIFF directory of {count} entries")
    tags: dict[int, tuple[str, int, int]] = {}  # type, number of values, offset of the values
    for entry in range(at, at + count * size, size):
        tag, kind, length = struct.unpack_from(order + ("HHQ" if big else "HHI"), data, entry)
        if kind not in _WIDTHS or not length or tag not in (PIXEL_TAGS if whole else _TAGS):
            continue
        value = entry + size - inline
        width = _WIDTHS[kind]
        if length * width > inline:
            value = struct.unpack_from(order + ("Q" if big else "I"), data, value)[0]
            if value + length * width > len(data):  # also of others than _TAGS, such as JPEG tables
                end = value + length * width
                raise HeaderError(f"is truncated: TIFF values end at byte {end}, the file has {len(data)}")
        if tag in _TAGS and kind in _NUMBERS:
            tags.setdefault(tag, (order + _NUMBERS[kind], length, value))

    def first(tag: int, default: int | None = None) -> int:
        """Returns the first value of a tag, or ``default`` if it is missing. Raises :class:`HeaderError` without a
        default."""
        if tag in tags:
            letter, _, value = tags[tag]
            number: int = struct.unpack_from(letter, data, value)[0]
            return number
        if default is None:
            raise HeaderError("is damaged: a TIFF without width and height")
        return default

    bits = [1]
    if 258 in tags:
        letter, length, value = tags[258]
        bits = list(struct.unpack_from(f"{letter[0]}{min(length, _MAX_SAMPLES)}{letter[1]}", data, value))
    precision = next((each for each in bits if each not in READABLE_TIFF_BITS), bits[0])
    info = ImageInfo("tiff", first(256), first(257), first(277, 1), precision)
    if whole:
        for offsets, counts in ((273, 279), (324, 325)):  # strips, tiles
            if offsets in tags and counts in tags:
                _check_pixels(data, tags[offsets], tags[counts])
        if 273 not in tags and 324 not in tags:
            raise HeaderError("is damaged: a TIFF without pixels")
    return info


def _check_pixels(data: bytes, offsets: tuple[str, int, int], counts: tuple[str, int, int]) -> None:
    """Raises :class:`HeaderError` if strips or tiles lie beyond the end of the file.

    ``offsets``, ``counts``: format, number and place of the values. A file may hold millions of values, so numpy
    compares them, in uint64 without overflow."""
    import numpy as np

    length, size = min(offsets[1], counts[1]), np.uint64(len(data))
    starts, sizes = (_read_numbers(data, letter, length, value) for letter, _, value in (offsets, counts))
    beyond = np.flatnonzero((starts > size) | (sizes > size - np.minimum(starts, size)))
    if len(beyond):
        end = int(starts[beyond[-1]]) + int(sizes[beyond[-1]])
        raise HeaderError(f"is truncated: TIFF pixels end at byte {end}, the file has {len(data)}")


def _read_numbers(data: bytes, letter: str, length: int, at: int) -> NDArray[np.uint64]:
    """Reads ``length`` numbers of a tag as uint64."""
    import numpy as np

    return np.frombuffer(data, letter, length, at).astype(np.uint64)

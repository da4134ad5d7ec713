"""Finds the further pictures of a JPEG file in its Multi-Picture Format index (CIPA DC-007).

Stereo cameras and panoramas write several views; phones and cameras add gain maps and previews.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from packstore.images.header import ImageInfo

_ENTRIES, _ENTRY_BYTES = 0xB002, 16
_VIEWS = (0x020001, 0x020002, 0x020003)
"""Types of pictures that are views: panorama, stereo, several angles. Others are previews; gain maps have no type."""


class Pictures(NamedTuple):
    """Pictures of a JPEG file.

    Attributes:
        views: Offset and end of each picture that is a view; the first picture is one, and ends with the file.
        others: Number of other pictures, such as previews and gain maps.
    """

    views: tuple[tuple[int, int], ...]
    others: int = 0


def find_pictures(data: bytes | memoryview, info: ImageInfo) -> Pictures:
    """Returns the pictures of a JPEG file with the header ``info``. A damaged index names no further pictures.

    Views that lie outside of the file, or are no JPEG, count as other pictures."""
    views, others, start = [(0, len(data))], 0, info.mpf_at
    try:
        entries = _read_entries(data, start) if start else []
    except struct.error:
        entries = []
    for attributes, size, offset in entries[1:]:
        at = start + offset
        is_view = attributes & 0xFFFFFF in _VIEWS and at + size <= len(data) and data[at : at + 3] == b"\xff\xd8\xff"
        if is_view:
            views.append((at, at + size))
        others += not is_view
    return Pictures(tuple(views), others)


def _read_entries(data: bytes | memoryview, start: int) -> list[tuple[int, int, int]]:
    """Returns attributes, size and offset of each picture. Raises :class:`struct.error` beyond the end of the data."""
    order = "<" if data[start : start + 2] == b"II" else ">"
    at = start + struct.unpack_from(order + "I", data, start + 4)[0]
    (count,) = struct.unpack_from(order + "H", data, at)
    for place in range(at + 2, at + 2 + 12 * count, 12):
        tag, _, size, value = struct.unpack_from(order + "HHII", data, place)
        if tag == _ENTRIES:
            first = start + value
            places = range(first, first + min(size, len(data)) // _ENTRY_BYTES * _ENTRY_BYTES, _ENTRY_BYTES)
            return [struct.unpack_from(order + "III", data, each) for each in places]
    return []

"""Parses the header of a JPEG file: its segments up to the first scan (ITU-T T.81, annex B)."""

from __future__ import annotations

import struct

from packstore.images.header import HeaderError, ImageInfo

_REMEMBERED_BYTES = 4096
_latest: tuple[bytes, ImageInfo] | None = None
"""The latest JPEG header, up to the first byte of its scan, and its result. One object, so that threads never see half
of it."""
_FRAME = struct.Struct(">BHHB")
_NO_SEGMENT = frozenset((0x00, 0x01, *range(0xD0, 0xDA), 0xFF))
_SKIPPED = frozenset((0xDC, *range(0xE0, 0xF0), 0xFE))


def parse_jpeg_header(data: bytes, whole: bool) -> ImageInfo:
    """Parses the segments up to the first scan. With ``whole``, also searches for the end-of-image marker after it.

    An earlier end marker belongs to a thumbnail. Caches the latest header with its result.

    Raises :class:`HeaderError`, and :class:`IndexError` or :class:`struct.error` for a truncated header."""
    global _latest
    # The result depends on the bytes up to the scan alone, which are often the same in images of one size and encoder.
    known = _latest
    if known is not None and data.startswith(known[0]):
        _check_end(data, len(known[0]), whole)
        return known[1]
    width = height = components = precision = sof = frames = app1_at = app1s = mpf_at = 0
    orderly = True
    adobe: int | None = None
    at = 2
    while True:
        marker = data[at + 1]
        if data[at] != 0xFF or marker in _NO_SEGMENT:
            at = _skip_to_marker(data, at)
            orderly = False
            continue
        length = data[at + 2] << 8 | data[at + 3]
        if length < 2:
            if marker not in _SKIPPED:
                raise HeaderError(f"is damaged: a JPEG segment of {length} bytes at byte {at}")
            length, orderly = 2, False  # libjpeg continues after the length
        if marker == 0xDA:
            break
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            precision, height, width, components = _FRAME.unpack_from(data, at + 4)
            if not sof and length < 8 + 3 * components:
                raise HeaderError(f"is damaged: a JPEG frame header of {length} bytes for {components} components")
            sof = marker
            frames += 1
        elif marker == 0xEE and length >= 14 and data[at + 4 : at + 9] == b"Adobe":
            adobe = data[at + 15]
        elif marker == 0xE1:
            app1_at = app1_at or at
            app1s += 1
        elif marker == 0xE2 and data[at + 4 : at + 8] == b"MPF\0":
            mpf_at = mpf_at or at + 8
        elif marker < 0xC0:
            orderly = False
        at += 2 + length
    if not sof:
        raise HeaderError("is damaged: a JPEG without a frame header before its first scan")
    if not width or not height or not components:
        raise HeaderError(f"has no pixels: its header says {width} x {height} with {components} components")
    end = at + 2 + length
    _check_end(data, end, whole)
    if end > len(data):
        raise IndexError
    alone = orderly and app1s == 1
    info = ImageInfo("jpeg", width, height, components, precision, sof, adobe, app1_at, alone, mpf_at)
    # In other segments the values may be beyond the segment's end.
    if end <= _REMEMBERED_BYTES and frames == 1 and length >= 6:
        _latest = data[:end], info
    return info


def _check_end(data: bytes, scan: int, whole: bool) -> None:
    """Raises :class:`HeaderError` if ``whole`` is true and no end-of-image marker follows the byte ``scan``."""
    # Inside a scan, 0xFF is always followed by 0x00 or a restart marker: the pair cannot occur by chance.
    if whole and data[-2:] != b"\xff\xd9" and data.rfind(b"\xff\xd9", scan) < 0:
        raise HeaderError("is truncated: no end-of-image marker")


def _skip_to_marker(data: bytes, at: int) -> int:
    """Skips bytes that are no segment, and returns the next position to look at.

    Skips one fill byte, one marker without a segment, or stray bytes (which libjpeg skips with a warning).

    Raises :class:`HeaderError` for a second start or an end of the image, :class:`IndexError` at the end of the data.
    """
    marker = data[at + 1]
    if data[at : at + 4] == b"\xff\xd9\xff\xd8":  # tables end, and the image that uses them begins: T.81, B.4
        return at + 4
    if data[at] == 0xFF and marker in (0xD8, 0xD9):
        what = "a second start" if marker == 0xD8 else "the end"
        raise HeaderError(f"is damaged: {what} of the image at byte {at}, before any scan")
    if data[at] == 0xFF and marker != 0xFF:
        return at + 2
    place = data.find(b"\xff", at + 1)
    if place < 0:
        raise IndexError
    return place

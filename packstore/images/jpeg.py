"""Walks through JPEG files: removes metadata, checks completeness, counts scans. Markers as in ITU-T T.81, B.1."""

from __future__ import annotations

import re

_PROGRESSIVE, _EOI, _SOS, _COM = 0xC2, 0xD9, 0xDA, 0xFE
_MOST_SCANS, _SCANS_OF_LARGE, _SCAN_BYTES = 500, 24, 8
_SCANNED_PIXELS = 1 << 31
"""Limit of pixels times scans: some seconds of decoding."""
# APP0 (JFIF) and APP14 (Adobe) tell the colour space; the others (EXIF, MPF, ICC, XMP ...) do not touch pixels.
_METADATA = frozenset((_COM, *range(0xE1, 0xEE), 0xEF))
_SIGNED = {0xE0: (b"JFIF\0", 14), 0xEE: (b"Adobe", 12)}
"""First bytes and shortest content of segments that tell the colour space."""
_NO_LENGTH = frozenset((0x00, 0x01, *range(0xD0, 0xDA), 0xFF))
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # ends a scan: neither a data byte 0xFF nor a restart


def without_metadata(data: memoryview) -> bytes | memoryview:
    """Returns the JPEG ``data`` without metadata: EXIF, MPF, ICC, XMP, comments, and stray bytes between segments.
    Also without segments of JFIF and Adobe that are too short, which libjpeg ignores.

    Returns ``data`` itself if it has none of these, or no scan."""
    kept: list[memoryview] = [data[:2]]
    size, at, dropped = len(data), 2, False
    while at + 4 <= size:
        marker, stop = data[at + 1], at + 2 + (data[at + 2] << 8 | data[at + 3])
        stray = data[at] != 0xFF
        if stray or marker in _NO_LENGTH:
            match = _MARKER.search(data, at + 1)
            if match is None:
                return data
            marker, stop = 0, match.start()
        if marker == _SOS:
            return b"".join((*kept, data[at:])) if dropped else data
        if marker in _METADATA or (marker in _SIGNED and not _is_signed(data[at + 4 : stop], marker)):
            dropped = True
        elif not stray:  # libjpeg skips stray bytes, but Pillow wants a marker behind the start of the image
            kept.append(data[at:stop])
        at = stop
    return data


def _is_signed(content: memoryview, marker: int) -> bool:
    """Tells if an APP0 segment is one of JFIF, or an APP14 segment one of Adobe."""
    name, least = _SIGNED[marker]
    return len(content) >= least and bytes(content[: len(name)]) == name


def excess_scans_message(data: memoryview, pixels: int) -> str | None:
    """Returns an error text for a JPEG with so many scans that decoding takes too long. Returns None for other files.

    Each scan goes through all pixels, even with hardly a byte.
    """
    most = min(_MOST_SCANS, max(_SCANS_OF_LARGE, _SCANNED_PIXELS // max(1, pixels)))
    if bytes(data[:2]) != b"\xff\xd8" or len(data) < most * _SCAN_BYTES:
        return None
    scans = bytes(data).count(b"\xff\xda")  # these two bytes do not occur within a scan
    return f"a JPEG of {scans:,} scans, of at most {most} that an image of its size may have" if scans > most else None


def is_complete_jpeg(data: memoryview) -> bool:
    """Tells if a JPEG is complete. Its segments and scans must follow each other without gaps up to the end marker.

    A progressive file must have every bit of every coefficient.

    Does not parse scans. Costs a search for 0xFF: about 1 GB/s."""
    try:
        return _check_segments(data)
    except (IndexError, KeyError):  # a segment that is too short, or a scan of an unknown component
        return False


def _check_segments(data: memoryview) -> bool:
    """Tells if a JPEG is complete, see :func:`is_complete_jpeg`. Raises :class:`IndexError` or :class:`KeyError` for
    broken segments."""
    unfinished: dict[int, bytearray] = {}  # by component: the lowest bit so far of each coefficient; 1 for none
    scans, at = 0, 2
    while data[at] == 0xFF:
        marker = data[at + 1]
        if marker == _EOI:
            return scans > 0 and not any(map(any, unfinished.values()))
        if marker in _NO_LENGTH:
            return False
        stop = at + 2 + (data[at + 2] << 8 | data[at + 3])
        if marker == _PROGRESSIVE:
            unfinished = {data[at + 10 + 3 * i]: bytearray(b"\1" * 64) for i in range(data[at + 9])}
        elif marker == _SOS:
            scans += 1
            first, last, low = data[stop - 3], data[stop - 2], data[stop - 1] & 15
            if unfinished:
                for i in range(data[at + 4]):
                    unfinished[data[at + 5 + 2 * i]][first : last + 1] = bytes([low]) * (last + 1 - first)
            match = _MARKER.search(data, stop)
            if match is None:
                return False
            stop = match.start()
        at = stop
    return False

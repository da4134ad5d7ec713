"""Records of RecordIO (``dmlc-core``, ``include/dmlc/recordio.h``), as MXNet writes images (``mxnet/recordio.py``), for
writing.

A record is a magic number, a word with a flag of 3 bits and a length of 29, and the data, filled up to four bytes. Data
that hold the magic number at a multiple of four are in parts: it is left out, and stands between them.
"""

from __future__ import annotations

import struct

MAGIC = struct.pack("<I", 0xCED7230A)
WHOLE, FIRST, MIDDLE, LAST = 0, 1, 2, 3
"""Flags: of a record that is in one part, or of its parts."""
LONGEST = (1 << 29) - 1
HEADER = struct.Struct("<IfQQ")
"""Before an image: number of labels that follow (0 for the one here), a label, and two numbers that identify it."""


def frame_record(data: bytes) -> bytes:
    """A record. Raises :class:`ValueError` for one that is too long."""
    if len(data) > LONGEST:
        raise ValueError(f"a record of {len(data)} bytes is longer than {LONGEST}, the most that RecordIO holds")
    parts, start, at = [], 0, -1
    while (at := data.find(MAGIC, at + 1)) >= 0:
        if at % 4 == 0 and at + 4 <= len(data) // 4 * 4:
            parts.append(_part(MIDDLE if start else FIRST, data[start:at]))
            start = at + 4
    parts.append(_part(LAST if start else WHOLE, data[start:]))
    return b"".join(parts)


def _part(flag: int, data: bytes) -> bytes:
    return MAGIC + struct.pack("<I", flag << 29 | len(data)) + data + bytes(-len(data) % 4)

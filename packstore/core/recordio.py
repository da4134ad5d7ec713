"""Records of RecordIO (``dmlc-core``, ``include/dmlc/recordio.h``), with images in the form of MXNet
(``mxnet/recordio.py``).

A record is a magic number, a word with a flag of 3 bits and a length of 29 bits, and the data, padded to a multiple of
four bytes. If the magic number occurs in the data at a multiple of four, the data are split there into parts, without
the magic number.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

MAGIC = struct.pack("<I", 0xCED7230A)
WHOLE, FIRST, MIDDLE, LAST = 0, 1, 2, 3
"""Flags: a record in one part, or the first, a middle, or the last part of a record."""
LONGEST = (1 << 29) - 1
HEADER = struct.Struct("<IfQQ")
"""Header of an image: number of further labels (0: only the next field), a label, and two ids."""


def frame_record(data: bytes) -> bytes:
    """Returns the bytes of a RecordIO record that contains ``data``. Raises :class:`ValueError` for 512 MiB or more."""
    if len(data) > LONGEST:
        raise ValueError(f"a record of {len(data)} bytes is longer than {LONGEST}, the most that RecordIO holds")
    parts, start, at = [], 0, -1
    while (at := data.find(MAGIC, at + 1)) >= 0:
        if at % 4 == 0 and at + 4 <= len(data) // 4 * 4:
            parts.append(_frame_part(MIDDLE if start else FIRST, data[start:at]))
            start = at + 4
    parts.append(_frame_part(LAST if start else WHOLE, data[start:]))
    return b"".join(parts)


def find_parts(read: Callable[[int, int], bytes], at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yields flag, place and size of each part of the record at ``at``. Raises :class:`ValueError` if the record is
    damaged.

    ``read(size, place)`` reads the file, which has ``end`` bytes.
    """
    first = True
    while True:
        head = read(8, at)
        if len(head) < 8:
            raise ValueError("the file ends within a record")
        flag, size = (word := int.from_bytes(head[4:], "little")) >> 29, word & LONGEST
        if head[:4] != MAGIC or flag not in ((WHOLE, FIRST) if first else (MIDDLE, LAST)):
            raise ValueError("no record begins here")
        if size > end - at - 8:
            raise ValueError(f"a record of {size} bytes is cut off")
        yield flag, at + 8, size
        if flag in (WHOLE, LAST):
            return
        at, first = at + 8 + size + -size % 4, False


def _frame_part(flag: int, data: bytes) -> bytes:
    """Returns a part of a record: magic number, flag and length, data, padding."""
    return MAGIC + struct.pack("<I", flag << 29 | len(data)) + data + bytes(-len(data) % 4)

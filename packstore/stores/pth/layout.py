"""Builds and compares the bytes around the entries of a ``.pth``, which follow from the entries' names, sizes and CRCs.

Neither torch nor Python's zipfile checks most of them: padding, local copies of sizes and CRCs, dates, attributes. This
module builds the bytes that :class:`packstore.stores.pth.store.PthWriter` writes by :mod:`zipfile`, and compares them.
The format is that of PKWARE's APPNOTE.TXT, 4.3.7 to 4.3.16.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import printable
from packstore.stores.parts import Problem

ALIGNMENT = 64
"""Entries' contents begin at a multiple of this, as in torch's own files."""
_LOCAL, _CENTRAL = struct.Struct("<4s5H3L2H"), struct.Struct("<4s4B4HL2L5H2L")
_END, _END64, _LOCATOR = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
_VERSION, _UNIX, _DATE, _MODE = 45, 3, 33, 0o600 << 16
_LIMIT = zipfile.ZIP64_LIMIT
_MAX32 = 0xFFFFFFFF


def check_layout(map: NDArray[np.uint8], entries: Sequence[zipfile.ZipInfo]) -> Iterator[Problem]:
    """Yields a problem for each header that packstore would write differently, and one for bytes behind the zip.

    Yields nothing if fewer than half of the entries' headers match: another program wrote the file.

    Args:
        map: The whole file.
        entries: Its entries, in the order of its directory.
    """
    wrong, right, end = [], 0, 0
    for what, start, expected in build_headers(entries):
        if map[start : start + len(expected)].tobytes() != expected:
            wrong.append(f"{what}, which begins at byte {start}, has been changed")
        elif expected.startswith(b"PK\x03\x04"):
            right += 1
        end = start + len(expected)
    if 2 * right < len(entries):
        return
    yield from (Problem(line) for line in wrong)
    if end != len(map):
        yield Problem(f"the file has {len(map)} bytes, and its zip ends at {end}")


def build_headers(entries: Sequence[zipfile.ZipInfo]) -> Iterator[tuple[str, int, bytes]]:
    """Yields (name, offset, bytes) of everything around the entries' contents, in file order."""
    position, central = 0, []
    for info in entries:
        name = info.filename.encode("utf-8")
        extra = build_padding_field(position, name)
        shown = printable(info.filename)
        local = _LOCAL.pack(
            b"PK\x03\x04", _VERSION, 0, 0, 0, _DATE, info.CRC, _MAX32, _MAX32, len(name), len(extra) + 20
        )
        sizes = struct.pack("<HHQQ", 1, 16, info.file_size, info.file_size)
        header = local + name + extra + sizes
        yield f"the header of entry {shown!r}", position, header
        central.append((shown, _build_directory_entry(info, name, extra, position)))
        position += len(header) + info.file_size
    start = position
    for shown, record in central:
        yield f"the directory's record of entry {shown!r}", position, record
        position += len(record)
    yield "the end of the directory", position, _build_directory_end(len(entries), start, position - start)


def build_padding_field(position: int, name: bytes) -> bytes:
    """Returns the extra field that aligns the content of an entry, whose header is at ``position``, to 64 bytes."""
    size = -(position + _LOCAL.size + len(name) + 20 + 4) % ALIGNMENT
    return b"FB" + size.to_bytes(2, "little") + b"Z" * size


def compute_content_start(position: int, name: str) -> int:
    """Returns the offset of the content of an entry, whose header is at ``position``."""
    raw = name.encode("utf-8")
    return position + _LOCAL.size + len(raw) + len(build_padding_field(position, raw)) + 20


def _build_directory_entry(info: zipfile.ZipInfo, name: bytes, extra: bytes, position: int) -> bytes:
    """Returns the directory's record of an entry, whose header is at ``position``.

    Numbers of 2 GiB and more are in a zip64 field.
    """
    size, offset, large = info.file_size, position, []
    if size > _LIMIT:
        large += [size, size]
        size = _MAX32
    if offset > _LIMIT:
        large.append(offset)
        offset = _MAX32
    if large:
        extra = struct.pack(f"<HH{len(large)}Q", 1, 8 * len(large), *large) + extra
    record = _CENTRAL.pack(
        b"PK\x01\x02", _VERSION, _UNIX, _VERSION, 0, 0, 0, 0, _DATE, info.CRC, size, size, len(name), len(extra),
        0, 0, 0, _MODE, offset,
    )  # fmt: skip
    return record + name + extra


def _build_directory_end(count: int, start: int, size: int) -> bytes:
    """Returns the end of the zip's directory. Large numbers need zip64's record and locator, which come before it."""
    end64 = b""
    if count > zipfile.ZIP_FILECOUNT_LIMIT or start > _LIMIT or size > _LIMIT:
        end64 = _END64.pack(b"PK\x06\x06", 44, _VERSION, _VERSION, 0, 0, count, count, size, start)
        end64 += _LOCATOR.pack(b"PK\x06\x07", 0, start + size, 1)
        start = min(start, _MAX32)
    return end64 + _END.pack(b"PK\x05\x06", 0, 0, count, count, size, start, 0)

"""Headers of tar as nearly all are, read without :mod:`tarfile`, which takes five times as long for each."""

from __future__ import annotations

import re
import tarfile
import zlib

_BLOCK = tarfile.BLOCKSIZE
LOOK_BYTES = 3 * _BLOCK
"""What is read at once: a header, or that of further fields, these fields, and a header."""
_USTAR = b"ustar\x0000"
_MAGICS = (_USTAR, b"ustar  \0")
_USUAL_NUMBERS = re.compile(rb"([0-7]{11})[ \0]([0-7]{11})[ \0]([0-7]{6})[ \0]{2}")
"""Size, time of modification and checksum, as wide as tar programs write them."""
_PLAIN_FIELDS = (b"path", b"mtime", b"atime", b"ctime")


def usual_member(data: bytes, at: int) -> tarfile.TarInfo | None:
    """The member whose first header ``data`` begins with, and which begins at byte ``at``; None for what is left to
    :mod:`tarfile`: anything but a file or a directory, long names and other fields of GNU, large sizes, and damage.

    Args:
        data: :data:`LOOK_BYTES`, fewer at the end of the archive.
        at: For the places of the member.
    """
    if data[156:157] != b"x":
        return _member(data[:_BLOCK], at)
    head = _numbers(data[:_BLOCK])
    fields = None if head is None or head[0] > _BLOCK else _fields(data[_BLOCK : _BLOCK + head[0]])
    member = None if fields is None else _member(data[2 * _BLOCK : LOOK_BYTES], at + 2 * _BLOCK)
    if fields is None or member is None:
        return None
    try:
        if b"path" in fields:
            member.name = fields[b"path"].decode("utf-8").rstrip("/")
        if b"mtime" in fields:
            member.mtime = float(fields[b"mtime"])
    except ValueError:
        return None
    member.offset = at
    return member


def next_header(member: tarfile.TarInfo) -> int:
    """Where the header after a member of :func:`usual_member` begins."""
    return member.offset_data + (-(-member.size // _BLOCK) * _BLOCK if member.isreg() else 0)


def _member(block: bytes, at: int) -> tarfile.TarInfo | None:
    kind, numbers = block[156:157], _numbers(block)
    if numbers is None or kind not in (tarfile.REGTYPE, tarfile.DIRTYPE):
        return None
    raw, prefix, magic = block[:100], block[345:500], block[257:265]
    if prefix[0]:
        if magic != _USTAR:
            return None
        raw = prefix.partition(b"\0")[0] + b"/" + raw
    member = tarfile.TarInfo(raw.partition(b"\0")[0].decode("utf-8", "surrogateescape"))
    if kind == tarfile.DIRTYPE:
        member.name = member.name.rstrip("/")
    member.size, member.mtime = numbers
    member.type, member.offset, member.offset_data = kind, at, at + _BLOCK
    return member


def _numbers(block: bytes) -> tuple[int, int] | None:
    """Size and time of modification of a header whose checksum is right."""
    if len(block) < _BLOCK or block[257:265] not in _MAGICS:
        return None
    numbers = _USUAL_NUMBERS.match(block, 124)
    if numbers is None or _sum(block) - sum(block[148:156]) + 8 * 32 != int(numbers[3], 8):
        return None
    return int(numbers[1], 8), int(numbers[2], 8)


def _sum(block: bytes) -> int:
    """The sum of its bytes. Adler-32 has it modulo 65,521, plus 1 (RFC 1950), at a tenth of the time: of a block that
    is half zeros, that is the sum itself."""
    return (zlib.adler32(block) & 0xFFFF) - 1 if block.count(0) > _BLOCK // 2 else sum(block)


def _fields(data: bytes) -> dict[bytes, bytes] | None:
    """The fields of an extended header (pax, POSIX.1-2017), where all are of the common ones."""
    found: dict[bytes, bytes] = {}
    while data:
        digits, _, rest = data.partition(b" ")
        size = int(digits) - len(digits) - 1 if digits.isdigit() and len(digits) < 4 else 0
        name, equals, value = rest[: max(0, size)].partition(b"=")
        if name not in _PLAIN_FIELDS or not equals or value[-1:] != b"\n" or size > len(rest):
            return None
        found[name] = value[:-1]
        data = rest[size:]
    return found

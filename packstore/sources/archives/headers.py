"""Parser of common tar headers, five times as fast as :mod:`tarfile`, which parses all others."""

from __future__ import annotations

import re
import tarfile
import zlib

_BLOCK = tarfile.BLOCKSIZE
HEADER_BYTES = 3 * _BLOCK
"""Bytes that :func:`parse_common_header` takes: a header; or the header of a pax block, the block, and a header."""
_USTAR = b"ustar\x0000"
_MAGICS = (_USTAR, b"ustar  \0")
_USUAL_NUMBERS = re.compile(rb"([0-7]{11})[ \0]([0-7]{11})[ \0]([0-7]{6})[ \0]{2}")
"""Size, time of modification and checksum, in the widths that tar programs write."""
_PLAIN_FIELDS = (b"path", b"mtime", b"atime", b"ctime")


def parse_common_header(data: bytes, at: int) -> tarfile.TarInfo | None:
    """Parses the header of a file or directory in a tar. Returns None for any other header, which :mod:`tarfile` must
    parse: other types, GNU's extensions, large sizes, other pax fields, and damage.

    Args:
        data: :data:`HEADER_BYTES` from the beginning of the member, fewer at the end of the archive.
        at: Offset of ``data`` in the archive.
    """
    if data[156:157] != b"x":
        return _parse_header(data[:_BLOCK], at)
    head = _parse_numbers(data[:_BLOCK])
    fields = None if head is None or head[0] > _BLOCK else _parse_pax_fields(data[_BLOCK : _BLOCK + head[0]])
    member = None if fields is None else _parse_header(data[2 * _BLOCK : HEADER_BYTES], at + 2 * _BLOCK)
    if fields is None or member is None:
        return None
    try:
        if b"path" in fields:
            member.name = fields[b"path"].decode("utf-8").rstrip("/")
            member.pax_headers = {"path": member.name}
        if b"mtime" in fields:
            member.mtime = float(fields[b"mtime"])
    except ValueError:
        return None
    member.offset = at
    return member


def states_utf8(member: tarfile.TarInfo) -> bool:
    """Tells if the name of a member is UTF-8 for sure: a pax header has it, and does not say that it is binary."""
    pax = member.pax_headers
    return "path" in pax and pax.get("hdrcharset") != "BINARY" and not re.search("[\udc80-\udcff]", member.name)


def next_header_offset(member: tarfile.TarInfo) -> int:
    """Returns the offset of the header after a plain file or directory."""
    return member.offset_data + (-(-member.size // _BLOCK) * _BLOCK if member.isreg() else 0)


def _parse_header(block: bytes, at: int) -> tarfile.TarInfo | None:
    """Parses one header block at offset ``at``. Returns None if it is damaged, or not the header of a plain file or
    directory."""
    kind, numbers = block[156:157], _parse_numbers(block)
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


def _parse_numbers(block: bytes) -> tuple[int, int] | None:
    """Parses size and time of modification from a tar header. Returns None for a block that is too short, numbers of
    other widths, and a wrong magic or checksum."""
    if len(block) < _BLOCK or block[257:265] not in _MAGICS:
        return None
    numbers = _USUAL_NUMBERS.match(block, 124)
    if numbers is None or _sum_bytes(block) - sum(block[148:156]) + 8 * 32 != int(numbers[3], 8):
        return None
    return int(numbers[1], 8), int(numbers[2], 8)


def _sum_bytes(block: bytes) -> int:
    """Sums the bytes of a block. Adler-32 (RFC 1950) gives the sum at a tenth of the time if half of them are zeros."""
    return (zlib.adler32(block) & 0xFFFF) - 1 if block.count(0) > _BLOCK // 2 else sum(block)


def _parse_pax_fields(data: bytes) -> dict[bytes, bytes] | None:
    """Parses a pax block (POSIX.1-2017) to its fields. Returns None if it is damaged, or has a field that is not one of
    :data:`_PLAIN_FIELDS`."""
    fields: dict[bytes, bytes] = {}
    while data:
        digits, _, rest = data.partition(b" ")
        size = int(digits) - len(digits) - 1 if digits.isdigit() and len(digits) < 4 else 0
        name, equals, value = rest[: max(0, size)].partition(b"=")
        if name not in _PLAIN_FIELDS or not equals or value[-1:] != b"\n" or size > len(rest):
            return None
        fields[name] = value[:-1]
        data = rest[size:]
    return fields

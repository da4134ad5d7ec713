"""Reader of zip archives by their central directory (APPNOTE.TXT of PKWARE, 4.3.12 to 4.3.16).

The list of :mod:`zipfile` takes some 600 bytes a file, a gigabyte for ImageNet; the index here takes some 40.
"""

from __future__ import annotations

import calendar
import mmap
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from packstore.core.errors import SourceError, UsageError, printable
from packstore.sources.archives.index import NOWHERE, ArchiveIndex, IndexBuilder, Member
from packstore.sources.encodings import choose_name_encoding

END, _END64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q")
_LOCATOR, CENTRAL, LOCAL = struct.Struct("<4sLQL"), struct.Struct("<4s6H3L5H2L"), struct.Struct("<4s5H3L2H")
_MAX16, _MAX32 = 0xFFFF, 0xFFFFFFFF
_SIGNED = b"PK\x05\x05"
"""First bytes of a digital signature, which may follow the last entry of a directory."""
_ENCRYPTED, _UTF8 = 1, 1 << 11
_UNICODE_PATH = 0x7075
_LINK = 0o120000
STORED, DEFLATED = 0, 8


def is_zip(start: bytes) -> bool:
    """Tells if the first bytes of a file are those of a zip."""
    return start.startswith((b"PK\x03\x04", b"PK\x05\x06"))


def read_zip(path: Path, encoding: str | None = None) -> ArchiveIndex:
    """Builds the index of a zip from its central directory. Reads no data of files. Raises :class:`SourceError` for a
    damaged directory, encrypted files, and one part of several. Also raises it for names that are repeated, lead out of
    the zip, or have backslashes of unclear meaning. Raises :class:`AmbiguousSourceError` for names in an unknown
    encoding.

    ``encoding``: Encoding of names that are neither UTF-8 nor say theirs; None if the user has named none.
    """
    name = printable(str(path))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _build_index(data, name, encoding)
        except (SourceError, UsageError):  # a UsageError is a ValueError, too
            raise
        except (struct.error, OverflowError, ValueError) as error:
            raise SourceError(f"{name} is a damaged zip: its directory cannot be read ({error})") from None


class _Entry(NamedTuple):
    """Entry of a central directory.

    Attributes:
        system: System of the program that wrote it; 0 is MS-DOS or Windows.
        flags: General purpose bits.
        name: Its name, in an encoding that the flags or an extra field may state.
        extra: Its extra fields.
        member: The file.
    """

    system: int
    flags: int
    name: bytes
    extra: bytes
    member: Member

    def decode_stated_name(self) -> str | None:
        """Decodes the name if the entry states that it is UTF-8, or if it is ASCII. Returns None for any other name.

        A field 0x7075 (Info-ZIP's Unicode Path) states it in UTF-8, with the CRC-32 of the other name. Bytes that are
        not UTF-8 in spite of the flag become surrogates.
        """
        if self.flags & _UTF8 or self.name.isascii():
            return self.name.decode("utf-8", "surrogateescape")
        for kind, value in _iter_extra_fields(self.extra):
            if kind == _UNICODE_PATH and value[:5] == struct.pack("<BL", 1, zlib.crc32(self.name)):
                try:
                    return value[5:].decode("utf-8")
                except UnicodeDecodeError:
                    return None
        return None


def _iter_extra_fields(extra: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields kind and value of each extra field of an entry."""
    position = 0
    while position + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, position)
        yield kind, extra[position + 4 : position + 4 + size]
        position += 4 + size


def _iter_entries(data: mmap.mmap, name: str) -> Iterator[_Entry]:
    """Yields the entries of the central directory. Raises :class:`SourceError` for damage."""
    stated, most, position, end = _find_directory(data, name)
    entries = 0
    while position < end and data[position : position + 4] != _SIGNED:
        fields = CENTRAL.unpack_from(data, position)
        magic, made_by, _, flags, method, time, date, check, stored, nbytes, *lengths = fields
        name_size, extra_size, comment_size, _, _, attributes, place = lengths
        if magic != b"PK\x01\x02":
            raise SourceError(f"{name} is a damaged zip: its directory is broken at byte {position}")
        position += CENTRAL.size
        raw = data[position : position + name_size]
        extra = data[position + name_size : position + name_size + extra_size]
        position += name_size + extra_size + comment_size
        entries += 1
        nbytes, stored, place = _apply_zip64(extra, nbytes, stored, place)
        if made_by >> 8 == 3 and (attributes >> 16) & 0o170000 == _LINK:  # its content is its target
            place = NOWHERE
        member = Member(nbytes, place, stored, method, check, _convert_dos_time(date, time))
        yield _Entry(made_by >> 8, flags, raw, extra, member)
    # writers state a number that is too large for its field as the largest, or by its last bits
    if position > end or not (entries & most == stated or (stated == most and entries > most)):
        raise SourceError(f"{name} is a damaged zip: its directory holds {entries:,} entries, and counts {stated:,}")


def _build_index(data: mmap.mmap, name: str, given: str | None) -> ArchiveIndex:
    """Builds the index from the central directory, without directories. Symbolic links become files without data.

    If MS-DOS or Windows wrote an entry, and its name has no slash, its backslashes become slashes, as some programs
    write them against the format. Raises :class:`SourceError` for a damaged directory, encrypted files, and names that
    are repeated or lead out of the zip. Raises :class:`AmbiguousSourceError` for names in an unknown encoding, unless
    the user has ``given`` one.
    """
    unstated = [each.name for each in _iter_entries(data, name) if each.decode_stated_name() is None]
    encoding = choose_name_encoding(unstated, given, name) if unstated else "utf-8"
    builder = IndexBuilder(replaces=False)
    for entry in _iter_entries(data, name):
        stated = entry.decode_stated_name()
        shown = entry.name.decode(encoding) if stated is None else stated
        if entry.system == 0 and "/" not in shown:
            shown = shown.replace("\\", "/")
        if shown.endswith("/"):
            continue
        if entry.flags & _ENCRYPTED:
            raise SourceError(f"{name}: {printable(shown[:100])} is encrypted: unpack it, and give the folder")
        try:
            builder.add_file(shown, entry.member)
        except SourceError as error:
            raise SourceError(f"{name}: {error}") from None
    return builder.build(zipped=True)


def _find_directory(data: mmap.mmap, name: str) -> tuple[int, int, int, int]:
    """Finds the central directory. Returns the stated number of entries, the largest number that its field holds, and
    the offsets of the directory's beginning and end.

    Raises :class:`SourceError` if the directory is cut off or inconsistent, or the zip is one part of several."""
    at = data.rfind(b"PK\x05\x06", max(0, len(data) - END.size - _MAX16))
    if at < 0:
        raise SourceError(f"{name} is a zip that was cut off: the directory at its end is missing")
    _, disk, _, _, count, size, start, _ = END.unpack_from(data, at)
    locator = at - _LOCATOR.size
    has_zip64 = locator >= 0 and data[locator : locator + 4] == b"PK\x06\x07"
    if has_zip64:
        _, _, end64, _ = _LOCATOR.unpack_from(data, locator)
        magic, *_, disk, _, _, count, size, start = _END64.unpack_from(data, end64)
        if magic != b"PK\x06\x06":
            raise SourceError(f"{name} is a damaged zip: its zip64 directory is not where it should be")
        at = end64
    if disk:
        raise SourceError(f"{name} is one part of several: join them (zip -s 0 IN --out ONE.zip), or unpack it")
    if start + size != at:
        raise SourceError(
            f"{name} is a damaged zip: its directory should end at byte {start + size:,}, and ends at byte {at:,}; it "
            "may be joined with another file: unpack it, and give the folder"
        )
    return count, 2**64 - 1 if has_zip64 else _MAX16, start, at


def _apply_zip64(extra: bytes, nbytes: int, stored: int, place: int) -> tuple[int, int, int]:
    """Returns an entry's uncompressed size, compressed size and offset, with the values of its zip64 field. That field
    in ``extra`` has only the numbers that do not fit into 32 bits. Without the field, the numbers are returned as
    given. Raises :class:`struct.error` if the field is too short."""
    values = [nbytes, stored, place]
    for kind, field in _iter_extra_fields(extra):
        if kind == 1:
            at = 0
            for number, value in enumerate(values):
                if value == _MAX32:
                    (values[number],) = struct.unpack_from("<Q", field, at)
                    at += 8
    return values[0], values[1], values[2]


def _convert_dos_time(date: int, time: int) -> int:
    """Converts date and time of MS-DOS, taken as UTC, to nanoseconds since 1970; returns 0 if they are invalid."""
    day = (1980 + (date >> 9), date >> 5 & 15, date & 31, time >> 11, time >> 5 & 63, 2 * (time & 31))
    try:
        return calendar.timegm(day) * 10**9
    except (ValueError, OverflowError):
        return 0


def inflate(data: bytes, size: int) -> bytes:
    """Inflates deflated data, at most ``size + 1`` bytes: a longer result than ``size`` shows that there is more.
    Returns fewer bytes for data that are cut off. Raises :class:`zlib.error` for damage."""
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)

"""Reader of zip archives by their central directory (APPNOTE.TXT of PKWARE, 4.3.12 to 4.3.16).

The list of :mod:`zipfile` takes some 600 bytes a file, a gigabyte for ImageNet; the index here takes some 40.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from packstore.core.errors import SourceError, UsageError, printable
from packstore.sources.archives.index import NOWHERE, ArchiveIndex, IndexBuilder, Member
from packstore.sources.encodings import choose_name_encoding

END, _END64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q")
_LOCATOR, CENTRAL, LOCAL = struct.Struct("<4sLQL"), struct.Struct("<4s6H3L5H2L"), struct.Struct("<4s5H3L2H")
_MAX16, _MAX32 = 0xFFFF, 0xFFFFFFFF
_ENCRYPTED, _UTF8 = 1, 1 << 11
_DOS, _UNIX, _LINK = 0, 3, 0o120000
_ZIP64 = 1  # kind of the extra field with numbers of 64 bits
STORED, DEFLATED = 0, 8


def is_zip(start: bytes) -> bool:
    """Tells if the first bytes of a file are those of a zip."""
    return start.startswith((b"PK\x03\x04", b"PK\x05\x06"))


def read_zip(path: Path, encoding: str | None = None) -> ArchiveIndex:
    """Builds the index of a zip from its central directory, without directories and without reading files.

    Symbolic links become files without data. Some programs of MS-DOS or Windows write backslashes: they become slashes
    if a name has no slash.

    ``encoding``: Encoding of names that are neither UTF-8 nor say theirs; None if the user has named none.

    Raises :class:`SourceError` for a damaged directory, one part of several, a zip that is joined with another file,
    encrypted files, and names that lead out of the zip. Raises :class:`AmbiguousSourceError` for names in an unknown
    encoding.
    """
    name = printable(str(path))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            unstated = [raw for raw, flags, *_ in _iter_entries(data) if not flags & _UTF8]
            chosen = choose_name_encoding(unstated, encoding, name) if unstated else "utf-8"
            builder = IndexBuilder()
            for raw, flags, system, member in _iter_entries(data):
                shown = raw.decode("utf-8", "surrogateescape") if flags & _UTF8 else raw.decode(chosen)
                if system == _DOS and "/" not in shown:
                    shown = shown.replace("\\", "/")
                if shown.endswith("/"):
                    continue
                if flags & _ENCRYPTED:
                    raise SourceError(f"{name}: {printable(shown[:100])} is encrypted: unpack it, and give the folder")
                try:
                    builder.add_file(shown, member)
                except SourceError as error:
                    raise SourceError(f"{name}: {error}") from None
        except (SourceError, UsageError):  # a UsageError is a ValueError, too
            raise
        except (struct.error, OverflowError, ValueError) as error:
            raise SourceError(
                f"{name} is no whole zip, but damaged, cut off, one part of several, or joined with another file "
                f"({error}): unpack it, and give the folder"
            ) from None
    return builder.build(zipped=True)


def _iter_entries(data: mmap.mmap) -> Iterator[tuple[bytes, int, int, Member]]:
    """Yields name, flags, system and member of each entry in the central directory."""
    stated, position, end = _find_directory(data)
    entries = 0
    while position < end:
        fields = CENTRAL.unpack_from(data, position)
        magic, made_by, _, flags, method, _, _, check, stored, nbytes, *lengths = fields
        name_size, extra_size, comment_size, _, _, attributes, place = lengths
        if magic != b"PK\x01\x02":
            raise ValueError(f"its directory is broken at byte {position}")
        position += CENTRAL.size
        name = data[position : position + name_size]
        extra = data[position + name_size : position + name_size + extra_size]
        position += name_size + extra_size + comment_size
        entries += 1
        nbytes, stored, place = _apply_zip64(extra, [nbytes, stored, place])
        if made_by >> 8 == _UNIX and (attributes >> 16) & 0o170000 == _LINK:  # its content is its target
            place = NOWHERE
        member = Member(nbytes, place, stored, method, check)
        # Names in ASCII are UTF-8, whatever the flag says. System 0 is MS-DOS or Windows.
        yield name, flags | _UTF8 if name.isascii() else flags, made_by >> 8, member
    # some programs know no zip64, and state the last 16 bits of a larger number
    if position > end or (entries - stated) % (_MAX16 + 1):
        raise ValueError(f"its directory holds {entries:,} entries, and counts {stated:,}")


def _find_directory(data: mmap.mmap) -> tuple[int, int, int]:
    """Returns the stated number of entries of the central directory, and the offsets of its beginning and end."""
    at = data.rfind(b"PK\x05\x06", max(0, len(data) - END.size - _MAX16))
    if at < 0:
        raise ValueError("the directory at its end is missing")
    _, disk, _, _, count, size, start, _ = END.unpack_from(data, at)
    locator = at - _LOCATOR.size
    if locator >= 0 and data[locator : locator + 4] == b"PK\x06\x07":
        _, _, at, _ = _LOCATOR.unpack_from(data, locator)
        magic, *_, disk, _, _, count, size, start = _END64.unpack_from(data, at)
        if magic != b"PK\x06\x06":
            raise ValueError("its zip64 directory is not where it should be")
    if disk or start + size != at:
        raise ValueError(f"its directory should end at byte {start + size:,}, and ends at byte {at:,}")
    return count, start, at


def _apply_zip64(extra: bytes, values: list[int]) -> list[int]:
    """Returns an entry's uncompressed size, compressed size and offset, with the values of its zip64 field."""
    position = 0
    while _MAX32 in values and position + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, position)
        if kind == _ZIP64:
            # The field only has the numbers that do not fit into 32 bits.
            numbers = iter(struct.unpack_from(f"<{values.count(_MAX32)}Q", extra[: position + 4 + size], position + 4))
            return [next(numbers) if value == _MAX32 else value for value in values]
        position += 4 + size
    return values


def inflate(data: bytes, size: int) -> bytes:
    """Inflates deflated data, at most ``size + 1`` bytes: a longer result than ``size`` shows that there is more.
    Returns fewer bytes for data that are cut off. Raises :class:`zlib.error` for damage."""
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)

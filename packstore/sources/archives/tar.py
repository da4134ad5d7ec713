"""Reader of tar archives (POSIX.1-2017, pax; GNU): parses common headers, and leaves all others to :mod:`tarfile`.

A tar within a tar is a folder of the same name.

ImageNet's ``ILSVRC2012_img_train.tar`` contains a thousand tars, one a class.
"""

from __future__ import annotations

import bz2
import importlib
import lzma
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Generator, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from packstore.core.errors import SourceError, printable
from packstore.core.export_manifest import MANIFEST_FILE
from packstore.core.files import beyond_standard_streams
from packstore.core.progress import Progress, active_progress
from packstore.images.engine import scan_tar
from packstore.sources.archives.index import (
    NOWHERE,
    ArchiveIndex,
    IndexBuilder,
    Member,
    OpenFile,
    normalise_member_name,
)
from packstore.sources.encodings import decode_names
from packstore.sources.inflating import ZLIB, InflatedFile

_MAX_EMPTY_READS = 64
_BLOCK = tarfile.BLOCKSIZE
HEADER_BYTES = 3 * _BLOCK
"""Bytes that :func:`parse_common_header` takes: a header; or the header of a pax block, the block, and a header."""
_USTAR = b"ustar\x0000"
_MAGICS = (_USTAR, b"ustar  \0")
_USUAL_NUMBERS = re.compile(rb"([0-7]{11})[ \0]([0-7]{11})[ \0]([0-7]{6})[ \0]{2}")
"""Size, time of modification and checksum, in the widths that tar programs write."""
_PLAIN_FIELDS = (b"path", b"mtime", b"atime", b"ctime")
_FEW, _PAUSE = 16, 64  # files found by one call; headers until the next
ZSTANDARD = b"\x28\xb5\x2f\xfd"
_MAGIC = {b"\x1f\x8b\x08": "gz", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", ZSTANDARD: "zst"}
"""First bytes of compressed files (RFC 1952; bzip2; xz 1.2; RFC 8878)."""
_STEP = 1 << 20
_ROOM = 1 << 28
"""Bytes to leave free on the disk of temporary files."""
_BOMB_BYTES, _BOMB_RATIO = 1 << 30, 200
"""A tar that exceeds both limits when it is decompressed (bytes; ratio to the compressed size) is refused: images do
not compress so well."""
TAR_FAULTS = (
    *(tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError, ValueError),
    *(OverflowError, MemoryError, RecursionError),  # impossible numbers in headers
)
"""Errors from reading damaged tars."""


def is_tar(start: bytes) -> bool:
    """Tells if a file may be a tar: its first bytes have the magic of a tar header, or of a compression."""
    return start[257:262] == b"ustar" or _match_compression(start) is not None


class OpenTar:
    """Open tar, whose files any thread reads by offset. Opening decompresses a compressed tar into a temporary file,
    and raises :class:`SourceError` if that fails."""

    def __init__(self, path: Path) -> None:
        """Opens a tar; decompresses a compressed one into a temporary file. Raises :class:`SourceError` for a
        compressed tar that is damaged, and :class:`OSError` if the file is missing."""
        kind = detect_compression(path)
        self.compressed = kind is not None
        if kind is None:
            with beyond_standard_streams():
                self.file = OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            return
        with decompress_to_temporary(path, kind, printable(str(path))) as content:
            self.file = OpenFile(os.dup(content.fileno()))

    def walk_members(self) -> Iterator[tarfile.TarInfo]:
        """Yields all members in order, without those of tars in the tar. Raises one of :data:`TAR_FAULTS` if the tar is
        damaged."""
        with os.fdopen(os.dup(self.file.descriptor), "rb") as file:
            yield from _read_members(file)

    def read(self, place: int, size: int) -> bytes:
        """Reads ``size`` bytes from offset ``place`` on. Raises :class:`ValueError` if there are fewer."""
        data = self.file.read(size, place)
        if len(data) != size:
            raise ValueError(f"the tar ends {size - len(data)} bytes before the file does")
        return data


def read_first_names(path: Path, count: int) -> list[str]:
    """Returns the names of the first ``count`` plain files of a tar, or fewer if it has fewer. Decompresses no more
    than these. Raises one of :data:`TAR_FAULTS` if the tar is damaged before the last of these names. Raises
    :class:`SourceError` if the library for Zstandard is missing."""
    kind = detect_compression(path)
    with path.open("rb") as file:
        # a stream has to read the data between headers, too
        members = (
            _read_members(file)
            if kind is None
            else _stream_members(open_decompressor(file, kind, printable(str(path))))
        )
        return list(islice((member.name for member in members if member.isreg()), count))


def _stream_members(stream: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """Yields the members of a tar that is read as a stream, without seeking. Raises one of :data:`TAR_FAULTS` for
    damage."""
    ended = _EndedStream(stream)
    with tarfile.open(fileobj=ended, mode="r|", errorlevel=2, encoding="utf-8", errors="surrogateescape") as archive:  # type: ignore[call-overload]
        yield from archive


class _EndedStream:
    """Stream of which :mod:`tarfile` may not read on and on behind its end, to skip a member of an impossible size."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._empty_reads = stream, 0

    def read(self, size: int) -> bytes:
        """Reads the next bytes. Raises :class:`EOFError` at the 64th read behind the end."""
        data = self._stream.read(size)
        self._empty_reads += not data
        if self._empty_reads >= _MAX_EMPTY_READS:
            raise EOFError("a member is longer than the tar")
        return data


def read_tar(path: Path, encoding: str | None = None) -> ArchiveIndex:
    """Builds the index of a tar. A tar in it becomes a folder; tars in the inner one stay files. Raises
    :class:`SourceError` for a damaged tar, and if it cannot be decompressed into a temporary file. Also raises it for
    paths that lead out of the tar, and for two spellings of one path.

    ``encoding``: Encoding of names that are not UTF-8. If it is None, such names raise :class:`AmbiguousSourceError`.
    In exports of packstore, their bytes stay.
    """
    name, builder, tar, inner = printable(str(path)), IndexBuilder(), OpenTar(path), set[str]()
    try:
        with os.fdopen(os.dup(tar.file.descriptor), "rb") as file:
            for member in _read_members(file, take=_PlainFiles(builder, file.fileno(), may_be_tars=True)):
                _add_member(builder, file, member, inner=inner)
    except TAR_FAULTS as error:
        raise SourceError(f"{name} is not a readable tar, or is damaged: {printable(str(error))}") from None
    except SourceError as error:
        raise SourceError(f"{name}: {error}") from None
    exported = builder.has_file(MANIFEST_FILE)
    decode = None if exported else partial(decode_names, given=encoding, shown=name)
    return builder.build(tar.file if tar.compressed else None, decode=decode)


def detect_compression(path: Path) -> str | None:
    """Detects the compression of a file by its first bytes: ``gz``, ``bz2``, ``xz`` or ``zst``; None if there is
    none."""
    with path.open("rb") as file:
        return _match_compression(file.read(8))


def _match_compression(start: bytes) -> str | None:
    """Returns the compression whose magic number ``start`` has, or None."""
    return next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), None)


class _PlainFiles:
    """Adds runs of plain files to an index, thousands by one call of the engine. A call takes the offset of a header,
    and returns the offset of the next header that is not added.

    With ``may_be_tars``, a run with a ``.tar`` among its files is not added.
    """

    def __init__(self, builder: IndexBuilder, descriptor: int, folder: str = "", *, may_be_tars: bool = False) -> None:
        self._builder = builder
        self._descriptor = descriptor
        self._folder = folder
        self._may_be_tars = may_be_tars
        self._pause = 0

    def __call__(self, at: int, end: int) -> int:
        """Adds the files from the header at offset ``at`` on; returns the offset of the next header, which is not
        added. :func:`_add_member` must add that member. After a run of few files, or one that is refused, the next
        calls do nothing."""
        self._pause -= 1
        while self._pause < 0:
            names, facts = scan_tar(self._descriptor, at, end)
            if len(names) < _FEW:
                self._pause = _PAUSE
                break
            places, sizes, times = facts.T
            members = np.zeros((len(names), len(Member._fields)), np.int64)
            members[:, 0], members[:, 1], members[:, 2], members[:, 5] = sizes, places, sizes, times * 10**9
            tars = self._may_be_tars and any(name.endswith(b".tar") for name in names)
            if tars or not self._builder.add_plain_files(names, members, self._folder):
                self._pause = len(names)
                break
            at = int(places[-1] + -(-sizes[-1] // _BLOCK) * _BLOCK)
        return at


def _read_members(
    file: IO[bytes], start: int = 0, end: int | None = None, take: _PlainFiles | None = None
) -> Iterator[tarfile.TarInfo]:
    """Yields the members of all tars that follow one another between two offsets of a file. Members that ``take`` adds
    are not yielded. Raises one of :data:`TAR_FAULTS` for damage."""
    end = os.fstat(file.fileno()).st_size if end is None else end
    at: int | None = start
    while at is not None:
        at = _find_next_tar(file, (yield from _read_one_tar(file, at, end, take)), end)


def _read_one_tar(
    file: IO[bytes], start: int, end: int, take: _PlainFiles | None
) -> Generator[tarfile.TarInfo, None, int]:
    """Yields the members up to the first block of zeros, and returns the offset of that block. Members that ``take``
    adds are not yielded. Raises one of :data:`TAR_FAULTS` for damage."""
    file.seek(start)
    with tarfile.open(fileobj=file, mode="r:", errorlevel=2, encoding="utf-8", errors="surrogateescape") as archive:
        descriptor = file.fileno()
        member = archive.next()
        while member is not None:
            archive.members = []  # type: ignore[attr-defined] # else tarfile keeps all of them
            yield member
            # global pax headers apply to all later members; tarfile takes them into account
            usual = archive.pax_headers.keys() <= {"comment"}
            if usual and take is not None:
                archive.offset = take(archive.offset, end)
            if archive.offset >= end:
                break  # the rest is not part of this tar
            member = (
                parse_common_header(os.pread(descriptor, HEADER_BYTES, archive.offset), archive.offset)
                if usual
                else None
            )
            if member is None:
                member = archive.next()
            else:
                archive.offset = next_header_offset(member)
        _check_tar_end(file, archive.offset, end)
        return int(archive.offset)


def _check_tar_end(file: IO[bytes], at: int, end: int) -> None:
    """Checks that a tar ends with a block of zeros at offset ``at``. :mod:`tarfile` takes any broken header as the end.
    Raises :class:`tarfile.ReadError` for another block, and for a tar that is cut off."""
    file.seek(at)
    block = file.read(_BLOCK)
    if len(block) < _BLOCK or at + _BLOCK > end:
        raise tarfile.ReadError("it is cut off")
    if any(block):
        raise tarfile.ReadError(f"the header at byte {at} is broken")


def _find_next_tar(file: IO[bytes], at: int, end: int) -> int | None:
    """Skips zeros from offset ``at`` on; returns the offset of the next tar, joined by ``cat``. Returns None if there
    are only zeros up to ``end``. Raises :class:`tarfile.ReadError` if other data follow."""
    file.seek(at)
    zeros = bytes(min(_STEP, max(0, end - at)))
    while piece := file.read(max(0, min(_STEP, end - at))):
        if piece == zeros or piece == zeros[: len(piece)]:  # 100 times as fast as stripping it
            at += len(piece)
            continue
        rest = piece.lstrip(b"\0")
        at = (at + len(piece) - len(rest)) // _BLOCK * _BLOCK
        file.seek(at)
        try:
            tarfile.TarInfo.frombuf(file.read(_BLOCK), "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            raise tarfile.ReadError(
                f"the data behind its end, at byte {at}, are no tar: unpack it with tar --ignore-zeros, give the folder"
            ) from None
        return at
    return None


def _add_member(
    builder: IndexBuilder, file: IO[bytes], member: tarfile.TarInfo, folder: str = "", *, inner: set[str] | None = None
) -> None:
    """Adds a member to the index. Directories add nothing; sparse files, pipes and devices become files without data.
    Raises :class:`SourceError` for a path that leads out of the archive or has two spellings. For a tar, also raises as
    :func:`_add_inner_tar` does.

    Args:
        builder: Index to add to.
        file: The tar; its position is unchanged.
        member: The member.
        folder: Folder for the members of an inner tar, with a slash.
        inner: Names of the inner tars so far, for :func:`_add_inner_tar`; None within an inner tar, whose tars are
            plain files.
    """
    name = member.name
    modified = int(member.mtime * 10**9) if 0 <= member.mtime < 2**33 else 0
    if member.issparse():
        builder.add_file(name, Member(0, NOWHERE, 0), folder)
    elif member.isreg() and inner is not None and name.endswith(".tar"):
        _add_inner_tar(builder, file, member, inner)
    elif member.isreg():
        data = Member(member.size, member.offset_data, member.size, modified_ns=modified)
        builder.add_file(name, data, folder, stated=states_utf8(member))
    elif member.islnk():
        builder.add_hard_link(name, member.linkname, folder)
    elif member.issym():
        builder.add_symbolic_link(name, member.linkname, folder)
    elif not member.isdir():
        builder.add_file(name, Member(0, NOWHERE, 0), folder)  # a pipe, a device


def _add_inner_tar(builder: IndexBuilder, file: IO[bytes], member: tarfile.TarInfo, inner: set[str]) -> None:
    """Adds the members of a tar within the tar, in a folder of its name. Adds the name to ``inner``. The position of
    ``file`` is unchanged.

    Raises :class:`SourceError` for two tars of one name, and for paths that :func:`_add_member` refuses. Raises one of
    :data:`TAR_FAULTS` if the inner tar is damaged.
    """
    plain = normalise_member_name(member.name[:-4])
    if plain is None or plain.decode("utf-8", "surrogateescape") in inner:
        raise SourceError(f"{printable(member.name)} is there twice, or leads out of the archive: unpack it")
    inside = plain.decode("utf-8", "surrogateescape")
    inner.add(inside)
    position = file.tell()
    take = _PlainFiles(builder, file.fileno(), f"{inside}/")
    for each in _read_members(file, member.offset_data, member.offset_data + member.size, take):
        _add_member(builder, file, each, f"{inside}/")
    file.seek(position)


def decompress_to_temporary(path: Path, kind: str, name: str) -> IO[bytes]:
    """Decompresses a file into a temporary file without a name, and returns the temporary file. ``name`` is for
    messages. Reports its progress to :func:`active_progress`.

    Raises :class:`SourceError`:

    - for a damaged file
    - if its content is over 1 GiB, and over 200 times its size
    - if less than 256 MiB are free on the disk; checked after each 256 MiB
    - if the library for Zstandard is missing
    """

    size, report = path.stat().st_size, active_progress()

    def pieces() -> Iterator[bytes]:
        done = 0
        with path.open("rb") as file, open_decompressor(file, kind, name) as stream:
            while data := stream.read(_STEP):
                yield data
                done += len(data)
                report(Progress("unpack", file.tell(), size, done, "B"))

    return write_temporary(pieces(), size, name)


def write_temporary(pieces: Iterator[bytes], compressed: int, name: str) -> IO[bytes]:
    """Writes decompressed pieces to a temporary file without a name, and returns the temporary file.

    ``compressed`` is the compressed size in bytes. Raises :class:`SourceError` for damage, and if the content is over 1
    GiB and over 200 times ``compressed``. Also raises it if writing fails. Checks after each 256 MiB that 256 MiB are
    free, and else raises it as well.
    """
    folder = tempfile.gettempdir()
    with beyond_standard_streams():
        file = cast("IO[bytes]", tempfile.TemporaryFile(dir=folder))  # noqa: SIM115 - the index keeps it open
    total = 0
    try:
        for data in pieces:
            before, total = total, total + len(data)
            if total > _BOMB_BYTES and total > _BOMB_RATIO * compressed:
                raise SourceError(f"{name} is refused: it decompresses to more than {_BOMB_RATIO} times its size")
            if before // _ROOM != total // _ROOM and shutil.disk_usage(folder).free < _ROOM:
                raise OSError(28, os.strerror(28))
            file.write(data)
        file.flush()
    except OSError as error:
        file.close()
        if error.errno is None:  # gzip raises it for damage
            raise SourceError(f"{name} is damaged: {printable(str(error))}") from None
        raise SourceError(
            f"{name} is decompressed into {printable(folder)}, and after {total / 1e6:,.0f} MB: "
            f"{error.strerror}; name a folder with more room in the environment variable TMPDIR, or unpack the archive"
        ) from None
    except BaseException as error:
        file.close()
        if isinstance(error, (*TAR_FAULTS, _zstandard_error())):
            raise SourceError(f"{name} is damaged: {printable(str(error))}") from None
        raise
    return file


def open_decompressor(file: IO[bytes], kind: str, name: str) -> Any:
    """Opens a stream of the decompressed content of a file with the compression ``kind``: ``gz``, ``bz2``, ``xz``,
    ``zlib`` or ``zst``. Raises :class:`SourceError` if the library for Zstandard is not installed."""
    if kind == "gz":
        return InflatedFile(file)
    if kind == "bz2":
        return bz2.BZ2File(file)
    if kind == "xz":
        return lzma.LZMAFile(file)
    if kind == "zlib":
        return InflatedFile(file, ZLIB)
    return load_zstandard(name).ZstdDecompressor().stream_reader(file, read_across_frames=True)


def load_zstandard(name: str) -> Any:
    """Imports ``zstandard``. Raises :class:`SourceError`, with the ``name`` of the file, if it is not installed."""
    try:
        return importlib.import_module("zstandard")
    except ImportError:
        raise SourceError(
            f"{name} is compressed by Zstandard: pip install 'packstore[zstd]', or decompress it (zstd -d)"
        ) from None


def _zstandard_error() -> type[BaseException]:
    """Returns the error class of ``zstandard``; ``EOFError`` if that is not installed."""
    try:
        error: type[BaseException] = importlib.import_module("zstandard").ZstdError
    except ImportError:
        return EOFError
    return error


def parse_common_header(data: bytes, at: int) -> tarfile.TarInfo | None:
    """Parses the header of a file or directory in a tar, in a fifth of the time of :mod:`tarfile`.

    Returns None for any other header, which :mod:`tarfile` must parse: other types, GNU's extensions, large sizes,
    other pax fields, and damage.

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

"""Tar archives (POSIX.1-2017, pax; GNU), by :mod:`tarfile`; tars in a tar are the folders of their names.

ImageNet's ``ILSVRC2012_img_train.tar`` is one tar of a thousand, one a class.
"""

from __future__ import annotations

import bz2
import importlib
import lzma
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

from packstore.core.errors import SourceError, printable
from packstore.core.files import beyond_standard_streams
from packstore.sources.archives.headers import LOOK_BYTES, next_header, usual_member
from packstore.sources.archives.index import NOWHERE, Index, IndexBuilder, Member, OpenFile, plain_name
from packstore.sources.inflating import ZLIB, InflatedFile

ZSTANDARD = b"\x28\xb5\x2f\xfd"
_MAGIC = {b"\x1f\x8b\x08": "gz", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", ZSTANDARD: "zst"}
"""First bytes of compressed files (RFC 1952; bzip2; xz 1.2; RFC 8878)."""
_STEP = 1 << 20
_ROOM = 1 << 28
"""Bytes that stay free in the folder for temporary files."""
_BOMB_BYTES, _BOMB_RATIO = 1 << 30, 200
"""A tar that becomes larger than this, and so many times as large as it is compressed, holds no images."""
TAR_FAULTS = (
    *(tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError, ValueError),
    *(OverflowError, MemoryError, RecursionError),  # numbers in headers that nothing can have
)
"""What damaged tars raise."""


def is_tar(start: bytes) -> bool:
    """Whether a file that begins like this may be a tar: by the magic of its first header, or by its compression."""
    return start[257:262] == b"ustar" or _compression(start) is not None


class OpenTar:
    """A tar whose files are read by their places, from any thread. A compressed one is decompressed first."""

    def __init__(self, path: Path) -> None:
        """Raises :class:`SourceError` for a compressed tar that is damaged, :class:`OSError` for one that is gone."""
        kind = compression_of(path)
        self.compressed = kind is not None
        if kind is None:
            with beyond_standard_streams():
                self.file = OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            return
        with decompressed(path, kind, printable(str(path))) as spooled:
            self.file = OpenFile(os.dup(spooled.fileno()))

    def members(self) -> Iterator[tarfile.TarInfo]:
        """All members in order. Raises one of :data:`TAR_FAULTS` where the tar is damaged."""
        with os.fdopen(os.dup(self.file.descriptor), "rb") as file:
            yield from _members(file)

    def read(self, place: int, size: int) -> bytes:
        """``size`` bytes from ``place`` on. Raises :class:`ValueError` where there are fewer."""
        data = self.file.read(size, place)
        if len(data) != size:
            raise ValueError(f"the tar ends {size - len(data)} bytes before the file does")
        return data


def first_names(path: Path, count: int) -> list[str]:
    """The names of the first ``count`` files of a tar, without decompressing more of it than these."""
    kind = compression_of(path)
    with path.open("rb") as file:
        # A stream reads what lies between, too.
        members = _members(file) if kind is None else _streamed(decompressor(file, kind, printable(str(path))))
        return list(islice((member.name for member in members if member.isreg()), count))


def _streamed(stream: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    with tarfile.open(fileobj=stream, mode="r|", errorlevel=2, encoding="utf-8", errors="surrogateescape") as archive:
        yield from archive


def read_tar(path: Path) -> Index:
    """The index of a tar. Raises :class:`SourceError`."""
    name, builder, tar, inner = printable(str(path)), IndexBuilder(), OpenTar(path), set[str]()
    try:
        with os.fdopen(os.dup(tar.file.descriptor), "rb") as file:
            for member in _members(file):
                _add(builder, file, member, inner=inner)
    except TAR_FAULTS as error:
        raise SourceError(f"{name} is no tar that can be read, or it is damaged: {printable(str(error))}") from None
    except SourceError as error:
        raise SourceError(f"{name}: {error}") from None
    return builder.index(tar.file if tar.compressed else None)


def compression_of(path: Path) -> str | None:
    """How a file is compressed, by its first bytes; None where it is not."""
    with path.open("rb") as file:
        return _compression(file.read(8))


def _compression(start: bytes) -> str | None:
    return next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), None)


def _members(file: IO[bytes], start: int = 0, end: int | None = None) -> Iterator[tarfile.TarInfo]:
    """The members of all tars between two bytes of a file, as ``tarfile.open(…, ignore_zeros=True)`` reads them."""
    end = os.fstat(file.fileno()).st_size if end is None else end
    at: int | None = start
    while at is not None:
        at = _next_tar(file, (yield from _members_of_one(file, at, end)), end)


def _members_of_one(file: IO[bytes], start: int, end: int) -> Generator[tarfile.TarInfo, None, int]:
    """The members up to the first block of zeros, and where that is."""
    file.seek(start)
    with tarfile.open(fileobj=file, mode="r:", errorlevel=2, encoding="utf-8", errors="surrogateescape") as archive:
        descriptor = file.fileno()
        member = archive.next()
        while member is not None:
            archive.members = []  # type: ignore[attr-defined] # it would keep them all
            yield member
            if archive.offset >= end:
                break  # what follows is no part of it
            # What says something of all members after it: tarfile knows of it.
            usual = archive.pax_headers.keys() <= {"comment"}
            member = usual_member(os.pread(descriptor, LOOK_BYTES, archive.offset), archive.offset) if usual else None
            if member is None:
                member = archive.next()
            else:
                archive.offset = next_header(member)
        _refuse_cut(file, archive.offset, end)
        return int(archive.offset)


def _refuse_cut(file: IO[bytes], at: int, end: int) -> None:
    """Raises :class:`tarfile.ReadError` unless a block of zeros is where the archive ends: :mod:`tarfile` takes any
    header that is cut off or damaged for the end."""
    file.seek(at)
    block = file.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE or at + tarfile.BLOCKSIZE > end:
        raise tarfile.ReadError("it is cut off")
    if any(block):
        raise tarfile.ReadError(f"the header at byte {at} is broken")


def _next_tar(file: IO[bytes], at: int, end: int) -> int | None:
    """Where the next tar begins behind the zeros from byte ``at`` on, as ``cat`` joins them; None where the file ends.

    Raises :class:`tarfile.ReadError` where something else than a tar is there."""
    file.seek(at)
    zeros = bytes(min(_STEP, max(0, end - at)))
    while piece := file.read(max(0, min(_STEP, end - at))):
        if piece == zeros or piece == zeros[: len(piece)]:  # 100 times as fast as stripping it
            at += len(piece)
            continue
        rest = piece.lstrip(b"\0")
        at = (at + len(piece) - len(rest)) // tarfile.BLOCKSIZE * tarfile.BLOCKSIZE
        file.seek(at)
        try:
            tarfile.TarInfo.frombuf(file.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            raise tarfile.ReadError(
                f"what lies behind its end, at byte {at}, is no tar: unpack it with tar --ignore-zeros, give the folder"
            ) from None
        return at
    return None


def _add(
    builder: IndexBuilder, file: IO[bytes], member: tarfile.TarInfo, folder: str = "", *, inner: set[str] | None = None
) -> None:
    """Adds a member of a tar, or of the tar in it whose files lie in ``folder``. ``inner`` gathers these folders."""
    name = member.name
    modified = int(member.mtime * 10**9) if 0 <= member.mtime < 2**33 else 0
    if member.issparse():
        builder.add(name, Member(0, NOWHERE, 0), folder)
    elif member.isreg() and inner is not None and name.endswith(".tar"):
        plain = plain_name(name[:-4])
        if plain is None or plain.decode("utf-8", "surrogateescape") in inner:
            raise SourceError(f"{printable(name)} is there twice, or leads out of the archive: unpack it")
        inside = plain.decode("utf-8", "surrogateescape")
        inner.add(inside)
        position = file.tell()
        for each in _members(file, member.offset_data, member.offset_data + member.size):
            _add(builder, file, each, f"{inside}/")
        file.seek(position)
    elif member.isreg():
        builder.add(name, Member(member.size, member.offset_data, member.size, modified_ns=modified), folder)
    elif member.islnk():
        builder.hard_link(name, member.linkname, folder)
    elif member.issym():
        builder.symbolic_link(name, member.linkname, folder)
    elif not member.isdir():
        builder.add(name, Member(0, NOWHERE, 0), folder)  # a pipe, a device


def decompressed(path: Path, kind: str, name: str) -> IO[bytes]:
    """The content of a compressed file, in a temporary file without a name; ``name`` is its own in messages.

    Raises :class:`SourceError` for a damaged one, one that is much larger decompressed than it should be, and where
    there is no room for it."""

    def pieces() -> Iterator[bytes]:
        with path.open("rb") as file, decompressor(file, kind, name) as stream:
            while data := stream.read(_STEP):
                yield data

    return spooled(pieces(), path.stat().st_size, name)


def spooled(pieces: Iterator[bytes], compressed: int, name: str) -> IO[bytes]:
    """Likewise, of what is decompressed piece by piece, of so many bytes."""
    folder = tempfile.gettempdir()
    with beyond_standard_streams():
        file = cast("IO[bytes]", tempfile.TemporaryFile(dir=folder))  # noqa: SIM115 - the index keeps it open
    total = 0
    try:
        for data in pieces:
            before, total = total, total + len(data)
            if total > _BOMB_BYTES and total > _BOMB_RATIO * compressed:
                raise SourceError(f"{name} is {_BOMB_RATIO} times as large when it is decompressed: it is refused")
            if before // _ROOM != total // _ROOM and shutil.disk_usage(folder).free < _ROOM:
                raise OSError(28, os.strerror(28))
            file.write(data)
        file.flush()
    except OSError as error:
        file.close()
        if error.errno is None:  # what gzip raises for damage
            raise SourceError(f"{name} is damaged: {printable(str(error))}") from None
        raise SourceError(
            f"{name} is decompressed into {printable(folder)}, and after {total / 1e6:,.0f} MB: "
            f"{error.strerror}; name a folder with more room in the environment variable TMPDIR, or unpack the archive"
        ) from None
    except BaseException as error:
        file.close()
        if isinstance(error, (*TAR_FAULTS, _zstd_error())):
            raise SourceError(f"{name} is damaged: {printable(str(error))}") from None
        raise
    return file


def decompressor(file: IO[bytes], kind: str, name: str) -> Any:
    """A stream of what a file holds that is compressed as ``kind`` says."""
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
    """The library that decompresses a file. Raises :class:`SourceError` where it is not installed."""
    try:
        return importlib.import_module("zstandard")
    except ImportError:
        raise SourceError(
            f"{name} is compressed by Zstandard: pip install 'packstore[zstd]', or decompress it (zstd -d)"
        ) from None


def _zstd_error() -> type[BaseException]:
    try:
        error: type[BaseException] = importlib.import_module("zstandard").ZstdError
    except ImportError:
        return EOFError
    return error

"""Reader of tar archives (POSIX.1-2017, pax; GNU): the engine reads common headers, and :mod:`tarfile` all others.

A tar within a tar is a folder of the same name: ImageNet's ``ILSVRC2012_img_train.tar`` contains a thousand tars, one a
class.
"""

from __future__ import annotations

import bz2
import importlib
import io
import lzma
import os
import re
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import SourceError, error_line, printable
from packstore.core.files import beyond_standard_streams
from packstore.core.progress import Progress, active_progress
from packstore.images.engine import scan_tar
from packstore.sources.archives.index import NOWHERE, ArchiveIndex, IndexBuilder, Member, OpenFile
from packstore.sources.encodings import decode_names
from packstore.sources.inflating import ZLIB, InflatedFile
from packstore.stores.export_manifest import MANIFEST_FILE

_BLOCK = tarfile.BLOCKSIZE
ZSTANDARD = b"\x28\xb5\x2f\xfd"
# First bytes of compressed files (RFC 1952; bzip2; xz 1.2; RFC 8878).
_MAGIC = {b"\x1f\x8b\x08": "gz", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", ZSTANDARD: "zst"}
_STEP = 1 << 20
# Decompressed bytes in which the first names of a tar are searched.
_FIRST_BYTES = 32 << 20
# A tar that exceeds both limits when it is decompressed (bytes; ratio to the compressed size) is refused: images do not
# compress so well.
_BOMB_BYTES, _BOMB_RATIO = 1 << 30, 200
# Errors from reading damaged tars.
TAR_FAULTS = (
    *(tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError, ValueError),
    *(OverflowError, MemoryError, RecursionError),  # impossible numbers in headers
)

_NAMES: Any = {"encoding": "utf-8", "errors": "surrogateescape"}

# Takes a run of members from :func:`scan_tar`, or returns False.
_TakeRun = Callable[[Sequence[bytes], NDArray[np.int64]], bool]


def is_tar(start: bytes) -> bool:
    """Tells by its first bytes if a file may be a tar, plain or compressed."""
    return start[257:262] == b"ustar" or start.startswith(tuple(_MAGIC))


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
    """Returns the names of the first ``count`` plain files of a tar, fewer if it is short or damaged. Looks at the
    first 32 MiB of a compressed tar. Raises :class:`SourceError` if the library for Zstandard is missing.
    """
    kind, names = detect_compression(path), list[str]()
    with path.open("rb") as file:
        try:
            content: Any = file
            if kind is not None:
                stream = open_decompressor(file, kind, printable(str(path)))
                content = io.BytesIO(stream.read(min(count * _STEP, _FIRST_BYTES)))
            with tarfile.open(fileobj=content, mode="r:", **_NAMES) as archive:
                while len(names) < count and (member := archive.next()) is not None:
                    names += [member.name] * member.isreg()
                    archive.members = []  # type: ignore[attr-defined] # else tarfile keeps all of them
        except SourceError:
            raise
        except Exception:  # damage, or the end of what was decompressed; each library has errors of its own
            return names
    return names


def read_tar(path: Path, encoding: str | None = None) -> ArchiveIndex:
    """Builds the index of a tar. A tar in it becomes a folder; tars in the inner one stay files.

    ``encoding``: Encoding of names that are not UTF-8. If it is None, such names raise :class:`AmbiguousSourceError`;
    in exports of packstore, their bytes stay.

    Raises :class:`SourceError` for a damaged tar, for paths that lead out of it, and if it cannot be decompressed into
    a temporary file.
    """
    name, builder, tar = printable(str(path)), IndexBuilder(), OpenTar(path)
    try:
        with os.fdopen(os.dup(tar.file.descriptor), "rb") as file:
            inner: set[str] = set()
            for member in _read_members(file, take=partial(builder.add_run, except_for=b".tar")):
                if not (member.isreg() and member.name.endswith(".tar")):
                    _add_member(builder, member)
                    continue
                folder = f"{member.name[:-4]}/"
                if folder in inner:
                    raise SourceError(f"{printable(member.name)} is there twice: unpack it, and give the folder")
                inner.add(folder)
                position, start = file.tell(), member.offset_data
                take = partial(builder.add_run, folder=folder)
                for each in _read_members(file, start, start + member.size, take):
                    _add_member(builder, each, folder)
                file.seek(position)
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
        start = file.read(8)
    return next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), None)


def _read_members(
    file: IO[bytes], start: int = 0, end: int | None = None, take: _TakeRun | None = None
) -> Iterator[tarfile.TarInfo]:
    """Yields the members of all tars between two offsets of a file, except those that ``take`` takes."""
    end = os.fstat(file.fileno()).st_size if end is None else end
    while True:
        file.seek(start)
        with tarfile.open(fileobj=file, mode="r:", errorlevel=2, **_NAMES) as archive:
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined] # else tarfile keeps all of them
                yield member
                # global pax headers apply to all later members; tarfile takes them into account
                while archive.pax_headers.keys() <= {"comment"}:
                    names, facts = scan_tar(file.fileno(), archive.offset, end)
                    if not names:
                        break
                    place, size = facts[-1, 0], max(0, facts[-1, 1])
                    archive.offset = int(place + -(-size // _BLOCK) * _BLOCK)
                    if take is None or not take(names, facts):
                        yield from map(_make_member, names, facts.tolist())
                if archive.offset >= end:
                    break  # the rest is not part of this tar
            start = _skip_zeros(file, int(archive.offset), end)
        if start >= end:
            return


def _make_member(name: bytes, facts: list[int]) -> tarfile.TarInfo:
    """Makes a member from the result of :func:`scan_tar`."""
    member = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
    member.offset_data, member.size, member.mtime = facts
    if member.size < 0:
        member.type, member.size = tarfile.DIRTYPE, 0
    return member


def _skip_zeros(file: IO[bytes], at: int, end: int) -> int:
    """Skips the zeros that end a tar, and returns the offset of the next tar, joined by ``cat``, or ``end``."""
    file.seek(at)
    block = file.read(_BLOCK)
    if len(block) < _BLOCK or at + _BLOCK > end:
        raise tarfile.ReadError("it is cut off")
    # :mod:`tarfile` takes any broken header as the end.
    if any(block):
        raise tarfile.ReadError(f"the header at byte {at} is broken")
    file.seek(at)
    zeros = bytes(_STEP)
    while at < end and (piece := file.read(min(_STEP, end - at))):
        rest = b"" if zeros.startswith(piece) else piece.lstrip(b"\0")
        at += len(piece) - len(rest)
        if rest:
            return at // _BLOCK * _BLOCK
    return end


def _add_member(builder: IndexBuilder, member: tarfile.TarInfo, folder: str = "") -> None:
    """Adds a member to the index, in ``folder``; sparse files, pipes and devices become files without data."""
    name = folder + member.name
    if member.isreg() and not member.issparse():
        modified = int(member.mtime) * 10**9 if 0 <= member.mtime < 2**33 else 0
        data = Member(member.size, member.offset_data, member.size, modified_ns=modified)
        builder.add_file(name, data, stated=states_utf8(member) and folder.isascii())
    elif member.islnk() or member.issym():
        hard = member.islnk()
        builder.add_link(name, folder + member.linkname if hard else member.linkname, hard=hard)
    elif not member.isdir():
        builder.add_file(name, Member(0, NOWHERE, 0))


def decompress_to_temporary(path: Path, kind: str, name: str) -> IO[bytes]:
    """Decompresses a file into a temporary file without a name, and returns the temporary file. ``name`` is for
    messages. Reports its progress to :func:`active_progress`. Raises :class:`SourceError` as
    :func:`write_temporary`, and if the library for Zstandard is missing."""
    size, report = path.stat().st_size, active_progress()

    def pieces() -> Iterator[bytes]:
        done = 0
        with path.open("rb") as file:
            stream = open_decompressor(file, kind, name)
            while data := stream.read(_STEP):
                yield data
                done += len(data)
                report(Progress("unpack", file.tell(), size, done, "B"))

    return write_temporary(pieces(), size, name)


def write_temporary(pieces: Iterator[bytes], compressed: int, name: str) -> IO[bytes]:
    """Writes decompressed pieces to a temporary file without a name, and returns the temporary file.

    ``compressed`` is the compressed size in bytes. Raises :class:`SourceError` for damage, for content over 1 GiB and
    over 200 times ``compressed``, and if writing fails.
    """
    total = 0
    with ExitStack() as stack:
        with beyond_standard_streams():
            file: Any = stack.enter_context(tempfile.TemporaryFile())
        try:
            for data in pieces:
                total += len(data)
                if total > _BOMB_BYTES and total > _BOMB_RATIO * compressed:
                    raise SourceError(f"{name} is refused: it decompresses to more than {_BOMB_RATIO} times its size")
                file.write(data)
            file.flush()
        except SourceError:
            raise
        except Exception as error:  # each library has errors of its own
            raise SourceError(
                f"{name} is damaged or cannot be decompressed: {error_line(error)}, after {total / 1e6:,.0f} MB in "
                f"{printable(tempfile.gettempdir())}; if that is full, name another folder in the environment variable "
                "TMPDIR"
            ) from None
        stack.pop_all()  # the caller closes it
    return cast("IO[bytes]", file)


def open_decompressor(file: IO[bytes], kind: str, name: str) -> Any:
    """Opens a stream of the decompressed content of a file with the compression ``kind``: ``gz``, ``bz2``, ``xz``,
    ``zlib`` or ``zst``. Raises :class:`SourceError` if the library for Zstandard is not installed."""
    if kind == "zst":
        return load_zstandard(name).ZstdDecompressor().stream_reader(file, read_across_frames=True)
    if kind in ("bz2", "xz"):
        return (bz2.BZ2File if kind == "bz2" else lzma.LZMAFile)(file)
    return InflatedFile(file, ZLIB) if kind == "zlib" else InflatedFile(file)


def load_zstandard(name: str) -> Any:
    """Imports ``zstandard``. Raises :class:`SourceError`, with the ``name`` of the file, if it is not installed."""
    try:
        return importlib.import_module("zstandard")
    except ImportError:
        raise SourceError(
            f"{name} is compressed by Zstandard: pip install 'packstore[zstd]', or decompress it (zstd -d)"
        ) from None


def states_utf8(member: tarfile.TarInfo) -> bool:
    """Tells if a pax header has the name of a member, and does not say that it is binary: it is UTF-8 for sure."""
    pax = member.pax_headers
    return "path" in pax and pax.get("hdrcharset") != "BINARY" and not re.search("[\udc80-\udcff]", member.name)

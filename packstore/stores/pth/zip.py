"""Locates and checks the zip entries of a ``.pth`` without unpacking anything."""

from __future__ import annotations

import io
import itertools
import mmap
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import printable
from packstore.core.files import SlicedFile
from packstore.core.manifest import MAX_JSON_BYTES
from packstore.core.progress import Progress, ProgressCallback
from packstore.stores.parts import Problem

ALIGNMENT = 64
"""Entries' contents begin at a multiple of this, as in torch's own files."""
_LOCAL_HEADER, _CENTRAL = struct.Struct("<4s5H3L2H"), struct.Struct("<4s4B4HL2L5H2L")
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
        local = _LOCAL_HEADER.pack(
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
    size = -(position + _LOCAL_HEADER.size + len(name) + 20 + 4) % ALIGNMENT
    return b"FB" + size.to_bytes(2, "little") + b"Z" * size


def compute_content_start(position: int, name: str) -> int:
    """Returns the offset of the content of an entry, whose header is at ``position``."""
    raw = name.encode("utf-8")
    return position + _LOCAL_HEADER.size + len(raw) + len(build_padding_field(position, raw)) + 20


def _build_directory_entry(info: zipfile.ZipInfo, name: bytes, extra: bytes, position: int) -> bytes:
    """Returns the directory's record of an entry, whose header is at ``position``."""
    size, offset, large = info.file_size, position, []
    if size > _LIMIT:
        large += [size, size]
        size = _MAX32
    if offset > _LIMIT:
        large.append(offset)
        offset = _MAX32
    # the zip64 field holds the numbers that do not fit: from 2 GiB on, as zipfile has it
    if large:
        extra = struct.pack(f"<HH{len(large)}Q", 1, 8 * len(large), *large) + extra
    record = _CENTRAL.pack(
        b"PK\x01\x02", _VERSION, _UNIX, _VERSION, 0, 0, 0, 0, _DATE, info.CRC, size, size, len(name), len(extra),
        0, 0, 0, _MODE, offset,
    )  # fmt: skip
    return record + name + extra


def _build_directory_end(count: int, start: int, size: int) -> bytes:
    """Returns the end of the zip's directory."""
    end64 = b""
    # large numbers need zip64's record and locator before the end
    if count > zipfile.ZIP_FILECOUNT_LIMIT or start > _LIMIT or size > _LIMIT:
        end64 = _END64.pack(b"PK\x06\x06", 44, _VERSION, _VERSION, 0, 0, count, count, size, start)
        end64 += _LOCATOR.pack(b"PK\x06\x07", 0, start + size, 1)
        start = min(start, _MAX32)
    return end64 + _END.pack(b"PK\x05\x06", 0, 0, count, count, size, start, 0)


_LOCAL = struct.Struct("<4s4xH16xHH")  # signature, compression, sizes of the name and of the extra field
_ENCRYPTED = 1
_MAX_DIRECTORY = 1 << 20
"""Most bytes of the zip's directory; bounds the memory. An entry takes about 100."""
_MAX_ENTRIES = 10_000
_MAX_PICKLE = MAX_JSON_BYTES + (4 << 20)
"""Most bytes of the pickle, which is little more than the manifest; bounds the memory."""
_CHUNK_BYTES = 1 << 22
# Everything that zipfile raises for a damaged directory: it checks little of what it reads.
_ZIP_ERRORS = (
    zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, NotImplementedError, OverflowError, RuntimeError,
    struct.error,
)  # fmt: skip


class ZipError(Exception):
    """The zip is damaged; the message says how.

    :mod:`packstore.stores.pth.store` raises :class:`packstore.core.errors.StoreError` instead.
    """


class Archive:
    """Reads the entries of a ``.pth`` file from a map of it.

    Opening raises :class:`ZipError` for a damaged directory, for entries that overlap or have the same name, and for
    more than 10,000 entries. It also refuses a zip that does not have exactly one ``data.pkl`` of torch.

    Attributes:
        map: The whole file, ``uint8``; arrays over it keep the map alive.
    """

    def __init__(self, descriptor: int) -> None:
        """Maps the file and reads the zip's directory. Raises :class:`ZipError`, or :class:`OSError`."""
        # From the map: forked processes share the descriptor's position.
        try:
            mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise ZipError("it is empty") from None
        with _LimitedReads(SlicedFile(memoryview(mapped))) as file:
            try:
                with zipfile.ZipFile(file) as archive:
                    entries, end = archive.infolist(), archive.start_dir
            except zipfile.BadZipFile:
                raise ZipError("not a zip archive that ends properly") from None
            except _ZIP_ERRORS as error:
                raise ZipError(f"its zip directory is broken: {error}") from None
        self.map: NDArray[np.uint8] = np.frombuffer(mapped, np.uint8)
        self._entries = {entry.filename: entry for entry in entries}
        if len(self._entries) != len(entries):
            raise ZipError("two of its zip entries have the same name")
        _check_overlaps(entries, end)
        pickles = [name for name in self._entries if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ZipError("it is a zip without torch's data.pkl")
        self._prefix = pickles[0].removesuffix("data.pkl")

    def read_pickle(self) -> bytes:
        """Returns the pickle. Raises :class:`ZipError` if the pickle is too large, compressed or damaged.

        Raises it also for a file of big-endian numbers.
        """
        if f"{self._prefix}byteorder" in self._entries and self.view_entry("byteorder").tobytes() != b"little":
            raise ZipError("its numbers are not little-endian")
        data = self.view_entry("data.pkl")
        if len(data) > _MAX_PICKLE:
            raise ZipError(f"its pickle has {len(data)} bytes, more than {_MAX_PICKLE}")
        return data.tobytes()

    def view_entry(self, name: str) -> NDArray[np.uint8]:
        """Returns the content of an entry as a view of the map. Does not compare the CRC-32.

        ``name``: the entry's path below the archive's folder. Raises :class:`ZipError` if the entry is missing,
        compressed, encrypted or damaged.
        """
        info = self._entries.get(self._prefix + name)
        if info is None:
            raise ZipError(f"it has no zip entry {name!r:.100}")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & _ENCRYPTED:
            raise ZipError(f"its zip entry {name!r} is compressed or encrypted, which torch never does")
        header, total = info.header_offset, len(self.map)
        if not 0 <= header <= total - _LOCAL.size:
            raise ZipError(f"its zip entry {name!r} lies outside the file")
        signature, method, name_size, extra_size = _LOCAL.unpack_from(self.map.data, header)
        start = header + _LOCAL.size + name_size + extra_size
        local = self.map[header + _LOCAL.size : header + _LOCAL.size + name_size].tobytes()
        if method != zipfile.ZIP_STORED or local != info.orig_filename.encode("utf-8", "surrogateescape"):
            raise ZipError(f"its zip entry {name!r} differs from the zip's directory")
        if signature != b"PK\x03\x04" or info.file_size != info.compress_size or start + info.file_size > total:
            raise ZipError(f"its zip entry {name!r} has no valid header or reaches past the end of the file")
        return self.map[start : start + info.file_size]


def _check_overlaps(entries: list[zipfile.ZipInfo], end: int) -> None:
    """Raises :class:`ZipError` for too many entries, and for entries that overlap each other or ``end``."""
    if len(entries) > _MAX_ENTRIES:
        raise ZipError(f"it has {len(entries)} zip entries")
    places = sorted((entry.header_offset, entry.compress_size) for entry in entries)
    # end: offset of the directory
    for (start, size), (following, _) in itertools.pairwise((*places, (end, 0))):
        if start < 0 or start + _LOCAL.size + size > following:
            raise ZipError(f"its zip entries overlap (at byte {start})")


def check_zip(map: NDArray[np.uint8], progress: ProgressCallback) -> Iterator[Problem]:
    """Yields a problem for each entry whose CRC-32 differs, and for each changed header. Torch checks neither.

    ``map`` is the whole file. A broken zip directory is a single problem. Reports no headers of a file that
    another program wrote.
    """
    try:
        with io.BufferedReader(SlicedFile(map.data)) as file, zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            done_bytes = 0
            for done, info in enumerate(entries):
                try:
                    with archive.open(info) as entry:
                        size = 0
                        while data := entry.read(_CHUNK_BYTES):
                            size += len(data)
                            progress(Progress("structure", done, len(entries), done_bytes + size))
                    if size != info.file_size:
                        yield Problem(f"entry {printable(info.filename)!r} has {size} of {info.file_size} bytes")
                    done_bytes += size
                except _ZIP_ERRORS as error:
                    yield Problem(f"entry {printable(info.filename)!r}: {error}")
            yield from check_layout(map, entries)
    except _ZIP_ERRORS as error:
        yield Problem(f"the zip structure is broken: {error}")


class _LimitedReads(io.BufferedReader):
    """A file object for :class:`zipfile.ZipFile` that refuses to read a directory of gigabytes into memory."""

    def read(self, size: int | None = -1) -> bytes:
        """Reads up to ``size`` bytes. Raises ``zipfile.BadZipFile`` for a ``size`` over 1 MiB."""
        if size is not None and size > _MAX_DIRECTORY:
            raise zipfile.BadZipFile(f"its directory has {size} bytes")
        return super().read(size)

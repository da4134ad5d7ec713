"""Locates and checks the zip entries of a ``.pth`` without unpacking anything."""

from __future__ import annotations

import io
import itertools
import mmap
import struct
import zipfile
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import printable
from packstore.core.files import SlicedFile
from packstore.core.manifest import MAX_JSON_BYTES
from packstore.core.progress import Progress, ProgressCallback
from packstore.stores.parts import Problem
from packstore.stores.pth.layout import check_layout

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
    """Raises :class:`ZipError` for more than 10,000 entries, and for entries that overlap.

    ``end``: offset of the directory, which no entry may overlap either.
    """
    if len(entries) > _MAX_ENTRIES:
        raise ZipError(f"it has {len(entries)} zip entries")
    places = sorted((entry.header_offset, entry.compress_size) for entry in entries)
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

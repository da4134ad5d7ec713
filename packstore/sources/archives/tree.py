"""Archives as trees of files."""

from __future__ import annotations

import errno
import os
import threading
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from packstore.core.errors import SampleError
from packstore.core.files import Location, beyond_standard_streams
from packstore.sources.archives.index import NOWHERE, ArchiveIndex, Member, OpenFile
from packstore.sources.archives.zip import DEFLATED, LOCAL, STORED, inflate
from packstore.sources.base import stamp_files
from packstore.sources.encodings import active_encoding
from packstore.sources.folder_names import Names
from packstore.sources.ignoring import active_rules
from packstore.sources.inflating import GzipReader
from packstore.sources.listing import NO_FILE, is_passed_over
from packstore.sources.splits import SPLIT_ORDER
from packstore.sources.tree import FileStat, Tree, check_size

_SPLITS = frozenset(map(str.encode, SPLIT_ORDER))


class ArchiveTree(Tree):
    """Tree of the files in an archive. If the top holds a single folder, that folder is the root, or a single folder in
    it. Hidden files do not count, and a folder with the name of a split is never the root.

    A device, or a link to nothing or out of the archive, is listed, and cannot be read. Making a tree stores the active
    rules of ``--ignore``, and the active encoding.
    """

    def __init__(self, path: Path, index: ArchiveIndex) -> None:
        self.root = str(path)
        self.rules = active_rules(path)
        self.encoding = active_encoding()
        self._path = path
        self._index = index
        self.replaced = index.replaced
        self._top = self._find_root()
        self.top = self._top.decode("utf-8", "surrogateescape")
        self._lock = threading.Lock()
        self._file: OpenFile | None = index.file
        self._last = -1
        self._inflaters: dict[int, GzipReader] = {}
        self._inflating = threading.Lock()

    def read_names(self, directory: str) -> Names:
        """Lists the names in a directory, from a cache of the index if they are there."""
        place, known = self._to_archive_path(directory), self._index.names
        key = _decode(place)
        names = known.get_names(key)
        if names is None:
            names = _split_children(self._index.list_children(place))
            known.put_names(key, names)
        return names

    def all_folders(self) -> Iterator[tuple[str, Names]]:
        """Yields every directory of the archive with its names, hidden ones included.

        A path is relative to the root of this tree. A directory of the archive outside this root gets ``/`` before its
        path in the archive."""
        waiting = [b""]
        while waiting:
            place = waiting.pop()
            children = list(self._index.list_children(place))
            waiting += [place + b"/" + name if place else name for name, number in children if number is None]
            inside = place == self._top or (not self._top or place.startswith(self._top + b"/"))
            shown = place[len(self._top) :].removeprefix(b"/") if inside else b"/" + place
            yield _decode(shown), _split_children(children)

    def stat_any(self, file: str) -> FileStat:
        """Returns size and time of a member. Directories, pipes and broken links have the size ``NO_FILE``. Raises
        :class:`FileNotFoundError` for a path that is neither a member nor a directory."""
        member = self._find_member(file)
        if member is None:
            if next(self._index.list_children(self._to_archive_path(file)), None) is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            return FileStat(NO_FILE, is_directory=True)
        return FileStat(NO_FILE if member.place == NOWHERE else member.size, member.modified_ns)

    def read_first_bytes(self, file: str, size: int) -> bytes:
        """Reads the beginning of a member; ``b""`` if it is missing or cannot be read."""
        member = self._find_member(file)
        try:
            return b"" if member is None else self._read_content(member, size)[:size]
        except (OSError, ValueError, zlib.error):
            return b""

    def read_part(self, file: str, place: int, size: int) -> bytes:
        """Reads ``size`` bytes of a member from offset ``place`` on, fewer at its end. Decompresses a deflated member.

        Does not verify its CRC-32. Raises :class:`FileNotFoundError` if there is no such member. Raises
        :class:`ValueError` for a member that is no plain file, has another compression, or cannot be decompressed.
        """
        member = self._find_member(file)
        if member is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        start, size = self._find_data(member), max(0, min(size, member.size - place))
        if member.method == STORED:
            return self._open_archive().read(size, start + place)
        with self._inflating:  # its decompressor stays open for the next part
            inflater = self._inflaters.get(start) or GzipReader(self._path, (start, member.stored))
            self._inflaters[start] = inflater
            return inflater.read_at(size, place)

    def read(self, key: str, size_bytes: int, modified_ns: int, max_bytes: int) -> bytes:
        """Reads a whole member, and verifies its size, and in a zip its CRC-32. Ignores ``modified_ns``. Raises
        :class:`SampleError` if it is missing, damaged, or larger than ``max_bytes``."""
        member = self._find_member(key)
        if member is None:
            raise SampleError(key, "is not in the archive: it has changed")
        check_size(key, size_bytes, max_bytes)
        try:
            data = self._read_content(member, size_bytes)
        except (OSError, ValueError, zlib.error) as error:
            raise SampleError(key, f"cannot be read from the archive: {error}") from None
        if len(data) != size_bytes:
            raise SampleError(key, f"has {len(data)} bytes in the archive; its directory says {size_bytes}")
        if member.check and zlib.crc32(data) != member.check:
            raise SampleError(key, f"is damaged: CRC-32 {zlib.crc32(data):08x}, expected {member.check:08x}")
        return data

    def locate(self, key: str) -> Location | None:
        """Locates the data of a member in the archive file. Returns None if the member is missing, compressed or no
        plain file. Also returns None if the archive was decompressed as a whole. Raises :class:`SampleError` if the
        member's header in a zip is damaged."""
        member = self._find_member(key)
        if member is None or self._index.file is not None:  # a decompressed copy
            return None
        if member.place == NOWHERE or member.method != STORED:
            return None
        try:
            return Location(self.root, self._find_data(member))
        except (OSError, ValueError) as error:
            raise SampleError(key, f"cannot be read from the archive: {error}") from None

    def stamp(self) -> str:
        """Returns size and times of the archive. Raises :class:`SourceError` if it is missing."""
        return stamp_files([self._path])

    def close(self) -> None:
        """Closes the archive and all decompressors; reading opens them again. A copy of the archive that was
        decompressed as a whole stays open."""
        self._file = self._index.file
        with self._inflating:
            while self._inflaters:
                self._inflaters.popitem()[1].close()

    def _find_root(self) -> bytes:
        """Returns the path of the root: follows single folders from the top on. Hidden files do not count. Stops above
        a folder that is a split."""
        top = b""
        while True:
            inside = [*islice((child for child in self._index.list_children(top) if not _is_hidden(child[0])), 2)]
            if len(inside) != 1 or inside[0][1] is not None or inside[0][0].lower() in _SPLITS:
                return top
            top = top + b"/" + inside[0][0] if top else inside[0][0]

    def _to_archive_path(self, path: str) -> bytes:
        """Converts a path in the tree to the path in the archive."""
        raw = path.encode("utf-8", "surrogateescape")
        return self._top + b"/" + raw if self._top and raw else self._top or raw

    def _find_member(self, key: str) -> Member | None:
        """Returns a member by its path in the tree; None if there is no such file. Files are mostly read in the order
        of their names: tries the last member and the one after it first."""
        raw = self._to_archive_path(key)
        likely = range(max(0, self._last), min(self._last + 2, len(self._index)))
        number = next((number for number in likely if self._index.get_name(number) == raw), None)
        if number is None:
            number = self._index.find_number(raw)
        if number is None:
            return None
        self._last = number
        return self._index.get_member(number)

    def _read_content(self, member: Member, size: int) -> bytes:
        """Reads the first ``size`` bytes of a file. Returns one more byte if deflated data are longer than ``size``.
        Raises :class:`ValueError` as :meth:`_find_data`, and :class:`zlib.error` for damage."""
        place, whole = self._find_data(member), member.method == DEFLATED
        data = self._open_archive().read(member.stored if whole else min(size, member.stored), place)
        return inflate(data, size) if whole else data

    def _find_data(self, member: Member) -> int:
        """Returns the offset of the data of a file. Raises :class:`ValueError` for a member that is no plain file, has
        another compression than deflate, or has no header in a zip."""
        if member.place == NOWHERE:
            raise ValueError("it is no plain file there")
        if member.method not in (STORED, DEFLATED):
            raise ValueError(f"it is compressed by method {member.method}: unpack the archive, and give the folder")
        if not self._index.zipped:
            return member.place
        header = self._open_archive().read(LOCAL.size, member.place)
        magic, *_, name_size, extra_size = LOCAL.unpack(header.ljust(LOCAL.size, b"\0"))
        if magic != b"PK\x03\x04":
            raise ValueError(f"there is no file at byte {member.place}")
        return int(member.place + LOCAL.size + name_size + extra_size)

    def _open_archive(self) -> OpenFile:
        """Returns the open archive; opens it at the first call."""
        file = self._file
        if file is None:
            with self._lock, beyond_standard_streams():
                file = self._file = self._file or OpenFile(os.open(self._path, os.O_RDONLY | os.O_CLOEXEC))
        return file


def _split_children(children: Iterable[tuple[bytes, int | None]]) -> Names:
    """Sorts children by name into files and folders."""
    pairs = sorted((_decode(raw), number is None) for raw, number in children)
    return Names([name for name, is_folder in pairs if not is_folder], [name for name, is_folder in pairs if is_folder])


def _decode(raw: bytes) -> str:
    """Decodes a name; bytes that are not UTF-8 become surrogates."""
    return raw.decode("utf-8", "surrogateescape")


def _is_hidden(raw: bytes) -> bool:
    """Tells if listings pass over a name."""
    return is_passed_over(_decode(raw))

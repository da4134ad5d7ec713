"""Archives, read without unpacking: zip, and tar with or without compression.

The first bytes of a file tell if it is an archive, not its name. Only a compressed tar is decompressed as a whole,
once, into a temporary file without a name: it has no index, and its files are in any order.
"""

from __future__ import annotations

import errno
import os
import threading
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

from packstore.core.errors import SampleError, SourceError, printable
from packstore.core.files import Location, beyond_standard_streams
from packstore.core.progress import set_within
from packstore.core.urls import UrlPath
from packstore.sources.archives.index import NOWHERE, ArchiveIndex, Member, OpenFile
from packstore.sources.archives.zip import DEFLATED, LOCAL, STORED, inflate, is_zip, read_zip
from packstore.sources.base import stamp_files
from packstore.sources.contents import cache_contents
from packstore.sources.encodings import active_encoding
from packstore.sources.folder_names import Names
from packstore.sources.ignoring import active_rules
from packstore.sources.inflating import GzipReader
from packstore.sources.listing import NO_FILE, is_passed_over
from packstore.sources.refusals import unrecognised_error
from packstore.sources.splits import SPLIT_ORDER
from packstore.sources.tree import FileStat, FolderTree, Tree, check_size

_START = 512
# Path, size, time of modification and time of change of an archive, and the encoding of its names.
_Key = tuple[str, int, int, int, str | None]


def open_required_tree(path: Path) -> Tree:
    """Opens a folder or an archive as a tree. Raises :class:`SourceError` for any other or a missing file, and as
    :func:`open_tree` does."""
    tree = open_tree(path)
    if tree is None:
        raise unrecognised_error(path)
    return tree


def open_tree(path: Path) -> Tree | None:
    """Opens a folder, an archive or a remote path as a tree; None for any other or missing file.

    Reuses the index of an archive that has an open tree. Within :func:`cache_trees`, trees of folders and errors are
    reused as well.

    Raises :class:`SourceError` for a file that cannot be read, and for an archive that is damaged, encrypted, or needs
    a library that is not installed.
    """
    if isinstance(path, UrlPath):
        from packstore.sources.remote import RemotePath

        return RemotePath(path).tree()
    cached = _cached.get()
    if path.is_dir():
        if cached is None:
            return FolderTree(path)
        if path not in cached.folders:
            cached.folders[path] = FolderTree(path)
            cached.stack.enter_context(cached.folders[path].cache_names(keep=True))
        return cached.folders[path]
    if not path.is_file():
        return None
    from packstore.sources.archives.tar import is_tar, read_tar

    try:
        status = path.stat()
        with path.open("rb") as file:
            start = file.read(_START)
    except OSError as error:
        raise SourceError(f"{printable(str(path))} cannot be read: {error.strerror or error}") from None
    if not is_zip(start) and not is_tar(start):
        return None
    encoding = active_encoding()
    archives = {} if cached is None else cached.archives
    key = (str(path.absolute()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, encoding)
    index = archives.get(key) or _INDEXES.get(key)
    if index is None:
        try:
            index = _INDEXES[key] = (read_zip if is_zip(start) else read_tar)(path, encoding)
        except SourceError as error:
            archives[key] = error
            raise
    archives[key] = index
    if isinstance(index, SourceError):
        raise index
    return ArchiveTree(path.absolute(), index)


class _CachedTrees(NamedTuple):
    """Trees that a :func:`cache_trees` block has opened, and the errors of damaged archives. Each folder lists a
    directory once, until the stack is closed."""

    folders: dict[Path, FolderTree]
    archives: dict[_Key, ArchiveIndex | SourceError]
    stack: ExitStack


@contextmanager
def cache_trees() -> Iterator[None]:
    """Caches opened trees, their listings, and indexes and errors of archives within the block, since each kind of
    source opens the same path. Only for recognition and opening: changes to a folder are not seen.
    """
    with ExitStack() as stack, set_within(_cached, _CachedTrees({}, {}, stack)), cache_contents():
        yield


# Indexes of trees in use, by archive.
_INDEXES: WeakValueDictionary[_Key, ArchiveIndex] = WeakValueDictionary()
_cached: ContextVar[_CachedTrees | None] = ContextVar("cached trees", default=None)


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
        self.top = self._find_root()
        self._lock = threading.Lock()
        self._file: OpenFile | None = index.file
        self._inflaters: dict[int, GzipReader] = {}

    def read_names(self, directory: str) -> Names:
        """Lists the names in a directory, from a cache of the index if they are there."""
        place, known = self._to_archive_path(directory), self._index.names
        names = known.get_names(place)
        if names is None:
            names = self._list_names(place)
            known.put_names(place, names)
        return names

    def all_folders(self) -> Iterator[tuple[str, Names]]:
        """Yields every directory of the archive with its names, hidden ones included.

        A path is relative to the root of this tree. A directory of the archive outside this root gets ``/`` before its
        path in the archive."""
        waiting = [""]
        while waiting:
            place = waiting.pop()
            names = self._list_names(place)
            waiting += [f"{place}/{name}" if place else name for name in names.folders]
            inside = not self.top or f"{place}/".startswith(f"{self.top}/")
            yield place[len(self.top) :].removeprefix("/") if inside else f"/{place}", names

    def stat_any(self, file: str) -> FileStat:
        """Returns size and time of a member. Directories, pipes and broken links have the size ``NO_FILE``. Raises
        :class:`FileNotFoundError` for a path that is neither a member nor a directory."""
        member = self._index.find_member(self._to_archive_path(file))
        if member is None:
            if next(self._index.list_children(self._to_archive_path(file)), None) is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            return FileStat(NO_FILE, is_directory=True)
        return FileStat(NO_FILE if member.place == NOWHERE else member.size, member.modified_ns)

    def read_first_bytes(self, file: str, size: int) -> bytes:
        """Reads the beginning of a member; ``b""`` if it is missing or cannot be read."""
        try:
            return self._read_content(self._get_member(file), size)[:size]
        except (OSError, ValueError, zlib.error):
            return b""

    def read_part(self, file: str, place: int, size: int) -> bytes:
        """Reads ``size`` bytes of a member from offset ``place`` on, fewer at its end.

        Decompresses a deflated member, and does not verify its CRC-32. Raises :class:`FileNotFoundError` if there is no
        such member. Raises :class:`ValueError` for a member that is no plain file, has another compression, or is
        damaged.
        """
        member = self._get_member(file)
        start, size = self._find_data(member), max(0, min(size, member.size - place))
        if member.method == STORED:
            return self._open_archive().read(size, start + place)
        with self._lock:  # its decompressor stays open for the next part
            inflater = self._inflaters.get(start) or GzipReader(self._path, (start, member.stored))
            self._inflaters[start] = inflater
            return inflater.read_at(size, place)

    def read(self, key: str, size_bytes: int, modified_ns: int, max_bytes: int) -> bytes:
        """Reads a whole member, and verifies its size, and in a zip its CRC-32. Ignores ``modified_ns``. Raises
        :class:`SampleError` if it is missing, damaged, or larger than ``max_bytes``."""
        check_size(key, size_bytes, max_bytes)
        try:
            member = self._get_member(key)
            data = self._read_content(member, size_bytes)
        except FileNotFoundError:
            raise SampleError(key, "is not in the archive: it has changed") from None
        except (OSError, ValueError, zlib.error) as error:
            raise SampleError(key, f"cannot be read from the archive: {error}") from None
        if len(data) != size_bytes:
            raise SampleError(key, f"has {len(data)} bytes in the archive; its directory says {size_bytes}")
        if member.check and zlib.crc32(data) != member.check:
            raise SampleError(key, f"is damaged: CRC-32 {zlib.crc32(data):08x}, expected {member.check:08x}")
        return data

    def locate(self, key: str) -> Location | None:
        """Locates the data of a member in the archive file.

        Returns None if the member is missing, compressed or no plain file, or if the whole archive was decompressed.
        Raises :class:`SampleError` if the member's header in a zip is damaged.
        """
        member = self._index.find_member(self._to_archive_path(key))
        is_copy = self._index.file is not None  # of an archive that was decompressed
        if member is None or is_copy or member.place == NOWHERE or member.method != STORED:
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
        with self._lock:
            while self._inflaters:
                self._inflaters.popitem()[1].close()

    def _find_root(self) -> str:
        """Returns the path of the root: the end of a chain of single folders from the top on."""
        top = ""
        while True:
            seen = (child for child in self._index.list_children(top) if not is_passed_over(child[0]))
            inside = [*islice(seen, 2)]
            # A folder that is a split stays below the root.
            if len(inside) != 1 or inside[0][1] is not None or inside[0][0].lower() in SPLIT_ORDER:
                return top
            top = f"{top}/{inside[0][0]}" if top else inside[0][0]

    def _list_names(self, place: str) -> Names:
        """Lists the names in a directory of the archive, sorted."""
        children = sorted((name, number is None) for name, number in self._index.list_children(place))
        folders = [name for name, is_folder in children if is_folder]
        return Names([name for name, is_folder in children if not is_folder], folders)

    def _to_archive_path(self, path: str) -> str:
        """Converts a path in the tree to the path in the archive."""
        return f"{self.top}/{path}" if self.top and path else self.top or path

    def _get_member(self, file: str) -> Member:
        """Returns a member by its path in the tree."""
        member = self._index.find_member(self._to_archive_path(file))
        if member is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return member

    def _read_content(self, member: Member, size: int) -> bytes:
        """Reads the first ``size`` bytes of a file, or one more if deflated data are longer than that."""
        place, whole = self._find_data(member), member.method == DEFLATED
        data = self._open_archive().read(member.stored if whole else min(size, member.stored), place)
        return inflate(data, size) if whole else data

    def _find_data(self, member: Member) -> int:
        """Returns the offset of the data of a file."""
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

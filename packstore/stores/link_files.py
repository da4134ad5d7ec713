"""Opens the files that linked stores point to: maps local files, and copies objects through the cache."""

from __future__ import annotations

import mmap
import os
import stat
import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from xxhash import xxh3_64_intdigest

from packstore.core.errors import CacheFullError
from packstore.core.files import FileState as FileState
from packstore.core.files import Location as Location
from packstore.core.files import open_regular
from packstore.core.urls import UrlPath

if TYPE_CHECKING:
    from packstore.objects import ObjectInfo

_OPEN_FILES = 128
_READ_STEP = 1 << 30  # one read returns at most 0x7ffff000 bytes on Linux


class LinkedFile(NamedTuple):
    """The bytes of an open file.

    Attributes:
        data: The whole file: a map, or for :func:`read_whole_file` its bytes.
        state: State of the file when it was read or mapped.
    """

    data: memoryview
    state: FileState


class LinkedFiles:
    """Maps linked files, and keeps the 128 that were used last. Works from any thread.

    :meth:`open` checks if a local file was replaced, and maps a replaced file again. It does not check an object again
    while its copy is open. If a file is cut short after that check, reading its bytes crashes the process, as with a
    cut LMDB.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[str, tuple[LinkedFile, tuple[int, int]]] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, place: str) -> LinkedFile:
        """Returns the file at an absolute path or a URL.

        Maps a file that is not open, or whose inode or size has changed. Fetches an object at a URL into the cache.

        Raises:
            OSError: The file cannot be opened, or is not a regular file.
            ValueError: The path is invalid.
            StoreError: The object cannot be fetched.
        """
        with self._lock:
            known = self._open.get(place)
            if known is not None:
                self._open.move_to_end(place)
        if is_url_link(place):
            return known[0] if known is not None else self._keep_open(place, self._fetch(place), (0, 0))
        status = os.stat(place)  # noqa: PTH116 - a Path takes longer than the call
        state, identity = FileState(status.st_size, status.st_mtime_ns), (status.st_dev, status.st_ino)
        if known is not None and known[1] == identity and len(known[0].data) == state.nbytes:
            return known[0]._replace(state=state)
        descriptor = open_regular(Path(place))
        try:
            opened = os.fstat(descriptor)
            file = LinkedFile(_map_file(descriptor), FileState(opened.st_size, opened.st_mtime_ns))
        finally:
            os.close(descriptor)
        return self._keep_open(place, file, (opened.st_dev, opened.st_ino))

    def clear(self) -> None:
        """Releases all files. Bytes already returned stay valid."""
        with self._lock:
            self._open.clear()

    def _keep_open(self, place: str, file: LinkedFile, identity: tuple[int, int]) -> LinkedFile:
        """Keeps an open file and returns it. Drops the one used longest ago if there are more than 128."""
        with self._lock:
            self._open[place] = file, identity
            while len(self._open) > _OPEN_FILES:
                self._open.popitem(last=False)
        return file

    def _fetch(self, url: str) -> LinkedFile:
        """Fetches an object into the cache and maps its copy. Drops open files if the cache is full."""
        from packstore.stores.remote.copies import open_cached_copy

        path = UrlPath(url)
        try:
            info, descriptor = open_cached_copy(path)
        except CacheFullError:
            self.clear()  # the cache cannot evict open copies
            info, descriptor = open_cached_copy(path)
        try:
            return LinkedFile(_map_file(descriptor), derive_object_state(info))
        finally:
            os.close(descriptor)


def is_url_link(place: str) -> bool:
    """Returns whether a link, as stored in a record, is a URL and not a path."""
    return not place.startswith("/") and "://" in place


def read_whole_file(path: str) -> LinkedFile:
    """Reads a whole local file without mapping it.

    Raises :class:`OSError` if that fails or it is not a regular file, and :class:`ValueError` for an invalid path.
    """
    descriptor = open_regular(Path(path))
    try:
        status = os.fstat(descriptor)
        parts, left = [], status.st_size
        while left and (data := os.read(descriptor, min(left, _READ_STEP))):
            parts.append(data)
            left -= len(data)
    finally:
        os.close(descriptor)
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    return LinkedFile(memoryview(data), FileState(status.st_size, status.st_mtime_ns))


def read_file_state(path: str) -> FileState:
    """Returns size and modification time of a file. Raises :class:`OSError` if it is missing or not a regular file."""
    status = os.stat(path)  # noqa: PTH116 - one call for each of many files
    if not stat.S_ISREG(status.st_mode):
        raise OSError("not a regular file")
    return FileState(status.st_size, status.st_mtime_ns)


def derive_object_state(info: ObjectInfo) -> FileState:
    """Returns the size of an object, and a version in place of its time, which may be rounded to seconds.

    The version is the upper 63 bits of the XXH3-64 of the ETag; without an ETag, of the time.
    """
    known = xxh3_64_intdigest(f"{info.etag or info.modified}".encode())
    return FileState(info.nbytes, known >> 1)


def _map_file(descriptor: int) -> memoryview:
    """Maps a whole open file for reading. Returns an empty view for an empty file."""
    if not os.fstat(descriptor).st_size:
        return memoryview(b"")
    return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))

"""The files that linked stores point to: local ones, which are mapped, and objects, of which the cache has copies."""

from __future__ import annotations

import mmap
import os
import stat
import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from xxhash import xxh3_64_intdigest

from packstore.core.errors import CacheFullError, printable
from packstore.core.files import open_regular
from packstore.core.urls import UrlPath

if TYPE_CHECKING:
    from packstore.objects import ObjectInfo

_OPEN_FILES = 128
_READ_STEP = 1 << 30  # one read returns at most 0x7ffff000 bytes on Linux


class FileState(NamedTuple):
    """What changes when a file does.

    Attributes:
        nbytes: Its size.
        modified: Time of its last modification, in nanoseconds since 1970; of an object see :func:`object_state`.
    """

    nbytes: int
    modified: int


class Location(NamedTuple):
    """Where the bytes of an image lie, uncompressed.

    Attributes:
        path: Absolute path of the file, or its URL.
        offset: Where they begin in it, in bytes.
        state: Of the file, if it is known without asking.
        within: They lie somewhere in so many bytes from ``offset`` on; None if they begin there.
    """

    path: str
    offset: int
    state: FileState | None = None
    within: int | None = None


class LinkedFile(NamedTuple):
    """An open file, as bytes.

    Attributes:
        data: All of it: a map, or for :func:`read_file` its bytes.
        state: Of the file when its bytes were read or mapped.
    """

    data: memoryview
    state: FileState


class LinkedFiles:
    """Maps files of others and keeps the 128 used last; from any thread.

    A local file is looked at each time, and mapped again if it is another one. A map of a file that is cut short
    between that look and a read of its bytes crashes the process, as a cut LMDB does.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[str, tuple[LinkedFile, tuple[int, int]]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, place: str) -> LinkedFile:
        """The file at an absolute path or a URL. Raises :class:`OSError`, :class:`ValueError` for what can be no path,
        and :class:`StoreError` for an object that cannot be fetched."""
        with self._lock:
            known = self._open.get(place)
            if known is not None:
                self._open.move_to_end(place)
        if is_url(place):
            return known[0] if known is not None else self._keep(place, self._fetched(place), (0, 0))
        found = os.stat(place)  # noqa: PTH116 - a Path takes longer than the call
        state, identity = FileState(found.st_size, found.st_mtime_ns), (found.st_dev, found.st_ino)
        if known is not None and known[1] == identity and len(known[0].data) == state.nbytes:
            return known[0]._replace(state=state)
        descriptor = open_regular(Path(place))
        try:
            opened = os.fstat(descriptor)
            file = LinkedFile(_mapped(descriptor), FileState(opened.st_size, opened.st_mtime_ns))
        finally:
            os.close(descriptor)
        return self._keep(place, file, (opened.st_dev, opened.st_ino))

    def clear(self) -> None:
        """Lets all files go; what was read of them stays valid."""
        with self._lock:
            self._open.clear()

    def _keep(self, place: str, file: LinkedFile, identity: tuple[int, int]) -> LinkedFile:
        with self._lock:
            self._open[place] = file, identity
            while len(self._open) > _OPEN_FILES:
                self._open.popitem(last=False)
        return file

    def _fetched(self, url: str) -> LinkedFile:
        from packstore.stores.remote.copies import open_copy

        path = UrlPath(url)
        try:
            info, descriptor = open_copy(path)
        except CacheFullError:
            self.clear()  # what is open cannot leave the cache
            info, descriptor = open_copy(path)
        try:
            return LinkedFile(_mapped(descriptor), object_state(info))
        finally:
            os.close(descriptor)


def offset_in_file(view: memoryview) -> int | None:
    """Where a view begins in the file that it is part of a map of; None if it is of something else."""
    owner: Any = view
    while isinstance(owner, memoryview | np.ndarray):
        owner = owner.obj if isinstance(owner, memoryview) else owner.base
    if not isinstance(owner, mmap.mmap) or not len(view):
        return None
    first, start = (np.frombuffer(each, np.uint8).__array_interface__["data"][0] for each in (owner, view))
    return int(start - first)


def is_url(place: str) -> bool:
    """Whether what a link says is a URL."""
    return not place.startswith("/") and "://" in place


def read_file(path: str) -> LinkedFile:
    """All of a local file, which is not kept open. Raises :class:`OSError` and :class:`ValueError`."""
    descriptor = open_regular(Path(path))
    try:
        found = os.fstat(descriptor)
        parts, left = [], found.st_size
        while left and (data := os.read(descriptor, min(left, _READ_STEP))):
            parts.append(data)
            left -= len(data)
    finally:
        os.close(descriptor)
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    return LinkedFile(memoryview(data), FileState(found.st_size, found.st_mtime_ns))


def file_state(path: str) -> FileState:
    """The state of a regular file. Raises :class:`OSError`."""
    found = os.stat(path)  # noqa: PTH116 - one call for each of many files
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{printable(path)} is no file")
    return FileState(found.st_size, found.st_mtime_ns)


def object_state(info: ObjectInfo) -> FileState:
    """The state of an object: in the place of a time, which may count seconds, the XXH3-64 of its ETag or its time."""
    known = xxh3_64_intdigest(f"{info.etag or info.modified}".encode())
    return FileState(info.nbytes, known >> 1)


def _mapped(descriptor: int) -> memoryview:
    if not os.fstat(descriptor).st_size:
        return memoryview(b"")
    return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))

"""A folder of image files as a source: reading them by their keys, in any number of threads."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

from packstore.core.errors import SampleError, printable
from packstore.images.sniff import max_file_bytes
from packstore.images.unread import UNREAD_SUFFIXES, unread_reason
from packstore.sources.base import Entry, Source, SourceOptions
from packstore.sources.listing import CYCLE, IMAGE_SUFFIXES, IS_CYCLE
from packstore.sources.refusals import not_a_folder

_IMAGE_SUFFIXES = frozenset(IMAGE_SUFFIXES)
_OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK
_READ_STEP = 1 << 30  # one read() call returns at most 0x7ffff000 bytes on Linux
_RELATIVE = os.open in os.supports_dir_fd
_SEARCH_FLAGS = os.O_DIRECTORY | getattr(os, "O_PATH", os.O_RDONLY)  # with O_PATH it need not be readable


class FolderSource(Source):
    """A source whose samples are files below its folder.

    The key of a sample is its path relative to the folder, with ``/``; its ``ref`` is None, or
    :data:`packstore.sources.listing.NO_FILE` or :data:`packstore.sources.listing.CYCLE` for what is not to be opened.

    Attributes:
        by_suffix: The samples are the files with an image's suffix. Another file that is an image by its first bytes
            is a bad sample: packed, it would differ from ``ImageFolder``; passed over, it would be lost.
    """

    by_suffix = True

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        if not path.is_dir():
            raise not_a_folder(path)
        self.root = str(path.absolute())  # a later change of the working directory does not matter
        self.max_bytes = max_file_bytes(options.max_pixels)
        self._files = FileReader(self.root, self.max_bytes)

    def name(self, directory: str = "") -> str:
        """The folder, or a directory in it, for messages."""
        return printable(f"{self.path}/{directory}" if directory else str(self.path))

    def read(self, entry: Entry) -> bytes:
        """The bytes of the file. Raises :class:`SampleError` when it cannot be read or is not a file."""
        if entry.ref is not None:
            reason = IS_CYCLE if entry.ref == CYCLE else "is not a file but a pipe, a socket or a device"
            raise SampleError(entry.key, reason)
        suffix = entry.key[entry.key.rfind(".") :].lower()
        if suffix not in _IMAGE_SUFFIXES:
            self._check_name(entry.key, suffix)
        return self._files.read(entry.key, entry.size_bytes, entry.modified_ns)

    def _check_name(self, key: str, suffix: str) -> None:
        if suffix in UNREAD_SUFFIXES:
            raise SampleError(key, unread_reason(UNREAD_SUFFIXES[suffix]))
        if self.by_suffix:
            raise SampleError(key, "is an image by its first bytes, but not by its name: rename it (.jpg, .png …)")

    def close(self) -> None:
        """See :meth:`Source.close`. Reading opens directories again."""
        self._files.close()


class FileReader:
    """Reads files below a folder by their keys.

    Each thread keeps the directory of its last file open: opening a file relative to it takes two thirds of the time.
    """

    def __init__(self, root: str, max_bytes: int) -> None:
        self._root = root
        self._max_bytes = max_bytes
        self._threads = threading.local()

    def read(self, key: str, size_bytes: int, modified_ns: int) -> bytes:
        """All bytes of a regular file.

        Raises :class:`SampleError` when it cannot be read, is no regular file, has more than ``max_bytes``, or has not
        the size and the time of modification with which it was listed.
        """
        try:
            descriptor = self._open(key)
        except OSError as error:
            raise SampleError(key, f"cannot be opened: {error.strerror or error}") from None
        try:
            found = os.fstat(descriptor)
            if found.st_mode & 0o170000 != stat.S_IFREG:
                raise SampleError(key, f"is not a file but {kind_of(found.st_mode)}")
            size = found.st_size
            if found.st_mtime_ns != modified_ns or size != size_bytes:
                raise SampleError(key, _changed(size_bytes, size))
            if size > self._max_bytes:
                raise SampleError(
                    key, f"has {size} bytes, more than the {self._max_bytes} that an image within max_pixels can have"
                )
            data = os.read(descriptor, min(size, _READ_STEP))
            if len(data) != size:
                data = _read_rest(descriptor, key, data, size)
        except OSError as error:
            raise SampleError(key, f"cannot be read: {error.strerror or error}") from None
        finally:
            os.close(descriptor)
        return data

    def close(self) -> None:
        """Closes the directories of all threads; the next :meth:`read` opens one again."""
        self._threads = threading.local()

    def _open(self, key: str) -> int:
        """Opens without blocking, so that a pipe under an image's name cannot hang the conversion."""
        if not _RELATIVE:
            return os.open(f"{self._root}/{key}", _OPEN_FLAGS)
        path, _, name = key.rpartition("/")
        directory: _Directory | None = getattr(self._threads, "directory", None)
        if directory is None or directory.path != path:
            directory = self._threads.directory = _Directory(self._root, path)
        return os.open(name, _OPEN_FLAGS, dir_fd=directory.descriptor)


class _Directory:
    """An open directory, closed with its last reference."""

    def __init__(self, root: str, path: str) -> None:
        self.descriptor = -1
        self.path = path
        self.descriptor = os.open(f"{root}/{path}", _SEARCH_FLAGS)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


def _changed(listed: int, found: int) -> str:
    sizes = f"{listed} bytes then, {found} now" if listed != found else "written to meanwhile"
    return f"has changed since it was listed ({sizes}): pack again when nothing writes to it"


def _read_rest(descriptor: int, key: str, data: bytes, size: int) -> bytes:
    parts = [data]
    read = len(data)
    while read < size:
        part = os.read(descriptor, min(size - read, _READ_STEP))
        if not part:
            raise SampleError(key, f"ends after {read} bytes, though its size is {size}: it changed, or its disk fails")
        parts.append(part)
        read += len(part)
    return b"".join(parts)


def kind_of(mode: int) -> str:
    """What ``st_mode`` says, for people."""
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")

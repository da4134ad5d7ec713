"""Files as packstore needs them: opened beyond the standard streams, made durable, removed only by known names."""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

from packstore.core.errors import DestinationError, printable

try:
    import resource
except ImportError:  # Windows: no such limit
    resource = None  # type: ignore[assignment]

_USUAL_FILES = 512
_promised = 0
# May be entered again: the garbage collector can end a reader while another one is made.
_promising = threading.RLock()

MANIFEST_FILE = "manifest.json"
"""The manifest of a sharded store, in its directory."""
SHARD = re.compile(r"shard-(?P<number>\d{5})(?P<suffix>\.[a-z0-9._-]{1,32})")
"""The name of a shard, of whatever format."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an :class:`OSError` (no space, no permission, read-only ...) into a :class:`DestinationError`."""
    try:
        yield
    except OSError as error:
        raise DestinationError(f"cannot write {printable(str(path))}: {error.strerror or error}") from error


@contextmanager
def beyond_standard_streams() -> Iterator[None]:
    """Files opened within never take descriptors 0 to 2, even in a process where those are closed.

    Whatever prints (C libraries write warnings to descriptor 2) would write into the store otherwise.
    """
    held: list[int] = []
    try:
        while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
            held.append(fd)
        os.close(fd)
        yield
    finally:
        for fd in held:
            os.close(fd)


def open_file(path: Path, mode: str) -> IO[bytes]:
    """A buffered binary file that is not one of the standard streams; closed by its owner, by :func:`drop` at worst."""
    with beyond_standard_streams():
        return cast("IO[bytes]", path.open(mode))


def open_regular(path: Path) -> int:
    """A descriptor of a file to be read. Raises :class:`OSError`, at once for a pipe or a device too."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "neither a file nor a link to one")
    return descriptor


def allow_open_files(number: int) -> int:
    """Raises the soft limit of open files, as far as the hard one lets it, so that ``number`` more can be open, beside
    the usual ones and those that were promised to others; returns how many of them that allows. They are promised
    until :func:`release_open_files` is told of them."""
    global _promised
    if resource is None:
        return number
    with _promising:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = number + _promised + _USUAL_FILES
        if soft != resource.RLIM_INFINITY and soft < wanted:
            soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            number = max(0, number - (wanted - soft))
        _promised += number
        return number


def release_open_files(number: int) -> None:
    """To be called when ``number`` of the files of :func:`allow_open_files` are needed no more."""
    global _promised
    with _promising:
        _promised -= number


@contextmanager
def reading(path: Path, held: int | None) -> Iterator[int]:
    """A descriptor of the file at ``path``, opened for a while, or the one that the caller has already."""
    if held is not None:
        yield held
    else:
        with path.open("rb", buffering=0) as file:
            yield file.fileno()


def drop(file: IO[bytes]) -> None:
    """Closes a buffered file without flushing: what is pending is not wanted, and might not even fit on the disk."""
    raw: Any = file
    raw.raw.close()


def device_and_inode(path: Path) -> tuple[int, int]:
    """Device and inode of a path, not following links."""
    found = path.lstat()
    return found.st_dev, found.st_ino


def sync_file(path: Path) -> None:
    """fsync of a file."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_directory(path: Path) -> None:
    """fsync of a directory, where the file system can."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(fd)


def sync_tree(path: Path) -> None:
    """fsync of a file, or of a directory with everything in it."""
    if not path.is_dir():
        sync_file(path)
        return
    for directory, _, files in os.walk(path):
        for name in files:
            sync_file(Path(directory, name))
        sync_directory(Path(directory))


def remove_empty(path: Path) -> None:
    """Removes a directory if it is empty."""
    with suppress(FileNotFoundError):
        try:
            path.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

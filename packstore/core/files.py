"""Opening files safely, making them durable, and removing only files with names that packstore gives."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

from packstore.core.errors import DestinationError, UsageError, printable

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


_URL = re.compile(r"([a-z][a-z0-9+.-]+:)/{1,3}(.*)", re.IGNORECASE | re.DOTALL)
"""A URL, also after :class:`Path` has made one slash of two. A drive of Windows is one letter."""


def split_url(path: str | bytes | os.PathLike[str]) -> tuple[str, str] | None:
    """Scheme, in small letters, and the rest of a URL behind its slashes; None for a local path."""
    url = _URL.fullmatch(os.fsdecode(path))
    return None if url is None or Path(url[1]).exists() else (url[1][:-1].lower(), url[2])


def url_in(*paths: str | bytes | os.PathLike[str] | None) -> str | None:
    """What to say about the first of ``paths`` that is a URL; None where all are local."""
    for path in paths:
        url = None if path is None else split_url(path)
        if url is not None:
            return f"{shown_url(*url)} is a URL; give a path on this machine"
    return None


def shown_url(scheme: str, rest: str) -> str:
    """A URL in a message: without a user and a password before the bucket, and without a query, which may sign it."""
    bucket, slash, path = rest.partition("/")
    path = re.sub(r"\?.*=.*", "?…", path, flags=re.DOTALL)
    return printable(f"{scheme}:{'///' if scheme == 'file' else '//'}{bucket.rpartition('@')[2]}{slash}{path}")


def refuse_empty(*paths: str | os.PathLike[str] | None) -> None:
    """Raises :class:`UsageError` where one of ``paths`` is an empty string, which :class:`Path` takes for the working
    directory."""
    if any(path is not None and not os.fspath(path) for path in paths):
        raise UsageError("a path is empty; use . for the working directory")


def check_paths(*paths: str | os.PathLike[str] | None) -> None:
    """Raises :class:`UsageError` where one of ``paths`` is empty or a URL."""
    refuse_empty(*paths)
    said = url_in(*paths)
    if said is not None:
        raise UsageError(said)


def refuse_inside(destination: Path, other: Path) -> None:
    """Raises :class:`DestinationError` if one of the paths is the other or lies in it."""
    new, old = destination.resolve(), other.resolve()
    if new == old or new.is_relative_to(old) or old.is_relative_to(new):
        raise DestinationError(
            f"{printable(str(destination))} and {printable(str(other))} are the same, or one lies in the other; choose "
            "another destination"
        )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an :class:`OSError` (no space, no permission, read-only ...) into a :class:`DestinationError`."""
    try:
        yield
    except OSError as error:
        of_hdf5 = re.search(r"errno = \d+, error message = '(.*?)'", str(error))
        why = error.strerror or (of_hdf5[1] if of_hdf5 else str(error))
        if error.errno == errno.EFBIG:
            limit = file_size_limit()
            whose = (
                "the file system allows no larger one" if limit is None else f"the limit is {limit:,} bytes (ulimit -f)"
            )
            why = (
                f"{why}: {whose}; "
                + ("" if limit is None else "raise it, or ")
                + "write smaller files with --shard-size"
            )
        raise DestinationError(f"cannot write {printable(str(path))}: {why}") from error


def file_size_limit() -> int | None:
    """How large a file this process may write, in bytes; None without a limit."""
    if resource is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if soft == resource.RLIM_INFINITY else soft


@contextmanager
def beyond_standard_streams() -> Iterator[None]:
    """Within, files never get the descriptors 0 to 2, even in a process where these are closed.

    Otherwise whatever prints (C libraries write warnings to descriptor 2) would write into the store.
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
    """A buffered binary file whose descriptor is not that of a standard stream. The caller closes it."""
    with beyond_standard_streams():
        return cast("IO[bytes]", path.open(mode))


def open_regular(path: Path) -> int:
    """Opens a regular file for reading; returns its descriptor. Raises :class:`OSError`, for pipes and devices too."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "neither a file nor a link to one")
    return descriptor


def read_text(path: Path, most: int = 64 << 20) -> str:
    """The text of a file in UTF-8. Raises :class:`OSError`, for one of more than ``most`` bytes too, and
    :class:`UnicodeDecodeError`."""
    with os.fdopen(open_regular(path), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes")
    return data.decode("utf-8")


def allow_open_files(number: int) -> int:
    """Reserves ``number`` open files: raises the soft limit as far as the hard one allows. Returns how many it got.

    Reserved on top of a usual number and of earlier reservations, until :func:`release_open_files`."""
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
    """Ends the reservation of ``number`` files of :func:`allow_open_files`."""
    global _promised
    with _promising:
        _promised -= number


@contextmanager
def reading(path: Path, held: int | None) -> Iterator[int]:
    """The descriptor ``held``, or one of the file at ``path``, open within."""
    if held is not None:
        yield held
    else:
        with path.open("rb", buffering=0) as file:
            yield file.fileno()


def drop(file: IO[bytes]) -> None:
    """Closes a buffered file without flushing: pending data is not wanted, and might not fit on the disk."""
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


def sync_file_system(path: Path) -> None:
    """Makes all of the file system of ``path`` durable, in one call where the system can; else what is in ``path``.

    For thousands of links: an fsync of each takes milliseconds, though nothing but names is new."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None) if sys.platform.startswith("linux") else None
    if call is None:
        sync_tree(path)
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        if call(ctypes.c_int(fd)):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), os.fspath(path))
    finally:
        os.close(fd)


def remove_empty(path: Path) -> None:
    """Removes a directory if it is empty."""
    with suppress(FileNotFoundError):
        try:
            path.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

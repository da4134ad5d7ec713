"""Opens files safely, locks them, makes them durable, checks destinations, makes temporary folders."""

from __future__ import annotations

import ctypes
import errno
import io
import os
import re
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast

from packstore.core.errors import DestinationError, UsageError, printable

try:
    import fcntl
    import resource
except ImportError:  # Windows: no such locks and limits
    fcntl = resource = None  # type: ignore[assignment]

# Errors of flock(2) on a file system without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
_USUAL_FILES = 512
_reserved = 0
# Reentrant: the garbage collector can close a reader while another is being opened.
_reserving = threading.RLock()

MANIFEST_FILE = "manifest.json"
"""Name of the manifest file in the directory of a sharded store."""


class FileState(NamedTuple):
    """Size and time of a file, which show whether it has changed.

    Attributes:
        nbytes: Its size.
        modified: Time of its last modification, in nanoseconds since 1970; for an object see
            :func:`packstore.stores.linked.derive_object_state`.
    """

    nbytes: int
    modified: int


class Location(NamedTuple):
    """Location of an image's uncompressed bytes in a file.

    Attributes:
        path: Absolute path of the file, or its URL.
        offset: Offset of the image in bytes.
        state: State of the file, if it is known without a system call or request.
        within: Number of bytes from ``offset`` on in which the image begins. None if it begins exactly at ``offset``.
    """

    path: str
    offset: int
    state: FileState | None = None
    within: int | None = None


def refuse_nested_paths(destination: Path, other: Path) -> None:
    """Raises :class:`DestinationError` if the paths are equal, or if one is inside the other. Follows links; a link
    that leads to itself is no error here."""
    try:
        new, old = destination.resolve(), other.resolve()
    except RuntimeError:  # the link, until Python 3.13
        return
    if new == old or new.is_relative_to(old) or old.is_relative_to(new):
        raise DestinationError(
            f"{printable(str(destination))} and {printable(str(other))} are the same, or one lies in the other; choose "
            "another destination"
        )


def free_bytes(destination: Path) -> int | None:
    """Returns the free bytes on the disk of a destination. None if its folder does not exist, as for a URL."""
    parent = destination.absolute().parent
    return shutil.disk_usage(parent).free if parent.is_dir() else None


def check_space(destination: Path, nbytes: int) -> None:
    """Raises :class:`DestinationError` if a result of about ``nbytes`` exceeds the free space. Accepts every URL."""
    free = free_bytes(destination)
    if free is not None and nbytes > free:
        raise DestinationError(
            f"{printable(str(destination))}: the result takes about {nbytes / 1e6:,.1f} MB, but only "
            f"{free / 1e6:,.1f} MB are free there; free some space or write elsewhere"
        )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an :class:`OSError` raised in the block (no space, no permission …) into a :class:`DestinationError`.

    The message names ``path``, and the size limit if a file exceeds it.
    """
    try:
        yield
    except OSError as error:
        # HDF5's errors have the system's reason in their text only.
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
    """Returns the most bytes of a file that this process may write. None: no limit, or a system without such limits."""
    if resource is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if soft == resource.RLIM_INFINITY else soft


@contextmanager
def beyond_standard_streams() -> Iterator[None]:
    """Keeps files that are opened in the block off the descriptors 0 to 2, which a process may have closed.

    Otherwise printed text would end up in the store: C libraries write warnings to descriptor 2.
    """
    held: list[int] = []
    try:
        # A process may have closed descriptors 0 to 2, and the system gives the lowest free one.
        while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
            held.append(fd)
        os.close(fd)
        yield
    finally:
        for fd in held:
            os.close(fd)


def open_file(path: Path, mode: str) -> IO[bytes]:
    """Opens a buffered binary file with a descriptor above 2. The caller closes it."""
    with beyond_standard_streams():
        return cast("IO[bytes]", path.open(mode))


def open_regular(path: Path) -> int:
    """Opens a regular file for reading and returns its descriptor.

    Raises :class:`OSError` if that fails, and for pipes and devices; does not wait for them.
    """
    # Opening a pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "neither a file nor a link to one")
    return descriptor


def read_text(path: Path, most: int = 64 << 20) -> str:
    """Reads a text file in UTF-8. Raises :class:`OSError` if it cannot be read, is a pipe or device, or has more than
    ``most`` bytes.

    Raises :class:`UnicodeDecodeError` for other encodings.
    """
    return read_bounded(path, most).decode("utf-8")


def read_bounded(path: Path, most: int) -> bytes:
    """Reads a file.

    Raises :class:`OSError` if it cannot be read, is a pipe or device, or has more than ``most`` bytes.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes")
    return data


def raise_open_file_limit(number: int) -> int:
    """Reserves ``number`` open files until :func:`release_open_files`, and returns how many it got.

    Raises the soft limit to the sum of all reservations and 512 files for other uses, at most to the hard limit. On
    Windows changes nothing and returns ``number``.
    """
    global _reserved
    if resource is None:
        return number
    with _reserving:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = number + _reserved + _USUAL_FILES
        if soft != resource.RLIM_INFINITY and soft < wanted:
            soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            # The hard limit may allow fewer.
            number = max(0, number - (wanted - soft))
        _reserved += number
        return number


def release_open_files(number: int) -> None:
    """Ends the reservation of ``number`` files of :func:`raise_open_file_limit`."""
    global _reserved
    with _reserving:
        _reserved -= number


@contextmanager
def reading(path: Path, held: int | None) -> Iterator[int]:
    """Yields the descriptor ``held``, which stays open. If ``held`` is None, opens the file for the block and yields
    its descriptor."""
    if held is not None:
        yield held
    else:
        with path.open("rb", buffering=0) as file:
            yield file.fileno()


def allocate_bytes(descriptor: int, nbytes: int) -> None:
    """Makes a file ``nbytes`` long, and reserves the disk space if the system can (macOS cannot). Raises
    :class:`OSError` if the disk is full: a write to a memory map without space would crash the process.
    """
    if hasattr(os, "posix_fallocate") and nbytes:
        # A write to a memory map without space would crash the process.
        os.posix_fallocate(descriptor, 0, nbytes)
    else:
        os.ftruncate(descriptor, nbytes)


def drop(file: IO[bytes]) -> None:
    """Closes a file without writing its buffered data, for which the disk may have no space."""
    raw: Any = file
    raw.raw.close()


def device_and_inode(path: Path) -> tuple[int, int]:
    """Returns device and inode of a path, without following a link. Raises :class:`OSError` if it does not exist."""
    status = path.lstat()
    return status.st_dev, status.st_ino


def sync_file(path: Path) -> None:
    """Makes a file durable (fsync). Raises :class:`OSError` if that fails."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_directory(path: Path) -> None:
    """Makes a directory durable (fsync). Does nothing if the file system does not support that.

    Raises :class:`OSError` for other failures.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        # Some network file systems cannot sync directories.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(fd)


def sync_tree(path: Path) -> None:
    """Makes a file durable, or a directory with everything in it (fsync). Raises :class:`OSError` if that fails."""
    if not path.is_dir():
        sync_file(path)
        return
    for directory, _, files in os.walk(path):
        for name in files:
            sync_file(Path(directory, name))
        sync_directory(Path(directory))


def sync_file_system(path: Path) -> None:
    """Makes the whole file system of ``path`` durable by one call (syncfs). Without syncfs, syncs only the tree at
    ``path``.

    Faster than :func:`sync_tree` for thousands of files or links. Raises :class:`OSError` if it fails.
    """
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
    """Removes a directory if it is empty. Does nothing if it has content or does not exist.

    Raises :class:`OSError` if an empty directory cannot be removed.
    """
    with suppress(FileNotFoundError):
        try:
            path.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


class Sliceable(Protocol):
    """Bytes whose length is known, and whose slices can be read."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes | memoryview: ...


class SlicedFile(io.RawIOBase):
    """A read-only file object over sliceable bytes, with its own position."""

    def __init__(self, content: Sliceable) -> None:
        self._content = content
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves the position, also beyond the end. Raises :class:`OSError` for a position before the beginning."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._content)}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))  # as for a file
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self._content[self._position : self._position + len(buffer)]
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def lock_file(descriptor: int, *, shared: bool = False) -> bool | None:
    """Locks an open file (flock), exclusively or ``shared``, without waiting.

    Returns False if another process holds the lock, and None if the system or file system has no locks.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


_SCRATCH_LOCK = ".packstore-scratch"
"""A file in each folder that is locked while the folder is in use. A killed process holds no lock."""


@contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """Creates a temporary folder under ``TMPDIR`` and removes it at the end of the block.

    First removes folders of the same ``name`` that killed processes have left. A forked process that ends the block
    removes nothing. Raises :class:`UsageError` on Windows."""
    if fcntl is None:
        raise UsageError("object stores and clusters need file locks, which Windows does not have")
    root, prefix = Path(tempfile.gettempdir()), f"packstore-{name}-"
    _remove_scratch(root, prefix)
    process = os.getpid()
    # Another process could remove a folder that is not locked yet, so it gets its name later.
    made = Path(tempfile.mkdtemp(prefix="packstore-new-"))
    folder = root / (prefix + made.name.rpartition("-")[2])
    try:
        with (made / _SCRATCH_LOCK).open("xb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            made.rename(folder)  # under this name it is always locked
            yield folder
    finally:
        # A forked process ends the block, too.
        if os.getpid() == process:
            for path in (made, folder):
                shutil.rmtree(path, ignore_errors=True)


def _remove_scratch(directory: Path, prefix: str) -> None:
    """Removes this user's folders with this prefix that no process has locked."""
    for folder in directory.glob(f"{prefix}*"):
        try:
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            with (folder / _SCRATCH_LOCK).open("rb") as lock:
                if lock_file(lock.fileno()):
                    shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # just removed by its process
            continue

"""Single files of a cache: their dates, URL attributes, room on the disk; and their locks (flock), which time out and
are released in forked children."""

from __future__ import annotations

import errno
import functools
import os
import platform
import re
import stat
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from packstore.core.errors import CacheError, printable
from packstore.core.files import allocate_bytes as allocate_bytes
from packstore.core.files import lock_file

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a full disk."""
_URL = "user.packstore.url"
_NO_ATTRIBUTE = (errno.ENOTSUP, errno.ENODATA, errno.EPERM, errno.ENOENT, errno.ELOOP, errno.E2BIG, errno.ERANGE)

_LONGEST_PAUSE = 0.05

_held: set[int] = set()
"""Locked descriptors to close in a forked child, whose copies would keep the locks after the parent has ended."""


@functools.cache
def machine_id() -> str:
    """Returns eight hexadecimal digits of this machine's boot id, or of its host name if it has none. Caches the
    result.

    Containers on one machine share the boot id. Each machine has part files of its own, since some network file systems
    do not lock between machines.
    """
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
    except OSError:
        text = platform.node()
    return f"{zlib.crc32(text.encode()):08x}"


def compute_date_stamp(name: str) -> int:
    """Computes the modification time that marks an object as proven, in ns. It is an even second before 1988, made from
    the first seven digits of ``name``."""
    return 2 * int(name[:7], 16) * 10**9


def list_files(folder: Path, names: re.Pattern[str]) -> Iterator[tuple[Path, os.stat_result]]:
    """Yields path and state of the regular files in ``folder`` whose names match ``names``. Yields nothing if the
    folder is missing. Does not follow links."""
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if names.fullmatch(entry.name):
            with suppress(FileNotFoundError):  # removed meanwhile
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    yield Path(entry.path), status


def read_url(path: Path) -> str | None:
    """Returns the URL in an extended attribute (xattr) of a file.

    Returns None without such an attribute or file, for a link, and on systems other than Linux.
    """
    if sys.platform != "linux":
        return None
    try:
        return os.getxattr(path, _URL, follow_symlinks=False).decode(errors="replace")
    except OSError as error:
        if error.errno not in _NO_ATTRIBUTE:
            raise
        return None


def count_free_bytes(path: Path) -> int:
    """Returns the bytes that an ordinary user may still write to the disk of ``path``. Raises :class:`OSError` if
    ``path`` is missing."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


def write_url(descriptor: int, url: str) -> None:
    """Stores the URL of an object in an extended attribute of its file, which listings show.

    Does nothing if the disk is full, or if attributes are not supported.
    """
    if sys.platform == "linux":
        try:
            os.setxattr(descriptor, _URL, url.encode())
        except OSError as error:
            if error.errno not in (*_NO_ATTRIBUTE, *NO_SPACE):
                raise


def has_path(path: Path, descriptor: int) -> bool:
    """Returns whether an open file still has this path. False if the file was removed or replaced."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


class NoLocksError(CacheError):
    """The file system of a cache has no locks."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"the cache {printable(str(path))} is on a file system without file locks (flock), so processes cannot "
            "share it; name a folder on a local disk with --cache or PACKSTORE_CACHE"
        )


def register_descriptor(descriptor: int) -> int:
    """Registers an open descriptor and returns it. Forked children close their copy of a registered descriptor.

    It stays registered until :func:`unlock_and_close` or :func:`unregister_descriptor`.
    """
    _held.add(descriptor)
    return descriptor


def unregister_descriptor(descriptor: int) -> int:
    """Unregisters an open descriptor and returns it. Forked children then keep it, and its lock."""
    _held.discard(descriptor)
    return descriptor


def unlock_and_close(descriptor: int) -> None:
    """Unlocks and closes a registered descriptor. Ignores a descriptor that is not registered."""
    if descriptor in _held:  # a child that was forked meanwhile has closed it already
        _held.discard(descriptor)
        # Unlocked explicitly: a child forked a moment ago may still have a copy.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def try_lock(descriptor: int, root: Path, *, shared: bool = False, seconds: float = 0.0) -> bool:
    """Locks an open file: exclusively, or ``shared``. Tries for up to ``seconds``, at least once. Returns whether the
    file is locked.

    Raises:
        NoLocksError: The file system of ``root`` has no locks.
        OSError: Locking failed for another reason.
    """
    end = time.monotonic() + seconds
    pause = 0.0005
    while not (locked := lock_file(descriptor, shared=shared)):
        if locked is None:
            raise NoLocksError(root)
        left = end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)
    return True


def _close_in_child() -> None:
    """Closes all registered descriptors in a forked child."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)

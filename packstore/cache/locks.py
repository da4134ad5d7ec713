"""File locks (flock) of a cache, with a timeout, and released in forked children."""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from pathlib import Path

from packstore.core.errors import CacheError, printable

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

# Errors of flock(2) on a file system without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
_LONGEST_PAUSE = 0.05

_held: set[int] = set()
"""Locked descriptors to close in a forked child, whose copies would keep the locks after the parent has ended."""


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
    if fcntl is None:
        raise NoLocksError(root)
    end = time.monotonic() + seconds
    pause = 0.0005
    while True:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                raise NoLocksError(root) from error
            raise
        else:
            return True


def _close_in_child() -> None:
    """Closes all registered descriptors in a forked child."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)

"""The owner file of a work directory: names the process that writes there, which holds its lock."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from packstore.core.errors import printable

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

OWNER = "owner"
"""Name of the file."""
_MAGIC = "packstore work directory"
_OWNER_BYTES = 4096
# Errors of flock(2) on a file system without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class Owner:
    """Identity of the process that writes, or wrote, in a work directory.

    Attributes:
        destination: File name of the store, which is beside the work directory.
        pid: Its process id.
        host: Its machine.
        started: Time of the start, in seconds since the epoch.
    """

    destination: str
    pid: int
    host: str
    started: float

    def __str__(self) -> str:
        return f"process {self.pid} on {printable(self.host)}"


def read_owner(path: Path) -> Owner | None:
    """Reads the owner file of the work directory at ``path``. Returns None if there is no valid owner file."""
    try:
        descriptor = os.open(path / OWNER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, ValueError):  # ValueError: a null byte in the path
        return None
    try:
        plain = json.loads(os.read(descriptor, _OWNER_BYTES))
        if plain["what"] != _MAGIC:
            return None
        os.fsencode(str(plain["destination"]))
        time.localtime(float(plain["started"]))
        return Owner(str(plain["destination"]), int(plain["pid"]), str(plain["host"]), float(plain["started"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    finally:
        os.close(descriptor)


def write_owner(descriptor: int, destination: str) -> None:
    """Writes the name of the destination, this process, its host and the time to an open owner file."""
    text = json.dumps(
        {
            "what": _MAGIC,
            "destination": destination,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": time.time(),
        }
    )
    # Padded to one length and in one call, so that no reader ever sees an incomplete owner.
    os.pwrite(descriptor, text.encode("ascii").ljust(_OWNER_BYTES), 0)


def is_held(path: Path, owner: Owner | None) -> bool:
    """Returns whether a process holds the lock of the work directory.

    - File system without locks: whether ``owner`` may still run. True for any other host, False for None.
    - No permission to open the owner file: True.
    - No owner file: False.
    """
    try:
        descriptor = os.open(path / OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except PermissionError:
        return True  # another user's: cannot tell
    except OSError:
        return False
    try:
        locked = lock_owner_file(descriptor, shared=True)
        if locked is None:
            return owner is not None and (owner.host != socket.gethostname() or process_exists(owner.pid))
        return not locked
    finally:
        os.close(descriptor)


def lock_owner_file(descriptor: int, *, shared: bool = False) -> bool | None:
    """Locks an open owner file, without waiting. Returns False if another process holds the lock.

    Returns None if the system or file system has no locks. ``shared``: only to see whether a process writes.
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


def process_exists(pid: int) -> bool:
    """Returns whether a process of this number runs on this machine, even one that belongs to another user.

    Returns True for a number that is too large to check.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True

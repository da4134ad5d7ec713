"""LMDB environments for reading: one a file and process, shared by all readers, closed with the last array over it.

py-lmdb 2 and later refuse to open a file twice in a process, so environments are kept by device and inode in a weak
dictionary; readers, and all arrays that lie over the map, hold them by plain references.

Fork: LMDB's rule against using an environment in a child is about lock tables, reader slots and the writer's mutex. A
read-only environment with ``lock=False`` has none of them: it is a read-only map and a file descriptor, both of which
a child inherits intact. (py-lmdb would also refuse to open the file again in the child.) So the child goes on with it,
with transactions of its own.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import lmdb
import numpy as np
from numpy.typing import NDArray

from packstore.errors import StoreError, printable

_environments: WeakValueDictionary[tuple[int, int], Environment] = WeakValueDictionary()
_lock = threading.RLock()


class Environment:
    """A read-only environment with one transaction for each thread.

    Attributes:
        entries: Number of entries.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._local = threading.local()
        self.entries = int(env.stat()["entries"])

    def get(self, key: bytes) -> memoryview | None:
        """The value of a key over the map, valid as long as this object lives; None when there is none."""
        try:
            txn = self._local.txn
        except AttributeError:
            txn = self._local.txn = self._env.begin(buffers=True)
        try:
            return txn.get(key)  # type: ignore[no-any-return]
        except lmdb.Error as error:
            raise StoreError(f"{printable(self._env.path())} is damaged at {key!r}: {error}") from error

    def array(self, value: memoryview) -> NDArray[np.uint8]:
        """``value`` (from :meth:`get`) as a read-only array that keeps the map alive."""
        if not len(value):
            return np.empty(0, np.uint8)
        address = np.frombuffer(value, np.uint8).__array_interface__["data"][0]
        return np.asarray(_Mapped(self, address, len(value)))

    def renew(self) -> None:
        """Forgets transactions that were begun before a fork."""
        self._local = threading.local()


class _Mapped:
    """Memory of a map, as numpy takes it: the array's base is this object, and this object holds the environment."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, owner: Environment, address: int, size: int) -> None:
        self.owner = owner
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, True), "version": 3}


def open_environment(path: Path) -> Environment:
    """The environment of the LMDB directory ``path``. Raises :class:`StoreError`."""
    shown = printable(str(path))
    try:
        with _lock:
            found = (path / "data.mdb").stat()
            identity = found.st_dev, found.st_ino
            environment = _environments.get(identity)
            if environment is None:
                environment = _environments[identity] = _open(path, shown)
            return environment
    except OSError as error:
        raise StoreError(f"{shown} cannot be opened: {error.strerror or error}") from error


def _open(path: Path, shown: str) -> Environment:
    try:
        env = lmdb.open(str(path), readonly=True, lock=False, readahead=False, create=False, max_dbs=0)
        needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    except lmdb.Error as error:
        raise StoreError(f"{shown} cannot be opened as an LMDB: {error}") from error
    size = (path / "data.mdb").stat().st_size
    if size < needed:  # reading past the end of a map kills the process, so this comes before the first page
        raise StoreError(f"{shown} is truncated: data.mdb has {size} of {needed} bytes")
    return Environment(env)


def _after_fork_in_child() -> None:
    for environment in list(_environments.values()):
        environment.renew()
    _lock.release()


if hasattr(os, "register_at_fork"):
    # Holding the lock over the fork leaves the dictionary whole in the child.
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_after_fork_in_child)

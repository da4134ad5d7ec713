"""LMDB environments for reading: one a file and process, shared by all readers, closed with the last of them.

py-lmdb 2 and later refuse to open a file twice in a process, so environments are kept by device and inode in a weak
dictionary; readers hold them by plain references.

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
from packstore.stores.lmdb_pages import Damage, Pages

_environments: WeakValueDictionary[tuple[int, int], Environment] = WeakValueDictionary()
_lock = threading.RLock()


class Environment:
    """A read-only environment with one transaction for each thread.

    Attributes:
        pages: The same file without LMDB, for everything but images.
    """

    def __init__(self, env: Any, pages: Pages) -> None:
        self._env = env
        self._local = threading.local()
        self.pages = pages

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

    def find(self, name: str) -> NDArray[np.uint8] | None:
        """The value of a named key, as an array that holds its own map."""
        try:
            return self.pages.find(name.encode("ascii"))
        except Damage as damage:
            raise StoreError(f"{printable(self._env.path())} is damaged: {damage}") from None

    def renew(self) -> None:
        """Forgets transactions that were begun before a fork."""
        self._local = threading.local()


def open_environment(path: Path) -> Environment:
    """The environment of the LMDB directory ``path``. Raises :class:`StoreError`."""
    shown = printable(str(path))
    try:
        with _lock, (path / "data.mdb").open("rb") as file:
            identity = _identity(os.fstat(file.fileno()))
            environment = _environments.get(identity)
            if environment is None:
                pages = Pages(file)  # finds damage before LMDB trips over it
                env = lmdb.open(str(path), readonly=True, lock=False, readahead=False, create=False, max_dbs=0)
                if _identity((path / "data.mdb").stat()) != identity:
                    raise StoreError(f"{shown} was replaced while it was opened; open it again")
                environment = _environments[identity] = Environment(env, pages)
            return environment
    except OSError as error:
        raise StoreError(f"{shown} cannot be opened: {error.strerror or error}") from error
    except (Damage, lmdb.Error) as error:
        raise StoreError(f"{shown} cannot be opened as an LMDB: {error}") from error


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _after_fork_in_child() -> None:
    for environment in list(_environments.values()):
        environment.renew()
    _lock.release()


if hasattr(os, "register_at_fork"):
    # Holding the lock over the fork leaves the dictionary whole in the child.
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_after_fork_in_child)

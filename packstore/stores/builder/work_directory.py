"""The work directory of a store that is being written: hidden beside its destination, locked, and recognisable.

The store ``out.lmdb`` is written in ``.out.lmdb.packstore/``::

    owner         who writes it, as JSON; locked (flock) as long as that process lives
    run-00001/    what one run has made: the staged store, its columns, a journal of its records, its receipt
    added/        what is to be appended to a store, packed as a store of its own, with a work directory of its own

A run that is killed leaves the directory behind, unlocked. The next one with the same destination goes on from it (see
:mod:`packstore.stores.builder.journal`), and ``packstore clean`` removes it. A directory is packstore's own only if its
``owner`` names the destination beside it, and only names that packstore gives are removed from it.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import socket
import stat
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from packstore.core.errors import DestinationError, StoreError, printable
from packstore.core.files import beyond_standard_streams, remove_empty, writing
from packstore.stores.opening import read_manifest
from packstore.stores.ownership import remove_parts, remove_unfinished

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_log = logging.getLogger(__name__)

OWNER = "owner"
STORE, JOURNAL, SHARDS, RECEIPT = "store", "journal", "shards", "receipt"
COLUMNS = "columns"
"""In a run's directory, where another can go on from it: the values of each column, and where a ragged one's end."""
_COLUMN_FILE = re.compile(r"[a-z][a-z0-9_]*\.(values|offsets)")
ADDED, KEPT = "added", "kept"
"""Stores in a work directory: what is to be appended, and what of the old store must be written again for that."""
GROWTH = "growth"
"""In a run's directory, while shards are put into a store that is there already: which, and how to tell whether the
store has them."""
EXPORT, PARTS = "export", "parts"
"""In the directory of a run that makes an export and no store: which, and what is known of each shard that is done."""
ASIDE = f"{STORE}-old"
"""In a run's directory: the store that is being replaced, where the system cannot exchange two names in one step."""
_MAGIC = "packstore work directory"
_RUN = re.compile(r"run-(\d{5})")
_NAME = re.compile(r"\.(.+)\.packstore", re.DOTALL)
_LONGEST = 200
_OWNER_BYTES = 4096
_NAMING_SECONDS = 1.0
# What flock(2) says where the file system knows no locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class Owner:
    """Who writes, or wrote, in a work directory.

    Attributes:
        destination: Name of the store that is to be, in the directory that also holds the work directory.
        pid: The process.
        host: Its machine.
        started: When, in seconds since the epoch.
    """

    destination: str
    pid: int
    host: str
    started: float


def work_path(destination: Path) -> Path:
    """The path of a destination's work directory, which may not exist."""
    name = os.fsencode(destination.name)
    if len(name) > _LONGEST:  # file names end at 255 bytes
        name = name[: _LONGEST - 17] + b"-" + xxhash.xxh3_64_hexdigest(name).encode("ascii")
    return destination.parent / f".{os.fsdecode(name)}.packstore"


class WorkDirectory:
    """The work directory of one destination, held by this process until :meth:`remove` or :meth:`release`.

    Attributes:
        path: Where it is.
    """

    def __init__(self, destination: Path) -> None:
        """Creates and locks it, or locks what a dead run has left.

        Raises:
            DestinationError: Another process writes to the destination (the message has its pid and host), something
                foreign has the directory's name, or it cannot be made.
        """
        self.path = work_path(destination)
        self._destination = destination
        self._descriptor = -1
        with writing(destination):
            while not self._acquire():
                continue

    def runs(self) -> list[Path]:
        """The directories of all runs, oldest first."""
        return runs_of(self.path)

    def new_run(self) -> Path:
        """Creates the directory of a new run."""
        runs = self.runs()
        last = int(runs[-1].name[-5:]) if runs else 0
        path = self.path / f"run-{last + 1:05d}"
        path.mkdir()
        return path

    def undo_swap(self) -> bool:
        """Restores a store that a killed run moved aside and did not replace. Returns whether it did."""
        undone = False
        for run in self.runs():
            aside = run / ASIDE
            if os.path.lexists(aside):
                if os.path.lexists(self._destination):
                    _remove_staged(run, ASIDE)  # it is replaced
                else:
                    aside.rename(self._destination)
                    undone = True
            self._undo_growth(run / GROWTH)
        return undone

    def finished_growth(self) -> object:
        """What a killed run was asked for that had appended to the store already, as it told :func:`growth.grow`; None
        where there is no such run."""
        for run in self.runs():
            told = _growth(self._destination, run / GROWTH)
            if told is not None and told["done"]:
                return told["request"]
        return None

    def _undo_growth(self, marker: Path) -> None:
        """Removes from the store what a run has put there in vain; or, where it got as far as replacing the manifest,
        what the store needs no more."""
        told = _growth(self._destination, marker)
        if told is not None:
            remove_parts(self._destination, told["needless"])
            if not told["done"]:  # else it goes with the run: until then it tells that nothing is left to be done
                marker.unlink()

    def remove(self) -> None:
        """Removes it with all runs, and releases it. Idempotent."""
        if self._descriptor < 0:
            return
        try:
            self.undo_swap()
            _remove(self.path)
        except OSError as error:  # called when all that matters is done, or while another error is on its way
            _log.warning("cannot remove the work directory %s: %s", printable(str(self.path)), error)
        finally:
            self.release()

    def release(self) -> None:
        """Unlocks it and leaves its content. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _acquire(self) -> bool:
        """Locks the directory. False if it vanished between two steps. Raises like ``__init__``."""
        try:
            self.path.mkdir()
        except FileExistsError:
            try:
                self._refuse_foreign()
            except FileNotFoundError:
                return False
        with beyond_standard_streams():
            try:
                descriptor = os.open(self.path / OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            except FileNotFoundError:
                return False
        try:
            locked = _lock(descriptor)
            there = os.fstat(descriptor)
            try:
                current = (self.path / OWNER).lstat()
            except FileNotFoundError:
                current = None
            if locked is False or (locked is None and self._lives(descriptor)):
                raise self._taken(self._named_owner())
            if current is None or (current.st_dev, current.st_ino) != (there.st_dev, there.st_ino):
                return False  # another process removed it while we waited
            self._write_owner(descriptor)
            self._descriptor, descriptor = descriptor, -1
            _held.add(self)
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        return True

    def _refuse_foreign(self) -> None:
        """Raises :class:`DestinationError` for what is not ours, :class:`FileNotFoundError` where nothing is left."""
        shown = printable(str(self.path))
        if not stat.S_ISDIR(self.path.lstat().st_mode):
            raise DestinationError(f"{shown} is in the way and is no work directory of packstore; move it away")
        owner = read_owner(self.path)
        if owner is not None and owner.destination != self._destination.name:
            raise DestinationError(f"{shown} is the work directory of {printable(owner.destination)!r}; move it away")
        if owner is None and not _is_blank(self.path):
            raise DestinationError(f"{shown} is in the way and holds what packstore did not write; move it away")

    def _lives(self, descriptor: int) -> bool:
        """On a file system without locks: whether the owner may still be at work."""
        owner = read_owner(self.path)
        if owner is None:
            return False
        if owner.host != socket.gethostname():
            return True
        return owner.pid != os.getpid() and _runs_here(owner.pid)

    def _named_owner(self) -> Owner | None:
        """The holder of the lock. It may have taken it just now, and be about to write its name."""
        until = time.monotonic() + _NAMING_SECONDS
        while (owner := read_owner(self.path)) is None and time.monotonic() < until:
            time.sleep(0.005)
        return owner

    def _taken(self, owner: Owner | None) -> DestinationError:
        who = "another process"
        if owner is not None:
            who = f"process {owner.pid} on {printable(owner.host)}"
        return DestinationError(
            f"{printable(str(self._destination))} is being written by {who}; wait for it or choose another name"
        )

    def _write_owner(self, descriptor: int) -> None:
        text = json.dumps(
            {
                "what": _MAGIC,
                "destination": self._destination.name,
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "started": time.time(),
            }
        )
        # Always of one length and in one call: at no moment is there an owner that says nothing.
        os.pwrite(descriptor, text.encode("ascii").ljust(_OWNER_BYTES), 0)


def _growth(destination: Path, marker: Path) -> dict[str, Any] | None:
    """What a run has noted that puts shards into a store; whether it got as far as replacing the manifest; and by that
    which files the store does not need."""
    try:
        told: dict[str, Any] = json.loads(marker.read_text("ascii"))
        done = read_manifest(destination).digest == told["sealed"]
        return {**told, "done": done, "needless": told["replaced"] if done else told["added"]}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, StoreError) as error:
        _log.warning("what a killed run has put into %s stays: %s", printable(str(destination)), error)
        return None


def _is_blank(path: Path) -> bool:
    """Whether a work directory has no content but, at most, an empty owner: its run was killed as it made it, or the
    power failed before the content was on the disk."""
    for entry in path.iterdir():
        if entry.name != OWNER or not stat.S_ISREG(entry.lstat().st_mode) or entry.read_bytes().strip(b"\0"):
            return False
    return True


_held: weakref.WeakSet[WorkDirectory] = weakref.WeakSet()


def _forget_in_child() -> None:
    """A forked process shares the locks of its parent: a worker that outlives it for a moment would hold them."""
    for directory in list(_held):
        directory.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def read_owner(path: Path) -> Owner | None:
    """The owner of the work directory at ``path``; None when there is none that packstore can have written."""
    try:
        descriptor = os.open(path / OWNER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = json.loads(os.read(descriptor, _OWNER_BYTES))
        if found["what"] != _MAGIC:
            return None
        os.fsencode(str(found["destination"]))
        time.localtime(float(found["started"]))
        return Owner(str(found["destination"]), int(found["pid"]), str(found["host"]), float(found["started"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Leftover:
    """A work directory that no process holds.

    Attributes:
        path: Where it is.
        owner: Who wrote it.
        nbytes: What it takes on disk.
        in_store: Names of shards and tables in the store that it was appending to, and that the store does not need.
    """

    path: Path
    owner: Owner
    nbytes: int
    in_store: tuple[str, ...] = ()


def find_leftovers(directory: Path) -> Iterator[Leftover]:
    """The leftovers in ``directory`` (not below): work directories that are provably packstore's, and unused.

    Raises :class:`OSError` when the directory cannot be listed.
    """
    for path in sorted(directory.iterdir()):
        name = _NAME.fullmatch(path.name)
        if name is None or path.is_symlink() or not path.is_dir():
            continue
        owner = read_owner(path)
        if owner is None or work_path(directory / owner.destination) != path or is_held(path, owner):
            continue
        nbytes = sum(p.lstat().st_blocks * 512 for p in path.rglob("*") if p.is_file())
        destination = directory / owner.destination
        told = [_growth(destination, run / GROWTH) for run in runs_of(path)]
        names = (str(name) for each in told if each is not None for name in each["needless"])
        yield Leftover(path, owner, nbytes, tuple(name for name in names if os.path.lexists(destination / name)))


def is_held(path: Path, owner: Owner) -> bool:
    """Whether the process that owns the work directory is at work in it."""
    try:
        descriptor = os.open(path / OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except PermissionError:
        return True  # not ours to say
    except OSError:
        return False
    try:
        locked = _lock(descriptor)
        if locked is None:
            return owner.host != socket.gethostname() or _runs_here(owner.pid)
        return not locked
    finally:
        os.close(descriptor)


def remove_leftover(leftover: Leftover) -> None:
    """Removes a leftover, unless somebody has begun to use it.

    Raises :class:`DestinationError` when it is in use, or holds what packstore did not put there (which stays).
    """
    destination = leftover.path.parent / leftover.owner.destination
    with writing(leftover.path):
        WorkDirectory(destination).remove()
    if leftover.path.exists():
        raise DestinationError(f"{printable(str(leftover.path))} also holds what packstore did not write; that is left")


def runs_of(path: Path) -> list[Path]:
    """The directories of runs in a work directory, oldest first."""
    return sorted(p for p in path.iterdir() if _RUN.fullmatch(p.name) and p.is_dir() and not p.is_symlink())


def remove_run(path: Path) -> None:
    """Removes the directory of one run, but nothing in it that packstore did not put there."""
    (path / f"{RECEIPT}.new").unlink(missing_ok=True)
    for name in (JOURNAL, SHARDS):
        (path / name).unlink(missing_ok=True)
    if (path / COLUMNS).is_dir():
        for file in (path / COLUMNS).iterdir():
            if _COLUMN_FILE.fullmatch(file.name):
                file.unlink()
        remove_empty(path / COLUMNS)
    _remove_staged(path, STORE)
    if (path / EXPORT).is_file():
        for name in (ASIDE, PARTS, EXPORT):
            _remove_staged(path, name)
    (path / GROWTH).unlink(missing_ok=True)
    # Last: it says that the conversion is complete, where it is, should this be killed half-way.
    (path / RECEIPT).unlink(missing_ok=True)
    remove_empty(path)


def _remove_staged(run: Path, name: str) -> None:
    """Removes what a run has staged. A store's files are known by their names; those of an export have any, so all that
    lies there goes: links are removed and not followed."""
    path = run / name
    if (run / EXPORT).is_file() and path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        remove_unfinished(path)


def _remove(path: Path) -> None:
    for name in (ADDED, KEPT):
        if work_path(path / name).is_dir():
            WorkDirectory(path / name).remove()
        remove_unfinished(path / name)
    for run in runs_of(path):
        remove_run(run)
    if {entry.name for entry in path.iterdir()} <= {OWNER}:
        # The owner last: until then the directory is known for what it is.
        (path / OWNER).unlink(missing_ok=True)
        remove_empty(path)


def _lock(descriptor: int) -> bool | None:
    """Locks an open owner file. Returns whether that worked, or None on a file system without locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


def _runs_here(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True

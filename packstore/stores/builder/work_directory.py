"""The work directory of a store that is being written: hidden beside its destination, locked, and recognisable.

The store ``out.lmdb`` is written in ``.out.lmdb.packstore/``::

    owner         who writes it, as JSON; locked (flock) as long as that process lives
    run-00001/    the work of one run: the staged store, its columns, a journal of its records, its receipt
    added/        records to append to a store, packed as a store of their own, with its own work directory

A killed run leaves the directory behind, unlocked. The next run with the same destination resumes from it, see
:mod:`packstore.stores.builder.journal`. ``packstore clean`` removes it. A directory is packstore's own only if its
``owner`` names the destination beside it. Only files with names that packstore gives are removed from it.
"""

from __future__ import annotations

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
from packstore.stores.builder.owner import (
    OWNER,
    Owner,
    is_held,
    lock_owner_file,
    process_exists,
    read_owner,
    write_owner,
)
from packstore.stores.opening import read_manifest
from packstore.stores.ownership import remove_shards, remove_unfinished

_log = logging.getLogger(__name__)

STORE, JOURNAL, SHARDS, RECEIPT = "store", "journal", "shards", "receipt"
COLUMNS = "columns"
"""Files with each column's values, and a ragged one's offsets, in the directory of a run that another can resume."""
_COLUMN_FILE = re.compile(r"[a-z][a-z0-9_]*\.(values|offsets)")
ADDED, KEPT = "added", "kept"
"""Stores in a work directory: the records to append, and those of the old store that must be rewritten for that."""
GROWTH = "growth"
"""Marker file in the directory of a run that adds shards to an existing store. It has their names, and the digest of
the new manifest, which tells whether they belong to the store."""
EXPORT, PARTS = "export", "parts"
"""Files with the identity of an export, and with facts on each finished shard, in the directory of the run."""
ASIDE = f"{STORE}-old"
"""Store that is being replaced, in a run's directory, if the system cannot exchange two names in one step."""
_RUN = re.compile(r"run-(\d{5})")
_NAME = re.compile(r"\.(.+)\.packstore", re.DOTALL)
_LONGEST = 200
_NAMING_SECONDS, _LOOK_SECONDS = 1.0, 0.05


def work_path(destination: Path) -> Path:
    """Returns the path of a destination's work directory, which may not exist.

    A name of over 200 bytes is cut and gets a hash of the whole name.
    """
    name = os.fsencode(destination.name)
    if len(name) > _LONGEST:  # file names end at 255 bytes
        name = name[: _LONGEST - 17] + b"-" + xxhash.xxh3_64_hexdigest(name).encode("ascii")
    return destination.parent / f".{os.fsdecode(name)}.packstore"


class WorkDirectory:
    """The work directory of a destination, locked by this process until :meth:`remove` or :meth:`release`.

    Refuses a directory that another process uses or that packstore did not make. Removes only files with names that
    packstore gives. Forked children do not hold the lock.

    Attributes:
        path: Path of the directory.
    """

    def __init__(self, destination: Path) -> None:
        """Creates and locks the directory, or locks the one that a dead run left.

        Raises:
            DestinationError: Another process writes to the destination; the message has its pid and host. Or a foreign
                file or directory has the directory's name, or the directory cannot be created.
        """
        self.path = work_path(destination)
        self._destination = destination
        self._descriptor = -1
        with writing(destination):
            while not self._acquire():
                continue

    def list_runs(self) -> list[Path]:
        """Lists the directories of all runs, oldest first."""
        return list_runs(self.path)

    def create_run(self) -> Path:
        """Creates and returns the directory of a new run, numbered after the last one."""
        runs = self.list_runs()
        last = int(runs[-1].name[-5:]) if runs else 0
        path = self.path / f"run-{last + 1:05d}"
        path.mkdir()
        return path

    def undo_interrupted_publish(self) -> bool:
        """Cleans up after a run that was killed while publishing. Returns whether it moved a store back.

        - A store that was moved aside: moves it back if nothing is at the destination, else removes it.
        - A store that records were appended to: removes the files that its present manifest does not need.
        """
        undone = False
        for run in self.list_runs():
            aside = run / ASIDE
            if os.path.lexists(aside):
                if os.path.lexists(self._destination):
                    _remove_staged(run, ASIDE)  # the new store is in its place
                else:
                    aside.rename(self._destination)
                    undone = True
            self._undo_growth(run / GROWTH)
        return undone

    def find_finished_growth(self) -> object:
        """Returns the ``request`` of a run that was killed after it had appended to the store.

        See :func:`packstore.stores.builder.growth.publish_growth`. None if there is no such run.
        """
        for run in self.list_runs():
            growth = _read_growth(self._destination, run / GROWTH)
            if growth is not None and growth["done"]:
                return growth["request"]
        return None

    def _undo_growth(self, marker: Path) -> None:
        """Removes the files that a killed append left in the store and that the store does not need.

        - The manifest was not replaced: removes the added files and the marker.
        - The manifest was replaced: removes the files that only the old manifest needed. The marker stays until the
          run is removed.
        """
        growth = _read_growth(self._destination, marker)
        if growth is not None:
            remove_shards(self._destination, growth["needless"])
            if not growth["done"]:  # else it stays until the run is removed: it shows that the append is complete
                marker.unlink()

    def remove(self) -> None:
        """Calls :meth:`undo_interrupted_publish`, removes the directory with all runs, and unlocks it.

        Leaves foreign files. Logs a warning if removing fails. Begins once more if a signal interrupts it. Idempotent.
        """
        if self._descriptor < 0:
            return
        try:
            try:
                self._remove_all()
            except Exception:
                raise
            except BaseException:
                self._remove_all()
                raise
        except OSError as error:  # called after the real work, or while another error is being raised
            _log.warning("cannot remove the work directory %s: %s", printable(str(self.path)), error)
        finally:
            self.release()

    def _remove_all(self) -> None:
        """Calls :meth:`undo_interrupted_publish`, and removes the directory. Raises :class:`OSError` if that fails."""
        self.undo_interrupted_publish()
        if self.path.is_dir():
            _remove_content(self.path)

    def release(self) -> None:
        """Unlocks the directory and leaves its content. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _acquire(self) -> bool:
        """Locks the directory and writes its owner. Creates a missing directory.

        Returns False if another process removed the directory meanwhile. Raises :class:`DestinationError` if another
        process uses the directory, or if it is not the work directory of this destination.
        """
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
            locked = lock_owner_file(descriptor)
            if locked is False:  # verify and clean hold it for a moment, to see whether a process writes
                time.sleep(_LOOK_SECONDS)
                locked = lock_owner_file(descriptor)
            there = os.fstat(descriptor)
            try:
                current = (self.path / OWNER).lstat()
            except FileNotFoundError:
                current = None
            if locked is False or (locked is None and self._is_owner_alive(descriptor)):
                raise self._in_use_error(self._wait_for_owner())
            if current is None or (current.st_dev, current.st_ino) != (there.st_dev, there.st_ino):
                return False  # another process removed it while we waited
            write_owner(descriptor, self._destination.name)
            self._descriptor, descriptor = descriptor, -1
            _held.add(self)
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        return True

    def _refuse_foreign(self) -> None:
        """Raises :class:`DestinationError` if the path is not this destination's work directory.

        Accepts a directory that is empty but for an empty owner file. Raises :class:`FileNotFoundError` for no
        directory.
        """
        shown = printable(str(self.path))
        if not stat.S_ISDIR(self.path.lstat().st_mode):
            raise DestinationError(f"{shown} has the name of a work directory but is none; move it away")
        owner = read_owner(self.path)
        if owner is not None and owner.destination != self._destination.name:
            raise DestinationError(f"{shown} is the work directory of {printable(owner.destination)!r}; move it away")
        if owner is None and not _has_no_owner(self.path):
            raise DestinationError(f"{shown} holds files that packstore did not write; move it away")

    def _is_owner_alive(self, descriptor: int) -> bool:
        """Returns whether the owner may still run, for a file system without locks.

        False without a valid owner file, and for this process itself. True for any other machine.
        Reads the owner file by its path, not by ``descriptor``.
        """
        owner = read_owner(self.path)
        if owner is None:
            return False
        if owner.host != socket.gethostname():
            return True
        return owner.pid != os.getpid() and process_exists(owner.pid)

    def _wait_for_owner(self) -> Owner | None:
        """Waits up to a second for a valid owner file, and returns the owner it names, or None."""
        until = time.monotonic() + _NAMING_SECONDS
        while (owner := read_owner(self.path)) is None and time.monotonic() < until:
            time.sleep(0.005)
        return owner

    def _in_use_error(self, owner: Owner | None) -> DestinationError:
        """Returns the error for a destination that another process is writing. Names ``owner`` unless that is None."""
        who = "another process" if owner is None else owner
        return DestinationError(
            f"{printable(str(self._destination))} is being written by {who}; wait for it or choose another name"
        )


def _read_growth(destination: Path, marker: Path) -> dict[str, Any] | None:
    """Reads the marker of a run that adds shards to a store, and compares it with the store's manifest.

    Adds ``done``, whether the run replaced the manifest, and ``needless``, the files that the store does not need.
    Returns None if there is no marker. Logs a warning and returns None if marker or manifest cannot be read.
    """
    try:
        note: dict[str, Any] = json.loads(marker.read_text("ascii"))
        done = read_manifest(destination).digest == note["sealed"]
        return {**note, "done": done, "needless": note["replaced"] if done else note["added"]}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, StoreError) as error:
        _log.warning("files that a killed run added to %s are not removed: %s", printable(str(destination)), error)
        return None


def _has_no_owner(path: Path) -> bool:
    """Returns whether a work directory holds at most an empty owner file.

    Such a directory is left by a run that was killed early, or by a power cut.
    """
    for entry in path.iterdir():
        if entry.name != OWNER or not stat.S_ISREG(entry.lstat().st_mode) or entry.read_bytes().strip(b"\0"):
            return False
    return True


_held: weakref.WeakSet[WorkDirectory] = weakref.WeakSet()


def _release_in_child() -> None:
    """Closes the copies of the parent's locks in a forked child, which might outlive the parent."""
    for directory in list(_held):
        directory.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)


@dataclass(frozen=True, slots=True)
class Leftover:
    """A work directory that no process holds.

    Attributes:
        path: Path of the directory.
        destination: The store or export that was being written.
        owner: The process that wrote it. None if the directory is empty, or holds only an empty owner file.
        nbytes: Bytes on disk.
        in_store: Names of shards and tables that a killed append left in the store, and that the store does not need.
    """

    path: Path
    destination: Path
    owner: Owner | None
    nbytes: int
    in_store: tuple[str, ...] = ()


def find_leftovers(directory: Path) -> Iterator[Leftover]:
    """Yields the work directories directly in ``directory`` that packstore made and no process uses.

    Raises :class:`OSError` if the directory cannot be listed.
    """
    for path in sorted(directory.iterdir()):
        leftover = find_leftover(path)
        if leftover is not None:
            yield leftover


def find_leftover(path: Path) -> Leftover | None:
    """Returns the work directory at ``path`` if packstore made it and no process uses it, else None."""
    name = _NAME.fullmatch(path.name)
    if name is None or path.is_symlink() or not path.is_dir():
        return None
    owner = read_owner(path)
    # Without an owner, the name must be one that work_path gives; a cut one stands for itself.
    destination = path.parent / (name[1] if owner is None else owner.destination)
    if work_path(destination) != path or is_held(path, owner):
        return None
    try:
        if owner is None and not _has_no_owner(path):
            return None
    except (PermissionError, FileNotFoundError):  # another user's, or removed meanwhile
        return None
    nbytes = sum(p.lstat().st_blocks * 512 for p in path.rglob("*") if p.is_file())
    return Leftover(path, destination, owner, nbytes, list_needless_files(destination))


def find_writer(destination: Path) -> Owner | None:
    """Returns the process that holds the work directory of a local destination, or None.

    A process that has not written its name yet counts as none.
    """
    path = work_path(destination)
    owner = read_owner(path)
    return owner if owner is not None and is_held(path, owner) else None


def list_needless_files(destination: Path) -> tuple[str, ...]:
    """Lists the names of files that an interrupted append left in the store, and that the store does not need."""
    work = work_path(destination)
    runs = list_runs(work) if work.is_dir() else []
    growths = [_read_growth(destination, run / GROWTH) for run in runs]
    names = (str(name) for each in growths if each is not None for name in each["needless"])
    return tuple(name for name in names if os.path.lexists(destination / name))


def remove_leftover(leftover: Leftover) -> None:
    """Removes a leftover work directory, after :meth:`WorkDirectory.undo_interrupted_publish`.

    Raises :class:`DestinationError` if the directory is in use or cannot be removed whole.
    """
    with writing(leftover.path):
        WorkDirectory(leftover.destination).remove()
    if leftover.path.exists():
        raise DestinationError(
            f"{printable(str(leftover.path))} also holds files that packstore did not write; they are left"
        )


def list_runs(path: Path) -> list[Path]:
    """Lists the directories of runs in a work directory, oldest first."""
    return sorted(p for p in path.iterdir() if _RUN.fullmatch(p.name) and p.is_dir() and not p.is_symlink())


def remove_run(path: Path) -> None:
    """Removes the directory of one run. Leaves files that packstore did not write, and the directory if it has any."""
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
    # Last: if this is killed half-way, the receipt still shows whether the conversion was complete.
    (path / RECEIPT).unlink(missing_ok=True)
    remove_empty(path)


def _remove_staged(run: Path, name: str) -> None:
    """Removes the staged store or export ``name`` of a run.

    Of a store, removes only files with names that packstore gives. Of an export, removes everything, without following
    links.
    """
    path = run / name
    if (run / EXPORT).is_file() and path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        remove_unfinished(path)


def _remove_content(path: Path) -> None:
    """Removes everything that packstore wrote in a work directory. Removes the directory if nothing else is in it."""
    for name in (ADDED, KEPT):
        if work_path(path / name).is_dir():
            WorkDirectory(path / name).remove()
        remove_unfinished(path / name)
    for run in list_runs(path):
        remove_run(run)
    if {entry.name for entry in path.iterdir()} <= {OWNER}:
        # The owner last: it identifies the directory.
        (path / OWNER).unlink(missing_ok=True)
        remove_empty(path)

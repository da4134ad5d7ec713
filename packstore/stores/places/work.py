"""The work directory of a store that is being written: hidden beside its destination, locked, and recognisable.

The store ``out.lmdb`` is written in ``.out.lmdb.packstore/``::

    owner         who writes it, as JSON; locked (flock) as long as that process lives
    run-00001/    the work of one run: the staged store, its columns, a journal of its records, its receipt
    added/        records to append to a store, packed as a store of their own, with its own work directory

A killed run leaves the directory behind, unlocked. The next run with the same destination resumes from it, see
:mod:`packstore.stores.places.resuming`. ``packstore clean`` removes it. A directory is packstore's own only if its
``owner`` names the destination beside it. Only files with names that packstore gives are removed from it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import shutil
import socket
import stat
import time
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import xxhash

from packstore.core.errors import DestinationError, StoreError, printable
from packstore.core.files import beyond_standard_streams, device_and_inode, lock_file, remove_empty, writing
from packstore.stores.opening import read_manifest
from packstore.stores.places.owned import remove_shards, remove_unfinished
from packstore.stores.places.receipts import RECEIPT, SHARDS, Receipt, read_receipt

_log = logging.getLogger(__name__)

OWNER = "owner"
_MAGIC = "packstore work directory"
_OWNER_BYTES = 4096
STORE, EXPORT, JOURNAL, PARTS = "store", "export", "journal", "parts"
"""In the directory of a run: the staged store or export, the journal of records, and facts on each finished shard of an
export."""
COLUMNS = "columns"
"""Files with each column's values, and a ragged one's offsets, in the directory of a run that another can resume."""
_COLUMN_FILE = re.compile(r"[a-z][a-z0-9_]*\.(values|offsets)")
ADDED, KEPT = "added", "kept"
"""Stores in a work directory: the records to append, and those of the old store that must be rewritten for that."""
_RUN = re.compile(r"run-(\d{5})")
NAME = re.compile(r"\.(.+)\.packstore", re.DOTALL)
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

    def may_run(self) -> bool:
        """Returns whether the process may still run, for a file system without locks. True for any other machine."""
        if self.host != socket.gethostname():
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except (PermissionError, OverflowError):  # another user's, or a number too large to check
            return True
        return True


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

    def create_run(self) -> Path:
        """Creates and returns the directory of a new run, numbered after the last one."""
        runs = list_runs(self.path)
        last = int(runs[-1].name[-5:]) if runs else 0
        path = self.path / f"run-{last + 1:05d}"
        path.mkdir()
        return path

    def undo_interrupted_publish(self) -> bool:
        """Cleans up after a run that was killed while publishing. Returns whether it moved a store back.

        - A store that was moved aside: moves it back if nothing is at the destination, else removes it.
        - A store that records were appended to: removes the files that its present manifest does not need, which are
          the added ones until the manifest is replaced, and then those that only the old one needed.
        """
        undone = False
        for run in list_runs(self.path):
            for staged in (run / STORE, run / EXPORT):
                aside = aside_path(staged)
                if os.path.lexists(aside):
                    if os.path.lexists(self._destination):
                        _remove_staged(aside)  # the new store is in its place
                    else:
                        aside.rename(self._destination)
                        undone = True
            growth = _read_growth(self._destination, run)
            if growth is not None:
                remove_shards(self._destination, growth.needless)
                if not growth.done:  # else it stays until the run is removed: it shows that the append is complete
                    (run / RECEIPT).unlink()
        return undone

    def remove(self) -> None:
        """Removes what packstore wrote here, with all runs, and unlocks the directory; leaves foreign files.

        First undoes an interrupted publish. Logs a warning if removing fails. Begins once more if a signal interrupts
        it. Idempotent.
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
        """Removes what packstore wrote in the directory, and then the directory if it is empty."""
        self.undo_interrupted_publish()  # first: it needs the markers of the runs
        for store in (self.path / ADDED, self.path / KEPT):
            if work_path(store).is_dir():
                WorkDirectory(store).remove()
            remove_unfinished(store)
        for run in list_runs(self.path):
            remove_run(run)
        if {entry.name for entry in self.path.iterdir()} <= {OWNER}:
            # The owner last: it identifies the directory.
            (self.path / OWNER).unlink(missing_ok=True)
            remove_empty(self.path)

    def release(self) -> None:
        """Unlocks the directory and leaves its content. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _acquire(self) -> bool:
        """Locks the directory and writes its owner, or returns False if another process removed it meanwhile."""
        try:
            self.path.mkdir()
        except FileExistsError:
            try:
                # there is one already: only this destination's is taken over
                self._refuse_foreign()
            except FileNotFoundError:
                return False
        with beyond_standard_streams():
            try:
                descriptor = os.open(self.path / OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            except FileNotFoundError:
                return False
        try:
            locked = lock_file(descriptor)
            if locked is False:  # verify and clean hold it for a moment, to see whether a process writes
                time.sleep(_LOOK_SECONDS)
                locked = lock_file(descriptor)
            there = os.fstat(descriptor)
            try:
                current = (self.path / OWNER).lstat()
            except FileNotFoundError:
                current = None
            owner = read_owner(self.path) if locked is None else None  # there are no locks here
            own = owner is not None and (owner.host, owner.pid) == (socket.gethostname(), os.getpid())
            if locked is False or (owner is not None and not own and owner.may_run()):
                raise self._in_use_error()
            if current is None or (current.st_dev, current.st_ino) != (there.st_dev, there.st_ino):
                return False  # another process removed it while we waited
            owner = Owner(self._destination.name, os.getpid(), socket.gethostname(), time.time())
            # Padded to one length and in one call, so that no reader ever sees an incomplete owner.
            os.pwrite(descriptor, json.dumps({"what": _MAGIC, **asdict(owner)}).encode("ascii").ljust(_OWNER_BYTES), 0)
            self._descriptor, descriptor = descriptor, -1
            _held.add(self)
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        return True

    def _refuse_foreign(self) -> None:
        """Raises :class:`DestinationError` if the path is not this destination's work directory."""
        shown = printable(str(self.path))
        if not stat.S_ISDIR(self.path.lstat().st_mode):
            raise DestinationError(f"{shown} has the name of a work directory but is none; move it away")
        owner = read_owner(self.path)
        if owner is not None and owner.destination != self._destination.name:
            raise DestinationError(f"{shown} is the work directory of {printable(owner.destination)!r}; move it away")
        # a run that was killed early leaves an empty owner file
        if owner is None and not has_no_owner(self.path):
            raise DestinationError(f"{shown} holds files that packstore did not write; move it away")

    def _in_use_error(self) -> DestinationError:
        """Returns the error for a destination that another process is writing."""
        # The process writes its name soon after it has locked the directory.
        until = time.monotonic() + _NAMING_SECONDS
        while (owner := read_owner(self.path)) is None and time.monotonic() < until:
            time.sleep(0.005)
        who = "another process" if owner is None else owner
        return DestinationError(
            f"{printable(str(self._destination))} is being written by {who}; wait for it or choose another name"
        )


class _Growth(NamedTuple):
    """What a killed run left that added shards to a store: whether it replaced the manifest, and files that the store
    does not need."""

    done: bool
    needless: tuple[str, ...]


def _read_growth(destination: Path, run: Path) -> _Growth | None:
    """Returns what a run left in a store to which it added shards; None if it added none."""
    receipt = read_receipt(run)
    if receipt is None or not receipt.added:
        return None
    try:
        done = read_manifest(destination).digest == receipt.sealed
    except StoreError as error:
        _log.warning("files that a killed run added to %s are not removed: %s", printable(str(destination)), error)
        return None
    return _Growth(done, receipt.replaced if done else receipt.added)


def is_published(receipt: Receipt, destination: Path) -> bool:
    """Returns whether what is at a destination was published by the run of a receipt.

    False for a run that had not yet completed its store.
    """
    if receipt.sealed is None and receipt.inode is None:
        return False
    try:
        if receipt.inode not in (None, device_and_inode(destination)[1]):
            return False
        return receipt.sealed is None or receipt.sealed == read_manifest(destination).digest
    except (OSError, StoreError):
        return False


def describe_kept(work: Path, destination: Path) -> str:
    """Describes for the user what a run that failed has kept in its work directory."""
    return (
        f"what is done so far is kept in {printable(str(work))}: the same command goes on from there, "
        f"and packstore clean {printable(shlex.quote(str(destination)))} removes it"
    )


def has_no_owner(path: Path) -> bool:
    """Returns whether a work directory holds at most an empty owner file.

    Such a directory is left by a run that was killed early, or by a power cut.
    """
    for entry in path.iterdir():
        if entry.name != OWNER or not stat.S_ISREG(entry.lstat().st_mode) or entry.read_bytes().strip(b"\0"):
            return False
    return True


_held: weakref.WeakSet[WorkDirectory] = weakref.WeakSet()


def _release_in_child() -> None:
    """Closes a forked child's copies of the parent's locks."""
    # the child might outlive the parent, and keep the locks
    for directory in list(_held):
        directory.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)


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
        locked = lock_file(descriptor, shared=True)
        if locked is None:
            return owner is not None and owner.may_run()
        return not locked
    finally:
        os.close(descriptor)


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
    growths = [_read_growth(destination, run) for run in runs]
    names = (name for each in growths if each is not None for name in each.needless)
    return tuple(name for name in names if os.path.lexists(destination / name))


def list_runs(path: Path) -> list[Path]:
    """Lists the directories of runs in a work directory, oldest first."""
    return sorted(p for p in path.iterdir() if _RUN.fullmatch(p.name) and p.is_dir() and not p.is_symlink())


def remove_run(path: Path) -> None:
    """Removes the directory of one run. Leaves files that packstore did not write, and the directory if it has any."""
    for name in (f"{RECEIPT}.new", JOURNAL, SHARDS):
        (path / name).unlink(missing_ok=True)
    if (path / COLUMNS).is_dir():
        for file in (path / COLUMNS).iterdir():
            if _COLUMN_FILE.fullmatch(file.name):
                file.unlink()
        remove_empty(path / COLUMNS)
    for name in (STORE, EXPORT, aside_path(Path(EXPORT)).name, PARTS):
        _remove_staged(path / name)
    # The receipt last: if this is killed half-way, it still shows whether the run was complete.
    (path / RECEIPT).unlink(missing_ok=True)
    remove_empty(path)


def aside_path(staged: Path) -> Path:
    """Returns the path for what is being replaced, if the system cannot exchange two names in one step."""
    return staged.with_name(f"{staged.name}-old")


def _remove_staged(path: Path) -> None:
    """Removes a staged store or export, or the folder with facts on the shards of an export."""
    if path.name.startswith(STORE) or path.is_symlink() or not path.is_dir():
        remove_unfinished(path)  # only files with names that packstore gives
    else:
        shutil.rmtree(path)  # does not follow links

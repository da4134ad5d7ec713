"""Publishes a store: writes beside the destination, syncs, renames; never touches what packstore did not make.

A store is written in a hidden work directory beside its destination (:mod:`packstore.stores.builder.work_directory`).
Only files that packstore made there, or with ``overwrite`` a proven packstore store, are ever removed.

There are three ways to publish. :class:`Staging` gives a new local store or export its name.
:mod:`packstore.stores.builder.growth` adds shards to a local store. :mod:`packstore.stores.remote.publish` creates a
version at a URL; conversions by many machines end there, too.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import stat
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from packstore.core.errors import DestinationError, printable
from packstore.core.files import device_and_inode, sync_directory, sync_tree, writing
from packstore.stores.builder.work_directory import ASIDE, STORE, WorkDirectory
from packstore.stores.ownership import NotAStoreError

_log = logging.getLogger(__name__)

_NOREPLACE = 1
_EXCHANGE = 2
_AT_FDCWD = -100
# Errors of renameat2 if the kernel or the file system does not know the flag.
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)

ListOwned = Callable[[Path], list[Path]]
"""Lists the files of a store. Raises :class:`NotAStoreError` if there is no store, and :class:`DestinationError` if
its directory also holds foreign files."""


class Staging:
    """A store that is written in a work directory, and its move to the destination.

    Replaces only a packstore store, and only with ``overwrite``. Refuses symbolic links.

    Attributes:
        destination: Path that the store gets.
        work: The work directory, locked against other processes.
        run: This run's directory in it.
        path: Path of the store until it is published; the caller creates it.
    """

    def __init__(self, destination: Path, *, overwrite: bool, owned: ListOwned) -> None:
        """Checks the destination, locks its work directory and creates this run's directory.

        Undoes an interrupted publish of a killed run.

        Args:
            destination: A path that does not exist, or with ``overwrite`` a packstore store.
            overwrite: Replace an existing store once the new one is complete.
            owned: Lists the files of an existing store; raises :class:`DestinationError` for anything else.

        Raises:
            DestinationError: The destination may not be written.
        """
        self.destination = destination
        self._owned = owned
        self._check_destination = partial(check_destination, destination, overwrite=overwrite, owned=owned)
        self._published = False
        self._check_destination()
        self.work = WorkDirectory(destination)
        try:
            with writing(destination):
                if self.work.undo_interrupted_publish():
                    self._check_destination()
                self.run = self.choose_run_directory()
            self.path = self.run / STORE
        except BaseException:
            self.work.release()
            raise

    def choose_run_directory(self) -> Path:
        """Creates and returns this run's directory. An export overrides it to resume an earlier run."""
        return self.work.create_run()

    def publish(self, sync: Callable[[Path], None] = sync_tree) -> None:
        """Syncs the staged file or directory, moves it to the destination in one step, and removes the work
        directory.

        With ``overwrite``, exchanges it with an existing store. That store is deleted with the work directory. Undoes
        the move if the directory cannot be synced. Logs a warning if the work directory cannot be removed.

        Raises:
            DestinationError: The destination exists without ``overwrite``, is no store, was changed meanwhile, or
                cannot be written. The staged store stays for :meth:`discard`.
        """
        with writing(self.destination):
            sync(self.path)
            if self._check_destination():
                self._replace_store()
            else:
                _rename_new(self.path, self.destination)
                try:
                    sync_directory(self.destination.parent)
                except OSError:
                    self.destination.rename(self.path)  # the new name may not survive a power cut: undone
                    raise
                self._published = True
        self.work.remove()
        if self.work.path.exists():
            _log.warning(
                "%s could not be removed, or holds what packstore did not write", printable(str(self.work.path))
            )

    def discard(self) -> None:
        """Removes the work directory with all runs. Does nothing after :meth:`publish`."""
        if not self._published:
            self.work.remove()

    def keep(self) -> None:
        """Unlocks the work directory and leaves its content, so that another run can resume."""
        self.work.release()

    def _replace_store(self) -> None:
        """Exchanges the staged store and the store at the destination, and syncs their directory.

        Exchanges them back if syncing fails, or if another process has replaced the destination meanwhile. Raises
        :class:`DestinationError` in the latter case.
        """
        old = device_and_inode(self.destination)
        self._owned(self.destination)
        exchange_paths(self.path, self.destination)
        # The old store is now at the staging path: prove that it is the one that was checked.
        if device_and_inode(self.path) != old:
            exchange_paths(self.path, self.destination)
            raise DestinationError(f"{printable(str(self.destination))} was changed by somebody else meanwhile")
        try:
            sync_directory(self.destination.parent)
        except OSError:
            exchange_paths(self.path, self.destination)
            raise
        self._published = True


def check_destination(destination: Path, *, overwrite: bool, owned: ListOwned) -> bool:
    """Returns whether there is a store or an export to replace at a local path; False if nothing is there.

    Raises :class:`DestinationError` for

    - an impossible name, such as ``..``,
    - a path whose directory does not exist,
    - a symbolic link,
    - anything that ``owned`` refuses; :class:`NotAStoreError` for anything but a store or an export,
    - without ``overwrite``: anything that exists.
    """
    shown, parent = printable(str(destination)), destination.parent
    if destination.name in ("", "..") or "\0" in str(destination):
        raise DestinationError(f"{shown!r} cannot be the name of a store or an export")
    if not parent.is_dir():
        raise DestinationError(
            f"{shown}: the directory {printable(str(parent.absolute()))} does not exist; make it first"
        )
    with writing(destination):
        try:
            mode = destination.lstat().st_mode
        except FileNotFoundError:
            return False
    if stat.S_ISLNK(mode):
        raise DestinationError(f"{shown} is a symbolic link; name the path that it points to, or another one")
    try:
        owned(destination)
    except NotAStoreError:  # do not suggest --overwrite, which would not help
        raise
    except DestinationError:  # foreign files are in it
        if overwrite:
            raise
    if not overwrite:
        raise DestinationError(
            f"{shown} exists already; choose another name, or --overwrite (Python: overwrite=True) to replace it"
        )
    return True


def exchange_paths(a: Path, b: Path) -> None:
    """Exchanges two existing paths: atomically if the system can, else by three renames.

    Puts ``b`` back if the second rename fails. A kill between renames leaves ``b`` under the name :data:`ASIDE` beside
    ``a``.
    """
    if _renameat2(a, b, _EXCHANGE):
        return
    aside = a.with_name(ASIDE)
    b.rename(aside)
    try:
        a.rename(b)
    except BaseException:
        aside.rename(b)
        raise
    aside.rename(a)


def _rename_new(source: Path, destination: Path) -> None:
    """Renames a file or directory without ever replacing anything. Raises :class:`FileExistsError` if the new name is
    taken.
    """
    if _renameat2(source, destination, _NOREPLACE):
        return
    if source.is_dir():
        # rename(2) itself refuses to replace anything but an empty directory.
        if os.path.lexists(destination):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(destination))
        source.rename(destination)
    else:
        try:
            os.link(source, destination)
        except FileExistsError:
            raise
        except OSError:  # no hard links here
            if os.path.lexists(destination):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(destination)) from None
            source.rename(destination)
        else:
            source.unlink()


def _renameat2(source: Path, destination: Path, flag: int) -> bool:
    """Calls Linux' renameat2(2). Returns False if the system or the file system does not have it.

    Raises :class:`OSError` for other failures.
    """
    if not sys.platform.startswith("linux"):
        return False
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    result = call(
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(os.fsencode(source)),
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(os.fsencode(destination)),
        ctypes.c_uint(flag),
    )
    if result == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(source), None, str(destination))

"""Stores and exports on this machine: written in a work directory beside the destination, published by a rename.

:class:`Staging` gives a new store or export its name. A store that grows gets its new shards beside the present ones,
then a new manifest in one step: a reader opens the old store or the new one, since the manifest names the table, and
the table the shards. Until then its directory holds files that the manifest does not name. The receipt of the run
lists these. After a kill, the next run removes them by :meth:`WorkDirectory.undo_interrupted_publish`.

Only files that packstore made in the work directory, or with ``overwrite`` a proven packstore store, are ever removed.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from packstore.core.errors import DestinationError, printable
from packstore.core.files import MANIFEST_FILE, device_and_inode, sync_directory, sync_file_system, sync_tree, writing
from packstore.core.manifest import Manifest
from packstore.core.progress import ProgressCallback
from packstore.core.registry import FORMATS
from packstore.stores.assembly import ShardList, link_shards, list_shards, write_manifest_and_table
from packstore.stores.opening import read_manifest
from packstore.stores.places import ExportDraft, Growth, Place, StoreDraft, exists_error
from packstore.stores.places.owned import NotAStoreError, list_owned_files
from packstore.stores.places.receipts import ConversionIdentity, Receipt, read_receipt
from packstore.stores.places.work import (
    ADDED,
    KEPT,
    STORE,
    Owner,
    WorkDirectory,
    aside_path,
    describe_kept,
    find_writer,
    is_published,
    list_runs,
    read_owner,
    work_path,
)

_log = logging.getLogger(__name__)

_NOREPLACE = 1
_EXCHANGE = 2
_AT_FDCWD = -100
# Errors of renameat2 if the kernel or the file system does not know the flag.
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)

_FSYNCED = 100
"""Most shards to sync one by one, milliseconds each; for more, the whole file system is synced once."""


ListOwned = Callable[[Path], list[Path]]
"""Lists the files of a store. Raises :class:`NotAStoreError` if there is no store, and :class:`DestinationError` if
its directory also holds foreign files."""


class Staging:
    """A store or export that is written in a work directory, and its move to the destination.

    Replaces only a packstore store, and only with ``overwrite``. Refuses symbolic links.

    Attributes:
        destination: Path that the store gets.
        work: The work directory, locked against other processes.
        run: This run's directory in it.
        path: Path of the store until it is published; the caller creates it.
    """

    name: ClassVar[str] = STORE

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
            self.path = self.run / self.name
        except BaseException:
            self.work.release()
            raise

    def choose_run_directory(self) -> Path:
        """Creates and returns this run's directory. An export overrides it to resume an earlier run."""
        return self.work.create_run()

    def publish(self, sync: Callable[[Path], None] = sync_tree, *, keeps_work: bool = False) -> None:
        """Syncs the staged file or directory, moves it to the destination in one step, and removes the work
        directory.

        With ``overwrite``, exchanges it with an existing store. That store is deleted with the work directory. Undoes
        the move if the directory cannot be synced. Logs a warning if the work directory cannot be removed. With
        ``keeps_work``, only unlocks the work directory.

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
        if keeps_work:
            self.work.release()
            return
        self.work.remove()
        if self.work.path.exists():
            _log.warning(
                "%s could not be removed, or holds what packstore did not write", printable(str(self.work.path))
            )

    def discard(self) -> None:
        """Removes the work directory with all runs. Does nothing after :meth:`publish`."""
        if not self._published:
            self.work.remove()

    def keep(self) -> str:
        """Unlocks the work directory and leaves its content, so that another run can resume. Returns a note for the
        user."""
        self.work.release()
        return describe_kept(self.work.path, self.destination)

    def _replace_store(self) -> None:
        """Exchanges the staged store and the store at the destination, and syncs their directory."""
        old = device_and_inode(self.destination)
        self._owned(self.destination)
        exchange_paths(self.path, self.destination)
        # The old store is now at the staging path: prove that it is the one that was checked.
        if device_and_inode(self.path) != old:
            exchange_paths(self.path, self.destination)
            raise DestinationError(f"{printable(str(self.destination))} was changed by somebody else meanwhile")
        try:
            sync_directory(self.destination.parent)
        except OSError:  # not durable: the old store stays
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
        raise exists_error(shown, "name")
    return True


def exchange_paths(a: Path, b: Path) -> None:
    """Exchanges two existing paths: atomically if the system can, else by three renames.

    Puts ``b`` back if the second rename fails. A kill between renames leaves ``b`` at the :func:`aside_path`
    of ``a``.
    """
    if _renameat2(a, b, _EXCHANGE):
        return
    aside = aside_path(a)
    b.rename(aside)
    try:
        a.rename(b)
    except BaseException:
        aside.rename(b)
        raise
    aside.rename(a)


def _rename_new(source: Path, destination: Path) -> None:
    """Renames a file or directory, or raises :class:`FileExistsError` if the new name is taken."""
    if _renameat2(source, destination, _NOREPLACE):
        return
    if source.is_dir():
        # rename(2) itself refuses to replace anything but an empty directory.
        if os.path.lexists(destination):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(destination))
        source.rename(destination)
    else:
        try:
            os.link(source, destination)  # fails if the new name is taken, which rename(2) does not
        except FileExistsError:
            raise
        except OSError:  # no hard links here
            if os.path.lexists(destination):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(destination)) from None
            source.rename(destination)
        else:
            source.unlink()


def _renameat2(source: Path, destination: Path, flag: int) -> bool:
    """Calls renameat2(2) of Linux, and returns False where it is not supported."""
    if not sys.platform.startswith("linux"):
        return False
    # Python has no function for it: called in the C library
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
    if number in _UNSUPPORTED:  # the kernel or the file system lacks it
        return False
    raise OSError(number, os.strerror(number), str(source), None, str(destination))


class LocalPlace(Place):
    """A path on this machine."""

    remote = False

    def check_new_store(self, *, overwrite: bool) -> None:
        check_destination(self.path, overwrite=overwrite, owned=list_owned_files)

    @contextmanager
    def new_store(self, *, overwrite: bool) -> Iterator[StoreDraft]:
        self.check_new_store(overwrite=overwrite)
        yield StoreDraft(self.path, lambda manifest, _: manifest)

    @contextmanager
    def new_export(self, *, overwrite: bool) -> Iterator[ExportDraft]:
        yield ExportDraft(self.path, lambda _: None)

    @contextmanager
    def grow(self) -> Iterator[Growth]:
        read_manifest(self.path)  # raises before anything is made if there is no store
        if self.path.is_symlink():  # else two processes could write to it at once, by different names
            raise DestinationError(f"{printable(str(self.path))} is a symbolic link; name the path that it points to")
        work = WorkDirectory(self.path)
        try:
            yield _LocalGrowth(self.path, work)
        except BaseException as error:
            if work_path(work.path / ADDED).exists():  # another run can go on from there
                work.release()
                error.add_note(describe_kept(work.path, self.path))
            raise
        finally:
            work.remove()

    def is_empty(self) -> bool:
        return not os.path.exists(self.path)  # noqa: PTH110 - where it may not look, there is nothing

    def find_writer(self) -> Owner | None:
        return find_writer(self.path)

    def remove_finished_work(self) -> None:
        work = work_path(self.path)
        with suppress(FileNotFoundError, DestinationError):  # the run has just ended, or still holds it
            if work.is_dir() and not any((r := read_receipt(run)) and r.position for run in list_runs(work)):
                WorkDirectory(self.path).remove()

    def find_published(self) -> Receipt | None:
        work = work_path(self.path)
        if not work.is_dir() or read_owner(work) is None:
            return None
        try:
            receipts = [read_receipt(run) for run in list_runs(work)]
        except OSError:  # the run was not killed, it has just ended
            return None
        return next((each for each in receipts if each is not None and is_published(each, self.path)), None)

    def finish_published_run(self, identity: ConversionIdentity, *, overwrite: bool) -> Manifest | None:
        receipt = self.find_published()
        if receipt is None or receipt.position is None:
            return None
        differs = identity.describe_difference(receipt)
        if differs is None:
            WorkDirectory(self.path).remove()
            return read_manifest(self.path)
        if overwrite:
            return None
        raise DestinationError(
            f"{printable(str(self.path))} exists already, made by another conversion ({differs}); choose another name "
            "or replace it with --overwrite (Python: overwrite=True)"
        )


class _LocalGrowth(Growth):
    """Adds shards beside those of a local store, then replaces its manifest by a rename."""

    tries = 1  # others are locked out

    def __init__(self, path: Path, work: WorkDirectory) -> None:
        self._path, self._work = path, work
        self.added, self.kept = work.path / ADDED, work.path / KEPT

    def find_finished(self, read_request: Callable[[], Any]) -> Manifest | None:
        receipt = LocalPlace(self._path).find_published()
        self._work.undo_interrupted_publish()
        if receipt is None or receipt.position is not None or receipt.fingerprint != read_request():
            return None
        return read_manifest(self._path)

    def read_manifest(self) -> Manifest:
        self._old = read_manifest(self._path)
        return self._old

    def list_shards(self) -> ShardList:
        return list_shards(self._path, self._old)

    def publish(self, new: Manifest, parts: ShardList, request: Any, progress: ProgressCallback) -> None:
        with writing(self._path):
            staged = self._work.create_run() / STORE
            staged.mkdir()
            if self._old.shards is None:
                self._exchange(staged, new, parts, request)
            else:
                self._add_shards(staged, new, parts, request)

    def _exchange(self, staged: Path, new: Manifest, parts: ShardList, request: Any) -> None:
        """Exchanges a store of one file for a directory of shards."""
        inode = device_and_inode(self._path)
        link_shards(parts, staged, FORMATS[new.format])
        write_manifest_and_table(staged, new)
        _sync_files(staged, [entry.name for entry in staged.iterdir()])
        if device_and_inode(self._path) != inode:
            raise self._changed_error()
        list_owned_files(self._path)  # raises for foreign files, which would be removed with the old directory
        self._refuse_changed()
        Receipt(request, sealed=new.digest).write(staged.parent)
        # the old store is at the staged path now: the end of grow() removes it
        exchange_paths(staged, self._path)
        try:
            _sync_directory(self._path.parent)
        except OSError:
            exchange_paths(staged, self._path)  # the new name may not survive a power cut: undone
            raise

    def _add_shards(self, staged: Path, new: Manifest, parts: ShardList, request: Any) -> None:
        """Links new shards and their table into a sharded store, then replaces its manifest by the staged one."""
        old, table, store = self._old.shard_table, new.shard_table, self._path
        write_manifest_and_table(staged, new)
        before, after = old.names(), table.names()
        known, remaining = set(before), set(after)
        chosen = [i for i, name in enumerate(after) if name not in known]
        names = [after[i] for i in chosen]
        for name in (*names, table.file):
            if os.path.lexists(store / name):
                raise DestinationError(
                    f"{printable(str(store / name))} does not belong to the store; move it away first"
                )
        replaced = (old.file, *(name for name in before if name not in remaining))
        added = (*names, table.file)
        # from it the next run cleans up after a kill
        Receipt(request, sealed=new.digest, added=added, replaced=replaced).write(staged.parent)
        sync_tree(staged.parent)
        try:
            link_shards(parts.take_shards(chosen), store, FORMATS[new.format])
            (staged / table.file).rename(store / table.file)
            _sync_files(store, names)
            self._refuse_changed()
            replaced_manifest = (store / MANIFEST_FILE).read_bytes()
            (staged / MANIFEST_FILE).replace(store / MANIFEST_FILE)
            try:
                _sync_directory(store)
            except OSError:
                (staged / MANIFEST_FILE).write_bytes(replaced_manifest)  # the new one may not survive a power cut
                (staged / MANIFEST_FILE).replace(store / MANIFEST_FILE)
                raise
        finally:
            # Removes the old files, or the added ones if the manifest was not replaced: the present manifest decides.
            self._work.undo_interrupted_publish()

    def _refuse_changed(self) -> None:
        """Raises :class:`DestinationError` if the store's manifest is no longer the one that was read."""
        if read_manifest(self._path).digest != self._old.digest:
            raise self._changed_error()

    def _changed_error(self) -> DestinationError:
        """Returns the error for a store that another process changed while records were appended."""
        return DestinationError(f"{printable(str(self._path))} was changed by somebody else meanwhile; append again")


def _sync_files(directory: Path, names: list[str]) -> None:
    """Syncs the files ``names`` and ``directory`` to the disk."""
    # one sync of all is faster than many
    if len(names) > _FSYNCED:
        sync_file_system(directory)
        return
    for name in names:
        sync_tree(directory / name)
    sync_directory(directory)


def _sync_directory(directory: Path) -> None:
    """Syncs the directory that contains the new store."""
    # A function of its own: tests replace it to interrupt a publish.
    sync_directory(directory)

"""The files of a cache: their names, their locks, and which may be evicted.

::

    packstore-cache    marks the folder as a cache; locked (flock) while the budget is counted and names change
    whole/<digest>     a proven object; locked (shared) by each reader, and dated by its digest
    part/<digest>.…    an object that is being fetched; locked meanwhile. If unlocked, its process was killed

All processes share a cache through these files and locks alone, so a killed one leaves nothing to repair. Only files
with names that packstore gives are removed, and no link is followed.

The modification time of an object in ``whole/`` is a date derived from its digest. Any write to the file changes it,
and then the object is proven again or removed. The access time is that of the last use.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from packstore.cache import files
from packstore.cache.files import NoLocksError, register_descriptor, try_lock, unlock_and_close
from packstore.core.errors import CacheError, CacheFullError, DiskFullError, printable
from packstore.core.files import beyond_standard_streams

MARKER = "packstore-cache"
_MARKER_TEXT = b"""This folder is a cache of packstore: copies of objects of remote stores.
It can be removed at any time; packstore cache list and packstore cache clean look after it.
"""
_WHOLE = re.compile(r"[0-9a-f]{64}(\.learnt)?")
_PART = re.compile(r"[0-9a-f]{64}(\.learnt)?\.[0-9a-f]{8,16}")
_NOT_COUNTED = {"lost+found", MARKER, "whole", "part"}  # whole and part without the marker: the cache is being removed
_BUSY_SECONDS = 60.0
_GLANCE_SECONDS = 0.05
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """An object in a cache.

    Attributes:
        name: SHA-256 of the object. If that is unknown: SHA-256 of its address, and ``.learnt``.
        nbytes: Its size.
        used: Time of its last use, in seconds since 1970.
        in_use: A process has it open.
        url: Its URL; None if the file has no attribute with a URL.
    """

    name: str
    nbytes: int
    used: float
    in_use: bool
    url: str | None = None


class CacheFolder:
    """The files of one cache: locks, reserves room, publishes and evicts objects.

    Follows no links, and removes only files with names of a cache. Creating it touches no file. :meth:`prepare` refuses
    a folder that has other files and is no cache.

    Attributes:
        root: Folder of the cache.
        whole: Folder of proven objects.
        part: Folder of objects that are being fetched.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.whole, self.part = root / "whole", root / "part"
        self._marker = root / MARKER

    def prepare(self) -> None:
        """Creates the cache's folders and its marker unless they exist, and checks that locks work.

        Raises :class:`CacheError` in these cases:

        - The folder cannot be created or written.
        - It holds other files and has no marker.
        - A file or a link has the name of one of the cache's folders.
        - Its file system has no locks (:class:`NoLocksError`), or the cache stays locked for a minute.
        """
        with self.raise_as_cache_errors():
            self.root.mkdir(parents=True, exist_ok=True)
            foreign = sorted({entry.name for entry in self.root.iterdir()} - _NOT_COUNTED)
            if foreign and not self._marker.is_file():
                raise CacheError(
                    f"{printable(str(self.root))} holds {printable(foreign[0])!r} and is not a cache of packstore; "
                    "name an empty or a new folder with --cache or PACKSTORE_CACHE"
                )
            with suppress(FileExistsError), self._marker.open("xb") as file:
                file.write(_MARKER_TEXT)
            for folder in (self.whole, self.part):
                folder.mkdir(exist_ok=True)
                if not stat.S_ISDIR(folder.lstat().st_mode):
                    raise CacheError(f"{printable(str(folder))} is not a folder; move it away")
            self._prove_locks()

    def _prove_locks(self) -> None:
        """Locks the cache and raises :class:`NoLocksError` if the file system grants a second exclusive lock."""
        with self.lock_cache():
            other = register_descriptor(self._open_file(self._marker, os.O_RDWR))
            try:
                if try_lock(other, self.root):
                    raise NoLocksError(self.root)
            finally:
                unlock_and_close(other)

    @contextmanager
    def raise_as_cache_errors(self) -> Iterator[None]:
        """Turns an :class:`OSError` in the context into a :class:`CacheError`, which says that the cache cannot be
        written."""
        try:
            yield
        except OSError as error:
            why = error.strerror or str(error)
            then = "name another folder with --cache or PACKSTORE_CACHE"
            raise CacheError(f"the cache {printable(str(self.root))} cannot be written: {why}; {then}") from error

    def is_read_only(self) -> bool:
        """Returns whether the cache exists and this process may not write to it."""
        return self.whole.is_dir() and not os.access(self.whole, os.W_OK)

    @contextmanager
    def lock_cache(self) -> Iterator[None]:
        """Locks the whole cache in the context: no other process reserves, publishes or removes. For short work only.

        Raises :class:`CacheError` after waiting for a minute. Raises :class:`OSError` if the marker cannot be opened
        for writing.
        """
        descriptor = register_descriptor(self._open_file(self._marker, os.O_RDWR))
        try:
            if not try_lock(descriptor, self.root, seconds=_BUSY_SECONDS):
                raise CacheError(
                    f"the cache {printable(str(self.root))} has been locked for {_BUSY_SECONDS:.0f} s: a process that "
                    "uses it has stopped; end it, or name another folder with --cache or PACKSTORE_CACHE"
                )
            yield
        finally:
            unlock_and_close(descriptor)

    def open_object(self, name: str) -> int | None:
        """Opens an object and takes a shared lock on it. Returns its descriptor, which the caller closes. Returns None
        if the cache lacks the object.

        Raises :class:`CacheError` if the object cannot be read, is no regular file, or stays locked for a minute.
        Raises :class:`NoLocksError` without locks, unless the cache is read only.
        """
        try:
            descriptor = self._open_file(self.whole / name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise CacheError(f"cannot read {printable(str(self.whole / name))}: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise CacheError(f"{printable(str(self.whole / name))} is not a regular file; move it away")
            try:
                locked = try_lock(descriptor, self.root, shared=True, seconds=_BUSY_SECONDS)
            except NoLocksError:
                # Locks only keep others from removing open objects, and nobody removes any from a read-only cache.
                locked = self.is_read_only()
                if not locked:
                    raise
            if not locked:
                raise CacheError(f"the cache {printable(str(self.root))}: {name} has been locked for too long")
            if os.fstat(descriptor).st_nlink:
                opened, descriptor = descriptor, -1
                return opened
            return None  # it was removed while this process waited
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def claim_part_file(self, name: str, patience_seconds: float) -> tuple[int, Path] | None:
        """Creates and locks the file into which an object is fetched. Waits while another process of this machine
        fetches it.

        After ``patience_seconds`` without a change of that process's file, the process counts as stopped. This process
        then creates a second file.

        Returns:
            The file's descriptor, registered (:func:`register_descriptor`), and its path. None if the other process has
            finished or given up.

        Raises:
            NoLocksError: The file system has no locks.
            OSError: The file cannot be created.
        """
        path = self.part / f"{name}.{files.machine_id()}"
        descriptor = self._create_file(path)
        try:
            changed, since = 0, time.monotonic()
            while not try_lock(descriptor, self.root, seconds=_GLANCE_SECONDS):
                modified = os.fstat(descriptor).st_mtime_ns
                if not files.has_path(path, descriptor):
                    return None  # it was published, and its readers have locked it
                if modified != changed:
                    changed, since = modified, time.monotonic()
                elif time.monotonic() - since > patience_seconds:
                    unlock_and_close(descriptor)
                    path = self.part / f"{name}.{secrets.token_hex(8)}"
                    descriptor = self._create_file(path)
            if files.has_path(path, descriptor):
                claimed, descriptor = (descriptor, path), -1
                return claimed
            return None
        finally:
            unlock_and_close(descriptor)

    def reserve_bytes(self, descriptor: int, nbytes: int, budget: int) -> None:
        """Empties a claimed file and allocates ``nbytes`` on the disk for it.

        Removes files of killed processes. Evicts the least recently used objects until budget and disk have room.

        Raises:
            CacheFullError: The budget has no room even without the unused objects.
            DiskFullError: The disk has no room even without the unused objects.
            CacheError: The cache stays locked for a minute.
        """
        os.ftruncate(descriptor, 0)
        with self.lock_cache():
            self._remove_dead_parts()
            taken = self._count_used_bytes()
            oldest = iter(self._list_oldest_first())
            while taken + nbytes > budget:
                freed = next((each.st_size for path, each in oldest if self._evict(path)), None)
                if freed is None:
                    raise CacheFullError(nbytes, budget, taken, self.root)
                taken -= freed
            while True:
                try:
                    files.allocate_bytes(descriptor, nbytes)
                except OSError as error:
                    os.ftruncate(descriptor, 0)
                    if error.errno not in files.NO_SPACE:
                        raise
                    if not any(self._evict(path) for path, _ in oldest):
                        raise self.disk_full_error(nbytes) from error
                else:
                    return

    def remove_claimed_file(self, descriptor: int, path: Path) -> None:
        """Removes a claimed file that was not published; unlocks and closes it. Leaves a file that has replaced it."""
        if files.has_path(path, descriptor):
            path.unlink()
        unlock_and_close(descriptor)

    def disk_full_error(self, nbytes: int) -> DiskFullError:
        """Returns the error for a full disk; asks the system for the free bytes."""
        free = files.count_free_bytes(self.root)
        return DiskFullError(
            f"the disk of the cache {printable(str(self.root))} is full: an object needs {nbytes:,} bytes, {free:,} "
            "are free; make room, or name another folder with --cache or PACKSTORE_CACHE"
        )

    def publish_object(self, descriptor: int, path: Path, name: str) -> bool:
        """Gives a verified object its final name, and turns its lock into a reader's.

        Sets the modification time to the stamp that marks the object as verified. If another process has published the
        object already, removes the file at ``path`` instead. Returns True if the reader's lock is held. Returns False
        if it is not obtained in time, or the file was removed.
        """
        whole = self.whole / name
        with self.lock_cache():
            if os.path.lexists(whole):
                path.unlink()
                return False
            os.utime(descriptor, ns=(time.time_ns(), files.compute_date_stamp(name)))
            path.rename(whole)
            # In the exclusive context, since changing the lock releases it for a moment. A process that waits for the
            # part sees that it was renamed.
            return try_lock(descriptor, self.root, shared=True, seconds=_BUSY_SECONDS)

    def remove_damaged(self, descriptor: int, name: str) -> None:
        """Removes an open object that is damaged. The caller closes ``descriptor``.

        If others have the object open, moves it to ``part/``. The budget counts it until the others close it. Does
        nothing if the file was removed or replaced.
        """
        path = self.whole / name
        with self.lock_cache():
            if files.has_path(path, descriptor):
                if try_lock(descriptor, self.root):
                    path.unlink()
                else:
                    path.rename(self.part / f"{name}.{secrets.token_hex(8)}")

    def entries(self) -> list[CacheEntry]:
        """Lists all objects, the most recently used last. Empty if the folder is missing."""
        return [
            CacheEntry(path.name, status.st_size, status.st_atime, self._is_locked(path), files.read_url(path))
            for path, status in self._list_oldest_first()
        ]

    def clean(self, keep: int) -> int:
        """Removes files of killed processes. Then removes unused objects, the least recently used first, until at most
        ``keep`` bytes are left.

        Returns the number of bytes removed; 0 for a folder that is no cache. Raises :class:`CacheError` if the cache
        cannot be written or locked.
        """
        if not self._marker.is_file():
            return 0
        self.prepare()
        with self.raise_as_cache_errors(), self.lock_cache():
            removed = self._remove_dead_parts()
            used = self._count_used_bytes()
            for path, each in self._list_oldest_first():
                if used > keep and self._evict(path):
                    used -= each.st_size
                    removed += each.st_size
        return removed

    def count_available_bytes(self) -> int:
        """Returns the sum of the disk's free bytes and the bytes of the cache's objects. The folder need not exist."""
        there = self.root
        while not there.exists():
            there = there.parent
        return files.count_free_bytes(there) + sum(each.st_size for _, each in self._list_objects())

    def _remove_dead_parts(self) -> int:
        """Removes part files that no process has locked, while the cache is locked; returns their bytes."""
        return sum(status.st_size for path, status in files.list_files(self.part, _PART) if self._evict(path))

    def _count_used_bytes(self) -> int:
        """Returns the bytes of all objects and of all part files."""
        return sum(status.st_size for _, status in (*self._list_objects(), *files.list_files(self.part, _PART)))

    def _list_objects(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Yields path and state of each proven object."""
        return files.list_files(self.whole, _WHOLE)

    def _list_oldest_first(self) -> list[tuple[Path, os.stat_result]]:
        """Lists path and state of each proven object, the least recently used first."""
        return sorted(self._list_objects(), key=lambda each: each[1].st_atime_ns)

    def _evict(self, path: Path) -> bool:
        """Removes a file of the locked cache unless a process has locked it; returns if it was removed."""
        descriptor = self._open_to_lock(path)
        if descriptor is None:
            return False
        try:
            if not (self._try_lock(descriptor) and files.has_path(path, descriptor)):
                return False
            path.unlink()
        except PermissionError:  # another user's file, in a folder where only owners may remove
            return False
        finally:
            unlock_and_close(descriptor)
        return True

    def _is_locked(self, path: Path) -> bool:
        """Tells if another process, or another descriptor of this process, has a file locked."""
        descriptor = self._open_to_lock(path)
        if descriptor is None:
            return False
        try:
            return not self._try_lock(descriptor)
        finally:
            unlock_and_close(descriptor)

    def _try_lock(self, descriptor: int) -> bool:
        """Locks a file exclusively without waiting, and returns if it did."""
        try:
            return try_lock(descriptor, self.root)
        except OSError as error:
            # Over NFS an exclusive lock needs a file open for writing, which another user's file is not.
            if error.errno != errno.EBADF:
                raise
            return False

    def _open_to_lock(self, path: Path) -> int | None:
        """Opens and registers a file, for writing if possible; returns None if it is absent or not permitted."""
        for flags in (os.O_RDWR, os.O_RDONLY):
            try:
                return register_descriptor(self._open_file(path, flags))
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno not in _READ_ONLY:
                    raise
        return None

    def _create_file(self, path: Path) -> int:
        """Opens and registers a file for reading and writing, creating it if need be."""
        return register_descriptor(self._open_file(path, os.O_RDWR | os.O_CREAT))

    def _open_file(self, path: Path, flags: int) -> int:
        """Opens a file, but no link; returns a descriptor above 2 that other programs do not inherit."""
        with beyond_standard_streams():
            return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)

"""The folder of a cache: which files are the cache's, who uses them, and what may go.

::

    packstore-cache    says that the folder is a cache; locked (flock) while the budget is counted and names change
    whole/<digest>     an object that was proven; locked (shared) by each reader, and with the date of its digest
    part/<digest>.…    an object that is being fetched; locked meanwhile. Unlocked, it is left of a killed process

All processes share a cache through these files and locks alone, so a killed one leaves nothing to repair. Only files
with names that packstore gives are removed, and no link is followed.

The modification time of an object in ``whole/`` is a date that follows from its digest: whatever writes to the file
changes it, and then the object is proven again or dropped. The access time is that of the last use.
"""

from __future__ import annotations

import errno
import functools
import os
import platform
import re
import secrets
import stat
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from packstore.cache.locks import NoLocksError, hold, lock, release
from packstore.core.errors import CacheError, CacheFullError, DiskFullError, printable
from packstore.core.files import beyond_standard_streams

MARKER = "packstore-cache"
_MARKER_TEXT = b"""This folder is a cache of packstore: copies of objects of remote stores.
It can be removed at any time; packstore cache list and packstore cache clean look after it.
"""
_WHOLE = re.compile(r"[0-9a-f]{64}(\.learnt)?")
_PART = re.compile(r"[0-9a-f]{64}(\.learnt)?\.[0-9a-f]{8,16}")
_NOT_COUNTED = {"lost+found", MARKER, "whole", "part"}  # the last two of a cache whose removal is under way
_BUSY_SECONDS = 60.0
_GLANCE_SECONDS = 0.05
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_URL = "user.packstore.url"
_NO_ATTRIBUTE = (errno.ENOTSUP, errno.ENODATA, errno.EPERM, errno.ENOENT, errno.ELOOP, errno.E2BIG, errno.ERANGE)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass(frozen=True, slots=True)
class Entry:
    """An object in a cache.

    Attributes:
        name: Its digest (SHA-256); for one without a known digest the digest of its address, and ``.learnt``.
        nbytes: Its size.
        used: When it was last opened, in seconds since 1970.
        in_use: Whether a process has it open.
        url: Where it was fetched from; None where nobody noted it, or the file system has no attributes.
    """

    name: str
    nbytes: int
    used: float
    in_use: bool
    url: str | None = None


class Folder:
    """The files of one cache. Attributes: ``root``, ``whole`` and ``part``, its folders."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.whole, self.part = root / "whole", root / "part"
        self._marker = root / MARKER

    def prepare(self) -> None:
        """Makes the folder where it is not there.

        Raises:
            CacheError: It cannot be made or written, holds other files and is no cache, or has no locks.
        """
        with self.writing():
            self.root.mkdir(parents=True, exist_ok=True)
            foreign = sorted({entry.name for entry in self.root.iterdir()} - _NOT_COUNTED)
            if foreign and not self._marker.is_file():
                raise CacheError(
                    f"{printable(str(self.root))} holds {printable(foreign[0])!r} and is no cache of packstore; name "
                    "an empty or a new folder with --cache or PACKSTORE_CACHE"
                )
            with suppress(FileExistsError), self._marker.open("xb") as file:
                file.write(_MARKER_TEXT)
            for folder in (self.whole, self.part):
                folder.mkdir(exist_ok=True)
                if not stat.S_ISDIR(folder.lstat().st_mode):
                    raise CacheError(f"{printable(str(folder))} is a link; a cache has folders there")
            self._prove_locks()

    def _prove_locks(self) -> None:
        """Raises :class:`NoLocksError` where a second lock is granted beside a first one."""
        with self.guarded():
            other = hold(self._open(self._marker, os.O_RDWR))
            try:
                if lock(other, self.root):
                    raise NoLocksError(self.root)
            finally:
                release(other)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turns an :class:`OSError` within into a :class:`CacheError`."""
        try:
            yield
        except OSError as error:
            why = error.strerror or str(error)
            then = "name another folder with --cache or PACKSTORE_CACHE"
            raise CacheError(f"the cache {printable(str(self.root))} cannot be written: {why}; {then}") from error

    def is_read_only(self) -> bool:
        """Whether this process may not change the cache that is there."""
        return self.whole.is_dir() and not os.access(self.whole, os.W_OK)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Within, no other process reserves, publishes or removes. Only short work; :class:`OSError` as it comes."""
        descriptor = hold(self._open(self._marker, os.O_RDWR))
        try:
            if not lock(descriptor, self.root, seconds=_BUSY_SECONDS):
                raise CacheError(
                    f"the cache {printable(str(self.root))} has been locked for {_BUSY_SECONDS:.0f} s: a process that "
                    "uses it has stopped; end it, or name another folder with --cache or PACKSTORE_CACHE"
                )
            yield
        finally:
            release(descriptor)

    def open_whole(self, name: str) -> int | None:
        """Opens an object for reading and locks it, shared; None where it is absent. The caller closes it."""
        try:
            descriptor = self._open(self.whole / name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise CacheError(f"cannot read {printable(str(self.whole / name))}: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise CacheError(f"{printable(str(self.whole / name))} is no file; move it away")
            try:
                locked = lock(descriptor, self.root, shared=True, seconds=_BUSY_SECONDS)
            except NoLocksError:
                # They keep others from removing what is in use: nobody removes anything here.
                locked = self.is_read_only()
                if not locked:
                    raise
            if not locked:
                raise CacheError(f"the cache {printable(str(self.root))}: {name} has been locked for too long")
            if os.fstat(descriptor).st_nlink:
                found, descriptor = descriptor, -1
                return found
            return None  # removed while we waited
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def claim(self, name: str, patience_seconds: float) -> tuple[int, Path] | None:
        """Creates and locks the file that an object is fetched into; waits while another process fetches it.

        After ``patience_seconds`` without a change of that file its process has stopped, and we fetch too.

        Returns:
            The held descriptor and its path; None where the other has finished, or given up.
        """
        path = self.part / f"{name}.{_machine()}"
        descriptor = self._new(path)
        try:
            changed, since = 0, time.monotonic()
            while not lock(descriptor, self.root, seconds=_GLANCE_SECONDS):
                found = os.fstat(descriptor)
                if not self._is(path, descriptor):
                    return None  # it is an object now, locked by who reads it
                if found.st_mtime_ns != changed:
                    changed, since = found.st_mtime_ns, time.monotonic()
                elif time.monotonic() - since > patience_seconds:
                    release(descriptor)
                    path = self.part / f"{name}.{secrets.token_hex(8)}"
                    descriptor = self._new(path)
            if self._is(path, descriptor):
                found_there, descriptor = (descriptor, path), -1
                return found_there
            return None
        finally:
            release(descriptor)

    def reserve(self, descriptor: int, nbytes: int, budget: int) -> None:
        """Gives a claimed file ``nbytes`` of the budget and of the disk; removes what was not used for longest for it.

        Raises:
            CacheFullError: What is in use leaves no room.
        """
        os.ftruncate(descriptor, 0)
        with self.guarded():
            self._remove_dead_parts()
            used = self._used()
            oldest = iter(self._oldest_first())
            while used + nbytes > budget:
                freed = next((each.st_size for path, each in oldest if self._evict(path)), None)
                if freed is None:
                    raise CacheFullError(nbytes, budget, used, self.root)
                used -= freed
            while True:
                try:
                    _allocate(descriptor, nbytes)
                except OSError as error:
                    os.ftruncate(descriptor, 0)
                    if error.errno not in _NO_SPACE:
                        raise
                    if not any(self._evict(path) for path, _ in oldest):
                        raise self.no_space(nbytes) from error
                else:
                    return

    def abandon(self, descriptor: int, path: Path) -> None:
        """Removes a claimed file that did not become an object."""
        if self._is(path, descriptor):
            path.unlink()
        release(descriptor)

    def no_space(self, nbytes: int) -> DiskFullError:
        """The error where the disk has no room."""
        free = _free_bytes(self.root)
        return DiskFullError(
            f"the disk of the cache {printable(str(self.root))} is full: an object needs {nbytes:,} bytes, {free:,} "
            "are free; make room, or name another folder with --cache or PACKSTORE_CACHE"
        )

    def note_url(self, descriptor: int, url: str) -> None:
        """Notes where an object comes from, for :meth:`entries`, if the file system has attributes and room for it."""
        if sys.platform == "linux":
            try:
                os.setxattr(descriptor, _URL, url.encode())
            except OSError as error:
                if error.errno not in (*_NO_ATTRIBUTE, *_NO_SPACE):
                    raise

    def publish(self, descriptor: int, path: Path, name: str) -> bool:
        """Names a proven object and turns the lock into a reader's. False where another was quicker: ours is gone."""
        whole = self.whole / name
        with self.guarded():
            if os.path.lexists(whole):
                path.unlink()
                return False
            os.utime(descriptor, ns=(time.time_ns(), stamp(name)))
            path.rename(whole)
            # Guarded, since the lock is let go and taken again; who waits for the part sees that it has another name.
            return lock(descriptor, self.root, shared=True, seconds=_BUSY_SECONDS)

    def remove_damaged(self, descriptor: int, name: str) -> None:
        """Removes an open object whose bytes are not those of its name. Until its other readers end, it is counted."""
        path = self.whole / name
        with self.guarded():
            if self._is(path, descriptor):
                if lock(descriptor, self.root):
                    path.unlink()
                else:
                    path.rename(self.part / f"{name}.{secrets.token_hex(8)}")

    def entries(self) -> list[Entry]:
        """All objects, those used last at the end."""
        return [
            Entry(path.name, found.st_size, found.st_atime, self._in_use(path), _noted_url(path))
            for path, found in self._oldest_first()
        ]

    def clean(self, keep: int) -> int:
        """Removes objects that nobody uses, those used last at the end, until at most ``keep`` bytes are taken.

        Returns:
            How many bytes it removed.
        """
        if not self._marker.is_file():
            return 0
        self.prepare()
        with self.writing(), self.guarded():
            removed = self._remove_dead_parts()
            used = self._used()
            for path, each in self._oldest_first():
                if used > keep and self._evict(path):
                    used -= each.st_size
                    removed += each.st_size
        return removed

    def free_for_objects(self) -> int:
        """Bytes that its objects have, and that the disk has free for more."""
        there = self.root
        while not there.exists():
            there = there.parent
        return _free_bytes(there) + sum(each.st_size for _, each in self._objects())

    def _remove_dead_parts(self) -> int:
        """Removes what killed processes left; returns how many bytes. Guarded."""
        return sum(found.st_size for path, found in _files(self.part, _PART) if self._evict(path))

    def _used(self) -> int:
        """Bytes of all objects, whole or not."""
        return sum(found.st_size for _, found in (*self._objects(), *_files(self.part, _PART)))

    def _objects(self) -> Iterator[tuple[Path, os.stat_result]]:
        return _files(self.whole, _WHOLE)

    def _oldest_first(self) -> list[tuple[Path, os.stat_result]]:
        return sorted(self._objects(), key=lambda each: each[1].st_atime_ns)

    def _evict(self, path: Path) -> bool:
        """Removes a file that nobody has locked; returns whether it did. Guarded."""
        descriptor = self._open_to_lock(path)
        if descriptor is None:
            return False
        try:
            if not (self._lockable(descriptor) and self._is(path, descriptor)):
                return False
            path.unlink()
        except PermissionError:  # another user's, in a folder that only lets the owner remove
            return False
        finally:
            release(descriptor)
        return True

    def _in_use(self, path: Path) -> bool:
        descriptor = self._open_to_lock(path)
        if descriptor is None:
            return False
        try:
            return not self._lockable(descriptor)
        finally:
            release(descriptor)

    def _lockable(self, descriptor: int) -> bool:
        try:
            return lock(descriptor, self.root)
        except OSError as error:
            # Over NFS what is locked for oneself has to be open for writing, and another user's file is not.
            if error.errno != errno.EBADF:
                raise
            return False

    def _open_to_lock(self, path: Path) -> int | None:
        for flags in (os.O_RDWR, os.O_RDONLY):
            try:
                return hold(self._open(path, flags))
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno not in _READ_ONLY:
                    raise
        return None

    def _new(self, path: Path) -> int:
        return hold(self._open(path, os.O_RDWR | os.O_CREAT))

    def _open(self, path: Path, flags: int) -> int:
        with beyond_standard_streams():
            return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)

    def _is(self, path: Path, descriptor: int) -> bool:
        """Whether an open file still has this name."""
        try:
            return os.path.samestat(path.lstat(), os.fstat(descriptor))
        except FileNotFoundError:
            return False


@functools.cache
def _machine() -> str:
    """Eight digits of this machine. Those of another have parts of their own: not every network file system locks
    between machines. Containers on one machine have the same."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
    except OSError:
        text = platform.node()
    return f"{zlib.crc32(text.encode()):08x}"


def stamp(name: str) -> int:
    """The modification time of the whole object called ``name``, in ns: an even number of seconds before 1988."""
    return 2 * int(name[:7], 16) * 10**9


def _files(folder: Path, names: re.Pattern[str]) -> Iterator[tuple[Path, os.stat_result]]:
    """Regular files with names that packstore gives."""
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if names.fullmatch(entry.name):
            with suppress(FileNotFoundError):  # removed meanwhile
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(found.st_mode):
                    yield Path(entry.path), found


def _noted_url(path: Path) -> str | None:
    if sys.platform != "linux":
        return None
    try:
        return os.getxattr(path, _URL, follow_symlinks=False).decode(errors="replace")
    except OSError as error:
        if error.errno not in _NO_ATTRIBUTE:
            raise
        return None


def _free_bytes(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _allocate(descriptor: int, nbytes: int) -> None:
    """Makes a file ``nbytes`` long, and where the system can, takes the room on the disk."""
    if hasattr(os, "posix_fallocate") and nbytes:
        os.posix_fallocate(descriptor, 0, nbytes)
    else:
        os.ftruncate(descriptor, nbytes)

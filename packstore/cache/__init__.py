"""The cache: proven copies of the objects of remote stores on a local disk, within a budget.

All processes of a machine share it. :mod:`packstore.cache.folder` documents its files.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from packstore.cache.files import compute_date_stamp, unregister_descriptor, write_url
from packstore.cache.folder import CacheEntry as CacheEntry
from packstore.cache.folder import CacheFolder
from packstore.core.errors import CacheError, CacheFullError, DamagedObjectError, StoreError, UsageError, printable
from packstore.core.options import parse_bytes
from packstore.core.urls import url_message

_log = logging.getLogger(__name__)

Fetch = Callable[[], Iterable[bytes | memoryview]]
"""Begins to fetch an object; returns its bytes in pieces of any size."""

FOLDER, SIZE = "PACKSTORE_CACHE", "PACKSTORE_CACHE_SIZE"
"""Environment variables."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TRIES = 3

_proven: set[tuple[int, int, int, int]] = set()
"""Files that this process has proven but could not mark: device, inode, and times of the last changes."""
_suspects: set[tuple[int, int]] = set()
"""Files to prove again that this process could not mark: device and inode."""


@dataclass(frozen=True)
class Cache:
    """A cache of whole objects, each under its SHA-256. An object is published only after its bytes are proven.

    An object of :meth:`open_by_address` is under a hash of its address, and only its size is checked. An open object is
    never evicted. A damaged object is removed with a warning and fetched again. The least recently used objects make
    room for others.

    Processes share a cache through its files alone. A :class:`Cache` can be pickled, and works after a fork.

    Attributes:
        root: Folder of the cache, created by the first fetch.
        budget: Most bytes of all objects, including those that are being fetched.
        patience_seconds: Seconds to wait for another process that fetches the same object but writes nothing. After
            that, this process fetches the object too.
    """

    root: Path
    budget: int
    patience_seconds: float = 60.0
    _folder: CacheFolder = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_folder", CacheFolder(self.root))

    def open(
        self, digest: str, nbytes: int, fetch: Fetch, url: str = "", on_damage: Callable[[], None] = lambda: None
    ) -> int:
        """Opens an object. Fetches it if it is absent or damaged, which may evict others.

        Args:
            digest: Its SHA-256, 64 hexadecimal digits.
            nbytes: Its size.
            fetch: Returns the bytes from the beginning. Called up to three times: again if the bytes end too early or
                do not have the digest.
            url: Its URL, shown in listings of the cache.
            on_damage: Called if a damaged copy is removed, before it is fetched again.

        Returns:
            A descriptor for reading, which the caller closes after the last use of a map. The object stays in the cache
            while it is open, in this process or a forked one.

        Raises:
            CacheFullError: The object is larger than the budget, or the objects in use leave no room.
            DiskFullError: The disk is full, even without the unused objects.
            DamagedObjectError: The fetched bytes had a wrong size or digest three times.
            CacheError: The cache cannot be read, written or locked.
            Exception: Any error of ``fetch``. A :class:`StoreError` after the first bytes is raised only at the third
                try.
            ValueError: ``digest`` is not 64 hexadecimal digits.
        """
        if not _SHA256.fullmatch(digest):
            raise ValueError(f"{digest!r} is not a SHA-256")
        return self._open_or_fetch(digest, nbytes, fetch, digest, url, on_damage)

    def open_by_address(self, address: str, nbytes: int, fetch: Fetch, url: str = "") -> int:
        """Opens an object whose digest is unknown, like :meth:`open`. Checks only the size of the fetched bytes.

        A cached file counts as damaged if it was changed. A file that was last used before the last boot counts as
        damaged, too.

        ``address`` identifies the object: its URL and a text that changes with its content (an ETag).
        """
        return self._open_or_fetch(_name_by_address(address), nbytes, fetch, None, url, lambda: None)

    def path_of_address(self, address: str) -> Path:
        """Returns the path of an object that :meth:`open_by_address` has opened. While the object is open, the path
        exists."""
        return self._folder.whole / _name_by_address(address)

    def set_last_used(self, digest: str, used: float) -> None:
        """Sets the time of an object's last use, in seconds since 1970. This time decides when the object is evicted.

        Ignores errors of the system, such as an absent object.
        """
        path = self._folder.whole / digest
        with suppress(OSError):  # it has been evicted, or belongs to another user
            os.utime(path, ns=(int(used * 1e9), path.stat().st_mtime_ns))

    def list_missing(self, digests: Iterable[str]) -> list[str]:
        """Returns those of ``digests`` that are not in the cache, in their order. Checks only if files exist."""
        return [digest for digest in digests if not (self._folder.whole / digest).is_file()]

    def entries(self) -> list[CacheEntry]:
        """Lists all objects, the most recently used last."""
        return self._folder.entries()

    def clean(self, keep: int = 0) -> int:
        """Removes files of killed processes. Then removes unused objects, the least recently used first, until at most
        ``keep`` bytes are left.

        Returns the number of bytes removed; 0 for a folder that is no cache. Raises :class:`CacheError` if the cache
        cannot be written or locked.
        """
        return self._folder.clean(keep)

    def mark_suspect(self, digest: str) -> None:
        """Has the next opening prove the object again: changes its date stamp, or remembers the object if it may not be
        changed.

        Ignores an absent object. Raises :class:`CacheError` for other errors of the system.
        """
        path = self._folder.whole / digest
        with self._folder.raise_as_cache_errors():
            try:
                state = path.lstat()
                os.utime(path, ns=(state.st_atime_ns, 1), follow_symlinks=False)
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno not in (errno.EROFS, errno.EPERM, errno.EACCES):
                    raise
                _suspects.add((state.st_dev, state.st_ino))

    def has_size(self, digest: str, nbytes: int) -> bool:
        """Returns whether an object has this size. True for an absent one, which a process may still have open."""
        try:
            return (self._folder.whole / digest).lstat().st_size == nbytes
        except OSError:
            return True

    def _open_or_fetch(
        self, name: str, nbytes: int, fetch: Fetch, digest: str | None, url: str, on_damage: Callable[[], None]
    ) -> int:
        """Opens a cached object, or fetches it, as :meth:`open`; ``digest`` is None if it is unknown."""
        removed = 0
        while True:
            try:
                descriptor = self._open_cached(name, nbytes, digest, on_damage)
                if descriptor is None:
                    descriptor = self._fetch_object(name, nbytes, fetch, digest, url)
            except CacheError as error:
                # The cache's folder was removed meanwhile: it is made again, a few times.
                removed += isinstance(error.__cause__, FileNotFoundError)
                if not isinstance(error.__cause__, FileNotFoundError) or removed > _TRIES:
                    raise
                continue
            if descriptor is not None:
                return descriptor

    def _open_cached(self, name: str, nbytes: int, digest: str | None, on_damage: Callable[[], None]) -> int | None:
        """Opens and locks a cached object; returns None if there is no sound one."""
        descriptor = self._folder.open_object(name)
        if descriptor is None:
            return None
        try:
            if self._is_sound(descriptor, name, nbytes, digest):
                sound, descriptor = descriptor, -1
                return sound
            if self._folder.is_read_only():
                raise CacheError(
                    f"the cache {printable(str(self.root))} cannot be written and has a damaged copy of {name}; name "
                    "another folder with --cache or PACKSTORE_CACHE"
                )
            _log.warning("the cache %s: %s is damaged, and is fetched again", printable(str(self.root)), name)
            with self._folder.raise_as_cache_errors():
                self._folder.remove_damaged(descriptor, name)
            on_damage()
            return None
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _is_sound(self, descriptor: int, name: str, nbytes: int, digest: str | None) -> bool:
        """Tells if an object has its size and is proven, and marks a proven one."""
        state = os.fstat(descriptor)
        if state.st_size != nbytes:
            return False
        key = (state.st_dev, state.st_ino, state.st_mtime_ns, state.st_ctime_ns)
        # A stamp from before the last boot does not count: a power failure can leave a file stamped but incomplete.
        marked = state.st_mtime_ns == compute_date_stamp(name) and state.st_ctime >= _read_boot_time()
        suspect = key[:2] in _suspects
        if (suspect or (not marked and key not in _proven)) and (digest is None or _hash_file(descriptor) != digest):
            return False
        _suspects.discard(key[:2])
        try:
            os.utime(descriptor, ns=(time.time_ns(), compute_date_stamp(name)))
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EPERM, errno.EACCES):
                raise
            _proven.add(key)  # it may not be marked, so this process remembers it
        return True

    def _fetch_object(self, name: str, nbytes: int, fetch: Fetch, digest: str | None, url: str) -> int | None:
        """Fetches an absent object and returns its descriptor; None if another process fetched it or gave up."""
        folder = self._folder
        if nbytes > self.budget:
            raise CacheFullError(nbytes, self.budget, 0, self.root)
        if folder.is_read_only():
            raise CacheError(
                f"the cache {printable(str(self.root))} cannot be written and lacks an object of {nbytes:,} bytes; "
                "name another folder with --cache or PACKSTORE_CACHE"
            )
        folder.prepare()
        with folder.raise_as_cache_errors():
            claimed = folder.claim_part_file(name, self.patience_seconds)
        if claimed is None:
            return None
        descriptor, path = claimed
        published = False
        try:
            if os.path.lexists(folder.whole / name):
                return None  # another process has fetched it meanwhile
            with folder.raise_as_cache_errors():
                folder.reserve_bytes(descriptor, nbytes, self.budget)
            self._write_fetched(descriptor, nbytes, fetch, digest)
            with folder.raise_as_cache_errors():
                if url:
                    write_url(descriptor, url)
                published = folder.publish_object(descriptor, path, name)
            return unregister_descriptor(descriptor) if published else None
        finally:
            if not published:
                folder.remove_claimed_file(descriptor, path)

    def _write_fetched(self, descriptor: int, nbytes: int, fetch: Fetch, digest: str | None) -> None:
        """Fetches an object of ``nbytes`` into a file, trying up to three times."""
        for left in reversed(range(_TRIES)):
            os.lseek(descriptor, 0, os.SEEK_SET)
            sha, size = hashlib.sha256(), 0
            pieces = iter(fetch())
            while size <= nbytes:
                try:
                    piece = next(pieces, None)
                except StoreError:
                    if size and left:  # the connection broke off: try again
                        break
                    raise
                if piece is None:
                    break
                view = memoryview(piece).cast("B")
                size += len(view)
                if size <= nbytes:
                    sha.update(view)
                    self._write_bytes(descriptor, view, nbytes)
            if size == nbytes and digest in (None, sha.hexdigest()):
                return
        if size != nbytes:
            last = f"{'more' if size > nbytes else f'{size:,} bytes'} at last"
        else:
            last = f"at last with SHA-256 {sha.hexdigest()} instead of {digest}"
        raise DamagedObjectError(f"an object of {nbytes:,} bytes came damaged {_TRIES} times, {last}")

    def _write_bytes(self, descriptor: int, view: memoryview, nbytes: int) -> None:
        """Writes all bytes to the file of an object of ``nbytes``."""
        with self._folder.raise_as_cache_errors():
            while view:
                try:
                    view = view[os.write(descriptor, view) :]
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    raise self._folder.disk_full_error(nbytes) from error


def _name_by_address(address: str) -> str:
    """Returns the file name of an object whose digest is unknown: the SHA-256 of ``address``, and ``.learnt``."""
    return hashlib.sha256(address.encode()).hexdigest() + ".learnt"


def _hash_file(descriptor: int) -> str:
    """Returns the SHA-256 of an open file."""
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.cache
def _read_boot_time() -> float:
    """Reads the time of the last boot in seconds since 1970; the present time if unknown."""
    try:
        match = re.search(r"^btime (\d+)$", Path("/proc/stat").read_text("ascii"), re.MULTILINE)
    except OSError:
        match = None
    return float(match[1]) if match else time.time()


def default_cache() -> Cache:
    """Returns the default cache. Creates no folder.

    - Its folder is PACKSTORE_CACHE, or by default ``packstore`` in the user's cache folder.
    - Its budget is PACKSTORE_CACHE_SIZE. By default it is half of the bytes that are free on the disk or taken by the
      cache.

    Raises :class:`UsageError` if PACKSTORE_CACHE_SIZE is not a size, or PACKSTORE_CACHE is a URL.
    """
    given = os.environ.get(FOLDER)
    if refusal := url_message(given):
        raise UsageError(f"{FOLDER}: {refusal}")
    root = Path(given or _find_user_folder()).absolute()
    size = os.environ.get(SIZE)
    if not size:
        return Cache(root, CacheFolder(root).count_available_bytes() // 2)
    try:
        return Cache(root, parse_bytes(size))
    except UsageError as error:
        raise UsageError(f"{SIZE}: {error}") from None


def _find_user_folder() -> Path:
    """Returns the folder ``packstore`` in the user's cache folder."""
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/packstore"
    given = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG standard ignores a relative path.
    return (Path(given) if Path(given).is_absolute() else Path.home() / ".cache") / "packstore"

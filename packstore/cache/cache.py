"""Proven copies of remote objects on a local disk, within a budget, shared by all processes of a machine."""

from __future__ import annotations

import errno
import functools
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from packstore.cache.folder import Entry, Folder, stamp
from packstore.cache.locks import hand_over
from packstore.core.errors import CacheError, CacheFullError, DamagedObjectError, StoreError, printable

_log = logging.getLogger(__name__)

Fetch = Callable[[], Iterable[bytes | memoryview]]
"""Begins to fetch an object; its bytes in pieces of any size."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_TRIES = 3
_PIECE = 1 << 20

_proven: set[tuple[int, int, int, int]] = set()
"""Files that this process has proven and could not mark: device, inode, times of the last change."""


@dataclass(frozen=True)
class Cache:
    """Whole objects by content: each was proven by its digest before it got its name, and is not removed while it is
    open. Processes share it through its files alone; it pickles, and works after a fork.

    Attributes:
        root: Its folder, made when something is fetched.
        budget: The most bytes of objects it takes, those that are being fetched included.
        patience_seconds: How long the file of another process that fetches the same object may stay unchanged until we
            fetch it too.
    """

    root: Path
    budget: int
    patience_seconds: float = 60.0
    _folder: Folder = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_folder", Folder(self.root))

    def open(self, digest: str, nbytes: int, fetch: Fetch, url: str = "") -> int:
        """Opens an object, and fetches it where it is absent.

        Args:
            digest: Its SHA-256, 64 hexadecimal digits.
            nbytes: Its size.
            fetch: Gives its bytes from the beginning. Called again when they end too early, in an error or without
                one, or are not those of the digest.
            url: Where it lies, for those who list the cache.

        Returns:
            A descriptor for reading. The object stays as long as it is open, in this process or one forked from it:
            close it after the last map of it.

        Raises:
            CacheFullError: There is no room beside what is in use.
            DamagedObjectError: The object has other bytes each time.
            CacheError: The cache cannot be used.
            Exception: What ``fetch`` raises before its first bytes, or each time.
        """
        if not _SHA256.fullmatch(digest):
            raise ValueError(f"{digest!r} is not a SHA-256")
        return self._open(digest, nbytes, fetch, digest, url)

    def open_learnt(self, address: str, nbytes: int, fetch: Fetch, url: str = "") -> int:
        """Opens an object whose digest nobody knows, like :meth:`open`. Nothing proves what is fetched but its size.

        ``address`` is what it is known by: its URL and whatever changes with its content (an ETag).
        """
        return self._open(_learnt(address), nbytes, fetch, None, url)

    def learnt_file(self, address: str) -> Path:
        """Where an object of :meth:`open_learnt` lies as long as its descriptor is open."""
        return self._folder.whole / _learnt(address)

    def set_last_used(self, digest: str, used: float) -> None:
        """Makes an object, where it is there, one that was last used at ``used``, in seconds since 1970: it leaves
        before those that were used since."""
        path = self._folder.whole / digest
        with suppress(OSError):  # it has left, or is another user's
            os.utime(path, ns=(int(used * 1e9), path.stat().st_mtime_ns))

    def missing(self, digests: Iterable[str]) -> list[str]:
        """Those of ``digests`` that are not in the cache, in their order."""
        return [digest for digest in digests if not (self._folder.whole / digest).is_file()]

    def entries(self) -> list[Entry]:
        """All objects, those used last at the end."""
        return self._folder.entries()

    def clean(self, keep: int = 0) -> int:
        """Removes objects that nobody uses, oldest first, until at most ``keep`` bytes are taken, and what killed
        processes left. Returns how many bytes it removed."""
        return self._folder.clean(keep)

    def mark_suspect(self, digest: str) -> None:
        """Has an object proven again when it is next opened: somebody found damage in it. Does nothing where it is not
        ours to change."""
        path = self._folder.whole / digest
        with self._folder.writing():
            try:
                os.utime(path, ns=(path.lstat().st_atime_ns, 1), follow_symlinks=False)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EROFS, errno.EPERM, errno.EACCES):
                    raise

    def _open(self, name: str, nbytes: int, fetch: Fetch, digest: str | None, url: str) -> int:
        removed = 0
        while True:
            try:
                descriptor = self._pin(name, nbytes, digest)
                if descriptor is None:
                    descriptor = self._fetch(name, nbytes, fetch, digest, url)
            except CacheError as error:
                # Somebody removes the folder, which is allowed at any time; it is made again.
                removed += isinstance(error.__cause__, FileNotFoundError)
                if not isinstance(error.__cause__, FileNotFoundError) or removed > _TRIES:
                    raise
                continue
            if descriptor is not None:
                return descriptor

    def _pin(self, name: str, nbytes: int, digest: str | None) -> int | None:
        """The descriptor of an object that is there and sound."""
        descriptor = self._folder.open_whole(name)
        if descriptor is None:
            return None
        try:
            if self._is_sound(descriptor, name, nbytes, digest):
                found, descriptor = descriptor, -1
                return found
            if self._folder.is_read_only():
                raise CacheError(
                    f"the cache {printable(str(self.root))} cannot be written and has other bytes in {name} than the "
                    "object; name another folder with --cache or PACKSTORE_CACHE"
                )
            _log.warning("the cache %s: %s is damaged, and is fetched again", printable(str(self.root)), name)
            with self._folder.writing():
                self._folder.remove_damaged(descriptor, name)
            return None
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _is_sound(self, descriptor: int, name: str, nbytes: int, digest: str | None) -> bool:
        """Whether an object is what its name says; notes the time of its use."""
        found = os.fstat(descriptor)
        if found.st_size != nbytes:
            return False
        key = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)
        # A power failure can leave a file with its date and without its bytes.
        marked = found.st_mtime_ns == stamp(name) and found.st_ctime >= _boot_time()
        if not marked and key not in _proven and (digest is None or _digest_of(descriptor) != digest):
            return False
        try:
            os.utime(descriptor, ns=(time.time_ns(), stamp(name)))
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EPERM, errno.EACCES):
                raise
            _proven.add(key)
        return True

    def _fetch(self, name: str, nbytes: int, fetch: Fetch, digest: str | None, url: str) -> int | None:
        """Fetches an object that is absent; None where another process was quicker."""
        folder = self._folder
        if nbytes > self.budget:
            raise CacheFullError(nbytes, self.budget, 0, self.root)
        if folder.is_read_only():
            raise CacheError(
                f"the cache {printable(str(self.root))} cannot be written and lacks an object of {nbytes:,} bytes; "
                "name another folder with --cache or PACKSTORE_CACHE"
            )
        folder.prepare()
        with folder.writing():
            claimed = folder.claim(name, self.patience_seconds)
        if claimed is None:
            return None
        descriptor, path = claimed
        published = False
        try:
            if os.path.lexists(folder.whole / name):
                return None  # another has fetched it since we looked
            with folder.writing():
                folder.reserve(descriptor, nbytes, self.budget)
            self._fill(descriptor, nbytes, fetch, digest)
            with folder.writing():
                if url:
                    folder.note_url(descriptor, url)
                published = folder.publish(descriptor, path, name)
            return hand_over(descriptor) if published else None
        finally:
            if not published:
                folder.abandon(descriptor, path)

    def _fill(self, descriptor: int, nbytes: int, fetch: Fetch, digest: str | None) -> None:
        """Writes what ``fetch`` gives until it is the object."""
        for left in reversed(range(_TRIES)):
            os.lseek(descriptor, 0, os.SEEK_SET)
            found, size = hashlib.sha256(), 0
            pieces = iter(fetch())
            while size <= nbytes:
                try:
                    piece = next(pieces, None)
                except StoreError:
                    if size and left:  # cut off
                        break
                    raise
                if piece is None:
                    break
                view = memoryview(piece).cast("B")
                size += len(view)
                if size <= nbytes:
                    found.update(view)
                    self._write(descriptor, view, nbytes)
            if size == nbytes and digest in (None, found.hexdigest()):
                return
        if size != nbytes:
            last = f"{'more' if size > nbytes else f'{size:,} bytes'} at last"
        else:
            last = f"at last with SHA-256 {found.hexdigest()} instead of {digest}"
        raise DamagedObjectError(
            f"an object of {nbytes:,} bytes came damaged {_TRIES} times, {last}; packstore verify proves the store"
        )

    def _write(self, descriptor: int, view: memoryview, nbytes: int) -> None:
        with self._folder.writing():
            while view:
                try:
                    view = view[os.write(descriptor, view) :]
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    raise self._folder.no_space(nbytes) from error


def _learnt(address: str) -> str:
    return hashlib.sha256(address.encode()).hexdigest() + ".learnt"


def _digest_of(descriptor: int) -> str:
    """SHA-256 of an open file."""
    found, start = hashlib.sha256(), 0
    while piece := os.pread(descriptor, _PIECE, start):
        found.update(piece)
        start += len(piece)
    return found.hexdigest()


@functools.cache
def _boot_time() -> float:
    """When the machine was started, in seconds since 1970; now, where the system does not say."""
    try:
        match = re.search(r"^btime (\d+)$", Path("/proc/stat").read_text("ascii"), re.MULTILINE)
    except OSError:
        match = None
    return float(match[1]) if match else time.time()

"""Listing folders of images: what counts as an image file, what is passed over and why, and the order.

The order is that of torchvision's ``ImageFolder`` (``torchvision/datasets/folder.py``, ``make_dataset``): directories
sorted by their whole path as ``sorted(os.walk(directory, followlinks=True))`` does, then files sorted by name.
"""

from __future__ import annotations

import heapq
import os
import stat
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packstore.core.errors import SampleError, SourceError, printable

IMAGE_SUFFIXES = (
    # torchvision.datasets.folder.IMG_EXTENSIONS
    *(".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"),
    # and what the sources promise beyond it
    *(".gif", ".jpe", ".jfif"),
)
"""Names of image files end with one of these, in any case. Whether the name lies is told by content, later."""

SYSTEM_NAMES = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx", "@eadir", "lost+found"})
"""Files and directories (in lower case) that operating systems leave in folders; those with a dot are hidden anyway."""

_MAX_REASONS = 40
_OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK
_READ_STEP = 1 << 30  # one read() call returns at most 0x7ffff000 bytes on Linux

_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK
_RELATIVE = os.open in os.supports_dir_fd
_SEARCH_FLAGS = os.O_DIRECTORY | getattr(os, "O_PATH", os.O_RDONLY)  # it need not be readable, as for a whole path

NO_FILE = -1
"""In place of a size: a pipe, a socket or a device, which is not to be opened at all."""

Identity = tuple[int, int]
"""``(st_dev, st_ino)`` of a directory."""


@dataclass(frozen=True, slots=True)
class Listing:
    """One directory.

    Attributes:
        identity: Which directory it is, whatever it is called.
        images: Names of its images, sorted.
        sizes: Their sizes; 0 for a link that leads nowhere (which reading it reports), and :data:`NO_FILE` for what is
            neither a file nor a directory.
        modified: When they were last modified, in nanoseconds; 0 where there is no size.
        changed: When anything of them was last changed, likewise.
        directories: Names of its subdirectories, in no particular order.
    """

    identity: Identity
    images: list[str]
    sizes: list[int]
    modified: list[int]
    changed: list[int]
    directories: list[str]


def list_directory(path: str, ignored: Counter[str] | None = None) -> Listing:
    """Lists one directory. What is passed over is counted in ``ignored``, by reason.

    Links are followed to tell a directory from a file; a broken link counts as a file, as it does for ``os.walk``.
    Raises :class:`SourceError` when the directory cannot be listed.
    """
    images: list[str] = []
    directories: list[str] = []
    passed: list[str] = []
    try:
        # Sizes are asked for relative to the open directory: a sixth faster than by whole paths.
        descriptor = os.open(path, _DIRECTORY_FLAGS)
        try:
            found = os.fstat(descriptor)
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    name = entry.name
                    folder = _is_directory(entry)
                    if name[0] == ".":
                        passed.append(name)
                    elif not folder and name.lower().endswith(IMAGE_SUFFIXES):
                        images.append(name)
                    elif folder and name.lower() not in SYSTEM_NAMES:
                        directories.append(name)
                    else:
                        passed.append(name)
            images.sort()
            sizes, modified, changed = _sizes(images, descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SourceError(f"{printable(path)} cannot be listed: {error.strerror or error}") from None
    if ignored is not None:
        for name in passed:
            _count(ignored, name)
    return Listing((found.st_dev, found.st_ino), images, sizes, modified, changed, directories)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: a file that cannot be read, which Files reports with its key
        return False


def _sizes(names: list[str], descriptor: int) -> tuple[list[int], list[int], list[int]]:
    """Sizes, times of modification and of change, as :class:`Listing` has them."""
    sizes: list[int] = []
    modified: list[int] = []
    changed: list[int] = []
    stat_file = os.stat
    for name in names:
        try:
            found = stat_file(name, dir_fd=descriptor)
        except OSError:
            sizes.append(0)
            modified.append(0)
            changed.append(0)
        else:
            regular = found.st_mode & 0o170000 == stat.S_IFREG
            sizes.append(found.st_size if regular else NO_FILE)
            modified.append(found.st_mtime_ns if regular else 0)
            changed.append(found.st_ctime_ns if regular else 0)
    return sizes, modified, changed


def reason_for(name: str) -> str:
    """Why a file or directory that is no image is passed over, to follow a number of them."""
    if name[0] == ".":
        return "hidden"
    if name.lower() in SYSTEM_NAMES:
        return "system files"
    stem, dot, suffix = name.rpartition(".")
    named = bool(stem and dot and suffix and len(suffix) <= 12)
    return f"not images (.{printable(suffix.lower())})" if named else "not images (no extension)"


def _count(ignored: Counter[str], name: str) -> None:
    reason = reason_for(name)
    if reason not in ignored and len(ignored) >= _MAX_REASONS:  # numbered suffixes must not fill the memory
        reason = "not images (other)"
    ignored[reason] += 1


NO_SOURCE = "give a folder of images (.jpg, .png …), CIFAR, or a packstore store"
"""What to do about a source that holds no images."""


def no_images(name: str, ignored: Counter[str], advice: str) -> str:
    """The message for a folder, by its printable name, that holds no images: what was passed over, and what to do."""
    found = ", ".join(f"{count:,} {reason}" for reason, count in ignored.most_common(5))
    return f"{name} holds no images{f' (passed over: {found})' if found else ''}: {advice}"


def ancestry(root: str) -> tuple[Identity, ...]:
    """The directories above ``root``: a link to any of them leads back to ``root``."""
    return tuple(_identity(parent) for parent in Path(root).resolve().parents)


def _identity(path: Path) -> Identity:
    try:
        found = path.stat()
    except OSError as error:
        raise SourceError(f"{printable(str(path))} cannot be reached: {error.strerror or error}") from None
    return found.st_dev, found.st_ino


def walk(
    root: str, top: str, above: tuple[Identity, ...], ignored: Counter[str] | None = None
) -> Iterator[tuple[str, Listing]]:
    """The directories at and below ``root/top``, each as its path relative to ``root`` with what is in it.

    ``above`` identifies the directories above ``top``. The order is that of ``sorted(os.walk(…))``, yet nothing is
    held but the directories waiting: a directory sorts after its parent, so the smallest one waiting is smaller than
    every one not yet found. Raises :class:`SourceError` for a cycle of links.
    """
    waiting: list[tuple[str, tuple[Identity, ...]]] = [(top, above)]
    while waiting:
        directory, above = heapq.heappop(waiting)
        path = f"{root}/{directory}" if directory else root
        listing = list_directory(path, ignored)
        if listing.identity in above:
            raise cycle(path)
        yield directory, listing
        if listing.directories:
            prefix = f"{directory}/" if directory else ""
            inside = (*above, listing.identity)
            for name in listing.directories:
                heapq.heappush(waiting, (prefix + name, inside))


def cycle(path: str) -> SourceError:
    """The error for a link that leads to a directory above itself."""
    return SourceError(
        f"{printable(path)} is a link to a folder that it lies in, a cycle: remove it, or pack a folder without it"
    )


def key_size(key: str) -> int:
    """Bytes of a key as stores keep it (UTF-8, undecodable bytes as they were)."""
    return len(key) if key.isascii() else len(key.encode("utf-8", "surrogateescape"))


class Files:
    """The files below a folder, read by their keys, in any number of threads.

    Each thread keeps the directory of its last file open: relative to that, a file of a class folder takes two thirds
    of the time.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._threads = threading.local()

    def read(self, key: str, size_bytes: int, modified_ns: int, limit: int) -> bytes:
        """All bytes of a regular file. Raises :class:`SampleError` when it cannot be read or is none, and when it has
        not the size and the time of modification with which it was listed, or more than ``limit`` bytes.

        The file is opened without blocking, so that a pipe under an image's name cannot hang the conversion.
        """
        try:
            descriptor = self._open(key)
        except OSError as error:
            raise SampleError(key, f"cannot be opened: {error.strerror or error}") from None
        try:
            found = os.fstat(descriptor)
            if found.st_mode & 0o170000 != stat.S_IFREG:
                raise SampleError(key, f"is not a file but {kind_of(found.st_mode)}")
            size = found.st_size
            if found.st_mtime_ns != modified_ns or size != size_bytes:
                raise SampleError(key, _changed(size_bytes, size))
            if size > limit:
                raise SampleError(
                    key, f"has {size} bytes, more than the {limit} that an image within max_pixels can have"
                )
            data = os.read(descriptor, min(size, _READ_STEP))
            if len(data) != size:
                data = _read_rest(descriptor, key, data, size)
        except OSError as error:
            raise SampleError(key, f"cannot be read: {error.strerror or error}") from None
        finally:
            os.close(descriptor)
        return data

    def close(self) -> None:
        """Lets go of the directories of all threads; the next :meth:`read` opens one again."""
        self._threads = threading.local()

    def _open(self, key: str) -> int:
        if not _RELATIVE:
            return os.open(f"{self._root}/{key}", _OPEN_FLAGS)
        path, _, name = key.rpartition("/")
        directory: _Directory | None = getattr(self._threads, "directory", None)
        if directory is None or directory.path != path:
            directory = self._threads.directory = _Directory(self._root, path)
        return os.open(name, _OPEN_FLAGS, dir_fd=directory.descriptor)


class _Directory:
    """An open directory, closed with its last reference."""

    def __init__(self, root: str, path: str) -> None:
        self.descriptor = -1
        self.path = path
        self.descriptor = os.open(f"{root}/{path}", _SEARCH_FLAGS)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


def _changed(listed: int, found: int) -> str:
    sizes = f"{listed} bytes then, {found} now" if listed != found else "written to meanwhile"
    return f"has changed since it was listed ({sizes}): pack again when nothing writes to it"


def _read_rest(descriptor: int, key: str, data: bytes, size: int) -> bytes:
    parts = [data]
    read = len(data)
    while read < size:
        part = os.read(descriptor, min(size - read, _READ_STEP))
        if not part:
            raise SampleError(key, f"ends after {read} bytes, though its size is {size}: it changed, or its disk fails")
        parts.append(part)
        read += len(part)
    return b"".join(parts)


def kind_of(mode: int) -> str:
    """What ``st_mode`` says a thing is, for people."""
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")

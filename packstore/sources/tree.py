"""Trees of files: one interface for a folder and for the content of an archive."""

from __future__ import annotations

import builtins
import errno
import gc
import heapq
import os
import stat
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from packstore.core.errors import SampleError, SourceError, printable
from packstore.core.files import Location, open_regular
from packstore.images.engine import read_files, stat_files
from packstore.images.sniff import begins_like_image
from packstore.sources.encodings import active_encoding
from packstore.sources.folder_names import NameCache, Names, list_known_names
from packstore.sources.ignoring import IGNORED, IgnoreRules, active_rules
from packstore.sources.listing import (
    ARRAY,
    IS_CYCLE,
    NO_FILE,
    SAMPLE_SUFFIXES,
    Identity,
    Listing,
    count_reason,
    is_image_name,
    is_passed_over,
    skip_reason,
)

_START = 16
_MANY = 16  # number of images from which one call for all is faster
_OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK
_READ_STEP = 1 << 30  # one read() call returns at most 0x7ffff000 bytes on Linux
NO_PLAIN_FILE = "a folder, a pipe, a socket or a device"
_LIST_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC


# Sizes, times of modification and times of change of several files.
_Facts = tuple[list[int], list[int], list[int]]


class FileStat(NamedTuple):
    """Size and times of a file, or the fact that it is a directory.

    Attributes:
        size: Bytes; :data:`packstore.sources.listing.NO_FILE` if it is not a file.
        modified_ns: Time of modification; 0 if it is not a file.
        changed_ns: Time of change; 0 if it is not a file.
        is_directory: It is a directory.
    """

    size: int
    modified_ns: int = 0
    changed_ns: int = 0
    is_directory: bool = False


class Tree(ABC):
    """Files in directories. Directories and files are named by their paths from the root, with ``/``; the root is
    ``""``.

    Attributes:
        root: Name of the root in messages.
        top: Path of the root in an archive.
        replaced: Number of files of an archive that a later file of the same name has replaced.
        above: Identities of the directories above the root: a link to one of them leads back to the root.
        rules: Rules of ``--ignore``: listings, :meth:`stat` and :meth:`first_bytes` treat matching entries as absent.
            :meth:`read` and :meth:`read_part` do not look at them.
        has_arrays: ``.npy`` files are images; see :func:`packstore.sources.contents.accept_arrays`.
        encoding: Encoding of texts that are not UTF-8; None if the user has named none.
    """

    root: str
    top: str = ""
    replaced: int = 0
    above: tuple[Identity, ...] = ()
    rules: IgnoreRules = IgnoreRules()
    has_arrays: bool = False
    encoding: str | None = None

    def list(self, directory: str, ignored: Counter[str] | None = None) -> Listing:
        """Lists the images and directories in a directory, without entries that ``rules`` hide. If a name does not tell
        that a file is an image, its first bytes decide. A broken link is a file, as for ``os.walk``.

        Adds the number of other entries to ``ignored``, by reason. Raises :class:`SourceError` if the directory cannot
        be listed."""
        prefix = f"{directory}/" if directory else ""
        try:
            every = self.read_names(directory)
            names = self.rules.filter_names(directory, every) if self.rules else every
            folders = [name for name in names.folders if not is_passed_over(name)]
            if names.common_suffix.lower() in SAMPLE_SUFFIXES and "\0." not in names.text:
                images = [*names.files]
            else:
                images = [name for name in names.files if self._is_image(prefix, name)]
            if ignored is not None and len(images) + len(folders) < len(every.files) + len(every.folders):
                hidden = {*every.files, *every.folders}.difference(names.files, names.folders)
                for name in {*every.files, *every.folders}.difference(images, folders):
                    count_reason(IGNORED if name in hidden else skip_reason(name), ignored)
            identity = self.identity(directory) or (-1, hash(directory))
            return Listing(identity, images, *self.stat_images(directory, images), folders)
        except OSError as error:
            raise SourceError(f"{self.name(directory)} cannot be listed: {error.strerror or error}") from None

    def is_image_name(self, name: str) -> bool | None:
        """Tells by its name if a file is an image; None if its first bytes must decide."""
        if self.has_arrays and name.lower().endswith(ARRAY):
            return name[0] != "."
        return is_image_name(name)

    def _is_image(self, prefix: str, name: str) -> bool:
        """Tells if a file is an image, by its name or its first bytes."""
        named = self.is_image_name(name)
        return begins_like_image(self.read_first_bytes(prefix + name, _START)) if named is None else named

    def stat_images(self, directory: str, images: Sequence[str]) -> _Facts:
        """Returns sizes, times of modification and times of change of images in a directory, as in :class:`Listing`."""
        prefix = f"{directory}/" if directory else ""
        stats = []
        for image in images:
            try:
                stats.append(self.stat_any(prefix + image))
            except OSError:
                stats.append(FileStat(0))  # a broken link, which reading reports
        return [each.size for each in stats], [each.modified_ns for each in stats], [each.changed_ns for each in stats]

    def names(self, directory: str) -> Names:
        """Lists all names in a directory that ``rules`` do not hide. Returns no names if it cannot be listed."""
        names = self.list_names(directory)
        return self.rules.filter_names(directory, names) if self.rules else names

    def stat(self, file: str) -> FileStat:
        """Returns size and times of a file, or that the path is a directory. Raises :class:`OSError` if nothing is
        there, or ``rules`` hide it."""
        status = self.stat_any(file)
        if self.rules.hides(file, status.is_directory):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file)
        return status

    def first_bytes(self, file: str, size: int) -> bytes:
        """Reads the first ``size`` bytes of a file. Returns no bytes if the file cannot be read, or if ``rules`` hide
        it."""
        return b"" if self.rules.hides(file) else self.read_first_bytes(file, size)

    def list_names(self, directory: str) -> Names:
        """Lists all names in a directory, also those that ``rules`` hide; none if it cannot be listed."""
        try:
            return self.read_names(directory)
        except (OSError, ValueError):
            return Names()  # a listing reports why

    @abstractmethod
    def read_names(self, directory: str) -> Names:
        """Lists all names in a directory. Raises :class:`OSError` if it cannot be listed."""

    @abstractmethod
    def stat_any(self, file: str) -> FileStat:
        """Returns size and times of a file as :meth:`stat` does, also if ``rules`` hide it."""

    @abstractmethod
    def read_first_bytes(self, file: str, size: int) -> bytes:
        """Reads the first bytes of a file as :meth:`first_bytes` does, also if ``rules`` hide it."""

    @abstractmethod
    def read_part(self, file: str, place: int, size: int) -> bytes:
        """Reads ``size`` bytes of a file from ``place`` on; fewer at its end. Thread-safe.

        Raises :class:`OSError` if the file cannot be read. In an archive, raises :class:`ValueError` for an entry that
        is damaged, no plain file, or compressed by other than deflate."""

    @abstractmethod
    def read(self, key: str, size_bytes: int, modified_ns: int, max_bytes: int) -> bytes:
        """Reads all bytes of a file. Thread-safe. Raises :class:`SampleError`

        - if the file cannot be read, is no regular file, or has more than ``max_bytes``;
        - if the file has another size or time of modification than given.
        """

    def locate(self, key: str) -> Location | None:
        """Locates the bytes of a file on this machine. Returns None if they are compressed or elsewhere, and always in
        this base."""
        return None

    def read_together(self, files: Sequence[tuple[str, int, int]]) -> Sequence[bytes | None]:
        """Reads several small files at once, if that is faster. ``files`` has key, size and time of modification of
        each. Returns None for each file that :meth:`read` must read. This base returns None for all. Thread-safe."""
        return [None] * len(files)

    def walk(
        self,
        top: str,
        above: tuple[Identity, ...],
        ignored: Counter[str] | None = None,
        skip_cycles: bool = False,
    ) -> Iterator[tuple[str, Listing]]:
        """Yields path and listing of the directory ``top`` and of all below it, in the order of ``sorted(os.walk(…))``.

        ``above`` identifies the directories above ``top``. Adds the number of left entries to ``ignored``, by reason.

        Raises :class:`SourceError` for a directory that cannot be listed, and for a cycle: a link to a directory above
        it. With ``skip_cycles``, a cycle yields :meth:`Listing.of_cycle`, with the path of the link's parent, instead.
        """
        # A directory sorts after its parent: the smallest waiting one sorts before all that will be found later.
        waiting: list[tuple[str, tuple[Identity, ...]]] = [(top, above)]
        while waiting:
            directory, above = heapq.heappop(waiting)
            listing = self.list(directory, ignored)
            if listing.identity in above:
                if not skip_cycles:
                    how = "remove it, pack a folder without it, or leave it out with --on-error skip"
                    raise SourceError(f"{self.name(directory)} {IS_CYCLE}: {how}")
                parent, _, name = directory.rpartition("/")
                yield parent, Listing.of_cycle(listing.identity, name)
                continue
            yield directory, listing
            if listing.directories:
                prefix = f"{directory}/" if directory else ""
                inside = (*above, listing.identity)
                for name in listing.directories:
                    heapq.heappush(waiting, (prefix + name, inside))

    def folders(
        self, left_out: Callable[[str], bool], top: str = "", every: bool = False
    ) -> Iterator[tuple[str, Names]]:
        """Yields each directory at and below ``top`` with its :meth:`names`, breadth first. Skips directories if
        ``left_out`` is true for their names. With ``every``, includes entries that ``rules`` hide. Follows links, but
        not to a directory above the link."""
        list_names = self.list_names if every else self.names
        waiting: deque[tuple[str, tuple[Identity, ...]]] = deque([(top, self.above)])
        while waiting:
            directory, above = waiting.popleft()
            identity = self.identity(directory)
            if identity is None or identity in above:
                continue
            names = list_names(directory)
            yield directory, names
            prefix, above = f"{directory}/" if directory else "", (*above, identity)
            waiting.extend((prefix + name, above) for name in names.folders if not left_out(name))

    def all_folders(self) -> Iterator[tuple[str, Names]]:
        """Yields each directory with all its names. Includes hidden names, and names that ``rules`` hide."""
        return self.folders(lambda _: False, every=True)

    def cache_names(self, keep: bool = False) -> AbstractContextManager[None]:
        """Caches listed names within the block, if the tree has such a cache. With ``keep``, the next block may use
        them, too. Does nothing in this base."""
        return nullcontext()

    def identity(self, directory: str) -> Identity | None:
        """Returns numbers that identify a directory, the same for all links to it. Returns None if it is gone. This
        base is for trees without links, and computes the numbers from the path."""
        return -1, hash(directory)

    def holds_images(self, top: str, above: tuple[Identity, ...]) -> bool:
        """Tells if an image is anywhere below the directory ``top``; see :meth:`walk`. Looks at the names directly in
        it first."""
        if self.identity(top) not in above and any(map(self.is_image_name, self.names(top).files)):
            return True
        return any(listing.images and not listing.is_cycle for _, listing in self.walk(top, above, skip_cycles=True))

    def stamp(self) -> str:
        """Returns a text that changes with the content of an archive; empty for a folder, whose files have times."""
        return ""

    def close(self) -> None:
        """Closes open files; the next :meth:`read` opens them again."""
        return

    def name(self, directory: str = "") -> str:
        """Formats the path of a directory or file for messages."""
        return printable(f"{self.root}/{directory}" if directory else self.root)


class FolderTree(Tree):
    """Tree of the files in a folder on disk; follows links.

    The constructor raises :class:`SourceError` if a folder above the root cannot be reached."""

    def __init__(self, path: Path) -> None:
        self.root = str(path.absolute())  # a later change of the working directory does not matter
        self.rules = active_rules(path)
        self.encoding = active_encoding()
        self.above = tuple(_directory_identity(parent) for parent in Path(self.root).resolve().parents)
        self._cached = _CachedNames()

    def read_names(self, directory: str) -> Names:
        """Lists the names in a directory, or returns them from the cache. Raises :class:`OSError` if it cannot be
        listed."""
        known = self._cached.in_use
        if known is not None:
            names = known.get_names(directory)
            if names is None and directory in known:  # of an earlier block: asking for its times is enough
                names = known.get_unchanged(directory, os.stat(f"{self.root}/{directory}"))  # noqa: PTH116
            if names is not None:
                return names
        with self._open_directory(directory) as descriptor:
            return list_known_names(descriptor, os.fstat(descriptor), known, directory)

    def stat_images(self, directory: str, images: Sequence[str]) -> _Facts:
        """Returns sizes and times of images, of many by one call of the engine."""
        together = None
        if len(images) >= _MANY:
            with self._open_directory(directory) as descriptor:
                together = stat_files(descriptor, images)
        if together is None:
            return super().stat_images(directory, images)
        return together[0], together[1], together[2]

    @contextmanager
    def _open_directory(self, directory: str) -> Iterator[int]:
        """Opens a directory within the block, and returns its descriptor."""
        descriptor = os.open(f"{self.root}/{directory}", _LIST_FLAGS)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def cache_names(self, keep: bool = False) -> Iterator[None]:
        """Lists each directory only once within the block, even if it changes meanwhile. With ``keep``, the next such
        block uses the names of directories that have not changed since."""
        cached = self._cached
        if cached.in_use is not None:
            yield
            return
        cached.in_use = cached.kept or NameCache()
        cached.kept = None
        collects = gc.isenabled()
        gc.disable()  # listings stay, and the garbage collector would search them again and again
        try:
            yield
        finally:
            if collects:
                gc.enable()
            if keep:
                cached.in_use.expire()
                cached.kept = cached.in_use
            else:
                cached.in_use.close()
            cached.in_use = None

    def identity(self, directory: str) -> Identity | None:
        """Returns device and inode of a directory, or None if it cannot be reached."""
        known = self._cached.in_use
        if known is not None and directory in known.identities:
            return known.identities[directory]
        try:
            status = os.stat(f"{self.root}/{directory}")  # noqa: PTH116 - one call for each of many folders
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def stat_any(self, file: str) -> FileStat:
        """Returns size and times of a file, or that the path is a directory; follows links. Raises :class:`OSError` if
        nothing is there."""
        try:
            status = os.stat(f"{self.root}/{file}")  # noqa: PTH116 - one call for each of many files
        except ValueError as error:  # a null byte, as lists of files may have one
            raise FileNotFoundError(errno.ENOENT, str(error)) from None
        if not stat.S_ISREG(status.st_mode):
            return FileStat(NO_FILE, is_directory=stat.S_ISDIR(status.st_mode))
        return FileStat(status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def read_first_bytes(self, file: str, size: int) -> bytes:
        """Reads the first bytes of a regular file. Returns ``b""`` if it cannot be read."""
        try:
            with os.fdopen(open_regular(Path(f"{self.root}/{file}")), "rb") as opened:
                return opened.read(size)
        except (OSError, ValueError):
            return b""

    def read_part(self, file: str, place: int, size: int) -> bytes:
        """Reads ``size`` bytes from ``place`` on; fewer at the end. Raises :class:`OSError` if the file cannot be
        read."""
        with open(f"{self.root}/{file}", "rb") as opened:  # noqa: PTH123 - as above
            opened.seek(place)
            return opened.read(size)

    def read(self, key: str, size_bytes: int, modified_ns: int, max_bytes: int) -> bytes:
        """Reads a whole file. Raises :class:`SampleError` if it cannot be read, is no file, too large, or has
        changed."""
        try:
            descriptor = os.open(f"{self.root}/{key}", _OPEN_FLAGS)
        except OSError as error:
            raise SampleError(key, f"cannot be opened: {error.strerror or error}") from None
        try:
            status = os.fstat(descriptor)
            if status.st_mode & 0o170000 != stat.S_IFREG:
                raise SampleError(key, f"is not a file but {NO_PLAIN_FILE}")
            size = status.st_size
            if status.st_mtime_ns != modified_ns or size != size_bytes:
                raise SampleError(key, changed_message(size_bytes, size))
            check_size(key, size, max_bytes)
            data = os.read(descriptor, min(size, _READ_STEP))
            while len(data) < size:
                part = os.read(descriptor, min(size - len(data), _READ_STEP))
                if not part:
                    raise SampleError(key, f"ends after {len(data)} of {size} bytes: it changed, or its disk fails")
                data += part
        except OSError as error:
            raise SampleError(key, f"cannot be read: {error.strerror or error}") from None
        finally:
            os.close(descriptor)
        return data

    def locate(self, key: str) -> Location | None:
        """Returns the path of the file, with offset 0."""
        return Location(f"{self.root}/{key}", 0)

    def read_together(self, files: Sequence[tuple[str, int, int]]) -> Sequence[bytes | None]:
        """Reads files by one call of the engine for each directory. Returns None for each file that :meth:`read` must
        read. If a directory cannot be opened, returns None for all."""
        contents: builtins.list[bytes | None] = []
        try:
            for path, group in groupby(files, lambda file: file[0].rpartition("/")[0]):
                keys, sizes, times = zip(*group, strict=True)
                if len(keys) == 1:  # opening its directory would take longer than reading it
                    contents.append(self._read_unchanged(keys[0], sizes[0], times[0]))
                    continue
                names = [os.fsencode(key[len(path) + 1 if path else 0 :]) for key in keys]
                with self._open_directory(path) as descriptor:
                    contents += read_files(descriptor, names, sizes, times)
        except (OSError, ValueError):  # a directory that is gone, a name with a null byte
            return super().read_together(files)
        return contents

    def _read_unchanged(self, key: str, size_bytes: int, modified_ns: int) -> bytes | None:
        """Reads a file; returns None if it has changed or cannot be read."""
        try:
            return self.read(key, size_bytes, modified_ns, size_bytes)
        except SampleError:
            return None


@dataclass(slots=True)
class _CachedNames:
    """Names of a folder, for a tree and its copies: those that are in use, and those that the next block will use."""

    in_use: NameCache | None = None
    kept: NameCache | None = None


def check_size(key: str, size_bytes: int, max_bytes: int) -> None:
    """Raises :class:`SampleError` for a file of more than ``max_bytes``."""
    if size_bytes > max_bytes:
        raise SampleError(
            key, f"has {size_bytes} bytes, more than the {max_bytes} that an image within max_pixels can have"
        )


def changed_message(listed: int, found: int) -> str:
    """Returns the error text for a file that has changed since its listing, in size or time of modification."""
    sizes = f"{listed} bytes then, {found} now" if listed != found else "written to meanwhile"
    return f"has changed since it was listed ({sizes}): pack it again once nothing writes to it"


def _directory_identity(path: Path) -> Identity:
    """Returns device and inode of a directory."""
    try:
        status = path.stat()
    except OSError as error:
        raise SourceError(f"{printable(str(path))} cannot be reached: {error.strerror or error}") from None
    return status.st_dev, status.st_ino

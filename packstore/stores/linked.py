"""Linked stores: all columns but the images, which stay in the files that they were packed from.

Each record has the location of its image, see :data:`packstore.core.columns.LINK_COLUMNS`.
"""

from __future__ import annotations

import mmap
import os
import posixpath
import stat
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from packstore.core.columns import Buffer, ColumnData
from packstore.core.errors import CacheFullError, StoreError, printable
from packstore.core.files import FileState, open_regular
from packstore.core.manifest import Manifest
from packstore.core.progress import ProgressCallback, no_progress
from packstore.core.proof import image_checksum
from packstore.core.urls import UrlPath
from packstore.stores.parts import Fault, Lens, Part, Problem, Rows, Spans

if TYPE_CHECKING:
    from packstore.objects import ObjectInfo

_OPEN_FILES = 128
_READ_STEP = 1 << 30  # one read returns at most 0x7ffff000 bytes on Linux


class LinkedFile(NamedTuple):
    """The bytes of an open file.

    Attributes:
        data: The whole file: a map, or for :func:`read_whole_file` its bytes.
        state: State of the file when it was read or mapped.
    """

    data: memoryview
    state: FileState


class LinkedFiles:
    """Maps linked files, and keeps the 128 that were used last. Works from any thread.

    :meth:`open` checks if a local file was replaced, and maps a replaced file again. It does not check an object again
    while its copy is open. If a file is cut short after that check, reading its bytes crashes the process, as with a
    cut LMDB.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[str, tuple[LinkedFile, tuple[int, int]]] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, place: str) -> LinkedFile:
        """Returns the file at an absolute path or a URL.

        Maps a file that is not open, or whose inode or size has changed. Fetches an object at a URL into the cache.

        Raises:
            OSError: The file cannot be opened, or is not a regular file.
            ValueError: The path is invalid.
            StoreError: The object cannot be fetched.
        """
        with self._lock:
            known = self._open.get(place)
            if known is not None:
                self._open.move_to_end(place)
        if is_url_link(place):
            return known[0] if known is not None else self._keep_open(place, self._fetch(place), (0, 0))
        status = os.stat(place)  # noqa: PTH116 - a Path takes longer than the call
        state, identity = FileState(status.st_size, status.st_mtime_ns), (status.st_dev, status.st_ino)
        if known is not None and known[1] == identity and len(known[0].data) == state.nbytes:
            return known[0]._replace(state=state)
        descriptor = open_regular(Path(place))
        try:
            opened = os.fstat(descriptor)
            file = LinkedFile(_map_file(descriptor), FileState(opened.st_size, opened.st_mtime_ns))
        finally:
            os.close(descriptor)
        return self._keep_open(place, file, (opened.st_dev, opened.st_ino))

    def clear(self) -> None:
        """Releases all files. Bytes already returned stay valid."""
        with self._lock:
            self._open.clear()

    def _keep_open(self, place: str, file: LinkedFile, identity: tuple[int, int]) -> LinkedFile:
        """Keeps an open file, drops those used longest ago, and returns it."""
        with self._lock:
            self._open[place] = file, identity
            while len(self._open) > _OPEN_FILES:
                self._open.popitem(last=False)
        return file

    def _fetch(self, url: str) -> LinkedFile:
        """Fetches an object into the cache and maps its copy."""
        from packstore.stores.remote_objects import open_cached_copy

        path = UrlPath(url)
        try:
            info, descriptor = open_cached_copy(path)
        except CacheFullError:
            self.clear()  # the cache cannot evict open copies
            info, descriptor = open_cached_copy(path)
        try:
            return LinkedFile(_map_file(descriptor), derive_object_state(info))
        finally:
            os.close(descriptor)


def is_url_link(place: str) -> bool:
    """Returns whether a link, as stored in a record, is a URL and not a path."""
    return not place.startswith("/") and "://" in place


def read_whole_file(path: str) -> LinkedFile:
    """Reads a whole local file without mapping it.

    Raises :class:`OSError` if that fails or it is not a regular file, and :class:`ValueError` for an invalid path.
    """
    descriptor = open_regular(Path(path))
    try:
        status = os.fstat(descriptor)
        parts, left = [], status.st_size
        while left and (data := os.read(descriptor, min(left, _READ_STEP))):
            parts.append(data)
            left -= len(data)
    finally:
        os.close(descriptor)
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    return LinkedFile(memoryview(data), FileState(status.st_size, status.st_mtime_ns))


def read_file_state(path: str) -> FileState:
    """Returns size and modification time of a file. Raises :class:`OSError` if it is missing or not a regular file."""
    status = os.stat(path)  # noqa: PTH116 - one call for each of many files
    if not stat.S_ISREG(status.st_mode):
        raise OSError("not a regular file")
    return FileState(status.st_size, status.st_mtime_ns)


def derive_object_state(info: ObjectInfo) -> FileState:
    """Returns the size of an object, and a version in place of its time, which may be rounded to seconds.

    The version is the upper 63 bits of the XXH3-64 of the ETag; without an ETag, of the time.
    """
    known = xxh3_64_intdigest(f"{info.etag or info.modified}".encode())
    return FileState(info.nbytes, known >> 1)


def _map_file(descriptor: int) -> memoryview:
    """Maps a whole open file for reading."""
    if not os.fstat(descriptor).st_size:
        return memoryview(b"")  # an empty file cannot be mapped
    return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))


_BRING_BACK = "bring it back, name its new place (packstore link --rebase), or link again (packstore repair)"


class LinkError(Fault):
    """The image of a record cannot be read from its linked file.

    Attributes:
        record: Number of the record in its store.
        path: Path of the store.
        key: The record's key.
        why: Path and fault of the file.
    """

    def __init__(self, record: int, path: Path, why: str, key: str) -> None:
        super().__init__(record, path, why)
        self.args = (record, path, why, key)
        self.key = key

    def __str__(self) -> str:
        return f"record {self.record} ({printable(self.key)}): {self.why}"


class Linked(Lens, Part):
    """A file of a linked store: reads the images from the linked files, and everything else from ``part``.

    Reads a local file whole if it is a single image. Maps any other file into memory. Copies objects at URLs into the
    cache. If a file has another size or modification time than the link says, its images are compared with their
    checksums. A difference raises :class:`StoreError`.
    """

    def __init__(self, part: Part, folder: Path, files: LinkedFiles | None = None) -> None:
        """
        Args:
            part: The file of the store.
            folder: Folder of the store, from which relative links begin.
            files: Open files shared with other shards of the store.

        Raises:
            StoreError: The link columns are damaged. Closes ``part``.
        """
        super().__init__(part)
        self.has_image_array = False
        self._part = part
        self._folder = folder
        self._files = LinkedFiles() if files is None else files
        try:
            self._names = part.ragged_column("link_file")
            self._offsets, self._lengths, self._sizes, self._times = (
                part.fixed_column(f"link_{name}") for name in ("offset", "length", "file_bytes", "file_modified")
            )
        except BaseException:
            part.close()
            raise

    def view(self, index: int) -> Buffer:
        """Reads the image from its linked file. Returns a view of the file, or for an object at a URL a copy.

        Raises:
            IndexError: The record is not in the store.
            LinkError: The link is damaged, the file cannot be read or is too short, or has changed and its image does
                not match the checksum.
        """
        return self._read_image(index, {})

    def views(self, records: NDArray[np.int64]) -> Sequence[Buffer]:
        """Reads the images like :meth:`view`. Opens a file that holds several of them only once."""
        opened: dict[str, LinkedFile] = {}
        return [self._read_image(record, opened) for record in records.tolist()]

    def read_stored_image(self, index: int) -> Buffer:
        return self.view(index)

    def locate(self, rows: NDArray[np.int64]) -> Spans:
        """Raises :class:`StoreError`: the images are in many files."""
        raise StoreError(f"{printable(str(self.path))} holds links to images, which are in other files")

    def column(self, name: str) -> ColumnData:
        """Returns a column of the store. Raises :class:`StoreError` for ``image``."""
        if name == "image":
            raise StoreError("a linked store has no array of all images; read them one by one")
        return self._part.column(name)

    def faults(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        """Yields faults of the store itself, and with ``quick`` local linked files that are missing or too short.

        Without ``quick``, does not look at linked files: ``verify`` reads each image.
        """
        yield from self._part.faults(quick=quick, progress=progress)
        for place, (count, nbytes) in list_linked_files([self], self._folder).items() if quick else ():
            if is_url_link(place):
                continue  # checking it would take a request
            what = f"{printable(place)}, which has {count:,} {'image' if count == 1 else 'images'},"
            try:
                found = read_file_state(place).nbytes
            except (OSError, ValueError) as error:
                yield Problem(f"{what} cannot be read ({short_reason(error)}); {_BRING_BACK}")
            else:
                if found < nbytes:
                    yield Problem(f"{what} has {found} bytes, not {nbytes}")

    def close(self) -> None:
        """Closes the store, and releases the linked files. Other shards that share the files open them again."""
        self._files.clear()
        self._part.close()

    def _read_image(self, record: int, opened: dict[str, LinkedFile]) -> Buffer:
        """Returns the image of a record from its linked file, which it adds to ``opened``."""
        if not 0 <= record < len(self):
            raise IndexError(f"record {record} of {len(self)}")
        place = resolve_link(bytes(self._names[record]), self._folder)
        offset, length, size = int(self._offsets[record]), int(self._lengths[record]), int(self._sizes[record])
        if offset < 0 or length < 0 or offset + length > size:
            why = f"is linked at bytes {offset} to {offset + length} of {size}: the link is damaged"
            raise self._link_error(record, place, why)
        file = opened.get(place)  # read or mapped once for all images of a batch in it
        if file is None:
            try:
                # A file with more than one image stays mapped.
                whole = length == size and not is_url_link(place)
                file = opened[place] = read_whole_file(place) if whole else self._files.open(place)
            except (OSError, ValueError) as error:
                why = f"cannot be read ({short_reason(error)}); {_BRING_BACK}"
                raise self._link_error(record, place, why) from None
            except StoreError as error:
                raise self._link_error(record, place, f"cannot be fetched: {error}") from error
        data = file.data[offset : offset + length]
        if len(data) != length:
            raise self._link_error(
                record,
                place,
                f"has {file.state.nbytes} bytes, {size} when it was linked, and ends before the image does",
            )
        if file.state != FileState(size, int(self._times[record])):
            expected = int(self._part.value("checksum", record))
            if image_checksum(data) != expected:
                why = "has changed since it was linked: the image's checksum differs; bring the old file back, or "
                raise self._link_error(record, place, f"{why}link again (packstore repair)")
        return bytes(data) if is_url_link(place) else data

    def _link_error(self, record: int, place: str, reason: str) -> LinkError:
        """Returns the error for a linked file, whose message ends with ``reason``."""
        return LinkError(int(record), self.path, f"its file {printable(place)} {reason}", self.try_key(record))


def list_linked_files(parts: Iterable[Rows], folder: Path) -> dict[str, tuple[int, int]]:
    """Returns the linked files of a store's files by path or URL, in order of first use.

    Each has (number of images, byte at which the last of them ends). ``folder``: the store's :func:`link_folder`.
    """
    counts, ends = Counter[bytes](), dict[bytes, int]()
    for part in parts:
        stops = part.fixed_column("link_offset") + part.fixed_column("link_length")
        for name, end in zip(map(bytes, part.ragged_column("link_file")), stops.tolist(), strict=True):
            counts[name] += 1
            if end > ends.get(name, 0):
                ends[name] = end
    files = dict[str, tuple[int, int]]()
    for name, count in counts.items():
        before, end = files.get(place := resolve_link(name, folder), (0, 0))  # two links may lead to one file
        files[place] = before + count, max(end, ends.get(name, 0))
    return files


def resolve_link(link: bytes, folder: Path) -> str:
    """Returns the absolute path or URL of a link. A relative link begins at ``folder``, the :func:`link_folder`."""
    place = os.fsdecode(link)
    if place.startswith("/") or is_url_link(place):
        return place
    if is_url_link(str(folder)):
        root, path = _split_bucket(str(folder))  # a link stays in the bucket
        return f"{root}{posixpath.normpath(posixpath.join(path, place))}"
    return os.path.normpath(folder / place)


def link_folder(store: Path) -> Path:
    """Returns the folder from which a store's relative links begin: its parent, with symbolic links resolved."""
    return store.parent if is_url_link(str(store)) else Path(os.path.realpath(store)).parent


def make_relative_link(place: str, folder: Path) -> str:
    """Returns the link to the file ``place`` relative to ``folder``, the :func:`link_folder` of a store.

    Returns ``place`` itself if only one of the two is at a URL, or if their buckets differ. A path with symbolic links
    is resolved if the link then has fewer ``..``. Files and store in one folder can therefore be moved together.
    """
    if is_url_link(str(folder)) != is_url_link(place):
        return place
    if not is_url_link(place):
        parent, name = os.path.split(place)
        return min(
            (os.path.relpath(f"{each}/{name}", folder) for each in (parent, os.path.realpath(parent))),
            key=lambda link: link.split("/").count(".."),
        )
    root, path = _split_bucket(place)
    own, start = _split_bucket(str(folder))
    return posixpath.relpath(path, start) if root == own else place


def relative_link_folder(manifest: Manifest, store: Path) -> Path | None:
    """Returns the folder from which a store's relative links begin. None if the store has no relative links."""
    return link_folder(store) if manifest.options.get("link") == "relative" else None


def read_link_values(reader: Rows, records: NDArray[np.int64], folder: Path | None = None) -> dict[str, Any]:
    """Reads the values of :data:`LINK_COLUMNS` for some records, as a builder takes them.

    Makes the links relative to ``folder``, or absolute if that is None.
    """
    own, links = link_folder(reader.path), []
    for record in records.tolist():
        place = resolve_link(bytes(reader.value("link_file", record)), own)
        links.append(place if folder is None else make_relative_link(place, folder))
    values: dict[str, Any] = {"link_file": links}
    for name in ("link_offset", "link_length", "link_file_bytes", "link_file_modified"):
        values[name] = reader.values(name, records)
    return values


def _split_bucket(url: str) -> tuple[str, str]:
    """Splits a URL into its bucket and its path, which begins with a slash."""
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    return f"{scheme}://{bucket}", f"/{path}"


def short_reason(error: OSError | ValueError) -> object:
    """Returns the system's words for an :class:`OSError`, else the error itself, for messages."""
    return error.strerror if isinstance(error, OSError) and error.strerror else error

"""Reads folders in object stores as sources: the slashes in the names of objects divide directories.

Listing a directory takes one request for each 1,000 names, and then everything in it is known. That takes about 1 KB
of memory a name: 93 MB for a directory of 100,000 files.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from operator import itemgetter
from typing import IO, Any

from packstore.core.errors import SampleError, SourceError, UsageError, printable
from packstore.core.progress import set_within
from packstore.core.urls import UrlPath
from packstore.objects import MissingObjectError, ObjectInfo, ObjectStore, RemoteError, open_objects
from packstore.sources.encodings import active_encoding
from packstore.sources.folder_names import Names
from packstore.sources.ignoring import active_rules
from packstore.sources.listing import NO_FILE
from packstore.sources.refusals import NeedsCopyError
from packstore.sources.tree import FileStat, Tree, changed_message, check_size

# Maximum number of names in cached directories; the last directory stays, however large.
_KNOWN_NAMES = 200_000
_ATTEMPTS = 5
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')
_NO_OBJECT = ObjectInfo("", 0, None, 0.0)
# Content of a directory by name: an object, or None for a directory.
Children = Mapping[str, "ObjectInfo | None"]


class Bucket:
    """Lists directories of a bucket, and finds objects in it. Thread-safe.

    Caches directories with up to 200,000 names in all, and always the last one. A further one empties the cache.

    Attributes:
        objects: All objects of the bucket.
    """

    def __init__(self, url: str) -> None:
        self.objects: ObjectStore = open_objects(url)
        self._known: dict[str, Children] = {}
        self._lock = threading.Lock()

    def list_directory(self, name: str) -> Children:
        """Lists a directory, or returns its cached content; empty for a missing directory.

        Caches directories of together about 200,000 names. Raises :class:`RemoteError` if the store cannot be reached,
        and :class:`UsageError` for a store that cannot list."""
        if (known := self._known.get(name)) is not None:
            return known
        if not self.objects.can_list:
            shown = f"{self.objects.url}/{name}"
            raise UsageError(f"{shown} cannot be listed, so no folder there is a source: copy it to this machine")
        if self._is_known_absent(name):
            return {}
        files, directories = self.objects.list_directory(name)
        children: dict[str, ObjectInfo | None] = {
            file.name.rpartition("/")[2]: file for file in files if file.name != name
        }
        children.update((directory.rpartition("/")[2], None) for directory in directories)
        with self._lock:
            if sum(map(len, self._known.values())) + len(children) > _KNOWN_NAMES:
                self._known.clear()
            self._known[name] = children
        return children

    def find_object(self, name: str) -> ObjectInfo | None:
        """Returns the object of a name, or None for a directory.

        Uses the listing of the directory above if it is cached, else requests for this name. Raises
        :class:`FileNotFoundError` if there is neither object nor directory, :class:`RemoteError` if the store cannot be
        reached, and :class:`UsageError` if there is no object and the store cannot list directories.
        """
        # Users who may read a folder may not be allowed to list the folder above.
        parent, _, last = name.rpartition("/")
        known = self._known.get(parent) if name else None
        if known is not None and last in known:
            return known[last]
        if known is not None or self._is_known_absent(parent):
            raise _make_missing_error(name)
        if self.objects.can_list and (not name or self.list_directory(name)):
            return None
        try:
            return self.objects.head(name)
        except MissingObjectError:
            if not self.objects.can_list:
                self.list_directory(name)  # raises UsageError
            raise _make_missing_error(name) from None

    def _is_known_absent(self, directory: str) -> bool:
        """Tells if a cached listing proves that there is no directory of this name."""
        while directory:
            directory, _, last = directory.rpartition("/")
            if self._known.get(directory, {last: None}).get(last, _NO_OBJECT) is not None:
                return True
        return False

    def clear_cache(self) -> None:
        """Empties the cache. Directories are then listed again."""
        with self._lock:
            self._known.clear()


_buckets: ContextVar[dict[str, Bucket] | None] = ContextVar("known buckets", default=None)


def cache_buckets() -> AbstractContextManager[None]:
    """Shares a :class:`Bucket` and its cache between all paths of one bucket within the block."""
    return set_within(_buckets, {})


class RemotePath(UrlPath):
    """URL with the methods of a path: type, size and listing. Sources at a URL read files by :class:`ObjectTree`.

    Its methods raise :class:`SourceError` if the store cannot be reached. They raise :class:`UsageError` for a folder
    in a store that cannot list."""

    def bucket_and_name(self) -> tuple[Bucket, str]:
        """Returns the bucket of the URL, and the name in it. Outside of :func:`cache_buckets`, the bucket is new."""
        scheme, _, rest = str(self).partition("://")
        bucket, _, name = rest.partition("/")
        url = f"{scheme}://{bucket}/"
        known = _buckets.get()
        if known is None:
            return Bucket(url), name
        if url not in known:
            known[url] = Bucket(url)
        return known[url], name

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Returns type, size and time of the object or folder. Raises :class:`FileNotFoundError` if there is none."""
        bucket, name = self.bucket_and_name()
        with _as_source_errors():
            info = bucket.find_object(name)
        size, modified = (0, 0.0) if info is None else (info.nbytes, info.modified)
        mode = stat.S_IFDIR if info is None else stat.S_IFREG
        return os.stat_result((mode, 0, 0, 1, 0, 0, size, modified, modified, modified))

    def exists(self, **_: Any) -> bool:
        """Tells if an object or a folder is at the URL."""
        return self._mode() != 0

    def is_dir(self, **_: Any) -> bool:
        """Tells if objects are below the URL."""
        return stat.S_ISDIR(self._mode())

    def is_file(self, **_: Any) -> bool:
        """Tells if an object is at the URL."""
        return stat.S_ISREG(self._mode())

    def iterdir(self) -> Iterator[RemotePath]:  # type: ignore[override]
        """Lists the folder at the URL, and yields the paths in it; none if there is no folder."""
        bucket, name = self.bucket_and_name()
        with _as_source_errors():
            names = bucket.list_directory(name)
        return (self / each for each in names)

    def open(self, mode: str = "r", *_: Any, **__: Any) -> IO[Any]:  # type: ignore[override]
        """Fetches the whole object into a temporary file without a name, and returns the file. Raises :class:`OSError`
        for any mode but ``rb``, and if there is no object."""
        if mode != "rb":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))
        self.stat()
        bucket, name = self.bucket_and_name()
        with ExitStack() as stack, _as_source_errors():
            file = stack.enter_context(tempfile.TemporaryFile())
            file.writelines(bucket.objects.stream(name))
            file.seek(0)
            stack.pop_all()  # the caller closes it
        return file

    def tree(self) -> ObjectTree | None:
        """Returns the tree of all objects below the URL, or None if there are none.

        Raises :class:`NeedsCopyError` for the URL of a single object, which can be read only as a local copy.
        """
        if self.is_file():
            raise NeedsCopyError(f"{printable(str(self))} is one object")
        return ObjectTree(self) if self.is_dir() else None

    def _mode(self) -> int:
        """Returns ``st_mode`` of the object or folder, or 0 if nothing is there."""
        try:
            return self.stat().st_mode
        except FileNotFoundError:
            return 0


class ObjectTree(Tree):
    """Objects below a URL.

    An ETag that is an MD5 digest proves the content. S3 has such ETags for objects that were not uploaded in parts.
    Times of modification are cut to seconds. In place of times of change, files have hashes of their ETags. Methods
    raise :class:`SourceError` if the store cannot be reached."""

    def __init__(self, path: RemotePath) -> None:
        self.root = str(path)
        self.rules = active_rules(path)
        self.encoding = active_encoding()
        self._bucket, self._top = path.bucket_and_name()
        self._has_digests = True

    def read_names(self, directory: str) -> Names:
        """Lists the names in a directory. Raises :class:`FileNotFoundError` if it does not exist."""
        names = sorted(self._list_children(directory).items(), key=itemgetter(0))
        if not names:
            raise _make_missing_error(directory)
        return Names([name for name, info in names if info is not None], [name for name, info in names if info is None])

    def stat_any(self, file: str) -> FileStat:
        """Returns size and times of an object, or that the path is a directory. The time of change is a hash of the
        ETag. Raises :class:`FileNotFoundError` if there is neither."""
        info = self._find_object(file)
        if info is None:
            return FileStat(NO_FILE, is_directory=True)
        return FileStat(info.nbytes, _modified_ns(info), _hash_etag(info))

    def read_first_bytes(self, file: str, size: int) -> bytes:
        """Reads the first bytes of an object; returns ``b""`` if there is none."""
        try:
            return self.read_part(file, 0, size)
        except (FileNotFoundError, IsADirectoryError):
            return b""  # reported when it is read

    def read_part(self, file: str, place: int, size: int) -> bytes:
        """Reads a range of an object; returns fewer bytes at its end. Raises :class:`FileNotFoundError` or
        :class:`IsADirectoryError` if there is no object."""
        info = self._find_object(file)
        if info is None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), file)
        stop = min(place + size, info.nbytes)
        try:
            with _as_source_errors():
                return self._bucket.objects.get(info.name, place, stop) if place < stop else b""
        except MissingObjectError:
            raise _make_missing_error(file) from None

    def read(self, key: str, size_bytes: int, modified_ns: int, max_bytes: int) -> bytes:
        """Reads an object, and proves its bytes if the ETag is an MD5 digest. Raises :class:`SampleError` if it is
        gone, too large, or has changed."""
        check_size(key, size_bytes, max_bytes)
        try:
            with _as_source_errors():
                info, data = self._read_proven(self._object_name(key))
        except MissingObjectError:
            raise SampleError(key, "is not there any more: it was there when it was listed") from None
        if len(data) != size_bytes or _modified_ns(info) != modified_ns:
            raise SampleError(key, changed_message(size_bytes, len(data)))
        return data

    def _read_proven(self, name: str) -> tuple[ObjectInfo, bytes]:
        """Reads an object until its MD5 is its ETag, or two reads are equal."""
        before: bytes | None = None
        for _ in range(_ATTEMPTS):
            info, data = self._bucket.objects.read(name)
            digest = _MD5.fullmatch(info.etag or "") if self._has_digests else None
            if digest is None or hashlib.md5(data, usedforsecurity=False).hexdigest() == digest[1]:
                return info, data
            if data == before:
                # Two equal reads show that ETags are no digests, as with encryption by KMS.
                self._has_digests = False
                return info, data
            before = data
        raise RemoteError(f"{self.name(name)} reads differently each time: the network or the server alters bytes")

    def close(self) -> None:
        """Empties the cache of listings."""
        self._bucket.clear_cache()

    def _find_object(self, file: str) -> ObjectInfo | None:
        """Finds an object; None for a directory."""
        if file:  # requests for its neighbours will follow
            self._list_children(file.rpartition("/")[0])
        with _as_source_errors():
            return self._bucket.find_object(self._object_name(file))

    def _list_children(self, directory: str) -> Children:
        """Lists a directory of the tree."""
        with _as_source_errors():
            return self._bucket.list_directory(self._object_name(directory))

    def _object_name(self, path: str) -> str:
        """Returns the name in the bucket of a path in the tree."""
        return f"{self._top}/{path}" if self._top and path else self._top or path


@contextmanager
def _as_source_errors() -> Iterator[None]:
    """Converts each :class:`RemoteError` but :class:`MissingObjectError` to :class:`SourceError`."""
    # An unreachable store is no fault of a sample, which might be skipped.
    try:
        yield
    except MissingObjectError:
        raise
    except RemoteError as error:
        raise SourceError(str(error)) from None


def _make_missing_error(name: str) -> FileNotFoundError:
    """Makes the error for a name without object and directory."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


def _modified_ns(info: ObjectInfo) -> int:
    """Returns the time of modification in nanoseconds, without fractions of seconds."""
    # Some listings have fractions, headers have none.
    return int(info.modified) * 1_000_000_000


def _hash_etag(info: ObjectInfo) -> int:
    """Hashes the ETag to a positive integer; 0 without an ETag."""
    digest = hashlib.sha256((info.etag or "").encode()).digest()
    return int.from_bytes(digest[:7], "big") if info.etag else 0

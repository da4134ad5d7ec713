"""Archives, read without unpacking: zip, and tar with or without compression, see :mod:`.tree`.

The first bytes of a file tell if it is an archive, not its name. Only a compressed tar is decompressed as a whole,
once, into a temporary file without a name: it has no index, and its files are in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from packstore.core.errors import SourceError, printable
from packstore.core.urls import UrlPath
from packstore.sources.contents import cache_contents
from packstore.sources.encodings import active_encoding
from packstore.sources.refusals import unrecognised_error
from packstore.sources.tree import FolderTree, Tree

if TYPE_CHECKING:
    from packstore.sources.archives.index import ArchiveIndex

_START = 512
_Key = tuple[str, int, int, int, str | None]
"""Path, size, time of modification and time of change of an archive, and the encoding of its names."""


def open_required_tree(path: Path) -> Tree:
    """Opens a folder or an archive as a tree. Raises :class:`SourceError` for any other or a missing file, and as
    :func:`open_tree` does."""
    tree = open_tree(path)
    if tree is None:
        raise unrecognised_error(path)
    return tree


def open_tree(path: Path) -> Tree | None:
    """Opens a folder, an archive or a remote path as a tree. Returns None for any other file, and for a missing one.

    Reuses the index of an archive that has an open tree. Within :func:`cache_archives` and :func:`cache_folders`, trees
    and errors are reused as well. Raises :class:`SourceError` for a file that cannot be read. Also raises it for an
    archive that is damaged, encrypted, or needs a library that is not installed.
    """
    if isinstance(path, UrlPath):
        from packstore.sources.remote import RemotePath

        return RemotePath(path).tree()
    if path.is_dir():
        trees, stack = _folders.get() or ({}, None)
        if path not in trees:
            trees[path] = FolderTree(path)
            if stack is not None:
                stack.enter_context(trees[path].cache_names(keep=True))
        return trees[path]
    if not path.is_file():
        return None
    from packstore.sources.archives.tar import is_tar, read_tar
    from packstore.sources.archives.tree import ArchiveTree
    from packstore.sources.archives.zip import is_zip, read_zip

    try:
        status = path.stat()
        with path.open("rb") as file:
            start = file.read(_START)
    except OSError as error:
        raise SourceError(f"{printable(str(path))} cannot be read: {error.strerror or error}") from None
    if not is_zip(start) and not is_tar(start):
        return None
    encoding, active = active_encoding(), _archives.get()
    cache: dict[_Key, ArchiveIndex | SourceError] = {} if active is None else active
    key = (str(path.absolute()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, encoding)
    index = cache.get(key) or _INDEXES.get(key)
    if index is None:
        try:
            index = _INDEXES[key] = (read_zip if is_zip(start) else read_tar)(path, encoding)
        except SourceError as error:
            cache[key] = error
            raise
    cache[key] = index
    if isinstance(index, SourceError):
        raise index
    return ArchiveTree(path.absolute(), index)


@contextmanager
def cache_archives() -> Iterator[None]:
    """Caches indexes and errors of archives within the block. Each kind of source opens the same path."""
    token = _archives.set({})
    try:
        yield
    finally:
        _archives.reset(token)


@contextmanager
def cache_folders() -> Iterator[None]:
    """Caches trees of folders, their listings and contents within the block. :func:`open_tree` returns the same tree
    for the same folder. Only for recognition and opening: changes to the folder are not seen."""
    with ExitStack() as stack:
        token = _folders.set(({}, stack))
        try:
            with cache_contents():
                yield
        finally:
            _folders.reset(token)


_INDEXES: WeakValueDictionary[_Key, ArchiveIndex] = WeakValueDictionary()
"""Indexes of trees in use, by archive."""
_archives: ContextVar[dict[_Key, ArchiveIndex | SourceError] | None] = ContextVar("cached archives", default=None)
"""Indexes of the archives that a :func:`cache_archives` block has opened, and the errors of damaged archives."""
_folders: ContextVar[tuple[dict[Path, FolderTree], ExitStack] | None] = ContextVar("cached folders", default=None)
"""Trees of the folders that a :func:`cache_folders` block has opened. Each lists a directory once, until the stack is
closed."""

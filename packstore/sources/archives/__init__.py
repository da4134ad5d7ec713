"""Archives of folders, read without unpacking: zip, and tar with or without compression, see :mod:`.tree`.

A file is an archive by its first bytes, whatever its name. Only a compressed tar has to be decompressed as a whole,
once, into a temporary file without a name: it has no index, and its files lie in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakValueDictionary

from packstore.core.errors import SourceError, printable
from packstore.sources.archives.index import Index
from packstore.sources.archives.tar import is_tar, read_tar
from packstore.sources.archives.tree import ArchiveTree
from packstore.sources.archives.zip import is_zip, read_zip
from packstore.sources.contents import cache_contents
from packstore.sources.refusals import not_a_folder_error
from packstore.sources.remote import RemotePath
from packstore.sources.tree import FolderTree, Tree

_START = 512
_Key = tuple[str, int, int, int]
"""Path, size, times of modification and of change of an archive."""


def tree_of(path: Path) -> Tree:
    """:func:`open_tree` where only a folder or an archive will do. Raises :class:`SourceError`."""
    tree = open_tree(path)
    if tree is None:
        raise not_a_folder_error(path)
    return tree


def open_tree(path: Path) -> Tree | None:
    """The tree at ``path``: a folder's, or an archive's; None for any other file.

    Raises :class:`SourceError` for an archive that is damaged, encrypted, or needs a library that is not installed."""
    if isinstance(path, RemotePath):
        return path.tree()
    if path.is_dir():
        known = _folders.get()
        if known is None:
            return FolderTree(path)
        if path not in known.trees:
            known.trees[path] = FolderTree(path)
            known.stack.enter_context(known.trees[path].cache_names())
        return known.trees[path]
    if not path.is_file():
        return None
    try:
        found = path.stat()
        with path.open("rb") as file:
            start = file.read(_START)
    except OSError as error:
        raise SourceError(f"{printable(str(path))} cannot be read: {error.strerror or error}") from None
    if not is_zip(start) and not is_tar(start):
        return None
    key = (str(path.absolute()), found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    kept = _kept.get()
    index = _INDEXES.get(key)
    if index is None:
        if kept is not None and key in kept.damaged:
            raise kept.damaged[key]
        try:
            index = _INDEXES[key] = read_zip(path) if is_zip(start) else read_tar(path)
        except SourceError as error:
            if kept is not None:
                kept.damaged[key] = error
            raise
    if kept is not None:
        kept.indexes.append(index)
    return ArchiveTree(path.absolute(), index)


@dataclass(slots=True)
class _Kept:
    """What was found out of archives meanwhile."""

    indexes: list[Index] = field(default_factory=list)
    damaged: dict[_Key, SourceError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Folders:
    """Trees of folders that list each directory once, until ``stack`` is left."""

    trees: dict[Path, FolderTree]
    stack: ExitStack


@contextmanager
def kept_indexes() -> Iterator[None]:
    """Keeps what is indexed meanwhile: each kind of source asks for the tree of a path, one after the other. What is
    damaged is not read again, either."""
    token = _kept.set(_Kept())
    try:
        yield
    finally:
        _kept.reset(token)


@contextmanager
def known_folders() -> Iterator[None]:
    """Until its end, :func:`open_tree` returns the same tree for the same folder, which lists each folder once: for
    questions in a row, while nothing is packed yet."""
    with ExitStack() as stack:
        token = _folders.set(_Folders({}, stack))
        try:
            with cache_contents():
                yield
        finally:
            _folders.reset(token)


_INDEXES: WeakValueDictionary[_Key, Index] = WeakValueDictionary()
"""Those of trees that are in use."""
_kept: ContextVar[_Kept | None] = ContextVar("kept indexes", default=None)
_folders: ContextVar[_Folders | None] = ContextVar("known folders", default=None)

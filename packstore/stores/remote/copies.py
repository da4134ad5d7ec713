"""Copies of objects of others in the cache, each proven when it is fetched."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from packstore.cache import Cache, default_cache
from packstore.core.errors import printable
from packstore.core.urls import UrlPath
from packstore.objects import ObjectInfo, ObjectStore, RemoteError, open_objects

_MD5 = re.compile(r'"?([0-9a-f]{32})"?')


def open_copy(url: UrlPath) -> tuple[ObjectInfo, int]:
    """The object at a URL as it is now, and a descriptor of its copy, which leaves the cache when that is closed.

    Raises :class:`StoreError`."""
    store = open_objects(url.parent)
    info = store.head(url.name)
    return info, open_copy_of(store, info, default_cache())


def open_copy_of(store: ObjectStore, info: ObjectInfo, cache: Cache) -> int:
    """A descriptor of the copy of an object, see :func:`open_copy`."""
    return cache.open_learnt(copy_address(store, info), info.nbytes, lambda: _proven(store, info))


def copy_address(store: ObjectStore, info: ObjectInfo) -> str:
    """What the cache knows a copy by: another content has another one."""
    return f"{store.url}/{info.name} {info.etag or info.modified} {info.nbytes}"


def _proven(store: ObjectStore, info: ObjectInfo) -> Iterator[bytes | memoryview]:
    """An object's bytes. Raises :class:`RemoteError` before the last one where they are not those of its ETag;
    where that is no MD5, where a second reading gives others; and where it has been replaced."""
    shown = printable(f"{store.url}/{info.name}")
    digest = _MD5.fullmatch(info.etag or "")
    whole = hashlib.md5(usedforsecurity=False) if digest else hashlib.sha256()
    last = b""
    for piece in store.stream(info.name):
        whole.update(piece)
        yield last
        yield piece[:-1]
        last = bytes(piece[-1:])
    if digest is None:
        again = hashlib.sha256()
        for piece in store.stream(info.name):
            again.update(piece)
        expected = again.hexdigest()
    else:
        expected = digest[1]
    if store.head(info.name)[:3] != info[:3]:
        raise RemoteError(f"{shown} was replaced while it was read")
    if whole.hexdigest() != expected:
        raise RemoteError(f"{shown} reads differently each time: the network or the server alters bytes")
    yield last

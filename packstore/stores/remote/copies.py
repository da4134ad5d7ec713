"""Opens cached copies of foreign objects, each proven when it is fetched."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from packstore.cache import Cache, default_cache
from packstore.core.errors import printable
from packstore.core.urls import UrlPath
from packstore.objects import ObjectInfo, ObjectStore, RemoteError, open_objects

_MD5 = re.compile(r'"?([0-9a-f]{32})"?')


def open_cached_copy(url: UrlPath) -> tuple[ObjectInfo, int]:
    """Fetches the object at a URL into the cache, unless it is there. Returns its facts and a descriptor of the copy.

    The copy stays in the cache while the descriptor is open. The caller closes the descriptor. Raises
    :class:`StoreError` if the object cannot be fetched, or has no room in the cache.
    """
    store = open_objects(url.parent)
    info = store.head(url.name)
    return info, open_cached_copy_of(store, info, default_cache())


def open_cached_copy_of(store: ObjectStore, info: ObjectInfo, cache: Cache) -> int:
    """Fetches an object with known facts into ``cache``, unless it is there. Returns a descriptor of the copy.

    See :func:`open_cached_copy` for descriptor and errors.
    """
    return cache.open_by_address(cached_copy_key(store, info), info.nbytes, lambda: _stream_and_prove(store, info))


def cached_copy_key(store: ObjectStore, info: ObjectInfo) -> str:
    """Returns the key of an object's copy in the cache. It changes with the object's content.

    The key has the object's URL, its size, and its ETag; without an ETag, its time of change.
    """
    return f"{store.url}/{info.name} {info.etag or info.modified} {info.nbytes}"


def _stream_and_prove(store: ObjectStore, info: ObjectInfo) -> Iterator[bytes | memoryview]:
    """Yields an object's bytes. Holds back the last byte until all are proven.

    Compares them with the ETag if it is an MD5. If that differs, compares them with a second reading: the ETag of an
    encrypted object may look like an MD5. Raises :class:`RemoteError` if the readings differ, or if the object was
    replaced meanwhile.
    """
    shown = printable(f"{store.url}/{info.name}")
    digest = _MD5.fullmatch(info.etag or "")
    whole, again = (hashlib.md5(usedforsecurity=False) if digest else hashlib.sha256() for _ in range(2))
    last = b""
    for piece in store.stream(info.name):
        whole.update(piece)
        yield last
        yield piece[:-1]
        last = bytes(piece[-1:])
    proven = digest is not None and whole.hexdigest() == digest[1]
    if not proven:
        for piece in store.stream(info.name):
            again.update(piece)
        proven = whole.digest() == again.digest()
    if store.head(info.name)[:3] != info[:3]:
        raise RemoteError(f"{shown} was replaced while it was read")
    if not proven:
        raise RemoteError(f"{shown} reads differently each time: the network or the server alters bytes")
    yield last

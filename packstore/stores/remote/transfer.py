"""Downloads shards of stores at URLs, each proven by its digest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from packstore.cache import default_cache
from packstore.core.errors import StoreError
from packstore.core.manifest import Manifest
from packstore.core.registry import FORMATS
from packstore.core.urls import UrlPath
from packstore.objects import ObjectStore, open_objects
from packstore.stores.format import Format

_TRIES = 3


def hash_object(objects: ObjectStore, name: str) -> str:
    """Streams an object and returns its SHA-256."""
    hashed = hashlib.sha256()
    for data in objects.stream(name):
        hashed.update(data)
    return hashed.hexdigest()


def download_shard(url: UrlPath, file: Path, digest: str) -> None:
    """Downloads a shard's object to the new file ``file``, and syncs it. Tries three times to get the right SHA-256.

    Raises :class:`StoreError` if the SHA-256 stays wrong or the object cannot be fetched, and :class:`OSError` if the
    file cannot be written. The file stays after an error.
    """
    objects, actual = open_objects(url.parent), ""
    with file.open("xb") as target:
        for _ in range(_TRIES):
            target.seek(0)
            target.truncate()
            hashed = hashlib.sha256()
            for data in objects.stream(url.name):
                hashed.update(data)
                target.write(data)
            actual = hashed.hexdigest()
            if actual == digest:
                target.flush()
                os.fsync(target.fileno())
                return
    raise StoreError(f"{url} is damaged: its SHA-256 is {actual}, expected {digest}")


def fetch_shard_manifest(url: UrlPath, digest: str, nbytes: int, format: str) -> Manifest:
    """Fetches a shard into the cache, unless it is there, and returns its manifest.

    ``digest``: SHA-256 of the shard. Raises :class:`StoreError` if the shard cannot be fetched or opened.
    """

    def fetch() -> Iterator[bytes | memoryview]:
        return open_objects(url.parent).stream(url.name)

    descriptor = default_cache().open(digest, nbytes, fetch)
    try:
        opened: Format = FORMATS[format]
        with opened.open(url, descriptor) as reader:
            return reader.manifest
    finally:
        os.close(descriptor)

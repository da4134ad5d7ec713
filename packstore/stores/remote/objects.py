"""Names the objects of a store at a URL, and downloads shards, each proven by its digest. Names relative to the URL::

    manifest.json                            a hint: the head of some version
    versions/000000017.json                  the commit point: the head of version 17, created only if absent
    tables/<SHA-256 of its rows>.shards      the table of shards
    shards/shard-00042-<12 digits>.lmdb      the data file of a shard, and the first digits of its SHA-256
    _work/<run>/...                          of conversions by many machines

Versions and the hint alone define the store; every other object is named by its content, and never changes.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from packstore.cache import default_cache
from packstore.core.errors import StoreError
from packstore.core.manifest import Manifest
from packstore.core.registry import FORMATS
from packstore.core.shards import Shard, ShardTable
from packstore.core.urls import UrlPath
from packstore.objects import ObjectStore, open_objects
from packstore.stores.format import Format

_TRIES = 3
VERSIONS, TABLES, SHARDS, WORK = "versions/", "tables/", "shards/", "_work/"
_DIGITS = 12
_LAST_VERSION = 10**9 - 1
_VERSION = re.compile(r"versions/(\d{9})\.json")
_TABLE = re.compile(r"tables/([0-9a-f]{64})\.shards")
_SHARD = re.compile(r"shards/shard-(?:\d{5}|[1-9]\d{5,9})-([0-9a-f]{12})\.[a-z0-9._-]{1,32}")


def version_name(number: int) -> str:
    """Returns the object name of a version, which has the manifest. Versions begin with 1.

    Raises :class:`StoreError` for a number over 999,999,999.
    """
    if number > _LAST_VERSION:
        raise StoreError(f"there is no version after number {_LAST_VERSION:,}; write the store to another URL")
    return f"{VERSIONS}{number:09d}.json"


def parse_version_number(name: str) -> int | None:
    """Returns the number of the version with this object name. None for another object."""
    match = _VERSION.fullmatch(name)
    return None if match is None else int(match[1]) or None


def table_name(table: ShardTable) -> str:
    """Returns the object name of a table of shards."""
    return f"{TABLES}{table.digest}.shards"


def shard_object_name(shard: Shard) -> str:
    """Returns the object name of a shard's data file."""
    stem, _, suffix = shard.name.partition(".")
    return f"{SHARDS}{stem}-{shard.digest[:_DIGITS]}.{suffix}"


def shard_object_names(table: ShardTable) -> list[str]:
    """Returns the object names of the data files of all shards, in order."""
    digests: list[Any] = table.table["digest"].tolist()
    pairs = zip(table.names(), digests, strict=True)
    return [
        f"{SHARDS}{name.removesuffix(table.suffix)}-{bytes(digest).hex()[:_DIGITS]}{table.suffix}"
        for name, digest in pairs
    ]


def parse_digest(name: str) -> str | None:
    """Returns the digits of the SHA-256 in an object name: 64 of a table, 12 of a shard. None for another object."""
    match = _TABLE.fullmatch(name) or _SHARD.fullmatch(name)
    return None if match is None else match[1]


def list_shard_files_of_copy(manifest: Manifest, format: Format) -> list[str]:
    """Returns the object names of the data files of all shards in a plain copy of a local store, in order.

    Returns none for an unsharded store.
    """
    inner = f"/{format.files[0]}" if format.files else ""
    return [f"{name}{inner}" for name in manifest.shards.names()] if manifest.shards else []


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
        with closing(opened.open(url, descriptor)) as part:
            return part.manifest
    finally:
        os.close(descriptor)

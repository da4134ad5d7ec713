"""Names the objects of a store at a URL, and downloads shards, each proven by its digest. Names relative to the URL::

    manifest.json                            a hint: the head of some version
    versions/000000017.json                  the commit point: the head of version 17, created only if absent
    tables/<SHA-256 of its rows>.shards      the table of shards
    shards/shard-00042-<12 digits>.lmdb      the data file of a shard, and the first digits of its SHA-256
    _work/<run>/...                          of conversions by many machines

Versions and the hint alone define the store; every other object is named by its content, and never changes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from packstore.cache import Cache, default_cache
from packstore.core.errors import DestinationError, ManifestError, MissingStoreError, StoreError, printable
from packstore.core.files import MANIFEST_FILE
from packstore.core.manifest import Manifest
from packstore.core.registry import FORMATS
from packstore.core.shards import Shard, ShardTable
from packstore.core.urls import UrlPath
from packstore.objects import MissingObjectError, ObjectInfo, ObjectStore, RemoteError, open_objects
from packstore.stores.format import Format, parse_manifest

VERSIONS, TABLES, SHARDS, WORK = "versions/", "tables/", "shards/", "_work/"
_TRIES = 3
_DIGITS = 12
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')
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


_MOST_BYTES = 256 << 20


@dataclasses.dataclass(frozen=True)
class RemoteHead:
    """The manifest and version of a store at a URL, as they were when the store was opened.

    Attributes:
        manifest: The manifest of the newest version, with the table of shards.
        version: Number of the version; 0 if versions cannot be listed; None for a plain copy of a local store.
    """

    manifest: Manifest
    version: int | None

    @cached_property
    def shards(self) -> list[str]:
        """Names of the objects of all shards, in order."""
        table = self.manifest.shard_table
        if self.version is not None:
            return shard_object_names(table)
        files = FORMATS[self.manifest.format].files  # a plain copy of a local store
        return [f"{name}/{files[0]}" if files else name for name in table.names()]


def find_newest_version(objects: ObjectStore) -> int:
    """Lists the versions of the store. Returns the number of the newest one, or 0 if there are none."""
    numbers = (parse_version_number(info.name) for info in objects.list(VERSIONS))
    return max((number for number in numbers if number is not None), default=0)


def read_head(objects: ObjectStore, version: int | None = None) -> RemoteHead:
    """Reads the manifest of a version at a URL, by default the newest, and its table of shards. Makes three or four
    requests.

    Reads ``manifest.json`` over HTTP or without versions. Tries a damaged manifest or table three times. Raises
    :class:`MissingStoreError` if there is no store, and :class:`StoreError` if manifest or table cannot be read.
    """
    if version is None:
        version = find_newest_version(objects) if objects.can_list else 0
    for _ in range(_TRIES - 1):
        with suppress(ManifestError):  # if a bit flipped in transit, the next try succeeds
            return _read_head_once(objects, version)
    return _read_head_once(objects, version)


def read_version(objects: ObjectStore, number: int) -> Manifest:
    """Reads the manifest of a version, with its table. Raises :class:`StoreError` if one of them cannot be read."""
    return read_head(objects, number).manifest


def _read_head_once(objects: ObjectStore, newest: int) -> RemoteHead:
    """Reads the manifest and shard table of version ``newest``, or of ``manifest.json`` for 0."""
    name = version_name(newest) if newest else MANIFEST_FILE
    try:
        text = _read_bounded(objects, name)
    except MissingObjectError:
        raise MissingStoreError(f"{objects.url}: there is no store") from None
    manifest = parse_manifest(text, UrlPath(objects.url) / name)
    table = manifest.shards
    if table is None:
        raise StoreError(f"{objects.url}/{name} is the manifest of a store that has no shards")
    suffix = FORMATS[manifest.format].suffixes[0]
    if table.suffix != suffix:
        raise StoreError(f"{objects.url}/{name} names shards that end with {table.suffix!r}, not {suffix!r}")
    places = [table_name(table)] if newest or not objects.can_list else []  # of a version
    places += [] if newest else [table.file]  # of a plain copy of a local store
    for place in places:
        try:
            data = objects.get(place, 0, table.nbytes + 1)
        except MissingObjectError:
            continue
        try:
            manifest = dataclasses.replace(manifest, shards=table.parse_rows(data))
        except ManifestError as error:
            # damaged, maybe in transit: the caller tries again
            raise ManifestError(f"{objects.url}/{place}: {error}") from None
        return RemoteHead(manifest, None if place == table.file else newest)
    raise StoreError(f"{objects.url}: its table of shards, {place}, is missing")


def _read_bounded(objects: ObjectStore, name: str) -> bytes:
    """Reads an object, or raises :class:`StoreError` after 256 MiB."""
    data = bytearray()
    for piece in objects.stream(name):
        data += piece
        # bounds the memory: anything may have the manifest's name
        if len(data) > _MOST_BYTES:
            raise StoreError(f"{objects.url}/{name} has more than {_MOST_BYTES:,} bytes, so it cannot be a manifest")
    return bytes(data)


def read_writable_head(url: UrlPath) -> RemoteHead:
    """Reads the head of a store at a URL to which shards can be added.

    Raises :class:`StoreError` if the head cannot be read. Raises :class:`DestinationError` if the URL is read only, or
    holds a plain copy of a local store.
    """
    objects = open_objects(url)
    head = read_head(objects)
    if not objects.can_write:
        raise DestinationError(f"{objects.url} is read only: stores are not written by HTTP; use s3://, gs:// or az://")
    if head.version is None:
        raise DestinationError(
            f"{objects.url} is a copy of a local store, which packstore does not change: make one that grows, with "
            f"packstore select {objects.url} -o URL"
        )
    return head


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
    """Yields an object's bytes, and holds back the last one until all are proven."""
    shown = printable(f"{store.url}/{info.name}")
    digest = _MD5.fullmatch(info.etag or "")
    whole, again = (hashlib.md5(usedforsecurity=False) if digest else hashlib.sha256() for _ in range(2))
    last = b""
    # The last byte is held back: the cache keeps no incomplete copy.
    for piece in store.stream(info.name):
        whole.update(piece)
        yield last
        yield piece[:-1]
        last = bytes(piece[-1:])
    proven = digest is not None and whole.hexdigest() == digest[1]
    # The ETag is no MD5, or only looks like one (encrypted objects): the second reading decides.
    if not proven:
        for piece in store.stream(info.name):
            again.update(piece)
        proven = whole.digest() == again.digest()
    if store.head(info.name)[:3] != info[:3]:
        raise RemoteError(f"{shown} was replaced while it was read")
    if not proven:
        raise RemoteError(f"{shown} reads differently each time: the network or the server alters bytes")
    yield last

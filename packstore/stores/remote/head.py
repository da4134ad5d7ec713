"""What a store at a URL is: the newest version of its head, and the table that this names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property

from packstore.core.errors import DestinationError, ManifestError, MissingStoreError, StoreError
from packstore.core.files import MANIFEST_FILE
from packstore.core.manifest import Manifest
from packstore.core.registry import FORMATS
from packstore.core.urls import UrlPath
from packstore.objects import MissingObjectError, ObjectStore, open_objects
from packstore.stores.base import parse_manifest
from packstore.stores.remote.names import (
    VERSIONS,
    copied_shards,
    shard_objects,
    table_name,
    version_name,
    version_number,
)

_TRIES = 3
_MOST_BYTES = 256 << 20


@dataclasses.dataclass(frozen=True)
class RemoteHead:
    """What a store at a URL was when it was opened.

    Attributes:
        manifest: With its table.
        version: Its number; 0 where no versions can be listed; None for a plain copy of a local store.
    """

    manifest: Manifest
    version: int | None

    @cached_property
    def shards(self) -> list[str]:
        """The names of the objects of all shards, in order."""
        table = self.manifest.shards
        assert table is not None
        copied = self.version is None
        return copied_shards(self.manifest, FORMATS[self.manifest.format]) if copied else shard_objects(table)


def newest_version(objects: ObjectStore) -> int:
    """The number of the newest version of the store; 0 where there is none."""
    numbers = (version_number(info.name) for info in objects.list(VERSIONS))
    return max((number for number in numbers if number is not None), default=0)


def read_head(objects: ObjectStore) -> RemoteHead:
    """The head of the sharded store at the URL, by three requests or four.

    Raises :class:`MissingStoreError` where there is none, and :class:`StoreError` for one that is damaged."""
    return _head(objects, newest_version(objects) if objects.can_list else 0)


def read_version(objects: ObjectStore, number: int) -> Manifest:
    """The manifest of a version, with its table. Raises :class:`StoreError`."""
    return _head(objects, number).manifest


def _head(objects: ObjectStore, newest: int) -> RemoteHead:
    for _ in range(_TRIES - 1):
        with suppress(ManifestError):  # a bit that flipped on the way is none the next time
            return _head_once(objects, newest)
    return _head_once(objects, newest)


def _head_once(objects: ObjectStore, newest: int) -> RemoteHead:
    name = version_name(newest) if newest else MANIFEST_FILE
    try:
        text = _bounded(objects, name)
    except MissingObjectError:
        raise MissingStoreError(f"{objects.url}: there is no store") from None
    manifest = parse_manifest(text, UrlPath(objects.url) / name)
    table = manifest.shards
    if table is None:
        raise StoreError(f"{objects.url}/{name} is the manifest of a store that has no shards")
    suffix = FORMATS[manifest.format].suffixes[0]
    if table.suffix != suffix:
        raise StoreError(f"{objects.url}/{name} names shards that end with {table.suffix!r}, not {suffix!r}")
    for place in _tables(manifest, newest, objects.can_list):
        try:
            data = objects.get(place, 0, table.nbytes + 1)
        except MissingObjectError:
            continue
        try:
            manifest = dataclasses.replace(manifest, shards=table.read(data))
        except ManifestError as error:
            raise ManifestError(f"{objects.url}/{place}: {error}") from None
        return RemoteHead(manifest, None if place == table.file else newest)
    raise StoreError(f"{objects.url}: its table of shards, {place}, is missing")


def _bounded(objects: ObjectStore, name: str) -> bytes:
    """An object's bytes. Raises :class:`StoreError` for one larger than any head, before it fills the memory."""
    data = bytearray()
    for piece in objects.stream(name):
        data += piece
        if len(data) > _MOST_BYTES:
            raise StoreError(f"{objects.url}/{name} has more than {_MOST_BYTES:,} bytes, so it is no head of a store")
    return bytes(data)


def published_head(url: UrlPath) -> RemoteHead:
    """The head of a store at a URL to which shards can be added. Raises :class:`StoreError`."""
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


def _tables(manifest: Manifest, version: int, can_list: bool) -> Iterator[str]:
    """Names that the table may have. Without versions, the manifest is of a plain copy; or, where nothing can be
    listed, the hint."""
    assert manifest.shards is not None
    if version or not can_list:
        yield table_name(manifest.shards)
    if not version:
        yield manifest.shards.file

"""Reads the head of a store at a URL: the manifest of its newest version, with the table that it names."""

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
from packstore.stores.format import parse_manifest
from packstore.stores.remote.objects import (
    VERSIONS,
    list_shard_files_of_copy,
    parse_version_number,
    shard_object_names,
    table_name,
    version_name,
)

_TRIES = 3
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
        table = self.manifest.shards
        assert table is not None
        if self.version is not None:
            return shard_object_names(table)
        return list_shard_files_of_copy(self.manifest, FORMATS[self.manifest.format])


def find_newest_version(objects: ObjectStore) -> int:
    """Lists the versions of the store. Returns the number of the newest one, or 0 if there are none."""
    numbers = (parse_version_number(info.name) for info in objects.list(VERSIONS))
    return max((number for number in numbers if number is not None), default=0)


def read_head(objects: ObjectStore) -> RemoteHead:
    """Reads the manifest of the newest version at a URL, and its table of shards. Makes three or four requests.

    Reads ``manifest.json`` over HTTP or without versions. Tries a damaged manifest or table three times. Raises
    :class:`MissingStoreError` if there is no store, and :class:`StoreError` if manifest or table cannot be read.
    """
    return _read_head(objects, find_newest_version(objects) if objects.can_list else 0)


def read_version(objects: ObjectStore, number: int) -> Manifest:
    """Reads the manifest of a version, with its table. Raises :class:`StoreError` if one of them cannot be read."""
    return _read_head(objects, number).manifest


def _read_head(objects: ObjectStore, newest: int) -> RemoteHead:
    """Reads the head of version ``newest``, or of ``manifest.json`` for 0. Tries a damaged head three times."""
    for _ in range(_TRIES - 1):
        with suppress(ManifestError):  # if a bit flipped in transit, the next try succeeds
            return _read_head_once(objects, newest)
    return _read_head_once(objects, newest)


def _read_head_once(objects: ObjectStore, newest: int) -> RemoteHead:
    """Reads the manifest and shard table of version ``newest``, or of ``manifest.json`` for 0.

    Raises:
        MissingStoreError: There is no such manifest.
        ManifestError: Manifest or table is damaged.
        StoreError: The table is missing, or the manifest is not that of a sharded store of its format.
    """
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
    for place in _list_possible_table_names(manifest, newest, objects.can_list):
        try:
            data = objects.get(place, 0, table.nbytes + 1)
        except MissingObjectError:
            continue
        try:
            manifest = dataclasses.replace(manifest, shards=table.parse_rows(data))
        except ManifestError as error:
            raise ManifestError(f"{objects.url}/{place}: {error}") from None
        return RemoteHead(manifest, None if place == table.file else newest)
    raise StoreError(f"{objects.url}: its table of shards, {place}, is missing")


def _read_bounded(objects: ObjectStore, name: str) -> bytes:
    """Reads an object. Stops and raises :class:`StoreError` after 256 MiB."""
    data = bytearray()
    for piece in objects.stream(name):
        data += piece
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


def _list_possible_table_names(manifest: Manifest, version: int, can_list: bool) -> Iterator[str]:
    """Yields the possible object names of the shard table.

    - A known version: the name in a version.
    - No version: the name in a plain copy of a local store.
    - Versions cannot be listed: both names, in this order.
    """
    assert manifest.shards is not None
    if version or not can_list:
        yield table_name(manifest.shards)
    if not version:
        yield manifest.shards.file

"""Opens a store at a URL: objects under versions, a plain copy of a local store, or one object."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from packstore.cache import default_cache
from packstore.core.errors import MissingStoreError, StoreError, printable
from packstore.core.manifest import Manifest
from packstore.core.registry import FORMATS
from packstore.core.urls import UrlPath, split_url
from packstore.objects import MissingObjectError, ObjectInfo, ObjectStore, open_objects
from packstore.stores.format import Format
from packstore.stores.linked import Linked
from packstore.stores.records import OneFile, PartTable
from packstore.stores.remote.objects import RemoteHead, cached_copy_key, read_head
from packstore.stores.remote.shards import RemoteShards

_START_BYTES = 512


def open_remote(path: UrlPath) -> PartTable:
    """Opens the store at a URL: its newest version, or a single-file store, which is fetched whole into the cache.

    Raises :class:`StoreError` if there is no valid store or it cannot be fetched.
    """
    objects = open_objects(path)
    try:
        head = None if _is_local_file(path) else read_head(objects)
    except MissingStoreError:
        copy = _find_copied_file(path, objects)
        if copy is None:
            raise
        return _open_copied(path, *copy)
    if head is None:
        place = open_objects(path.parent)
        return _open_copied(path, place, place.head(path.name), None)
    return RemoteShards(path, objects, head)


def reopen_remote(path: UrlPath, head: RemoteHead) -> RemoteShards:
    """Opens a store at a URL with a known head. Makes no request: the objects of a version never change."""
    return RemoteShards(path, open_objects(path), head)


def read_remote_manifest(path: UrlPath) -> Manifest:
    """Reads the manifest of the store at a URL. Fetches no shard, but fetches a single-file store whole.

    Raises the errors of :func:`open_remote`.
    """
    if not _is_local_file(path):
        with suppress(MissingStoreError):
            return read_head(open_objects(path)).manifest
    table = open_remote(path)
    table.close()
    return table.manifest


def _is_local_file(path: UrlPath) -> bool:
    """Returns whether a URL is a ``file://`` URL of a file, not of a folder."""
    parts = split_url(path)
    return parts is not None and parts[0] == "file" and Path("/" + parts[1]).is_file()


def _find_copied_file(path: UrlPath, objects: ObjectStore) -> tuple[ObjectStore, ObjectInfo, Format | None] | None:
    """Finds a plain copy of a single-file store, and returns its object store, facts, and format if known."""
    formats: list[Format] = [format for format in FORMATS.values() if format.files]
    # a data file below the URL, such as data.mdb
    places = [(objects, format.files[0], format) for format in formats]
    if len(path.parts) > 2:  # else the URL is that of a bucket
        # the URL itself: its name determines no format
        of_files = (open_objects(path.parent), path.name, None)
        by_name = any(path.name.endswith(suffix) for format in formats for suffix in format.suffixes)
        places = [*places, of_files] if by_name else [of_files, *places]  # type: ignore[list-item]
    for place, name, format in places:
        try:
            return place, place.head(name), format
        except MissingObjectError:
            continue
    return None


def _open_copied(path: UrlPath, objects: ObjectStore, info: ObjectInfo, format: Format | None) -> PartTable:
    """Fetches a single-file store whole into the cache and opens it."""
    url, address = f"{objects.url}/{info.name}", cached_copy_key(objects, info)
    # the cache checks the size of its copy, not its bytes
    descriptor = default_cache().open_by_address(address, info.nbytes, lambda: objects.stream(info.name), url)
    try:
        start = os.pread(descriptor, _START_BYTES, 0)
        known: Format | None = format or next((each for each in FORMATS.values() if each.recognises(path, start)), None)
        if known is None:
            what = f"is not a store: it begins with {start[:8]!r}" if start else "is an empty object"
            raise StoreError(f"{printable(str(path))} {what}")
        part = known.open(path, descriptor)
    finally:
        os.close(descriptor)
    table = OneFile(Linked(part, path.parent) if part.manifest.is_linked else part)
    table.nbytes = info.nbytes
    return table

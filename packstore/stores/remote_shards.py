"""Opens a store at a URL: objects under versions, a plain copy of a local store, or one object.

Shards are fetched whole into the cache, and proven by their SHA-256.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packstore.cache import Cache, default_cache
from packstore.core.errors import (
    CacheFullError,
    DamagedObjectError,
    DiskFullError,
    MissingStoreError,
    StoreError,
    UnreachableError,
    printable,
)
from packstore.core.manifest import Manifest
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.core.registry import FORMATS
from packstore.core.shards import Shard
from packstore.core.urls import ShardPlace, UrlPath, split_url
from packstore.objects import MissingObjectError, ObjectInfo, ObjectStore, open_objects, refuse_requests
from packstore.stores.folder import Shards, reserve_open_files
from packstore.stores.format import Format
from packstore.stores.linked import Linked
from packstore.stores.parts import Part, Problem
from packstore.stores.proven import check_digest
from packstore.stores.records import FetchCounts, OneFile, PartTable
from packstore.stores.remote_objects import (
    SHARDS,
    RemoteHead,
    cached_copy_key,
    find_newest_version,
    hash_object,
    read_head,
)

_PATIENCE_SECONDS = 5.0
"""Seconds that a thread waits while the cache is full, since others may be about to close a shard."""
_MOST_PATIENCE_SECONDS = 60.0
"""Seconds that a thread waits at most while this reader closes shards of its own to make room."""
_PAUSE_SECONDS = 0.01
_AGAIN_SECONDS = 10.0
"""Seconds for which a failed fetch of a shard is not retried: a batch asks for many of its records."""


class RemoteShards(Shards):
    """The shards of the version of a store that was the newest when it was opened. A version never changes.

    The thread that needs a shard fetches it whole. Other threads may fetch other shards meanwhile. An open shard cannot
    leave the cache. If the store has more bytes than half the cache's budget, views are copies, and the shards that
    were used longest ago are closed. A failed fetch is not tried again for ten seconds.

    Attributes:
        names: Names of the objects of all shards, in order.
        counts: Statistics of its fetches.
    """

    can_refetch = True

    def __init__(self, path: UrlPath, objects: ObjectStore, head: RemoteHead) -> None:
        """Reserves open files. Requests nothing."""
        table = head.manifest.shard_table
        super().__init__(path, head.manifest, {}, reserve_open_files(table))
        self._head = head
        self.names = head.shards
        self.cache: Cache = default_cache()
        self.head = head if head.version is not None else None
        self.counts = FetchCounts()
        self.all_counts = [self.counts]
        self.part_nbytes = table.table["nbytes"].astype(np.int64)
        self._objects = objects
        self._counting = threading.Lock()
        self._since: dict[int, float] = {}  # time of each prefetch
        self._failed: dict[int, tuple[float, type[StoreError], str]] = {}
        self.nbytes = int(self.part_nbytes.sum())
        # Half of it: others use the cache too, and open shards cannot leave it.
        self.bounded = self.bounded or self.nbytes > self.cache.budget // 2

    def prefetch(self, number: int) -> None:
        """Fetches a shard into the cache, unless it is there or open. Does not open it, and closes no other shard.

        Raises :class:`CacheFullError` or :class:`DiskFullError` if there is no room, else the errors of :meth:`shard`.
        """
        if number not in self._open:
            os.close(self._fetch_shard_now(number, ahead=True))
            self._since[number] = time.time()

    @contextmanager
    def refuse_requests(self) -> Iterator[None]:
        """Aborts the pending requests of this process, and refuses new ones until the context ends.

        After the context, failed fetches may be tried again at once.
        """
        try:
            with refuse_requests():
                yield
        finally:
            self._failed.clear()  # retry shards whose requests were refused

    def release(self, numbers: Collection[int]) -> None:
        """Closes shards that are not needed soon, and makes prefetched ones old in the cache, which evicts them early.

        Does nothing if all shards have room.
        """
        if self.bounded:
            with self._lock:
                for number in numbers:
                    self._open.pop(number, None)
            # Reading has made them the most recently used in the cache: they would outlive prefetched shards.
            for number in numbers:
                if (since := self._since.pop(number, None)) is not None:
                    self.cache.set_last_used(self._table[number].digest, since)

    def mark_suspect(self, number: int) -> None:
        """Closes a shard, and marks its copy in the cache: it is verified again before its next use."""
        self.cache.mark_suspect(self._table[number].digest)
        with self._lock:
            self._open.pop(number, None)
            self.columns = {}

    def places(self) -> list[ShardPlace]:
        """Returns the URLs of the shards' objects."""
        url = UrlPath(self.path)
        return [url / name for name in self.names]

    def are_local(self, numbers: Iterable[int]) -> NDArray[np.bool_]:
        """Returns a mask of the shards that are open or in the cache. The cache may evict closed ones at any time."""
        chosen = [*numbers]
        digests = [bytes(digest).hex() for digest in self._table.table["digest"][chosen].tolist()]
        absent = set(self.cache.list_missing(digests))
        here = [number in self._open or digest not in absent for number, digest in zip(chosen, digests, strict=True)]
        return np.array(here, np.bool_)

    def check_files(self) -> None:
        """Closes open shards whose copies in the cache were truncated: reading their maps would end the process.

        Makes no request: other shards are checked when they are opened.
        """
        for number in list(self._open):
            if not self.cache.has_size(self._table[number].digest, self._table[number].nbytes):
                self.mark_suspect(number)

    def faults(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        """Yields missing objects, objects of a wrong size, and a wrong digest of all records.

        Without ``quick``, fetches all shards, and also yields wrong SHA-256 and faults in each shard. Raises
        :class:`UnreachableError` if a shard cannot be fetched now.
        """
        shards, done_bytes = self._table, 0
        find_size: Callable[[str], int | None] = self._find_object_size  # HTTP lists no objects
        if self._objects.can_list:
            prefix = SHARDS if self._head.version is not None else "shard-"
            find_size = {info.name: info.nbytes for info in self._objects.list(prefix)}.get
        for number, shard in enumerate(shards):
            name = self.names[number]
            size = find_size(name)
            if size is None:
                yield Problem(f"{name} is missing", shard=shard.name, lost=True)
            elif size != shard.nbytes:
                yield Problem(f"{name} has {size} bytes, expected {shard.nbytes}", shard=shard.name, lost=True)
            elif not quick:
                yield from self._check_object(number, shard, progress)
            done_bytes += shard.nbytes
            progress(Progress("structure", number + 1, len(shards), done_bytes))
        yield from self._check_joined_digest()

    def _check_object(self, number: int, shard: Shard, progress: ProgressCallback) -> Iterator[Problem]:
        """Fetches a shard and yields its faults."""
        try:
            if not self.cache.list_missing([shard.digest]):  # the cached copy says nothing about the object
                self.cache.mark_suspect(shard.digest)  # verifies the copy when it is opened
                digest = hash_object(self._objects, self.names[number])
                if digest != shard.digest:
                    yield Problem(f"its SHA-256 is {digest}, expected {shard.digest}", shard=shard.name)
        except UnreachableError:
            raise
        except StoreError as error:
            yield Problem(str(error), shard=shard.name, lost=True)
            return
        yield from self._check_part(number, False, progress)

    def _find_object_size(self, name: str) -> int | None:
        """Returns the size of an object, or None if it does not exist."""
        try:
            return self._objects.head(name).nbytes
        except MissingObjectError:
            return None

    def _fetch_before_opening(self, number: int) -> None:
        """Fetches a shard and keeps its descriptor for :meth:`_open_shard`."""
        started = time.monotonic()
        descriptor = self._fetch_shard(number)
        with self._lock:
            if self._closed or number in self._open or number in self._files:
                os.close(descriptor)
            else:
                self._files[number] = descriptor
        with self._counting:
            self.counts.waiting_seconds += time.monotonic() - started

    def _open_shard(self, number: int, held: int | None) -> Part:
        """Opens a shard in the cache, and fetches it first if ``held`` is None."""
        try:
            # Without a descriptor it was open when it was asked for, and has been closed since.
            part = super()._open_shard(number, self._fetch_shard(number) if held is None else held)
            check_digest(part, "key")  # keys choose records, before these are read and proven
            return part
        except UnreachableError:
            raise
        except StoreError:
            self.cache.mark_suspect(self._table[number].digest)  # the cache verifies or replaces its copy
            return super()._open_shard(number, self._fetch_shard(number))

    def _fetch_shard(self, number: int) -> int:
        """Fetches a shard and returns a descriptor of it in the cache."""
        if number in self._failed:
            when, kind, said = self._failed[number]
            if time.monotonic() < when + _AGAIN_SECONDS:
                raise kind(said)  # the same error, without a request
        try:
            return self._fetch_shard_now(number)
        except (CacheFullError, DiskFullError):
            raise  # not remembered: there may be room at any moment
        except StoreError as error:
            self._failed[number] = time.monotonic(), type(error), str(error)
            raise

    def _fetch_shard_now(self, number: int, ahead: bool = False) -> int:
        """Returns a descriptor of a shard in the cache, and fetches it if needed."""
        shard: Shard = self._table[number]
        name, fetched = self.names[number], 0

        def fetch() -> Iterator[bytes | memoryview]:
            nonlocal fetched
            for data in self._objects.stream(name):
                fetched += len(data)
                yield data

        started = time.monotonic()
        while True:
            try:
                url = f"{self._objects.url}/{name}"
                descriptor = self.cache.open(shard.digest, shard.nbytes, fetch, url, self._count_damaged)
                break
            except (CacheFullError, DiskFullError) as error:
                # nobody waits for a shard fetched ahead, and one larger than the cache never fits
                if ahead or (isinstance(error, CacheFullError) and error.nbytes > error.budget):
                    raise
                with self._lock:
                    self.bounded = True  # other processes use the cache too
                    opened = bool(self._open)
                    self._close_oldest()
                waited = time.monotonic() - started
                if waited > (_MOST_PATIENCE_SECONDS if opened else _PATIENCE_SECONDS):
                    raise
                if not opened:  # nothing of this reader to close: other processes may free room
                    time.sleep(_PAUSE_SECONDS)
            except MissingObjectError as error:
                self._raise_if_replaced()
                raise StoreError(f"{self._describe_shard(shard.name)} is missing: {error}") from error
            except StoreError as error:
                said = f"{self._describe_shard(shard.name)} cannot be fetched: {error}"
                if not isinstance(error, DamagedObjectError):
                    raise UnreachableError(said) from error
                raise StoreError(f"{said}; if it stays so, packstore repair URL --from SOURCE replaces it") from error
        with self._counting:
            self.counts.hits += not ahead and not fetched
            self.counts.misses += not ahead and bool(fetched)
            self.counts.fetched_bytes += fetched
        return descriptor

    def _count_damaged(self) -> None:
        """Counts a damaged copy in the cache, which is fetched again."""
        with self._counting:
            self.counts.damaged += 1

    def _raise_if_replaced(self) -> None:
        """Raises :class:`StoreError` if the URL has a newer version."""
        # version 0 or None: versions cannot be listed, or it is a copy of a local store
        if self._head.version and find_newest_version(self._objects) != self._head.version:
            raise StoreError(f"{self.path} has been replaced by another store, and cleaned; open it again")


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

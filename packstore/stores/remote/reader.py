"""A store at a URL as a reader: its shards come through the cache, whole and proven by their SHA-256."""

from __future__ import annotations

import bisect
import hashlib
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packstore.cache import Cache, default_cache
from packstore.core.checksums import join_records_digests
from packstore.core.errors import CacheFullError, DamagedObjectError, DiskFullError, StoreError, UnreachableError
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.core.shards import Shard
from packstore.core.urls import UrlPath
from packstore.objects import MissingObjectError, ObjectStore, refused
from packstore.stores.base import Problem, Reader
from packstore.stores.remote.head import RemoteHead, newest_version
from packstore.stores.remote.names import SHARDS
from packstore.stores.sharded import ShardedReader, reserve_open_files

_PATIENCE_SECONDS = 5.0
"""How long a thread that finds the cache full waits for others, which may be about to let a shard go."""
_MOST_PATIENCE_SECONDS = 60.0
"""How long a thread waits at most, also if this reader has shards open that it lets go again and again."""
_PAUSE_SECONDS = 0.01
_AGAIN_SECONDS = 10.0
"""How long a shard that could not be fetched is not asked for again: whoever reads asks for many of its records."""


@dataclass(slots=True)
class FetchCounts:
    """What a reader had to fetch.

    Attributes:
        hits: Shards that were in the cache when somebody wanted to read them.
        misses: Shards that were not.
        fetched_bytes: Bytes that came from the object store, also of shards that were fetched beforehand.
        waiting_seconds: How long threads that read waited for shards, added up.
    """

    hits: int = 0
    misses: int = 0
    fetched_bytes: int = 0
    waiting_seconds: float = 0.0


class RemoteReader(ShardedReader):
    """Reads the version of the store that was the newest when it was opened; nothing of it ever changes.

    A shard is fetched whole when it is first needed, by the thread that needs it, and others meanwhile by other
    threads. An open one keeps its place in the cache. Where the cache is too small for all of the store, records are
    copied when they are read, and the shards used longest ago make room.

    Attributes:
        head: What the store was when it was opened.
        cache: Where its shards lie.
        counts: What was fetched.
    """

    def __init__(self, path: UrlPath, objects: ObjectStore, head: RemoteHead, cache: Cache | None = None) -> None:
        table = head.manifest.shards
        assert table is not None
        super().__init__(path, head.manifest, {}, reserve_open_files(table))
        self.head = head
        self.cache = default_cache() if cache is None else cache
        self.counts = FetchCounts()
        self._objects = objects
        self._counting = threading.Lock()
        self._since: dict[int, float] = {}  # when shards that were fetched ahead were
        self._failed: dict[int, tuple[float, type[StoreError], str]] = {}
        self.nbytes = int(table.table["nbytes"].sum())
        # Half of it: others use the cache, too, and what is open cannot leave it.
        self._bounded = self._bounded or self.nbytes > self.cache.budget // 2

    def prefetch(self, number: int) -> None:
        """Fetches a shard into the cache, unless it is there, and does not open it. Raises as :meth:`shard`; it closes
        no others to make room, but raises :class:`CacheFullError` or :class:`DiskFullError`."""
        if number not in self._open:
            os.close(self._fetched_now(number, ahead=True))
            self._since[number] = time.time()

    @contextmanager
    def without_requests(self) -> Iterator[None]:
        """Ends the requests that threads of this process wait for, and refuses others meanwhile."""
        with refused():
            yield
        self._failed.clear()  # what was refused may be there

    def let_go(self, numbers: Collection[int]) -> None:
        """Says that these shards are not needed soon: where not all have room, they may leave the cache first."""
        if self._bounded:
            with self._lock:
                for number in numbers:
                    self._open.pop(number, None)
            # Reading has made them the newest of the cache: they would outlive what was fetched ahead of them.
            for number in numbers:
                if (since := self._since.pop(number, None)) is not None:
                    self.cache.age(self._table[number].digest, since)

    def doubt(self, index: int) -> None:
        number = bisect.bisect_right(self._starts, index) - 1
        self.cache.doubt(self._table[number].digest)
        with self._lock:
            self._open.pop(number, None)

    def places(self) -> list[str]:
        return [f"{self.path}/{name}" for name in self.head.shards]

    def at_hand(self, numbers: Iterable[int]) -> NDArray[np.bool_]:
        chosen = [*numbers]
        digests = [bytes(digest).hex() for digest in self._table.table["digest"][chosen].tolist()]
        absent = set(self.cache.missing(digests))
        here = [number in self._open or digest not in absent for number, digest in zip(chosen, digests, strict=True)]
        return np.array(here, np.bool_)

    def check_files(self) -> None:
        """Does nothing: shards are looked at when they are fetched, and thousands of requests are not made for it."""

    def check_structure(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        """Objects that are missing or of the wrong size; not ``quick``, each object's SHA-256, and what each shard
        finds in itself."""
        shards, sizes = self._table, self._sizes()
        done_bytes = 0
        for number, shard in enumerate(shards):
            name = self.head.shards[number]
            size = sizes.get(name) if sizes is not None else self._size(name)
            if size is None:
                yield Problem(f"{name} is missing", shard=shard.name, lost=True)
            elif size != shard.nbytes:
                yield Problem(f"{name} has {size} bytes, expected {shard.nbytes}", shard=shard.name, lost=True)
            elif not quick:
                yield from self._check_object(number, shard, progress)
            done_bytes += shard.nbytes
            progress(Progress("structure", number + 1, len(shards), done_bytes))
        joined = join_records_digests((shard.records_digest, shard.records) for shard in shards)
        if joined != self.manifest.records_digest:
            expected = self.manifest.records_digest
            yield Problem(f"the digest of the records of all shards is {joined}, expected {expected}")

    def _check_object(self, number: int, shard: Shard, progress: ProgressCallback) -> Iterator[Problem]:
        try:
            if not self.cache.missing([shard.digest]):  # that says nothing of the object
                self.cache.doubt(shard.digest)
                digest = self._digest(self.head.shards[number])
                if digest != shard.digest:
                    yield Problem(f"its SHA-256 is {digest}, expected {shard.digest}", shard=shard.name)
            reader = self.shard(number)
        except UnreachableError:
            raise
        except StoreError as error:
            yield Problem(str(error), shard=shard.name, lost=True)
            return
        for problem in reader.check_structure(progress=progress):
            record = None if problem.record is None else self._starts[number] + problem.record
            yield Problem(problem.what, record, problem.key, shard.name, problem.lost)

    def _sizes(self) -> dict[str, int] | None:
        """The sizes of all objects of shards; None where they cannot be listed."""
        if not self._objects.can_list:
            return None
        prefix = SHARDS if self.head.version is not None else "shard-"
        return {info.name: info.nbytes for info in self._objects.list(prefix)}

    def _size(self, name: str) -> int | None:
        try:
            return self._objects.head(name).nbytes
        except MissingObjectError:
            return None

    def _digest(self, name: str) -> str:
        """The SHA-256 of an object, as it is now."""
        hashed = hashlib.sha256()
        for data in self._objects.stream(name):
            hashed.update(data)
        return hashed.hexdigest()

    def _make_ready(self, number: int) -> None:
        started = time.monotonic()
        descriptor = self._fetched(number)
        with self._lock:
            if self._closed or number in self._open or number in self._files:
                os.close(descriptor)
            else:
                self._files[number] = descriptor
        with self._counting:
            self.counts.waiting_seconds += time.monotonic() - started

    def _open_shard(self, number: int, held: int | None) -> Reader:
        try:
            # Without a descriptor it was open when it was asked for, and was let go since.
            return super()._open_shard(number, self._fetched(number) if held is None else held)
        except UnreachableError:
            raise
        except StoreError:
            self.cache.doubt(self._table[number].digest)
            return super()._open_shard(number, self._fetched(number))

    def _fetched(self, number: int) -> int:
        """A descriptor of a shard in the cache. Raises what it raised a moment ago, without asking again."""
        if number in self._failed:
            when, kind, said = self._failed[number]
            if time.monotonic() < when + _AGAIN_SECONDS:
                raise kind(said)
        try:
            return self._fetched_now(number)
        except (CacheFullError, DiskFullError):
            raise  # there may be room at once
        except StoreError as error:
            self._failed[number] = time.monotonic(), type(error), str(error)
            raise

    def _fetched_now(self, number: int, ahead: bool = False) -> int:
        shard: Shard = self._table[number]
        name, fetched = self.head.shards[number], 0

        def fetch() -> Iterator[bytes | memoryview]:
            nonlocal fetched
            for data in self._objects.stream(name):
                fetched += len(data)
                yield data

        started = time.monotonic()
        while True:
            try:
                descriptor = self.cache.open(shard.digest, shard.nbytes, fetch, f"{self._objects.url}/{name}")
                break
            except (CacheFullError, DiskFullError) as error:
                if ahead or (isinstance(error, CacheFullError) and error.nbytes > error.budget):
                    raise
                with self._lock:
                    self._bounded = True  # somebody else has taken the room, too
                    opened = bool(self._open)
                    self._let_go()
                waited = time.monotonic() - started
                if waited > (_MOST_PATIENCE_SECONDS if opened else _PATIENCE_SECONDS):
                    raise
                if not opened:
                    time.sleep(_PAUSE_SECONDS)
            except MissingObjectError as error:
                self._refuse_replaced()
                raise StoreError(f"{self._where(shard.name)} is missing: {error}") from error
            except StoreError as error:
                damaged = isinstance(error, DamagedObjectError)
                said = f"{self._where(shard.name)} cannot be fetched: {error}"
                raise (StoreError(said) if damaged else UnreachableError(said)) from error
        with self._counting:
            self.counts.hits += not ahead and not fetched
            self.counts.misses += not ahead and bool(fetched)
            self.counts.fetched_bytes += fetched
        return descriptor

    def _refuse_replaced(self) -> None:
        if self.head.version and newest_version(self._objects) != self.head.version:
            raise StoreError(f"{self.path} has been replaced by another store, and cleaned; open it again")

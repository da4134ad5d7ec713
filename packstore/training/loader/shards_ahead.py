"""Fetches the shards of a remote store before batches need them, while the model trains; finds lost shards."""

from __future__ import annotations

import heapq
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import CacheFullError, DiskFullError, StoreError, UnreachableError
from packstore.stores import Reader
from packstore.stores.records import PartTable, Records
from packstore.training.lanes import ShardReads, cache_room, max_bytes_needed

_log = logging.getLogger("packstore")
_THREADS = 4  # fetching threads; each waits for the network most of the time


class ShardsAhead:
    """Fetches the shards of an epoch before they are needed, as many ahead as the cache has room for.

    Fetches shards in the order of the epoch. Releases shards that no later batch needs.
    Afterwards fetches the first shards of the next epoch, even after the present epoch has ended. The constructor
    starts up to four threads.

    If a shard cannot be fetched ahead, the thread that needs it tries again and raises."""

    def __init__(
        self,
        table: PartTable,
        reads: ShardReads,
        sizes: NDArray[np.int64],
        first: int,
        room: int,
        following: ShardReads | None = None,
    ) -> None:
        """
        Args:
            table: The files of the open store.
            reads: Shards that this rank reads in the epoch.
            sizes: ``(shards,)``, bytes of each shard of the store.
            first: First batch of the epoch, or of its rest.
            room: Maximum bytes of shards in the cache at a time.
            following: Shards that this rank reads in the next epoch. Of these, at most the bytes are fetched that
                batches need at a time.
        """
        self._table = table
        reads = ShardReads(*(column[reads.last >= first] for column in reads))
        self._own = len(reads.shards)
        if following is not None:
            reads = _append_following(reads, following, sizes)
        self._shards: list[int] = reads.shards.tolist()
        self._first: list[int] = reads.first.tolist()
        self._last: list[int] = reads.last.tolist()
        self._sizes: list[int] = sizes[reads.shards].tolist()
        self._room = room
        self._now = first
        self._taken = 0  # shards in the list that are fetched, being fetched, or left to the readers
        self._held: list[tuple[int, int]] = []  # of those, the shards in use: (last batch, index)
        self._held_bytes = 0
        self._closed = self._ending = self._failed = False
        self._changed = threading.Condition()
        self._process = os.getpid()
        self._threads = [
            threading.Thread(target=self._fetch_shards, name="packstore-shards", daemon=True)
            for _ in range(min(_THREADS, len(self._shards)))
        ]
        for thread in self._threads:
            thread.start()

    @classmethod
    def for_reader(
        cls, reader: Records, reads: ShardReads | None, first: int = 0, following: ShardReads | None = None
    ) -> ShardsAhead | None:
        """Starts to fetch shards ahead of batch ``first``. Returns None for a local store, or if the order is unknown.

        Logs a warning if the cache has too little room for the shards that batches need at a time.

        Args:
            reader: The open store.
            reads: Shards of this epoch; None if the order is unknown.
            first: First batch of the epoch, or of its rest.
            following: Shards of the next epoch.
        """
        table = reader.table
        if reads is None or table.cache is None:
            return None
        sizes = table.part_nbytes
        room = cache_room(table.cache.budget)
        needed = max_bytes_needed(reads, sizes)
        if needed > room:
            _log.warning(
                "%s: batches need shards of %s bytes at a time, and the cache has room for %s: some will be fetched "
                "more than once; lower window= or raise PACKSTORE_CACHE_SIZE",
                reader.path,
                f"{needed:,}",
                f"{room:,}",
            )
        return cls(table, reads, sizes, first, room, following)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Lets the threads end after the first shards of the next epoch.

        After an error, or in an abandoned epoch, they end after the shard that they are fetching. Does nothing in a
        forked child."""
        if os.getpid() != self._process:
            return  # a forked child has no threads, and their lock may stay locked
        self._tell_threads_to_end(kind is not None)

    @contextmanager
    def aborted_fetches(self) -> Iterator[None]:
        """Ends the threads. Within the block, aborts requests and refuses new ones.

        A request to a silent server would take most of a minute."""
        self._tell_threads_to_end(True)
        with self._table.refuse_requests():
            yield

    def _tell_threads_to_end(self, closed: bool) -> None:
        """Tells the threads to end: at once if ``closed``, else after the first shards of the next epoch."""
        with self._changed:
            self._closed, self._ending = closed or self._closed, True
            self._taken = max(self._taken, self._own)
            self._held, self._held_bytes = [], 0
            self._changed.notify_all()

    def mark_done(self, batches: int) -> None:
        """Notes that the epoch's first ``batches`` batches are finished.

        Releases shards that no later batch needs, and wakes the fetching threads."""
        done: list[int] = []
        with self._changed:
            self._now = batches
            while self._held and self._held[0][0] < batches:
                place = heapq.heappop(self._held)[1]
                self._held_bytes -= self._sizes[place]
                done.append(self._shards[place])
            while self._taken < len(self._shards) and self._last[self._taken] < batches:  # too late for those
                done.append(self._shards[self._taken])
                self._taken += 1
            needed = {self._shards[place] for _, place in self._held} if done else set()
            if done or (self._taken < len(self._first) and self._first[self._taken] <= batches):
                self._changed.notify_all()
        if done:
            self._table.release([shard for shard in done if shard not in needed])

    def _fetch_shards(self) -> None:
        """Fetches shards in turn until none are left, also after a failure; runs in each thread."""
        while (place := self._take_next()) is not None:
            try:
                self._table.prefetch(self._shards[place])
            except (CacheFullError, DiskFullError):
                pass  # others use the cache too; the thread that needs the shard finds room, or raises
            except StoreError as error:
                # Warn once, however many fail.
                _log.log(
                    logging.DEBUG if self._failed or self._closed else logging.WARNING, "not fetched ahead: %s", error
                )
                self._failed = True

    def _take_next(self) -> int | None:
        """Waits until the cache has room for the next shard, and returns its index; None if the thread has to end."""
        with self._changed:
            while not self._closed and self._taken < len(self._shards):
                place = self._taken
                fits = self._last[place] >= self._now and self._held_bytes + self._sizes[place] <= self._room
                if not fits and self._first[place] > self._now:
                    if self._ending:
                        return None
                    self._changed.wait()
                    continue
                self._taken += 1
                self._held_bytes += self._sizes[place]
                heapq.heappush(self._held, (self._last[place], place))
                if fits:
                    return place
                # Too late, or no room beside the shards needed at the same time: the thread that needs it fetches it.
            return None


def _append_following(reads: ShardReads, following: ShardReads, sizes: NDArray[np.int64]) -> ShardReads:
    """Appends the first shards of the next epoch to an epoch's reads."""
    few = np.cumsum(sizes[following.shards]) <= max_bytes_needed(following, sizes)
    batches = int(reads.last.max(initial=0)) + 1
    return ShardReads(
        np.concatenate([reads.shards, following.shards[few]]),
        np.concatenate([reads.first, following.first[few] + batches]),
        np.concatenate([reads.last, following.last[few] + batches]),
    )


def find_lost_records(reader: Reader, records: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Opens the shards of ``records``; returns bool ``(n,)``, True for records whose shard cannot be opened.

    Logs a warning for each such shard. Raises :class:`UnreachableError` if the network fails."""
    parts = reader.table.find(records)
    lost = []
    for part in np.unique(parts).tolist():
        try:
            reader.table.open(part)
        except UnreachableError:
            raise
        except StoreError as error:
            lost.append(part)
            _log.warning("skipped: %s records: %s", int((parts == part).sum()), error)
    is_lost: NDArray[np.bool_] = np.isin(parts, lost)
    return is_lost

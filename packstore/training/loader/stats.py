"""Seconds that a loader spends in each stage."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

from packstore.stores.remote.reader import FetchCounts

STAGES = ("wait", "read", "decode", "augment", "per_image", "copy")


class Stats:
    """Sums of seconds by stage; safe to add to from any thread.

    ``wait`` is the consumer's: how long it stood idle for a batch. ``read`` and ``decode`` (with the resizing that
    belongs to it) are the threads', summed over all of them. ``augment`` is operations on whole batches, with
    normalisation, ``per_image`` the functions in ``PerImage``, and ``copy`` queueing copies to the device: on a GPU
    these are the host's share only. Each second counts for one stage of its thread.
    """

    def __init__(self, fetches: FetchCounts | None = None) -> None:
        self._lock = threading.Lock()
        self._thread = threading.local()
        self.reset(fetches)

    def __reduce__(self) -> tuple[type[Stats], tuple[()]]:
        return Stats, ()  # another process has its own

    def reset(self, fetches: FetchCounts | None = None) -> None:
        """Begins anew; ``fetches`` are those of the reader, if it has any."""
        with self._lock:
            self._before = fetches, None if fetches is None else replace(fetches)
            self._seconds = dict.fromkeys(STAGES, 0.0)
            self._images = self._batches = self._skipped = self._unindexed = self._decoded = 0
            self._started: float | None = None
            self._ended: float | None = None

    def add(self, stage: str, seconds: float) -> None:
        with self._lock:
            self._seconds[stage] += seconds

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds the seconds within to a stage, without those that a stage within it takes."""
        before, start = self.take_timed(), perf_counter()
        try:
            yield
        finally:
            elapsed = perf_counter() - start
            self.add(stage, elapsed - self.take_timed())
            self._thread.seconds = before + elapsed

    def take_timed(self) -> float:
        """Returns the seconds of the calling thread that were timed since it last asked."""
        seconds: float = getattr(self._thread, "seconds", 0.0)
        self._thread.seconds = 0.0
        return seconds

    def add_unindexed(self, images: int) -> None:
        """Counts images whose seek index was not valid."""
        with self._lock:
            self._unindexed += images

    def add_decoded(self, images: int) -> None:
        """Counts image files that were decoded, whole or in part."""
        with self._lock:
            self._decoded += images

    def start(self) -> None:
        if self._started is None:
            self._started = perf_counter()

    def batch(self, images: int, skipped: int = 0) -> None:
        with self._lock:
            self._batches += 1
            self._images += images
            self._skipped += skipped
            self._ended = perf_counter()

    def snapshot(self, fetches: FetchCounts | None = None) -> dict[str, float]:
        with self._lock:
            elapsed = self._ended - self._started if self._started is not None and self._ended is not None else 0.0
            return {
                "images": self._images,
                "batches": self._batches,
                "skipped": self._skipped,
                "unindexed": self._unindexed,
                "decoded": self._decoded,
                "seconds": elapsed,
                "images_per_second": self._images / elapsed if elapsed else 0.0,
                **{f"{stage}_seconds": value for stage, value in self._seconds.items()},
                **self._fetched(fetches),
            }

    def _fetched(self, now: FetchCounts | None) -> dict[str, float]:
        if now is None:
            return {}
        counted, before = self._before
        if counted is not now or before is None:  # those of a reader that another process had
            before = FetchCounts()
        return {
            "cache_hits": now.hits - before.hits,
            "cache_misses": now.misses - before.misses,
            "fetched_bytes": now.fetched_bytes - before.fetched_bytes,
            "fetch_wait_seconds": now.waiting_seconds - before.waiting_seconds,
        }

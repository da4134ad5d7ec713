"""Seconds that a loader spends in each stage."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
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

    def __init__(self, fetches: Sequence[FetchCounts] = ()) -> None:
        self._lock = threading.Lock()
        self._thread = threading.local()
        self.reset(fetches)

    def __reduce__(self) -> tuple[type[Stats], tuple[()]]:
        return Stats, ()  # another process has its own

    def reset(self, fetches: Sequence[FetchCounts] = ()) -> None:
        """Begins anew; ``fetches`` are those of the reader, if it has any."""
        with self._lock:
            self._before = [(counts, replace(counts)) for counts in fetches]
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

    def snapshot(self, fetches: Sequence[FetchCounts] = ()) -> dict[str, float]:
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

    def _fetched(self, now: Sequence[FetchCounts]) -> dict[str, float]:
        if not now:
            return {}
        # Without those of readers that another process had.
        before = [old for counts, old in self._before if any(counts is each for each in now)]
        names = ("hits", "misses", "fetched_bytes", "waiting_seconds")
        shown = ("cache_hits", "cache_misses", "fetched_bytes", "fetch_wait_seconds")
        return {
            key: sum(getattr(each, name) for each in now) - sum(getattr(each, name) for each in before)
            for key, name in zip(shown, names, strict=True)
        }

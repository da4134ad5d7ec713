"""Measures the seconds that a loader spends in each stage."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

from packstore.stores.records import FetchCounts

STAGES = ("wait", "read", "decode", "augment", "per_image", "copy")
_COUNTS = ("images", "batches", "skipped", "unindexed", "decoded")


class Stats:
    """Sums seconds by stage, and counts images, batches and skipped records. Thread-safe; pickles as an empty one.

    - ``wait``: the consumer waits for a batch.
    - ``read``, ``decode`` (with resizing): summed over the threads.
    - ``augment``: operations on whole batches, and normalisation.
    - ``per_image``: functions in ``PerImage``.
    - ``copy``: queueing copies to the device.

    On a GPU, the last three are only the host's share. A second counts for one stage of its thread.
    """

    def __init__(self, fetches: Sequence[FetchCounts] = ()) -> None:
        self._lock = threading.Lock()
        self._thread = threading.local()
        self.reset(fetches)

    def __reduce__(self) -> tuple[type[Stats], tuple[()]]:
        return Stats, ()  # another process has its own

    def reset(self, fetches: Sequence[FetchCounts] = ()) -> None:
        """Sets all sums to 0, and stops the clock.

        ``fetches``: counts of remote readers. They continue, and their present values are subtracted later."""
        with self._lock:
            self._before = [(counts, replace(counts)) for counts in fetches]
            self._sums: dict[str, float] = {
                **dict.fromkeys(_COUNTS, 0),
                **{f"{stage}_seconds": 0.0 for stage in STAGES},
            }
            self._started: float | None = None
            self._ended: float | None = None

    def add(self, **amounts: float) -> None:
        """Adds to sums by their names in :meth:`snapshot`. The latest of ``batches`` ends :meth:`snapshot`'s seconds.

        - ``images``, ``batches``, ``skipped``: of finished batches.
        - ``decoded``: image files that were decoded, whole or in part.
        - ``unindexed``: images whose seek index was invalid: positions in a JPEG file from which crops are decoded.
        - ``wait_seconds`` and so on: of a stage, one of :data:`STAGES`.
        """
        with self._lock:
            for name, amount in amounts.items():
                self._sums[name] += amount
            if "batches" in amounts:
                self._ended = perf_counter()

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Adds the seconds of the block to a stage, without those of nested stages."""
        before, start = self.take_timed(), perf_counter()
        try:
            yield
        finally:
            elapsed = perf_counter() - start
            self.add(**{f"{stage}_seconds": elapsed - self.take_timed()})
            self._thread.seconds = before + elapsed

    def take_timed(self) -> float:
        """Returns the seconds that :meth:`measure` has counted in the calling thread since the last call."""
        seconds: float = getattr(self._thread, "seconds", 0.0)
        self._thread.seconds = 0.0
        return seconds

    def start_clock(self) -> None:
        """Starts the clock; only the first call after a reset has an effect."""
        if self._started is None:
            self._started = perf_counter()

    def snapshot(self, fetches: Sequence[FetchCounts] = ()) -> dict[str, float]:
        """Returns all sums by name, for :meth:`packstore.PackedLoader.stats`.

        Also returns the seconds from the start of the clock to the latest batch, and images a second. With ``fetches``,
        the counts of remote readers, returns their sums since the last reset."""
        with self._lock:
            elapsed = self._ended - self._started if self._started is not None and self._ended is not None else 0.0
            return {
                **{name: self._sums[name] for name in _COUNTS},
                "seconds": elapsed,
                "images_per_second": self._sums["images"] / elapsed if elapsed else 0.0,
                **{name: value for name, value in self._sums.items() if name not in _COUNTS},
                **self._fetch_sums(fetches),
            }

    def _fetch_sums(self, now: Sequence[FetchCounts]) -> dict[str, float]:
        """Sums hits, misses, bytes and waiting time of the cache since the last reset. Empty without a remote store."""
        if not now:
            return {}
        # Leaves out counts of readers in another process.
        before = [old for counts, old in self._before if any(counts is each for each in now)]
        names = ("hits", "misses", "damaged", "fetched_bytes", "waiting_seconds")
        shown = ("cache_hits", "cache_misses", "cache_damaged", "fetched_bytes", "fetch_wait_seconds")
        return {
            key: sum(getattr(each, name) for each in now) - sum(getattr(each, name) for each in before)
            for key, name in zip(shown, names, strict=True)
        }

"""Seconds that a loader spends in each stage."""

from __future__ import annotations

import threading
from time import perf_counter

STAGES = ("wait", "read", "decode", "augment", "copy")


class Stats:
    """Sums of seconds by stage; safe to add to from any thread.

    ``wait`` is the consumer's: how long it stood idle for a batch. ``read`` and ``decode`` (with the resizing that
    belongs to it) are the threads', summed over all of them. ``augment`` is operations on whole batches, with
    normalisation, and ``copy`` queueing copies to the device: on a GPU both are the host's share only.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def __reduce__(self) -> tuple[type[Stats], tuple[()]]:
        return Stats, ()  # another process has its own

    def reset(self) -> None:
        with self._lock:
            self._seconds = dict.fromkeys(STAGES, 0.0)
            self._images = self._batches = self._skipped = 0
            self._started: float | None = None
            self._ended: float | None = None

    def add(self, stage: str, seconds: float) -> None:
        with self._lock:
            self._seconds[stage] += seconds

    def start(self) -> None:
        if self._started is None:
            self._started = perf_counter()

    def batch(self, images: int, skipped: int = 0) -> None:
        with self._lock:
            self._batches += 1
            self._images += images
            self._skipped += skipped
            self._ended = perf_counter()

    def snapshot(self) -> dict[str, float]:
        with self._lock:
            elapsed = self._ended - self._started if self._started is not None and self._ended is not None else 0.0
            return {
                "images": self._images,
                "batches": self._batches,
                "skipped": self._skipped,
                "seconds": elapsed,
                "images_per_second": self._images / elapsed if elapsed else 0.0,
                **{f"{stage}_seconds": value for stage, value in self._seconds.items()},
            }

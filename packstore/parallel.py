"""An ordered, bounded parallel map over threads: what conversion and verification run on."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def default_workers() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """Yields ``function(item)`` in the order of ``items``, computed by ``workers`` threads.

    At most ``2 * workers + 1`` items are in flight, so memory does not depend on how many there are. An exception of
    ``function`` surfaces at its item's turn; whatever ends the iteration, no thread outlives it.
    """
    pool = ThreadPoolExecutor(workers, thread_name_prefix="packstore")
    pending: deque[Future[R]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)

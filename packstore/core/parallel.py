"""An ordered, bounded parallel map over threads, for conversion and verification."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
R = TypeVar("R")

BUDGET_BYTES = 256 << 20
"""Workers pause while so many bytes of results wait for the consumer."""


def default_workers() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """Yields ``function(item)`` in the order of ``items``, computed by ``workers`` threads.

    At most ``2 * workers + 1`` items are in flight: memory does not depend on their number. An exception of
    ``function`` is raised when its item is due. All threads have ended when the iteration ends.
    """
    return ordered_flat_map(lambda item: (function(item) for _ in range(1)), items, workers)


def ordered_flat_map(
    function: Callable[[T], Iterable[R]],
    items: Iterable[T],
    workers: int,
    size: Callable[[R], int] = lambda _: 0,
    budget: int = BUDGET_BYTES,
) -> Iterator[R]:
    """Yields the pieces that ``function(item)`` yields for each item, in order, computed by ``workers`` threads.

    Workers pause while the finished pieces have ``budget`` bytes or more. The worker whose pieces are due next does not
    pause while it has none finished. Memory is bounded by ``budget``, plus a piece for each worker and for the
    consumer.

    An exception of ``function`` is raised after the pieces before it. All threads have ended when the iteration ends.

    Args:
        function: Called and iterated in a worker.
        items: Consumed as needed, at most ``2 * workers + 1`` ahead of the item being yielded.
        workers: Number of threads.
        size: Returns the bytes of a piece, which count until the consumer asks for the next piece. By default 0.
        budget: Most bytes of waiting pieces.
    """
    flow = _Flow(budget)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="packstore")
    pending: deque[SimpleQueue[Any]] = deque()  # of each item: its finished pieces with their bytes, then an _End

    def work(item: T, pieces: SimpleQueue[Any]) -> None:
        """Runs in a worker thread: computes the pieces of an item, while there is room."""
        error: BaseException | None = None
        try:
            iterator = iter(function(item))
            while flow.wait_for_room(pieces):
                try:
                    piece = next(iterator)
                except StopIteration:
                    break
                nbytes = size(piece)
                flow.hold(nbytes)
                pieces.put((piece, nbytes))
                del piece  # only the consumer may keep it alive
        except BaseException as caught:  # for the consumer
            error = caught
        pieces.put(_End(error))

    try:
        for item in items:
            pending.append(SimpleQueue())
            pool.submit(work, item, pending[-1])
            # Two items a worker keep all workers busy while the consumer waits for the first.
            if len(pending) > 2 * workers:
                yield from flow.take_pieces(pending.popleft())
        while pending:
            yield from flow.take_pieces(pending.popleft())
    finally:
        flow.stop_workers()
        pool.shutdown(wait=True, cancel_futures=True)


class _End(NamedTuple):
    """Marks the end of an item's pieces; ``error`` ended them early, or is None."""

    error: BaseException | None


class _Flow:
    """Bytes of the waiting pieces of one map, and whose turn it is. Shared by the workers and the consumer."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._held = 0  # bytes of all pieces, until the consumer asks for the next one
        self._turn: SimpleQueue[Any] | None = None  # the item that the consumer takes from
        self._stopped = False
        self._changed = threading.Condition()  # wakes workers: fewer bytes are held, or the turn has changed

    def wait_for_room(self, pieces: SimpleQueue[Any]) -> bool:
        """Waits until the worker of an item may compute a piece; returns False if the consumer has stopped."""
        with self._changed:
            # The current item goes on even without room: the consumer waits for its next piece.
            while not self._stopped and self._held >= self._budget and (self._turn is not pieces or not pieces.empty()):
                self._changed.wait()
            return not self._stopped

    def hold(self, nbytes: int) -> None:
        """Counts the bytes of a finished piece."""
        with self._changed:
            self._held += nbytes

    def take_pieces(self, pieces: SimpleQueue[Any]) -> Iterator[Any]:
        """Makes this item the current one and yields its pieces as they finish; at the end raises the item's error."""
        with self._changed:
            self._turn = pieces
            self._changed.notify_all()
        while not isinstance(taken := pieces.get(), _End):
            piece, nbytes = taken
            del taken
            yield piece
            del piece
            with self._changed:
                self._held -= nbytes
                self._changed.notify_all()
        if taken.error is not None:
            raise taken.error

    def stop_workers(self) -> None:
        """Tells the workers to end, since the consumer has stopped."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

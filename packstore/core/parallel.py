"""An ordered, bounded parallel map over threads, for conversion and verification."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

BUDGET_BYTES = 256 << 20
"""Workers pause while so many bytes of results wait for the consumer."""


def default_workers() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _no_size(_: Any) -> int:
    """Returns 0: results do not count against the budget."""
    return 0


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
    size: Callable[[R], int] = _no_size,
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
        size: Returns the bytes of a piece, which count until the consumer asks for the next piece.
        budget: Most bytes of waiting pieces.
    """
    flow: _Flow[R] = _Flow(size, budget)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="packstore")
    pending: deque[_Pieces[R]] = deque()
    try:
        for item in items:
            pieces: _Pieces[R] = _Pieces()
            pending.append(pieces)
            pool.submit(flow.run_worker, function, item, pieces)
            if len(pending) > 2 * workers:
                yield from flow.take_pieces(pending.popleft())
        while pending:
            yield from flow.take_pieces(pending.popleft())
    finally:
        flow.stop_workers()
        pool.shutdown(wait=True, cancel_futures=True)


class _Pieces(Generic[R]):
    """Queue of the finished pieces of one item, its error, and whether more pieces will come."""

    __slots__ = ("error", "finished", "ready")

    def __init__(self) -> None:
        self.ready: deque[tuple[R, int]] = deque()  # each with its bytes
        self.finished = False
        self.error: BaseException | None = None


class _Flow(Generic[R]):
    """State shared by the workers and the consumer of one map, guarded by one lock."""

    def __init__(self, size: Callable[[R], int], budget: int) -> None:
        self._size = size
        self._budget = budget
        self._held = 0  # bytes of all pieces, until the consumer releases them
        self._turn: _Pieces[R] | None = None  # the item that the consumer takes from
        self._stopped = False
        lock = threading.Lock()
        self._news = threading.Condition(lock)  # wakes the consumer: its item has a piece, or has finished
        self._room = threading.Condition(lock)  # wakes workers: fewer bytes are held, or the turn has changed

    def run_worker(self, function: Callable[[T], Iterable[R]], item: T, pieces: _Pieces[R]) -> None:
        """Runs in a worker thread: computes the pieces of an item. Pauses while the budget is used up.

        Keeps an exception for the consumer.
        """
        error: BaseException | None = None
        try:
            iterator = iter(function(item))
            while self._wait_for_room(pieces):
                try:
                    piece = next(iterator)
                except StopIteration:
                    break
                nbytes = self._size(piece)
                with self._news:
                    self._held += nbytes
                    pieces.ready.append((piece, nbytes))
                    self._wake_consumer(pieces)
                del piece  # only the consumer may keep it alive
        except BaseException as caught:
            error = caught
        with self._news:
            pieces.error, pieces.finished = error, True
            self._wake_consumer(pieces)

    def take_pieces(self, pieces: _Pieces[R]) -> Iterator[R]:
        """Makes this item the current one and yields its pieces as they finish. At the end raises the item's error, if
        any."""
        with self._room:
            self._turn = pieces
            self._room.notify_all()
        while True:
            with self._news:
                while not pieces.ready and not pieces.finished:
                    self._news.wait()
                if not pieces.ready:
                    break
                piece, nbytes = pieces.ready.popleft()
            yield piece
            del piece
            with self._room:
                self._held -= nbytes
                self._room.notify_all()
        if pieces.error is not None:
            raise pieces.error

    def stop_workers(self) -> None:
        """Tells the workers to end. Called when the consumer has stopped."""
        with self._room:
            self._stopped = True
            self._room.notify_all()

    def _wait_for_room(self, pieces: _Pieces[R]) -> bool:
        """Waits until the worker of an item may compute a piece; returns False if the consumer has stopped."""
        with self._room:
            while not self._stopped and self._held >= self._budget and (self._turn is not pieces or pieces.ready):
                self._room.wait()
            return not self._stopped

    def _wake_consumer(self, pieces: _Pieces[R]) -> None:
        """Wakes the consumer if it waits for this item, while the caller holds the lock."""
        if pieces is self._turn:
            self._news.notify()

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
"""Workers pause while this many bytes of results wait for the consumer."""


def default_workers() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _nothing(_: Any) -> int:
    return 0


def ordered_map(function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """Yields ``function(item)`` in the order of ``items``, computed by ``workers`` threads.

    At most ``2 * workers + 1`` items are in flight, so memory does not depend on their number. An exception of
    ``function`` is raised at its item's turn. No thread outlives the iteration, however it ends.
    """
    return ordered_pieces(lambda item: (function(item) for _ in range(1)), items, workers)


def ordered_pieces(
    function: Callable[[T], Iterable[R]],
    items: Iterable[T],
    workers: int,
    size: Callable[[R], int] = _nothing,
    budget: int = BUDGET_BYTES,
) -> Iterator[R]:
    """Like :func:`ordered_map` for results of any size: ``function(item)`` yields each item's result in pieces.

    A worker begins a piece only while all existing pieces together have less than ``budget`` bytes. Only the item whose
    turn it is goes on regardless, once all of its pieces were taken: so nothing waits for ever. At most ``budget``
    bytes exist, plus one piece a worker and the consumer's own.

    Args:
        function: Called and iterated in a worker.
        items: Taken as needed, at most ``2 * workers + 1`` ahead of what was yielded.
        workers: Number of threads.
        size: Bytes of a piece. They count until the consumer asks for the next one.
        budget: See above.
    """
    flow: _Flow[R] = _Flow(size, budget)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="packstore")
    pending: deque[_Pieces[R]] = deque()
    try:
        for item in items:
            pieces: _Pieces[R] = _Pieces()
            pending.append(pieces)
            pool.submit(flow.work, function, item, pieces)
            if len(pending) > 2 * workers:
                yield from flow.take(pending.popleft())
        while pending:
            yield from flow.take(pending.popleft())
    finally:
        flow.stop()
        pool.shutdown(wait=True, cancel_futures=True)


class _Pieces(Generic[R]):
    """The pieces of one item's result that are ready, and whether more will come."""

    __slots__ = ("error", "finished", "ready")

    def __init__(self) -> None:
        self.ready: deque[tuple[R, int]] = deque()  # each with its bytes
        self.finished = False
        self.error: BaseException | None = None


class _Flow(Generic[R]):
    """State that the workers and the consumer of one map share, guarded by one lock."""

    def __init__(self, size: Callable[[R], int], budget: int) -> None:
        self._size = size
        self._budget = budget
        self._held = 0  # bytes of pieces made and not given up by the consumer
        self._turn: _Pieces[R] | None = None  # the item that the consumer takes from
        self._stopped = False
        lock = threading.Lock()
        self._news = threading.Condition(lock)  # for the consumer: its item has a piece, or has finished
        self._room = threading.Condition(lock)  # for workers: less is held, or the turn has moved on

    def work(self, function: Callable[[T], Iterable[R]], item: T, pieces: _Pieces[R]) -> None:
        """Runs in a worker. Keeps any exception for the consumer."""
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
                    self._notify(pieces)
                del piece  # the consumer's alone from now on
        except BaseException as caught:
            error = caught
        with self._news:
            pieces.error, pieces.finished = error, True
            self._notify(pieces)

    def take(self, pieces: _Pieces[R]) -> Iterator[R]:
        """The pieces of the item whose turn it is, as they come; then its error, if it has one."""
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

    def stop(self) -> None:
        """Ends the workers: the consumer wants nothing more."""
        with self._room:
            self._stopped = True
            self._room.notify_all()

    def _wait_for_room(self, pieces: _Pieces[R]) -> bool:
        """Waits for room; False when nothing more is wanted."""
        with self._room:
            while not self._stopped and self._held >= self._budget and (self._turn is not pieces or pieces.ready):
                self._room.wait()
            return not self._stopped

    def _notify(self, pieces: _Pieces[R]) -> None:
        if pieces is self._turn:
            self._news.notify()

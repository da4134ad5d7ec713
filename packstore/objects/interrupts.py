"""Makes requests that a signal can interrupt: obstore itself ignores signals until the server answers, for up to a
minute.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import Any

from packstore.objects.location import RemoteError

_LAST_SECONDS = 3.0
"""Seconds that a request may take after an interrupt: enough for cleaning up, if the server answers."""

_idle: list[_RequestThread] = []
_pending: set[Future[Any]] = set()
_interrupted = threading.Event()
_refusals = 0


def interrupt() -> None:
    """Aborts all pending requests of this process with a :class:`RemoteError`, because the program is about to end.

    From then on, every request is aborted after three seconds. Safe to call from a signal handler.
    """
    _interrupted.set()
    _abort_pending()


@contextmanager
def refuse_requests() -> Iterator[None]:
    """Aborts all pending requests of this process, and refuses new ones until the context ends.

    Aborted and refused requests raise :class:`RemoteError`.
    """
    global _refusals
    _refusals += 1
    try:
        _abort_pending()
        yield
    finally:
        _refusals -= 1


def call_interruptibly(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Calls ``function`` in another thread, while this thread handles signals. Returns its result or raises its error.

    Raises :class:`RemoteError` if the request is aborted, see :func:`interrupt` and :func:`refuse_requests`.
    """
    future: Future[Any] = Future()
    try:
        _submit_request(future, partial(function, *arguments, **keywords))
        return _wait_for_result(future)
    finally:
        _pending.discard(future)


def iterate_interruptibly(values: Iterator[Any], count: int, *, ahead: bool = False) -> Iterator[Any]:
    """Yields ``values``, which another thread computes in batches of up to ``count``.

    Handles signals and raises like :func:`call_interruptibly`. With ``ahead``, the other thread computes the next batch
    while the caller uses this one.
    """

    def take() -> list[Any]:
        return list(islice(values, count))

    future: Future[Any] = Future()
    try:
        _submit_request(future, take)
        while batch := _wait_for_result(future):
            _pending.discard(future)
            future = Future()
            if ahead:
                _submit_request(future, take)
                yield from batch
            else:
                yield from batch
                _submit_request(future, take)
            del batch  # else the bytes would stay in memory while waiting
    finally:
        _pending.discard(future)


def _submit_request(future: Future[Any], function: Callable[[], Any]) -> None:
    """Lets an idle or new worker thread compute ``future``."""
    _pending.add(future)
    if _refusals:  # checked after adding to _pending: refuse_requests aborts what it finds there
        raise RemoteError("interrupted")
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _RequestThread()
        worker.start()
    worker.tasks.put((future, function))


def _wait_for_result(future: Future[Any]) -> Any:
    """Returns the result of a request or raises its error."""
    try:
        return future.result(_LAST_SECONDS if _interrupted.is_set() else None)
    except TimeoutError:  # the program is about to end
        _abort_request(future)
        return future.result()


def _abort_pending() -> None:
    """Aborts all pending requests of this process."""
    for future in tuple(_pending):
        _abort_request(future)


def _abort_request(future: Future[Any]) -> None:
    """Raises :class:`RemoteError` in the thread that waits for a request."""
    with suppress(InvalidStateError):  # it has just been answered
        future.set_exception(RemoteError("interrupted"))


class _RequestThread(threading.Thread):
    """Runs one call after another, and does not keep the process from ending."""

    def __init__(self) -> None:
        super().__init__(name="packstore-request", daemon=True)
        self.tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()

    def run(self) -> None:
        """Runs calls for ever. After each call, joins the idle threads, and sets the future's result or error."""
        while True:
            future, function = self.tasks.get()
            try:
                answer, error = function(), None
            except BaseException as raised:  # raised again in the calling thread
                answer, error = None, raised
            _idle.append(self)
            with suppress(InvalidStateError):  # the caller was interrupted
                if error is None:
                    future.set_result(answer)
                else:
                    future.set_exception(error)
            del future, function, answer, error  # else the bytes would stay in memory while waiting


def _after_fork() -> None:
    """Forgets the threads and requests of the parent, which a fork does not copy."""
    _idle.clear()
    _pending.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

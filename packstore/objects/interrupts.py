"""Requests that a signal ends at once: obstore looks for none until the server answers, which may take a minute."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from itertools import islice
from queue import SimpleQueue
from typing import Any

from packstore.objects.values import RemoteError

_LAST_SECONDS = 3.0
"""What a request may take after an interrupt: one that cleans up, of a server that answers."""

_idle: list[_Worker] = []
_pending: set[Future[Any]] = set()
_interrupted = threading.Event()
_refused = 0


def interrupt() -> None:
    """Ends all requests under way in this process with a :class:`RemoteError`, for a program that is about to end;
    those that come later may take a few seconds. A signal's handler may call it."""
    _interrupted.set()
    _give_up_pending()


@contextmanager
def refused() -> Iterator[None]:
    """Ends all requests under way in this process with a :class:`RemoteError`, and those that are made meanwhile."""
    global _refused
    _refused += 1
    try:
        _give_up_pending()
        yield
    finally:
        _refused -= 1


def interruptible(function: Callable[..., Any], *arguments: Any) -> Any:
    """What ``function`` returns or raises, from another thread, while this one listens to signals."""
    future: Future[Any] = Future()
    try:
        _begin(future, function, *arguments)
        return _answer(future)
    finally:
        _pending.discard(future)


def in_batches(values: Iterator[Any], count: int, *, ahead: bool = False) -> Iterator[Any]:
    """What ``values`` yields; up to ``count`` at once are waited for by :func:`interruptible`.

    ``ahead``: the next ones are asked for while the caller is busy with those it has."""

    def take() -> list[Any]:
        return list(islice(values, count))

    future: Future[Any] = Future()
    try:
        _begin(future, take)
        while batch := _answer(future):
            _pending.discard(future)
            future = Future()
            if ahead:
                _begin(future, take)
                yield from batch
            else:
                yield from batch
                _begin(future, take)
            del batch  # nothing that waits may keep bytes alive
    finally:
        _pending.discard(future)


def _begin(future: Future[Any], function: Callable[..., Any], *arguments: Any) -> None:
    """Has a thread answer ``future``."""
    _pending.add(future)
    if _refused:  # looked at after those who end requests can find this one
        raise RemoteError("interrupted")
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
        worker.start()
    worker.tasks.put((future, function, arguments))


def _answer(future: Future[Any]) -> Any:
    try:
        return future.result(_LAST_SECONDS if _interrupted.is_set() else None)
    except TimeoutError:
        _give_up(future)
        return future.result()


def _give_up_pending() -> None:
    for future in tuple(_pending):
        _give_up(future)


def _give_up(future: Future[Any]) -> None:
    with suppress(InvalidStateError):  # it was answered at this moment
        future.set_exception(RemoteError("interrupted"))


class _Worker(threading.Thread):
    """Runs one call after another; a daemon, for which the end of the process does not wait."""

    def __init__(self) -> None:
        super().__init__(name="packstore-request", daemon=True)
        self.tasks: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = SimpleQueue()

    def run(self) -> None:
        while True:
            future, function, arguments = self.tasks.get()
            try:
                answer, error = function(*arguments), None
            except BaseException as raised:  # it is the caller's
                answer, error = None, raised
            _idle.append(self)
            with suppress(InvalidStateError):  # the caller was interrupted
                if error is None:
                    future.set_result(answer)
                else:
                    future.set_exception(error)
            del future, function, arguments, answer, error  # no thread that waits may keep bytes alive


def _after_fork() -> None:
    """Threads are not copied."""
    _idle.clear()
    _pending.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

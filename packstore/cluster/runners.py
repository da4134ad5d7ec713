"""Where tasks run: in this process, or in several of this machine."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from packstore.cluster.receipts import Receipt
from packstore.cluster.task import Job, run_task
from packstore.core.errors import PackstoreError, StoreError
from packstore.sources.base import Entry

TRIES = 3
"""How often a task is begun whose worker dies: a machine may go away, but a task that kills each worker has a fault of
its own, such as too little memory for it."""

ENDING_SECONDS = 10.0
"""How long tasks that are interrupted may tidy up."""


class Outcome(NamedTuple):
    """What became of a task: its receipt, or what it raised."""

    number: int
    result: Receipt | BaseException


class Runner(ABC):
    """Runs tasks of one job. A context manager: leaving it ends what still runs."""

    @property
    @abstractmethod
    def slots(self) -> int:
        """How many tasks may be under way."""

    @property
    def at_once(self) -> int:
        """How many tasks run at once: the others under way wait for a worker."""
        return self.slots

    @abstractmethod
    def submit(self, number: int, entries: Sequence[Entry]) -> None:
        """Begins a task, or another copy of it."""

    @abstractmethod
    def wait(self, seconds: float | None = None) -> list[Outcome]:
        """Waits until one task or more have ended, and returns what became of them: nothing after ``seconds``."""

    def drop(self, number: int) -> None:
        """Ends the copies of a task that are still under way; they may have an outcome nevertheless."""
        return

    def close(self) -> None:
        """Ends all tasks that are under way. Idempotent."""
        return

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class InThisProcess(Runner):
    """One task after the other, each with all threads."""

    slots = 1

    def __init__(self, job: Job) -> None:
        self._job = job
        self._task: tuple[int, Sequence[Entry]] | None = None

    def submit(self, number: int, entries: Sequence[Entry]) -> None:
        self._task = number, entries

    def wait(self, seconds: float | None = None) -> list[Outcome]:
        assert self._task is not None
        return [attempt(self._job, *self._task)]


@dataclass(slots=True, eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    task: tuple[int, Sequence[Entry]] | None = None
    has_job: bool = False


class Processes(Runner):
    """Processes of this machine. One that dies is replaced, and its task begun again.

    They are fresh interpreters: nothing of this one is forked, and its ``__main__`` need not be importable. A thread
    talks to each, because one that hangs may leave a message half read or half sent.
    """

    slots = 1

    def __init__(self, job: Job, count: int) -> None:
        self.slots = count
        self._pickled = pickle.dumps(job)
        self._workers: list[_Worker] = []
        self._dropped: list[_Worker] = []
        self._tries: dict[int, int] = {}
        self._answers: SimpleQueue[tuple[_Worker, Receipt | BaseException | None]] = SimpleQueue()

    def submit(self, number: int, entries: Sequence[Entry]) -> None:
        worker = next((worker for worker in self._workers if worker.task is None), None) or self._start()
        worker.task = number, entries
        threading.Thread(target=self._talk, args=(worker,), name="packstore-worker", daemon=True).start()

    def wait(self, seconds: float | None = None) -> list[Outcome]:
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            try:
                worker, result = self._answers.get(timeout=None if until is None else max(0, until - time.monotonic()))
            except Empty:
                return []
            if worker in self._workers and (outcome := self._outcome(worker, result)) is not None:
                return [outcome]

    def drop(self, number: int) -> None:
        for worker in [worker for worker in self._workers if worker.task is not None and worker.task[0] == number]:
            self._workers.remove(worker)
            self._dropped.append(worker)
            _end(worker)

    def close(self) -> None:
        for worker in self._workers:
            _end(worker)
        until = time.monotonic() + ENDING_SECONDS
        for worker in [*self._workers, *self._dropped]:
            try:
                worker.process.wait(max(0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        self._workers.clear()
        self._dropped.clear()

    def _start(self) -> _Worker:
        ours, theirs = socket.socketpair()
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", f"from packstore.cluster.runners import serve; serve({theirs.fileno()})"],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,  # Ctrl-C is for the driver, which ends them
            )
        worker = _Worker(process, Connection(ours.detach()))
        self._workers.append(worker)
        return worker

    def _talk(self, worker: _Worker) -> None:
        """Gives a worker its task, and puts what it answers where :meth:`wait` finds it: None where it has died."""
        result: Receipt | BaseException | None = None
        try:
            if not worker.has_job:
                worker.connection.send_bytes(self._pickled)
                worker.has_job = True
            worker.connection.send(worker.task)
            result = worker.connection.recv()
        except (EOFError, OSError):
            worker.connection.close()
        except Exception as error:  # what cannot be pickled, or unpickled here
            result = error
        self._answers.put((worker, result))

    def _outcome(self, worker: _Worker, result: Receipt | BaseException | None) -> Outcome | None:
        """What a worker has answered; None where it has died and its task begins again."""
        assert worker.task is not None
        number, entries = worker.task
        if result is None:
            code = worker.process.wait()
            self._workers.remove(worker)
            tries = self._tries[number] = self._tries.get(number, 0) + 1
            if tries < TRIES:
                self.submit(number, entries)
                return None
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
            memory = "; the system does that when memory is short" if code == -signal.SIGKILL else ""
            result = StoreError(f"{tries} workers in turn ended {how} while they packed shard {number}{memory}")
        worker.task = None
        return Outcome(number, result)


def _end(worker: _Worker) -> None:
    """Has a worker tidy up and end."""
    if worker.task is None:
        worker.connection.close()
    else:
        worker.process.terminate()
    worker.process.send_signal(signal.SIGCONT)  # one that is stopped would notice neither


def attempt(job: Job, number: int, entries: Sequence[Entry]) -> Outcome:
    """Runs a task, and returns what it raises. What ends the process, such as Ctrl-C, is raised."""
    try:
        return Outcome(number, run_task(job, number, entries))
    except Exception as error:
        return Outcome(number, error)


def serve(descriptor: int) -> None:
    """A worker process: reads a job and then tasks from a socket, and answers each, until the other end is closed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it cleans up
    connection = Connection(descriptor)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        job = connection.recv_bytes()
        while True:
            connection.send(attempt_pickled(job, *connection.recv()))


def attempt_pickled(job: bytes, number: int, entries: Sequence[Entry]) -> Receipt | BaseException:
    """:func:`attempt` in another process than the driver's."""
    try:
        opened = pickle.loads(job)
    except Exception as error:  # the source cannot be opened here, or the software differs
        return portable(error)
    return portable(attempt(opened, number, entries).result)


def portable(result: Receipt | BaseException) -> Receipt | BaseException:
    """What an attempt gave, for another process: an error that is not raised on purpose brings its traceback along."""
    if isinstance(result, Receipt | PackstoreError):
        return result
    result.add_note("".join(traceback.format_exception(result)))
    return result

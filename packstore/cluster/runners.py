"""Where tasks run: in this process, or in several of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple

from packstore.cluster.receipts import Receipt
from packstore.cluster.task import Job, run_task
from packstore.core.errors import StoreError
from packstore.sources.base import Entry

TRIES = 3
"""How often a task is begun whose worker dies: a machine may go away, but a task that kills each worker has a fault of
its own, such as too little memory for it."""


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

    @abstractmethod
    def submit(self, number: int, entries: Sequence[Entry]) -> None:
        """Begins a task; only while fewer than :attr:`slots` are under way."""

    @abstractmethod
    def wait(self) -> list[Outcome]:
        """Waits until one task or more have ended, and returns what became of them."""

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

    def wait(self) -> list[Outcome]:
        assert self._task is not None
        return [attempt(self._job, *self._task)]


@dataclass(slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    task: tuple[int, Sequence[Entry]] | None = None


@dataclass(slots=True)
class Processes(Runner):
    """Processes of this machine. One that dies is replaced, and its task begun again.

    They are fresh interpreters: nothing of this one is forked, and its ``__main__`` need not be importable.
    """

    job: Job
    slots: int
    _workers: list[_Worker] = field(default_factory=list)
    _tries: dict[int, int] = field(default_factory=dict)

    def submit(self, number: int, entries: Sequence[Entry]) -> None:
        worker = next((worker for worker in self._workers if worker.task is None), None) or self._start()
        worker.task = number, entries
        # A worker that has died meanwhile is noticed by wait().
        with contextlib.suppress(OSError):
            worker.connection.send(worker.task)

    def wait(self) -> list[Outcome]:
        while True:
            busy = {worker.connection: worker for worker in self._workers if worker.task is not None}
            found = [self._outcome(busy[connection]) for connection in wait(list(busy))]  # type: ignore[index]
            if outcomes := [outcome for outcome in found if outcome is not None]:
                return outcomes

    def close(self) -> None:
        for worker in self._workers:
            worker.connection.close()  # an idle one ends by itself
            if worker.task is not None:
                worker.process.terminate()
        for worker in self._workers:
            try:
                worker.process.wait(10)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        self._workers.clear()

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
        with contextlib.suppress(OSError):
            worker.connection.send(self.job)
        return worker

    def _outcome(self, worker: _Worker) -> Outcome | None:
        """What a worker has sent; None where it has died and its task begins again."""
        assert worker.task is not None
        number, entries = worker.task
        try:
            result: Receipt | BaseException = worker.connection.recv()
        except (EOFError, OSError):
            code = worker.process.wait()
            worker.connection.close()
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
    problem: Exception | None = None
    job: Job | None = None
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        try:
            job = connection.recv()
        except EOFError:
            raise
        except Exception as error:  # the source cannot be opened here, or the software differs
            problem = error
        while True:
            task = connection.recv()
            result = problem if job is None or problem is not None else attempt(job, *task).result
            connection.send(result if isinstance(result, Receipt) else _portable(result))


def _portable(error: BaseException | None) -> BaseException:
    """An exception that pickles, with its traceback as a note where it is no error that is raised on purpose."""
    from packstore.core.errors import PackstoreError

    assert error is not None
    if not isinstance(error, PackstoreError):
        error.add_note("".join(traceback.format_exception(error)))
    return error

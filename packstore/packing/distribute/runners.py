"""Runs tasks in this process, in several processes of this machine, or on a Ray cluster."""

from __future__ import annotations

import contextlib
import logging
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
from typing import Any, NamedTuple

from packstore.core.errors import PackstoreError, StoreError, UsageError, printable
from packstore.packing.distribute import SharedJob, TaskReceipt, run_task
from packstore.sources.base import Entry

TRIES = 3
"""Attempts at a task whose worker dies: one machine may fail, but a task that kills every worker is itself the cause,
for example because it needs too much memory."""

ENDING_SECONDS = 10.0
"""Seconds that interrupted tasks may take to clean up."""


class Outcome(NamedTuple):
    """Outcome of a task: its receipt, or its error."""

    number: int
    result: TaskReceipt | BaseException


class Runner(ABC):
    """Runs tasks of one job. A context manager: leaving it ends all running tasks."""

    @property
    @abstractmethod
    def slots(self) -> int:
        """Most tasks that may be submitted at once."""

    @property
    def at_once(self) -> int:
        """Most tasks that run at once, by default :attr:`slots`. Other submitted tasks wait for a worker."""
        return self.slots

    @abstractmethod
    def submit(self, number: int, entries: Sequence[Entry]) -> None:
        """Submits a task, or another copy of it."""

    @abstractmethod
    def wait(self, seconds: float | None = None) -> list[Outcome]:
        """Waits until at least one task has ended, and returns the outcomes. Returns an empty list after
        ``seconds``."""

    def drop(self, number: int) -> None:
        """Ends the remaining copies of a task, if the runner can. By default does nothing.

        :meth:`wait` may still return outcomes of these copies.
        """
        return

    def close(self) -> None:
        """Ends all tasks. Idempotent. By default does nothing."""
        return

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LocalRunner(Runner):
    """Runs one task after the other in this process, each with all threads."""

    slots = 1

    def __init__(self, job: SharedJob) -> None:
        self._job = job
        self._task: tuple[int, Sequence[Entry]] | None = None

    def submit(self, number: int, entries: Sequence[Entry]) -> None:
        """Remembers the task. :meth:`wait` runs it."""
        self._task = number, entries

    def wait(self, seconds: float | None = None) -> list[Outcome]:
        """Runs the submitted task and returns its outcome. Ignores ``seconds``."""
        assert self._task is not None
        number, entries = self._task
        try:
            return [Outcome(number, run_task(self._job, number, entries))]
        except Exception as error:
            return [Outcome(number, error)]


@dataclass(slots=True, eq=False)
class _WorkerProcess:
    """A worker process, and the task that it has now; None if it is idle."""

    process: subprocess.Popen[bytes]
    connection: Connection
    task: tuple[int, Sequence[Entry]] | None = None
    has_job: bool = False


class ProcessRunner(Runner):
    """Runs tasks in processes of this machine, which it starts on demand.

    If a process dies, runs its task again in another one. After :data:`TRIES` deaths the task's outcome is a
    :class:`StoreError`.
    """

    # The processes are fresh interpreters: nothing is forked, and ``__main__`` need not be importable. A thread talks
    # to each one, because a process that hangs may leave a message half read or half sent.

    slots = 1

    def __init__(self, job: SharedJob, count: int) -> None:
        self.slots = count
        self._pickled = pickle.dumps(job)
        self._workers: list[_WorkerProcess] = []
        self._dropped: list[_WorkerProcess] = []
        self._tries: dict[int, int] = {}
        self._answers: SimpleQueue[tuple[_WorkerProcess, TaskReceipt | BaseException | None]] = SimpleQueue()

    def submit(self, number: int, entries: Sequence[Entry]) -> None:
        """Hands the task to an idle process, or to a new one. A thread waits for the answer."""
        worker = next((worker for worker in self._workers if worker.task is None), None) or self._start_worker()
        worker.task = number, entries
        threading.Thread(target=self._run_in_worker, args=(worker,), name="packstore-worker", daemon=True).start()

    def wait(self, seconds: float | None = None) -> list[Outcome]:
        """Waits for one task to end and returns its outcome. Returns an empty list after ``seconds``.

        If a process has died, submits its task again.
        """
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            try:
                worker, result = self._answers.get(timeout=None if until is None else max(0, until - time.monotonic()))
            except Empty:
                return []
            if worker in self._workers and (outcome := self._handle_answer(worker, result)) is not None:
                return [outcome]

    def drop(self, number: int) -> None:
        """Ends the processes that run a task, without waiting."""
        for worker in [worker for worker in self._workers if worker.task is not None and worker.task[0] == number]:
            self._workers.remove(worker)
            self._dropped.append(worker)
            _end_worker(worker)

    def close(self) -> None:
        """Lets all processes clean up, for at most ten seconds together. Kills processes that still run."""
        for worker in self._workers:
            _end_worker(worker)
        until = time.monotonic() + ENDING_SECONDS
        for worker in [*self._workers, *self._dropped]:
            try:
                worker.process.wait(max(0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        self._workers.clear()
        self._dropped.clear()

    def _start_worker(self) -> _WorkerProcess:
        """Starts a process that runs :func:`serve_tasks`, and returns it."""
        ours, theirs = socket.socketpair()
        root = str(Path(__file__).resolve().parents[3])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        with theirs:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    f"from packstore.packing.distribute.runners import serve_tasks; serve_tasks({theirs.fileno()})",
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,  # Ctrl-C reaches only the driver, which ends them
            )
        worker = _WorkerProcess(process, Connection(ours.detach()))
        self._workers.append(worker)
        return worker

    def _run_in_worker(self, worker: _WorkerProcess) -> None:
        """Sends a process its task, waits for the answer, and queues it for :meth:`wait`."""
        result: TaskReceipt | BaseException | None = None
        try:
            if not worker.has_job:
                worker.connection.send_bytes(self._pickled)
                worker.has_job = True
            worker.connection.send(worker.task)
            result = worker.connection.recv()
        # The process has died: its answer is None.
        except (EOFError, OSError):
            worker.connection.close()
        except Exception as error:  # something cannot be pickled, or unpickled here
            result = error
        self._answers.put((worker, result))

    def _handle_answer(self, worker: _WorkerProcess, result: TaskReceipt | BaseException | None) -> Outcome | None:
        """Returns the outcome in a process's answer, or None if it died and its task was submitted again."""
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


def _end_worker(worker: _WorkerProcess) -> None:
    """Tells a process to clean up and end, without waiting for it."""
    if worker.task is None:
        worker.connection.close()  # idle: it ends when its socket closes
    else:
        worker.process.terminate()
    worker.process.send_signal(signal.SIGCONT)  # wakes a stopped worker


def serve_tasks(descriptor: int) -> None:
    """Runs a worker process until its socket ``descriptor`` is closed, or until SIGTERM.

    Reads a job from the socket, and then tasks. Answers each task with its receipt or error.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a task cleans up
    connection = Connection(descriptor)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        job = connection.recv_bytes()
        while True:
            connection.send(try_pickled_task(job, *connection.recv()))


def try_pickled_task(job: bytes, number: int, entries: Sequence[Entry]) -> TaskReceipt | BaseException:
    """Unpickles a job and runs a task of it, in a worker process. Returns the receipt or error.

    An error that is not packstore's own has its traceback as a note.
    """
    try:
        return run_task(pickle.loads(job), number, entries)
    except PackstoreError as error:
        return error
    except Exception as error:
        error.add_note("".join(traceback.format_exception(error)))
        return error


class RayRunner(Runner):
    """Runs tasks on a Ray cluster. Ray runs a task again if its worker or machine dies, up to :data:`TRIES` attempts.

    The constructor connects to Ray, unless this process is connected, and sends the job there.
    Raises :class:`UsageError` if ray is not installed or cannot connect.

    Args:
        job: Its ``workers`` are the threads of a task, and the cores that Ray reserves for it.
        tasks: Number of tasks in all.
        address: Address of a running cluster. If empty, starts one on this machine, which :meth:`close` ends. Ignored
            if this process is connected to a cluster already.
    """

    def __init__(self, job: SharedJob, tasks: int, address: str) -> None:
        try:
            import ray
        except ImportError:
            raise UsageError("a Ray cluster needs ray: pip install 'packstore[ray]'") from None
        self._ray: Any = ray
        self._connected = not ray.is_initialized()
        if self._connected:
            try:
                ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise UsageError(f"no Ray cluster at {printable(address)}: {printable(str(error))}") from None
        self._of = f"of {tasks:,}: {printable(job.run.objects.url)}"
        self._job = ray.put(pickle.dumps(job))
        self._cores = job.plan.options.workers or 1
        self._task: Any = ray.remote(num_cpus=self._cores, max_retries=TRIES - 1)(try_pickled_task)
        self._refs: dict[Any, int] = {}

    @property
    def slots(self) -> int:
        """Most tasks that may be submitted at once: twice :attr:`at_once`. No core waits for the driver."""
        return 2 * self.at_once

    @property
    def at_once(self) -> int:
        """Number of tasks that the cluster's present cores can run at once, at least 1. Changes with the cluster."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1) // self._cores))

    def submit(self, number: int, entries: Sequence[Entry]) -> None:
        """Submits the task to Ray under a name for its dashboard."""
        named = self._task.options(name=f"packstore shard {number + 1:,} {self._of}")
        self._refs[named.remote(self._job, number, entries)] = number

    def wait(self, seconds: float | None = None) -> list[Outcome]:
        """Waits until a task has ended. Returns the outcomes of all that have ended, or an empty list after
        ``seconds``."""
        self._ray.wait(list(self._refs), num_returns=1, timeout=seconds)
        ready, _ = self._ray.wait(list(self._refs), num_returns=len(self._refs), timeout=0)
        return [Outcome(self._refs.pop(ref), self._receive_result(ref)) for ref in ready]

    def drop(self, number: int) -> None:
        """Cancels the remaining copies of a task by force."""
        for ref in [ref for ref, its in self._refs.items() if its == number]:
            del self._refs[ref]
            self._ray.cancel(ref, force=True)

    def close(self) -> None:
        """Cancels all tasks, by force after ten seconds. Disconnects from Ray if this runner connected."""
        refs = list(self._refs)
        self._refs.clear()
        for force in (False, True):  # first lets interrupted tasks clean up
            for ref in refs:
                self._ray.cancel(ref, force=force)
            if refs:
                _, refs = self._ray.wait(refs, num_returns=len(refs), timeout=ENDING_SECONDS)
        if self._connected:
            self._ray.shutdown()
            self._connected = False

    def _receive_result(self, ref: Any) -> TaskReceipt | BaseException:
        """Returns the receipt of a finished task, or its error."""
        try:
            result: TaskReceipt | BaseException = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            first = printable(str(error).strip().partition("\n")[0])
            return StoreError(f"Ray could not run a task: {type(error).__name__}: {first}")
        return result

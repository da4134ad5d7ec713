"""Runs tasks on a Ray cluster: plain tasks of Ray Core, each with a name for its dashboard."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Sequence
from typing import Any

from packstore.core.errors import StoreError, UsageError, printable
from packstore.packing.distribute.cluster_run import TaskReceipt
from packstore.packing.distribute.runners import ENDING_SECONDS, TRIES, Outcome, Runner, try_pickled_task
from packstore.packing.distribute.task import ClusterJob
from packstore.sources.base import Entry


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

    def __init__(self, job: ClusterJob, tasks: int, address: str) -> None:
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
        """Returns the receipt of a finished task, or its error. Returns a :class:`StoreError` if Ray could not run the
        task."""
        try:
            result: TaskReceipt | BaseException = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            first = printable(str(error).strip().partition("\n")[0])
            return StoreError(f"Ray could not run a task: {type(error).__name__}: {first}")
        return result

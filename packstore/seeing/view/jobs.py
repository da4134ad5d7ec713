"""Background jobs over many records, with progress. The latest results are kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

_KEPT = 6
"""Most results that are kept; a selection of 1e7 records takes 80 MB."""
_THREADS = 2

Report = Callable[[int], None]
"""A job calls it with the number of records done. Raises :class:`StoppedError` to stop the job."""


class StoppedError(Exception):
    """Error that stops a job, since the page is being closed."""


class Job:
    """A job that waits, runs or has finished.

    Attributes:
        what: Description of the work.
        total: Number of records to process.
        done: Number of records processed.
        future: Future of its result.
        delivered: The result was delivered. After that, a failed job can be started again.
    """

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done = what, total, 0
        self.future: Future[Any] = Future()
        self.delivered = False

    @property
    def progress(self) -> dict[str, Any]:
        """Description and progress for the page: ``what``, ``done`` and ``total``."""
        return {"what": self.what, "done": self.done, "total": self.total}


class Jobs:
    """Runs jobs in two threads. A job runs once for all requests with the same key. Keeps the latest six results."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, "packstore-view")
        self._jobs: OrderedDict[Hashable, Job] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = False

    def start(self, key: Hashable, what: str, total: int, work: Callable[[Report], Any]) -> Job:
        """Returns the job with this key. Starts it if there is none, or if it failed and its error was delivered.

        Forgets finished jobs beyond six, the least recently requested first.
        """
        with self._lock:
            job = self._jobs.get(key)
            if job is None or (job.delivered and job.future.exception() is not None):
                job = self._jobs[key] = Job(what, total)
                self._pool.submit(self._run_job, job, work)
            self._jobs.move_to_end(key)
            finished = [name for name, other in self._jobs.items() if other.future.done() and other is not job]
            for name in finished[: max(0, len(self._jobs) - _KEPT)]:
                del self._jobs[name]
            return job

    def close(self) -> None:
        """Stops running jobs and waits for them. Jobs that have not begun never finish."""
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run_job(self, job: Job, work: Callable[[Report], Any]) -> None:
        """Runs the work of a job, and sets its result or error in the job's future. Called in a thread of the pool."""

        def report(done: int) -> None:
            """Notes the number of records done. Raises :class:`StoppedError` if the page is being closed."""
            if self._closed:
                raise StoppedError
            job.done = done

        try:
            result = work(report)
        except BaseException as error:
            job.future.set_exception(error)  # raised in the waiting request
        else:
            job.done = job.total
            job.future.set_result(result)

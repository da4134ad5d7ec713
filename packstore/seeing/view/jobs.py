"""Work that looks at all records: done in the background, with progress, and kept as long as there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

_KEPT = 6
"""Results that are kept; a selection of 1e7 records takes 80 MB."""
_THREADS = 2

Report = Callable[[int], None]
"""Is told how many records are done. Raises where the work is no longer wanted."""


class StoppedError(Exception):
    """The page is being closed."""


class Job:
    """One piece of work, under way or done.

    Attributes:
        what: What is being done, in words.
        total: How many records it looks at.
        done: How many of them it has looked at.
        future: Of its result.
        told: Somebody has seen that. One that failed begins anew from then on.
    """

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done = what, total, 0
        self.future: Future[Any] = Future()
        self.told = False

    @property
    def progress(self) -> dict[str, Any]:
        """What the page shows meanwhile."""
        return {"what": self.what, "done": self.done, "total": self.total}


class Jobs:
    """Runs each piece of work once, however many ask for it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, "packstore-view")
        self._jobs: OrderedDict[Hashable, Job] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = False

    def start(self, key: Hashable, what: str, total: int, work: Callable[[Report], Any]) -> Job:
        """The job with this key, started if nobody has."""
        with self._lock:
            job = self._jobs.get(key)
            if job is None or (job.told and job.future.exception() is not None):
                job = self._jobs[key] = Job(what, total)
                self._pool.submit(self._run, job, work)
            self._jobs.move_to_end(key)
            finished = [name for name, other in self._jobs.items() if other.future.done() and other is not job]
            for name in finished[: max(0, len(self._jobs) - _KEPT)]:
                del self._jobs[name]
            return job

    def close(self) -> None:
        """Stops what is under way."""
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, job: Job, work: Callable[[Report], Any]) -> None:
        def report(done: int) -> None:
            if self._closed:
                raise StoppedError
            job.done = done

        try:
            result = work(report)
        except BaseException as error:
            job.future.set_exception(error)  # whoever waits for it raises it
        else:
            job.done = job.total
            job.future.set_result(result)

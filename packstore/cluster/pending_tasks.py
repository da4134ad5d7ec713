"""The pending tasks of a run, and the stragglers among them, of which a second copy may be quicker."""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from packstore.sources.base import Entry

FACTOR = 3.0
"""A straggler has run this many times as long as the median task."""
LEAST_SECONDS = 30.0
"""A straggler has run at least this long."""
COPIES = 3


@dataclass(slots=True)
class _Task:
    """A pending task: its entries, the start of its newest copy, and its number of copies."""

    entries: Sequence[Entry]
    began: float
    copies: int = 1


class PendingTasks:
    """The tasks of a run that have begun and not ended.

    Iterating yields their numbers. The length is the number of running copies of all tasks. Keeps the durations of
    ended tasks, and chooses stragglers by them.
    """

    def __init__(self) -> None:
        self._tasks: dict[int, _Task] = {}
        self._seconds: list[float] = []  # durations of ended tasks, sorted

    def __iter__(self) -> Iterator[int]:
        return iter(self._tasks)

    def __len__(self) -> int:
        """Number of running copies."""
        return sum(task.copies for task in self._tasks.values())

    def __contains__(self, number: int) -> bool:
        return number in self._tasks

    def add_copy(self, number: int, entries: Sequence[Entry]) -> None:
        """Adds a task, or counts another copy of it. Its time starts now, also for a copy."""
        copies = self._tasks[number].copies + 1 if number in self._tasks else 1
        self._tasks[number] = _Task(entries, time.monotonic(), copies)

    def remove_task(self, number: int) -> int:
        """Removes a task when one copy of it has ended. Returns how many other copies still run.

        Keeps the time since its newest copy began, for the median of :meth:`_straggler_limit`.
        """
        task = self._tasks.pop(number)
        bisect.insort(self._seconds, time.monotonic() - task.began)
        return task.copies - 1

    def choose_stragglers(self, at_once: int) -> list[tuple[int, Sequence[Entry]]]:
        """Returns stragglers to copy to idle workers, at most one for each idle worker.

        Leaves out stragglers with three copies. Returns none before any task has ended. If all tasks are stragglers,
        every worker may hang: one straggler may then be copied without an idle worker.

        ``at_once``: number of workers.
        """
        limit = self._straggler_limit()
        if limit is None:
            return []
        now = time.monotonic()
        slow = {number: task for number, task in self._tasks.items() if now - task.began > limit}
        idle = at_once - len(self)
        if slow and len(slow) == len(self._tasks):
            idle = max(idle, 1)
        some = [(number, task.entries) for number, task in slow.items() if task.copies < COPIES]
        return some[: max(idle, 0)]

    def seconds_to_straggler(self) -> float | None:
        """Returns the seconds until the next task becomes a straggler.

        None if no task has ended yet, or if all pending tasks are stragglers already.
        """
        limit, now = self._straggler_limit(), time.monotonic()
        if limit is None:
            return None
        left = [task.began + limit - now for task in self._tasks.values()]
        return min((seconds for seconds in left if seconds > 0), default=None)

    def _straggler_limit(self) -> float | None:
        """Returns the seconds after which a task is a straggler: three times the median duration, at least 30.

        None before any task has ended.
        """
        return max(LEAST_SECONDS, FACTOR * self._seconds[len(self._seconds) // 2]) if self._seconds else None

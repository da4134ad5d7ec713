"""The tasks that run now, and which of them have taken so long that a second copy may be quicker."""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from packstore.sources.base import Entry

FACTOR = 3.0
"""A task is late that runs this many times as long as half of those before it."""
LEAST_SECONDS = 30.0
"""No task is late before, however short others were."""
COPIES = 3


@dataclass(slots=True)
class _Task:
    entries: Sequence[Entry]
    began: float
    copies: int = 1


class UnderWay:
    """The tasks of a run that have begun and not ended, by number. Iterating gives their numbers."""

    def __init__(self) -> None:
        self._tasks: dict[int, _Task] = {}
        self._seconds: list[float] = []  # of those that have ended, sorted

    def __iter__(self) -> Iterator[int]:
        return iter(self._tasks)

    def __len__(self) -> int:
        """How many copies run."""
        return sum(task.copies for task in self._tasks.values())

    def __contains__(self, number: int) -> bool:
        return number in self._tasks

    def begin(self, number: int, entries: Sequence[Entry]) -> None:
        """Notes that a task, or another copy of it, begins."""
        copies = self._tasks[number].copies + 1 if number in self._tasks else 1
        self._tasks[number] = _Task(entries, time.monotonic(), copies)

    def end(self, number: int) -> int:
        """Notes that a copy of a task has ended, and that no other counts. Returns how many still run."""
        task = self._tasks.pop(number)
        bisect.insort(self._seconds, time.monotonic() - task.began)
        return task.copies - 1

    def late(self, at_once: int) -> list[tuple[int, Sequence[Entry]]]:
        """The tasks of which another copy is to begin: those that are late, as many as idle workers are, where
        ``at_once`` tasks run at once. One more where all are late: then perhaps no worker does anything."""
        limit = self._limit()
        if limit is None:
            return []
        now = time.monotonic()
        late = {number: task for number, task in self._tasks.items() if now - task.began > limit}
        idle = at_once - len(self)
        if late and len(late) == len(self._tasks):
            idle = max(idle, 1)
        some = [(number, task.entries) for number, task in late.items() if task.copies < COPIES]
        return some[: max(idle, 0)]

    def seconds_to_late(self) -> float | None:
        """In how many seconds the next task is late; None where that cannot be said, or all are."""
        limit, now = self._limit(), time.monotonic()
        if limit is None:
            return None
        left = [task.began + limit - now for task in self._tasks.values()]
        return min((seconds for seconds in left if seconds > 0), default=None)

    def _limit(self) -> float | None:
        return max(LEAST_SECONDS, FACTOR * self._seconds[len(self._seconds) // 2]) if self._seconds else None

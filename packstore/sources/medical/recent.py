"""A few things that were made last, shared by threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any


class Recent:
    """Keeps what was made last, by key. One thread makes a thing; others that ask for it meanwhile wait."""

    def __init__(self, most: int = 3) -> None:
        self._most, self._lock = most, threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[threading.Lock, list[Any]]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The thing of a key. What ``make`` raises is raised, and nothing kept."""
        with self._lock:
            lock, found = self._kept.setdefault(key, (threading.Lock(), []))
            self._kept.move_to_end(key)
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        with lock:
            if not found:
                found.append(make())
            return found[0]

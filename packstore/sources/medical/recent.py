"""Cache of a few values, for threads that need the same ones at the same time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any


class RecentCache:
    """Keeps the ``size`` most recently used values by key. Only one thread makes a value; others that need the value
    wait."""

    def __init__(self, size: int = 3) -> None:
        self._size, self._lock = size, threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[threading.Lock, list[Any]]] = OrderedDict()

    def get_or_make(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Returns the value of a key; calls ``make`` if the cache has none. If ``make`` raises, passes the error on
        and keeps nothing."""
        with self._lock:
            lock, made = self._kept.setdefault(key, (threading.Lock(), []))
            self._kept.move_to_end(key)
            if len(self._kept) > self._size:
                self._kept.popitem(last=False)
        with lock:
            if not made:
                made.append(make())
            return made[0]

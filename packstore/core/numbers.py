"""Checks of numbers that callers give."""

from __future__ import annotations

from operator import index
from typing import Any

from packstore.core.errors import UsageError


def whole(name: str, value: Any, least: int = 1) -> int:
    """``value`` as an ``int``; raises :class:`UsageError` unless it is a whole number of at least ``least``."""
    try:
        number = index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise UsageError(f"{name} should be a whole number of at least {least}, got {value!r}")
    return number

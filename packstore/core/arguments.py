"""Checks of the values that callers give: each raises :class:`UsageError` that names the argument and the value."""

from __future__ import annotations

from operator import index
from typing import Any

from packstore.core.errors import UsageError


def whole_number(name: str, value: Any, least: int | None = 1) -> int:
    """``value`` as an ``int``, when it is a whole number of at least ``least`` (None: any)."""
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        at_least = "" if least is None else f" of at least {least}"
        raise UsageError(f"{name} should be a whole number{at_least}, got {value!r}")
    return number


def true_or_false(**values: Any) -> None:
    """Refuses what is neither True nor False: ``overwrite="no"`` would overwrite."""
    for name, value in values.items():
        if value not in (True, False):
            raise UsageError(f"{name} should be True or False, got {value!r}")


def text_or_none(**values: Any) -> None:
    """Refuses what is neither a ``str`` nor None."""
    for name, value in values.items():
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{name} should be text or None, got {value!r}")


def function_or_none(**values: Any) -> None:
    """Refuses what can neither be called nor is None."""
    for name, value in values.items():
        if value is not None and not callable(value):
            raise UsageError(f"{name} should be a function or None, got {value!r}")

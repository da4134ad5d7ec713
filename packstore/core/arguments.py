"""Checks of arguments: each raises :class:`UsageError` with the name and the value of a wrong argument."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from operator import index
from typing import Any, TypeVar

from packstore.core.errors import UsageError

Options = TypeVar("Options")


def take_options(options: type[Options], arguments: Mapping[str, Any]) -> Options:
    """Makes a dataclass of options from arguments by name.

    Each field gets the argument of its name, or keeps its default. Ignores other arguments.
    """
    names = [field.name for field in fields(options)]  # type: ignore[arg-type]
    return options(**{name: arguments[name] for name in names if name in arguments})


def whole_number(name: str, value: Any, least: int | None = 1) -> int:
    """Converts ``value`` to an ``int``. A ``least`` of None allows any number.

    Raises :class:`UsageError` for a bool, for a float (also 3.0), for anything else that is no ``int``, and for a
    number below ``least``. Accepts numpy's whole numbers.
    """
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        at_least = "" if least is None else f" of at least {least}"
        raise UsageError(f"{name} should be a whole number{at_least}, got {show_value(value)}")
    return number


def parse_numbers(name: str, values: Any) -> tuple[float, ...]:
    """Converts numbers in a list, tuple or array to floats.

    Accepts infinity, and texts of numbers in a list. Raises :class:`UsageError` for no numbers, for NaN, and for
    anything else.
    """
    try:
        numbers = () if isinstance(values, str | bytes) else tuple(map(float, values))
    except (TypeError, ValueError, OverflowError):
        numbers = ()
    if not numbers or any(map(math.isnan, numbers)):
        raise UsageError(f"{name} should be a list of numbers, got {show_value(values)}")
    return numbers


def show_value(value: Any) -> str:
    """Returns the ``repr`` of an argument for messages. Describes numbers with more digits than Python prints."""
    try:
        return repr(value)
    except ValueError:
        return "a number with thousands of digits"


def check_bools(**values: Any) -> None:
    """Raises :class:`UsageError` unless each value equals True or False. Accepts 1 and 0."""
    for name, value in values.items():
        if value not in (True, False):
            raise UsageError(f"{name} should be True or False, got {show_value(value)}")


def check_texts(**values: Any) -> None:
    """Raises :class:`UsageError` unless each value is a ``str`` or None."""
    for name, value in values.items():
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{name} should be text or None, got {show_value(value)}")


def check_callables(**values: Any) -> None:
    """Raises :class:`UsageError` unless each value is callable or None."""
    for name, value in values.items():
        if value is not None and not callable(value):
            raise UsageError(f"{name} should be a function or None, got {show_value(value)}")

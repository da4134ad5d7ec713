"""Checks of arguments: each raises :class:`UsageError` with the name and the value of a wrong argument."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from numbers import Real
from operator import index
from typing import Any, TypeVar

from packstore.core.errors import UsageError

Options = TypeVar("Options")

MOST_NUMBER = (1 << 64) - 1
"""Largest whole number of an option; seeds have 64 bits."""
_MOST_VALUES = 1000
_MOST_SHOWN = 200
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_MOST_DIGITS = 30


def take_options(options: type[Options], arguments: Mapping[str, Any]) -> Options:
    """Makes a dataclass of options from arguments by name.

    Each field gets the argument of its name, or keeps its default. Ignores other arguments.
    """
    names = [field.name for field in fields(options)]  # type: ignore[arg-type]
    return options(**{name: arguments[name] for name in names if name in arguments})


def whole_number(name: str, value: Any, least: int | None = 1) -> int:
    """Converts ``value`` to an ``int``. A ``least`` of None allows any number.

    Raises :class:`UsageError` for a bool, for a float (also 3.0), for anything else that is no ``int``, and for a
    number below ``least`` or of more than 64 bits. Accepts numpy's whole numbers.
    """
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        at_least = "" if least is None else f" of at least {least}"
        raise UsageError(f"{name} should be a whole number{at_least}, got {show_value(value)}")
    if not -MOST_NUMBER <= number <= MOST_NUMBER:
        raise UsageError(f"{name} should be a whole number of at most 64 bits, got {show_value(value)}")
    return number


def check_numbers(
    name: str, value: Any, most: int = MOST_NUMBER, *, bools: bool = False, texts: bool = True, wanted: str = "a number"
) -> None:
    """Checks all numbers in ``value``, at any depth of lists, tuples and mappings of up to 1,000 values.

    Raises :class:`UsageError` for NaN and infinity, and for numbers beyond ``most`` on either side. Unless allowed,
    raises it for a bool where a number is meant, and for a text. ``wanted`` says in the message what is meant.
    """
    for each in _iterate_values(value):
        wanted = wanted if each is value else "numbers"
        if isinstance(each, bool) or type(each).__name__ == "bool_":
            if not bools:
                raise UsageError(f"{name} should be {wanted}, got {show_value(value)}")
        elif isinstance(each, str):
            if not texts:
                raise UsageError(f"{name} should be {wanted}, got {show_value(value)}")
        elif isinstance(each, Real) and not _is_within(each, most):
            raise UsageError(f"{name} should be a finite number of at most {most:.3g}, got {show_value(value)}")


def _is_within(number: Any, most: int) -> bool:
    """Tells if a number is from ``-most`` to ``most``, which NaN is not."""
    return bool(number == number and -most <= number <= most)  # some versions of numpy warn of NaN in <=


def refuse_numbers(name: str, value: Any, expected: str) -> None:
    """Raises :class:`UsageError` for a number in ``value``, where none is meant. Looks as deep as
    :func:`check_numbers`. ``expected`` says in the message what is meant."""
    if any(isinstance(each, Real) for each in _iterate_values(value)):
        raise UsageError(f"{name} should be {expected}, got {show_value(value)}")


def _iterate_values(value: Any) -> Iterator[Any]:
    """Yields the values in lists, tuples and mappings, at any depth; else the value itself."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, list | tuple | Mapping):
            yield each
        elif len(each) <= _MOST_VALUES:  # longer ones are lists of indices
            waiting.extend(each.values() if isinstance(each, Mapping) else each)


def show_value(value: Any) -> str:
    """Returns the ``repr`` of an argument for messages, of at most 200 characters. Describes numbers with more digits
    than Python prints."""
    try:
        text = repr(value)
    except ValueError:
        return "a number with thousands of digits"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


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


def convert_size(size: int | str | None) -> int | None:
    """Converts the value of an option to bytes: parses a text as :func:`parse_bytes` does, returns others unchanged."""
    return parse_bytes(size) if isinstance(size, str) else size


def parse_bytes(text: str, least_bare: int = 1000) -> int:
    """Parses a number of bytes, such as ``500MB``, ``1.5GiB`` or ``4096``. Drops the fraction of a byte.

    Raises :class:`UsageError` for any other text, and for more than 30 digits. Raises it also for a number without a
    unit below ``least_bare``, except 0: the unit was probably forgotten.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", text.strip().lower(), re.ASCII)
    if match is None or match[2] not in _UNITS:
        raise UsageError(f"{text!r} is not a size; write for example 500MB or 1GiB")
    if len(match[1]) > _MOST_DIGITS:
        raise UsageError(f"{text[:_MOST_DIGITS]!r}… is larger than any disk; write for example 500MB or 1GiB")
    if 0 < float(match[1]) < least_bare and text.strip()[-1].isdigit():
        raise UsageError(f"{text!r} has no unit; write for example {text}MB or {text}GB")
    return int(float(match[1]) * _UNITS[match[2]])

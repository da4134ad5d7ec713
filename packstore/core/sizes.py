"""Parses numbers of bytes with units: ``500MB``, ``1GiB``."""

from __future__ import annotations

import re

from packstore.core.errors import UsageError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_MOST_DIGITS = 30


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

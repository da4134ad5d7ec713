"""Answers to the questions about one column of image files: ``--column NAME.depth=scale``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from packstore.core.errors import UsageError, printable
from packstore.images.reading import EXPECTED

KEEP = "keep"
"""Value of ``mode``, ``depth`` and ``alpha``: as in the first image."""


class Answers(NamedTuple):
    """Answers that hold for one column, see :class:`packstore.images.reading.Reading`; or ``keep``."""

    mode: str | None = None
    depth: str | None = None
    alpha: str | None = None
    frames: str | None = None

    def __contains__(self, value: object) -> bool:
        return value in tuple(self)


def split_columns(columns: Sequence[str]) -> tuple[tuple[str, ...], dict[str, dict[str, str]]]:
    """Splits the values of ``--column``: meanings of a source's columns, and answers by column and name.

    Raises:
        UsageError: An answer is given twice, or is of the main image.
    """
    meanings: list[str] = []
    answers: dict[str, dict[str, str]] = {}
    for each in columns:
        left, _, value = each.partition("=")
        column, _, name = left.rpartition(".")
        if not column or name not in Answers._fields:
            meanings.append(each)
            continue
        if column == "image":
            raise UsageError(f"--column {printable(each)!r}: of the main image say --{name} {printable(value)}")
        own = answers.setdefault(column, {})
        if name in own:
            raise UsageError(f"--column {printable(left)} is given twice")
        own[name] = value
    return tuple(meanings), answers


def format_answers(answers: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Returns the answers as a manifest stores them; ``keep`` and modes are in the modes of the columns."""
    return {
        f"{column}.{name}": value
        for column, own in answers.items()
        for name, value in own.items()
        if name in EXPECTED and value != KEEP
    }

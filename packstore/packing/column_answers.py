"""Options of a single column of image files: ``--column NAME.depth=scale``.

They answer the question that a conversion asks if a file would lose something, so they are called answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from packstore.core.errors import UsageError, printable
from packstore.core.modes import RGB, parse_mode
from packstore.images.reading import EXPECTED, Reading
from packstore.sources.encodings import check_columns

KEEP = "keep"
"""Value of ``mode``, ``depth`` and ``alpha``: as in the first image."""


class Answers(NamedTuple):
    """Options ``mode``, ``depth``, ``alpha`` and ``frames`` of one column, see
    :class:`packstore.images.reading.Reading`.

    None means that the option is not given. ``keep`` takes the column's first file as the model. ``in`` tells if
    one of the options has a value.
    """

    mode: str | None = None
    depth: str | None = None
    alpha: str | None = None
    frames: str | None = None

    def __contains__(self, value: object) -> bool:
        return value in tuple(self)


def split_column_options(columns: Sequence[str]) -> tuple[tuple[str, ...], dict[str, dict[str, str]]]:
    """Splits the values of ``--column`` in two: meanings of table columns, and options of single image columns.

    Meanings (``label=kind``) stay as they are. Options (``near.depth=keep``) are returned by column and name.

    Raises:
        UsageError: An option of a column occurs twice, or belongs to the main image.
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
    """Returns options of single columns in the manifest's form: ``COLUMN.NAME`` to value.

    Leaves out ``keep``. Leaves out modes, which the manifest's columns have.
    """
    return {
        f"{column}.{name}": value
        for column, own in answers.items()
        for name, value in own.items()
        if name in EXPECTED and value != KEEP
    }


def check_column_options(columns: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the values of ``--column`` as a tuple. A single text becomes one value.

    Raises :class:`UsageError` for invalid values.
    """
    given = (columns,) if isinstance(columns, str) else columns
    if not isinstance(given, (tuple, list)) or not all(isinstance(each, str) for each in given):
        return check_columns(columns)  # says what is wrong
    meanings, answers = split_column_options(given)
    check_columns(meanings)
    for column, own in answers.items():
        try:
            check_mode_options(*Answers(**own))
        except UsageError as error:
            raise UsageError(f"--column {printable(column)}: {error}") from None
    return tuple(given)


def check_mode_options(mode: str | None, depth: str | None, alpha: str | None, frames: str | None) -> None:
    """Raises :class:`UsageError` for an invalid mode, depth, alpha or frames, and if depth and mode contradict each
    other."""
    named = RGB.name if mode in (None, KEEP) else mode
    if not isinstance(named, str):
        raise UsageError(f"mode should be the name of a mode or keep, got {mode!r}")
    kept = {name: None if value == KEEP else value for name, value in (("depth", depth), ("alpha", alpha))}
    reading = Reading(named, kept["depth"], kept["alpha"], frames)
    if mode is not None and depth == KEEP and parse_mode(reading.mode).dtype == "uint8" and mode != KEEP:
        raise UsageError(f"mode {mode} has 8 bits, so depth cannot be kept; use --mode keep")
    if mode == KEEP and reading.depth is not None:
        raise UsageError(f"mode keep keeps all bits, so depth {depth} cannot apply; leave one of the two out")

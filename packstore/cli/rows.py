"""Rows of a report, from which its text and its JSON come; colours; readable numbers."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packstore.core.errors import join_names, printable
from packstore.core.registry import FORMATS

if TYPE_CHECKING:
    from packstore.core.manifest import Manifest, Normalization, Skipped
    from packstore.sources.ledger import Ledger

LISTED = 10
"""Most names that a row lists."""
_NAMED = 3


class Rows:
    """Rows of a report, each with a name, its text, and its values in the JSON."""

    def __init__(self, width: int | None = None, indent: str = "") -> None:
        """``width``: least width of names; None: that of the longest, and one more. ``indent``: before each name."""
        self.values: dict[str, Any] = {}
        self._width, self._indent = width, indent
        self._rows: list[tuple[str | None, str]] = []

    def add(self, name: str, *texts: str, **values: Any) -> None:
        """Adds a row for each text, and values to the JSON. A row with the name ``""`` continues the row above."""
        self._rows += [(name, text) for text in texts]
        self.values |= values

    def add_lines(self, *lines: str, **values: Any) -> None:
        """Adds lines that have no name, and values to the JSON."""
        self._rows += [(None, line) for line in lines]
        self.values |= values

    def add_store(self, path: Path, manifest: Manifest) -> None:
        """Adds a line on a new store, and what its manifest says to the JSON."""
        kind = f"{manifest.encoding} in {FORMATS[manifest.format].title}"
        self.add_lines(f"{printable(str(path))}: {bold(pluralize(manifest.records, 'record'))} ({kind})")
        self.values |= {
            "destination": str(path),
            "records": manifest.records,
            "format": manifest.format,
            "encoding": manifest.encoding,
            "dataset_digest": manifest.dataset_digest,
            "splits": {split.name: len(split) for split in manifest.splits},
            "classes": {column.name: column.classes for column in manifest.columns if column.classes is not None},
            "shards": len(manifest.shards or ()) or 1,
        }

    def add_splits(self, splits: Mapping[str, int]) -> None:
        """Adds a row with the number of records of each named split."""
        self._rows += [(f"  {printable(name):<10}", f"{count:,}") for name, count in splits.items() if name]

    def add_skipped(self, skipped: Sequence[Skipped]) -> None:
        """Adds skipped samples: their number, and a line for each. The text has nothing if there are none."""
        listed = [{"key": each.key, "reason": each.reason} for each in skipped]
        self.add(yellow("skipped"), *if_any(len(skipped), "sample", ":"), skipped=listed)
        self.add_lines(*(f"    {printable(each.key)}: {printable(each.reason)}" for each in skipped))

    def add_some(
        self,
        name: str | None,
        texts: Sequence[str],
        count: int,
        most: int = 50,
        *,
        indent: str = "",
        others: str = "more (--json lists them)",
    ) -> None:
        """Adds a row for each of the first ``most`` texts, and one that counts the others of ``count``.

        With None for ``name``, adds lines, after ``indent``. ``others``: what the others are called.
        """
        more = [f"… and {count - most:,} {others}"] if count > most else []
        self._rows += [(name, indent + text) for text in (*texts[:most], *more)]

    @property
    def text(self) -> str:
        """The report as text."""
        return "\n".join((start + text).rstrip() for start, text in self._list_lines())

    def echo(self, as_json: bool = False) -> None:
        """Prints the values as JSON, or the text. In a terminal, wraps the texts of rows and indented lines."""
        if as_json:
            click.echo(json.dumps(self.values, indent=2))
        elif sys.stdout.isatty():
            columns = max(40, shutil.get_terminal_size().columns)
            for start, text in self._list_lines():
                # Other lines stay whole: they may have commands to copy.
                click.echo("\n".join(wrap_row(start, text, columns)) if start else text)
        else:
            click.echo(self.text)

    def _list_lines(self) -> list[tuple[str, str]]:
        """Returns each line in two parts: what is before its text, and the text."""
        lengths = [len(click.unstyle(name)) for name, _ in self._rows if name is not None]
        width = max(lengths, default=0) + 1 if self._width is None else self._width
        lines = []
        for name, text in self._rows:
            if name is None:
                start = text[: len(text) - len(text.lstrip(" "))]
                lines.append((start, text[len(start) :]))
            else:
                lines.append((f"{self._indent}{name}{' ' * (width - len(click.unstyle(name)))} ", text))
        return lines


def bold(text: str) -> str:
    """Returns ``text`` in bold if standard output shows colours, else unchanged. For key figures."""
    return click.style(text, bold=True) if _shows_colours(1) else text


def red(text: str, stream: int = 1) -> str:
    """Returns ``text`` in red if the stream shows colours, else unchanged. For marks of errors.

    ``stream``: 1 for standard output, 2 for standard error.
    """
    return click.style(text, fg="red", bold=True) if _shows_colours(stream) else text


def yellow(text: str, stream: int = 1) -> str:
    """Returns ``text`` in yellow if the stream shows colours, else unchanged. For marks of warnings."""
    return click.style(text, fg="yellow", bold=True) if _shows_colours(stream) else text


def _shows_colours(stream: int) -> bool:
    """Tells if standard output (1) or error (2) is a terminal that shows colours."""
    # https://no-color.org
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return (sys.stdout if stream == 1 else sys.stderr).isatty()


def wrap_row(start: str, text: str, columns: int) -> list[str]:
    """Wraps ``text`` after ``start`` to lines of at most ``columns`` visible characters, further lines below the text.

    Does not break words.
    """
    indent = " " * len(click.unstyle(start))
    lines, line = [], start
    for number, word in enumerate(text.split(" ")):
        if number and len(click.unstyle(f"{line} {word}")) > columns:
            lines.append(line)
            line = indent + word
        else:
            line += f" {word}" if number else word
    return [*lines, line]


def wrap_text(start: str, text: str, columns: int) -> list[str]:
    """Wraps ``text``, made printable, after ``start`` to lines of at most ``columns`` characters, at least 40.

    Indents further lines by the length of ``start``. Does not break words.
    """
    return wrap_row(start, printable(text).rstrip(), max(40, columns))


def human_bytes(n: float) -> str:
    """Formats a number of bytes in decimal units up to TB, with three digits: ``1.23 MB``."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(n) < 999.5 or unit == "TB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.3g} {unit}"
        n /= 1000
    raise AssertionError("not reached")


def format_time(seconds: float) -> str:
    """Formats a time in seconds since the epoch as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def pluralize(n: int, noun: str, plural: str | None = None) -> str:
    """Formats a number with its noun: ``1 record``, ``1,200 records``."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def if_any(n: int, noun: str, after: str = "") -> list[str]:
    """Returns a number with its noun and the text ``after``, or nothing if the number is 0."""
    return [f"{pluralize(n, noun)}{after}"] if n else []


def format_splits(manifest: Manifest) -> list[str]:
    """Formats names and sizes of the splits: ``train 1,200, val 80``. Empty without splits."""
    return [", ".join(f"{printable(each.name)} {len(each):,}" for each in manifest.splits)] if manifest.splits else []


def format_normalization(normalization: Normalization) -> str:
    """Formats mean and standard deviation: ``mean 0.491, 0.482, 0.447, std 0.247, 0.243, 0.262``."""
    mean, std = (", ".join(f"{v:.4g}" for v in values) for values in (normalization.mean, normalization.std))
    return f"mean {mean}, std {std}"


def format_classes(classes: Sequence[str]) -> str:
    """Formats number and first names of classes: ``12 (ant, bee, …)``."""
    return f"{len(classes):,} ({join_names(classes)})"


def format_column_classes(column: str, classes: Sequence[str]) -> str:
    """Formats a column's name with its classes: ``label: 12 (ant, bee, …)``."""
    return f"{printable(column)}: {format_classes(classes)}"


def format_conversions(unified: Mapping[str, int]) -> list[str]:
    """Formats counts of images that were converted to the store's mode without loss.

    A line for each conversion: ``12 gray images: all channels are equal``.
    """
    from packstore.images.image_files import UNIFIED

    named = ((count, *UNIFIED[name]) for name, count in unified.items())
    return [f"{pluralize(count, one, several)}: {way}" for count, one, several, way in named]


def format_ledger(ledger: Ledger, skipped: int = 0) -> list[str]:
    """Summarises a ledger (the roles of a source's files) on one or two lines. Empty without files.

    The first line: ``1,012 images packed, 3 annotation files read, 2 left out: README.txt``. It names up to three files
    that are left out. If more are left out, it has the three most frequent reasons instead of names.

    The second line counts the parts of packed files that are left out.

    ``skipped``: number of skipped samples. The ledger counts their files as packed, since it is made before samples are
    read.
    """
    from packstore.sources.ledger import Role
    from packstore.sources.listing import IMAGE_SUFFIXES

    if not ledger.total:
        return []
    packed, read, evidence, left = (ledger.count(role) for role in Role)
    images = sum(ledger.suffixes.get(suffix, 0) for suffix in IMAGE_SUFFIXES)
    done = f"packed, except those of {pluralize(skipped, 'skipped sample')}" if skipped else "packed"
    parts = [f"{pluralize(packed, 'image' if images >= packed else 'file')} {done}"]
    if read:
        parts.append(f"{pluralize(read, 'annotation file')} read")
    if evidence:
        parts.append(f"{evidence:,} used as evidence ({_join_first(ledger.names(Role.EVIDENCE), evidence)})")
    if left:
        parts.append(f"{left:,} left out: {_join_first(ledger.names(Role.LEFT), left) if left <= _NAMED else ''}")
    if left > _NAMED:
        most = sorted(ledger.left.items(), key=lambda item: (-item[1], item[0]))
        parts[-1] += _join_reasons(most[:_NAMED]) + (" …" if len(most) > _NAMED else "")
    inside = _join_reasons(ledger.members.items())
    return [", ".join(parts), *([f"left out of files: {inside}"] if inside else [])]


def ledger_values(ledger: Ledger) -> dict[str, Any]:
    """Returns the JSON values of a ledger. Includes the names of all files that are not packed."""
    from packstore.sources.ledger import Role

    return {
        "files": {role.value: ledger.count(role) for role in Role},
        "left": dict(ledger.left),
        "left_in_files": dict(ledger.members),
        "suffixes": dict(ledger.suffixes),
        "names": {role.value: list(ledger.names(role)) for role in Role if role is not Role.PACKED},
    }


def _join_reasons(counts: Iterable[tuple[str, int]]) -> str:
    """Joins reasons and their counts: ``hidden (3), system files (1)``."""
    return ", ".join(f"{printable(reason)} ({count:,})" for reason, count in counts)


def _join_first(names: Iterable[str], count: int) -> str:
    """Joins the first three of ``count`` names, with an ellipsis if there are more."""
    return ", ".join(map(printable, islice(names, _NAMED))) + (" …" if count > _NAMED else "")

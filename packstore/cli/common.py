"""Shared parts of the commands: parameter types, readable sizes, the progress bar."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from packstore.cli.colour import yellow
from packstore.core.arguments import parse_bytes
from packstore.core.errors import AmbiguousSourceError, Answer, StoreError, UsageError, printable

if TYPE_CHECKING:
    from packstore.core.manifest import Normalization, Skipped
    from packstore.core.progress import ProgressCallback
    from packstore.core.registry import Registry
    from packstore.sources.ledger import Ledger

_LISTED = 10
_NAMED = 3
_TAKING_SOURCES = ("append", "convert", "info")
"""Commands with a SOURCE that suggested options can be added to."""


class LocalPath(click.Path):
    """A path. Refuses an empty one: it most likely comes from an unset shell variable."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Converts text to a :class:`Path`. Fails for an empty text."""
        if value == "":
            self.fail("it is empty; use . for the working directory", param, ctx)
        return super().convert(value, param, ctx)


class StorePath(LocalPath):
    """A path or a URL. Refuses an empty one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Converts text to a :class:`Path`, or to a :class:`UrlPath` if it is a URL. Fails for an empty text."""
        from packstore.core.urls import UrlPath, location

        place = location(value)  # before Path would merge the slashes of a URL
        return place if isinstance(place, UrlPath) else super().convert(value, param, ctx)


class ByteSize(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.2 on
    """A number of bytes such as 500MB or 1GiB.

    Attributes:
        least_bare: Smallest number that is accepted without a unit. For a smaller number, the unit was probably
            forgotten.
    """

    name = "size"
    least_bare = 1000

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parses a number of bytes with a unit, or of at least ``least_bare`` without one. Fails for other text.

        Returns an ``int`` unchecked.
        """
        if isinstance(value, int):
            return value
        try:
            return parse_bytes(str(value), self.least_bare)
        except UsageError as error:
            self.fail(str(error), param, ctx)


class PixelCount(ByteSize):
    """A number of pixels such as 100M, at least 1. Refuses units of bytes."""

    name = "pixels"
    least_bare = 0

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parses a number of pixels, at least 1. Fails for a unit of bytes and for other text."""
        if str(value).strip().lower().endswith("b"):
            self.fail(f"{value!r} is not a number of pixels; write for example 100M", param, ctx)
        count = super().convert(value, param, ctx)
        if count < 1:
            self.fail(f"{value!r} should be at least 1", param, ctx)
        return count


class Kinds(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.2 on
    """Kinds of findings, separated by commas; ``any`` for all. Refuses unknown ones."""

    name = "kinds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Splits kinds of findings at commas. Returns all kinds for ``any`` alone. Fails for an unknown kind.

        Values other than text become a tuple, unchecked.
        """
        from packstore.core.findings import list_kinds

        if not isinstance(value, str):
            return tuple(value)
        names = [name.strip() for name in value.split(",")]
        kinds = list_kinds()
        if names == ["any"]:
            return tuple(kinds)
        for name in names:
            if name not in kinds:
                self.fail(f"unknown kind of finding {name!r}; use any, or some of {', '.join(kinds)}", param, ctx)
        return tuple(names)


class PluginChoice(click.Choice):  # type: ignore[type-arg]
    """A name in a registry. The help lists only built-in names.

    Plug-ins are loaded to check an unknown name, and to complete a name.
    """

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry.built_in)
        self._registry = registry

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the name of a built-in kind or a plug-in. Fails for another name, and lists all names."""
        try:
            self._registry.check(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Returns the names that begin with ``incomplete``, including those of plug-ins."""
        return [CompletionItem(name) for name in self._registry if name.startswith(incomplete)]


class ImageSize(click.ParamType):  # type: ignore[type-arg]
    """``S`` or ``HxW`` (height x width) in pixels, each of at most five digits. Becomes a number or a tuple."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parses ``224`` as a number, ``32x48`` as (height, width). Fails for other text.

        Returns values other than text unchecked.
        """
        if not isinstance(value, str):
            return value
        match = re.fullmatch(r"([1-9]\d{0,4})(?:[x×]([1-9]\d{0,4}))?", value.strip().lower())
        if match is None:
            self.fail(f"{value!r} is not a size; write for example 224 or 32x48 (height x width)", param, ctx)
        return int(match[1]) if match[2] is None else (int(match[1]), int(match[2]))


def shell_quote(path: Path | str) -> str:
    """Quotes ``path`` for the shell. A path with unprintable characters becomes ``$'…'``."""
    text = str(path)
    if printable(text) == text:
        return shlex.quote(text)

    def escape_character(character: str) -> str:
        if character in "'\\":
            return f"\\{character}"
        if printable(character) == character:
            return character
        return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))

    return f"$'{''.join(map(escape_character, text))}'"


def format_source_options(options: Mapping[str, Any]) -> str:
    """Formats options for reading a source as part of a command line: `` --name value``, quoted.

    Repeats an option for each value of a tuple. Leaves out None. Writes ``source_kind`` as ``--source``, and
    ``columns`` as ``--column``.
    """
    given = [(name, each) for name, v in options.items() for each in (v if isinstance(v, tuple) else (v,))]
    called = {"source_kind": "source", "columns": "column"}
    shown = [(called.get(name, name).replace("_", "-"), value) for name, value in given if value is not None]
    return "".join(f" --{name} {shell_quote(value)}" for name, value in shown)


@contextmanager
def suggest_packing(path: Path) -> Iterator[None]:
    """Suggests to pack ``path`` if the block raises :class:`StoreError` and ``path`` is a source.

    The error becomes :class:`UsageError` with the command that packs ``path``. If ``path`` is no source, the error
    stays.
    """
    try:
        yield
    except StoreError as error:
        from packstore.sources import find_kind
        from packstore.sources.questions import short_help
        from packstore.stores.opening import looks_like_store

        if not (path.is_file() or path.is_dir()) or (path.is_dir() and looks_like_store(path, b"")):
            raise
        kind = find_kind(path)
        if kind is None:
            raise
        raise UsageError(
            f"{printable(str(path))} is {short_help(kind)}; pack it first: {packing_command(path)}"
        ) from error


def suggest_commands(error: AmbiguousSourceError, arguments: Sequence[str]) -> list[str]:
    """Returns a command line for each answer to an ambiguous source. Empty if the error names no source.

    If the command in ``arguments`` takes the answer's options, the line repeats ``arguments`` and adds these options.
    In the repeated line, the answer's source replaces the given one. A given file inside the source stays if the
    answer's kinds accept that file.

    Otherwise the line is ``packstore convert SOURCE NAME.lmdb`` with these options. It is also this line if
    ``arguments`` do not name the source.
    """
    if error.source is None:
        return []
    asked = [number for number, text in enumerate(arguments) if number and Path(text) == error.source]
    files = [n for n, text in enumerate(arguments) if n and _is_description_of(Path(text), error.source)]
    command = next((text for text in arguments if not text.startswith("-")), "")
    commands = []
    for answer in error.answers:
        only_packing = ("--split" in answer.options and command != "convert") or (
            "--on-error" in answer.options and command not in ("convert", "append")
        )
        if not (asked or files) or command not in _TAKING_SOURCES or only_packing:
            options = "".join(f" {shell_quote(text)}" for text in answer.options)
            commands.append(packing_command(answer.source or error.source, options))
            continue
        words = [*arguments]
        if asked or answer.source or not _is_for_file(answer, Path(words[files[0]])):
            words[(asked or files)[0]] = str(answer.source or error.source)
        commands.append(" ".join(["packstore", *map(shell_quote, words), *map(shell_quote, answer.options)]))
    return commands


def _is_for_file(answer: Answer, file: Path) -> bool:
    """Tells if a command with the options of ``answer`` can name ``file`` in place of its folder.

    Each kind of source in the options must be able to open its folder by this file.
    """
    from packstore.core.registry import SOURCES
    from packstore.sources import SourceOptions, find_described_folder

    kinds = [SOURCES[text] for option, text in pairwise(answer.options) if option == "--source"]
    return all(find_described_folder(file, SourceOptions(), kind) for kind in kinds)


def _is_description_of(file: Path, folder: Path | None = None) -> bool:
    """Tells if ``file`` can be the source in place of its folder. It must exist, with the suffix of a description
    (CSV, JSON, YAML …).

    It must be in ``folder``, or in a folder directly below. With None for ``folder``, it may be anywhere.
    """
    from packstore.sources import DESCRIBING

    near = folder in (None, file.parent, file.parent.parent)
    return near and file.suffix.lower() in DESCRIBING and file.is_file()


def packing_command(path: Path, options: str = "") -> str:
    """Returns the ``packstore convert`` command that packs the source at ``path``. The store is a ``.lmdb`` of the
    source's name in the working directory.

    ``options``: text to append, which begins with a space.
    """
    name = path.stem if _is_description_of(path) else path.name.removesuffix(".tar.gz") or path.resolve().name
    return f"packstore convert {shell_quote(path)} {shell_quote(Path(f'{name}.lmdb'))}{options}"


def human_bytes(n: float) -> str:
    """Formats a number of bytes in decimal units up to TB, with three digits: ``1.23 MB``."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(n) < 999.5 or unit == "TB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.3g} {unit}"
        n /= 1000
    raise AssertionError("not reached")


def describe_normalization(normalization: Normalization) -> str:
    """Formats mean and standard deviation: ``mean 0.491, 0.482, 0.447, std 0.247, 0.243, 0.262``."""
    mean, std = (", ".join(f"{v:.4g}" for v in values) for values in (normalization.mean, normalization.std))
    return f"mean {mean}, std {std}"


def format_classes(classes: Sequence[str]) -> str:
    """Formats number and first names of classes: ``12 (ant, bee, …)``."""
    shown = ", ".join(printable(name) for name in classes[:_LISTED])
    return f"{len(classes):,} ({shown}{', …' if len(classes) > _LISTED else ''})"


def pluralize(n: int, noun: str, plural: str | None = None) -> str:
    """Formats a number with its noun: ``1 record``, ``1,200 records``."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def describe_conversions(unified: Mapping[str, int]) -> list[str]:
    """Formats counts of images that were converted to the store's mode without loss.

    A line for each conversion: ``12 gray images: all channels are equal``.
    """
    from packstore.images.losses import UNIFIED

    named = ((count, *UNIFIED[name]) for name, count in unified.items())
    return [f"{pluralize(count, one, several)}: {way}" for count, one, several, way in named]


def describe_skipped(skipped: Sequence[Skipped]) -> list[str]:
    """Formats skipped samples: a line with their number, and a line for each. Empty without samples."""
    lines = [f"    {printable(s.key)}: {printable(s.reason)}" for s in skipped]
    return [f"  {yellow('skipped')}  {pluralize(len(lines), 'sample')}:", *lines] if lines else []


def describe_ledger(ledger: Ledger, skipped: int = 0) -> list[str]:
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


def _join_reasons(counts: Iterable[tuple[str, int]]) -> str:
    """Joins reasons and their counts: ``hidden (3), system files (1)``."""
    return ", ".join(f"{printable(reason)} ({count:,})" for reason, count in counts)


def _join_first(names: Iterable[str], count: int) -> str:
    """Joins the first three of ``count`` names, with an ellipsis if there are more."""
    return ", ".join(map(printable, islice(names, _NAMED))) + (" …" if count > _NAMED else "")


def wrap_text(start: str, text: str, columns: int) -> list[str]:
    """Wraps ``text``, made printable, after ``start`` to lines of at most ``columns`` characters, at least 40.

    Indents further lines by the length of ``start``. Does not break words.
    """
    lines = textwrap.wrap(
        printable(text),
        max(40, columns),
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [start]


def echo_rows(text: str) -> None:
    """Prints rows of a name and a text. In a terminal, wraps long texts and indents further lines below the text."""
    if sys.stdout.isatty():
        columns = max(40, shutil.get_terminal_size().columns)
        text = "\n".join(line for row in text.split("\n") for line in wrap_row(row, columns))
    click.echo(text)


def wrap_row(row: str, columns: int) -> list[str]:
    """Wraps a row to lines of at most ``columns`` visible characters. A row is a name, at least two spaces, and a text.

    Indents further lines below the text. Does not break words.
    """
    start = re.match(r" *(?:\S+(?: \S+)*  +)?", row)
    assert start is not None
    indent = " " * len(click.unstyle(start[0]))
    lines, line = [], start[0]
    for number, word in enumerate(row[start.end() :].split(" ")):
        if number and len(click.unstyle(f"{line} {word}")) > columns:
            lines.append(line)
            line = indent + word
        else:
            line += f" {word}" if number else word
    return [*lines, line]


@contextmanager
def progress_bar(quiet: bool, *, count_stages: bool = False) -> Iterator[ProgressCallback]:
    """Yields a callback that draws a tqdm bar on standard error for each stage: images/s, MB/s, time left.

    Draws nothing if ``quiet``, or if standard error is not a terminal. With ``count_stages``, draws one bar that counts
    the stages. Shows the library's warnings from now on.
    """
    from packstore.cli.messages import show_messages
    from packstore.core.progress import progress_callback

    show_messages()
    with progress_callback(not quiet and sys.stderr.isatty(), count_stages=count_stages) as progress:
        yield progress


def format_column_classes(column: str, classes: Sequence[str]) -> str:
    """Formats a column's name with its classes: ``label: 12 (ant, bee, …)``."""
    return f"{printable(column)}: {format_classes(classes)}"

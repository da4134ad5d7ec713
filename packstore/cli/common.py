"""Shared parts of the commands: parameter types, suggested commands, the progress bar."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from packstore.cli.rows import pluralize
from packstore.core.errors import (
    AmbiguousSourceError,
    Answer,
    SampleError,
    SourceError,
    StoreError,
    UsageError,
    printable,
)
from packstore.core.options import parse_bytes

if TYPE_CHECKING:
    from packstore.core.manifest import Skipped
    from packstore.core.progress import ProgressCallback
    from packstore.core.registry import Registry

_TAKING_SOURCES = ("append", "convert", "info")
"""Commands with a SOURCE that suggested options can be added to."""
EXIT_SKIPPED = 3


class LocalPath(click.Path):
    """A path. Refuses an empty one: it most likely comes from an unset shell variable."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Converts text to a :class:`Path`. Fails for an empty text."""
        if value == "":
            self.fail("it is empty; use . for the working directory", param, ctx)
        return super().convert(value, param, ctx)


class ChartPath(LocalPath):
    """The path of a chart to draw. Refuses a suffix of no kind of chart, and asks for matplotlib if that is missing."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from packstore.seeing.charts import check_chart

        path = super().convert(value, param, ctx)
        check_chart(path)
        return path


class StorePath(LocalPath):
    """A path or a URL. Refuses an empty one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Converts text to a :class:`Path`, or to a :class:`UrlPath` if it is a URL. Fails for an empty text."""
        from packstore.core.urls import UrlPath, location

        place = location(value) if value else value  # before Path would merge the slashes of a URL
        return place if isinstance(place, UrlPath) else super().convert(value, param, ctx)


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.2 on
    """A text that a function parses. The function raises :class:`UsageError` for a text that it refuses.

    ``name``: what the help calls it. Values other than text stay as they are.
    """

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parses a text. Fails with the function's message if it refuses the text."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except UsageError as error:
            self.fail(str(error), param, ctx)


def _parse_pixels(text: str) -> int:
    """Parses a number of pixels such as 100M, at least 1."""
    # ``parse_bytes`` would accept units of bytes.
    if text.strip().lower().endswith("b"):
        raise UsageError(f"{text!r} is not a number of pixels; write for example 100M")
    count = parse_bytes(text, 0)
    if count < 1:
        raise UsageError(f"{text!r} should be at least 1")
    return count


def _parse_kinds(text: str) -> tuple[str, ...]:
    """Splits the kinds of findings in ``text`` at commas; ``any`` means all."""
    from packstore.core.findings import list_kinds

    names, kinds = [name.strip() for name in text.split(",")], list_kinds()
    if names == ["any"]:
        return tuple(kinds)
    for name in names:
        if name not in kinds:
            raise UsageError(f"unknown kind of finding {name!r}; use any, or some of {', '.join(kinds)}")
    return tuple(names)


def _parse_image_size(text: str) -> int | tuple[int, int]:
    """Parses ``224`` as a number of pixels, ``32x48`` as (height, width), each of at most five digits."""
    match = re.fullmatch(r"([1-9]\d{0,4})(?:[x×]([1-9]\d{0,4}))?", text.strip().lower())
    if match is None:
        raise UsageError(f"{text!r} is not a size; write for example 224 or 32x48 (height x width)")
    return int(match[1]) if match[2] is None else (int(match[1]), int(match[2]))


BYTE_SIZE = Parsed("size", parse_bytes)
"""A number of bytes such as 500MB or 1GiB; without a unit, at least 1,000."""
PIXEL_COUNT = Parsed("pixels", _parse_pixels)
IMAGE_SIZE = Parsed("size", _parse_image_size)
KINDS = Parsed("kinds", _parse_kinds)


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
        from packstore.stores.opening import START_BYTES, looks_like_store

        if not (path.is_file() or path.is_dir()):
            raise
        start = b""
        if path.is_file():
            with path.open("rb") as file:
                start = file.read(START_BYTES)
        if looks_like_store(path, start):
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
    """Tells if a command with the options of ``answer`` can name ``file`` in place of its folder."""
    from packstore.core.registry import SOURCES
    from packstore.sources import SourceOptions, find_described_folder

    kinds = [SOURCES[text] for option, text in pairwise(answer.options) if option == "--source"]
    # Each kind of source in the options has to open its folder by this file.
    return all(find_described_folder(file, SourceOptions(), kind) for kind in kinds)


def _is_description_of(file: Path, folder: Path | None = None) -> bool:
    """Tells if ``file`` can be the source in place of its folder, as a CSV or JSON file can."""
    from packstore.sources import DESCRIBING

    # In ``folder``, or in a folder directly below; anywhere without ``folder``.
    near = folder in (None, file.parent, file.parent.parent)
    return near and file.suffix.lower() in DESCRIBING and file.is_file()


def packing_command(path: Path, options: str = "") -> str:
    """Returns the ``packstore convert`` command that packs the source at ``path``. The store is a ``.lmdb`` of the
    source's name in the working directory.

    ``options``: text to append, which begins with a space.
    """
    name = path.stem if _is_description_of(path) else path.name.removesuffix(".tar.gz") or path.resolve().name
    return f"packstore convert {shell_quote(path)} {shell_quote(Path(f'{name}.lmdb'))}{options}"


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


@contextmanager
def name_bad_sample(source: Path) -> Iterator[None]:
    """Names ``source`` and the way on if the block raises :class:`SampleError`. The error becomes
    :class:`SourceError`."""
    try:
        yield
    except SampleError as error:
        raise SourceError(
            f"{printable(str(source))}/{error}; repair or remove it, or leave bad files out with --on-error skip"
        ) from error


def exit_if_skipped(store: Path, skipped: Sequence[Skipped], quiet: bool) -> None:
    """Exits with 3 if samples were skipped. If ``quiet``, says so on standard error."""
    if not skipped:
        return
    if quiet:
        said = f"{pluralize(len(skipped), 'sample')} skipped; see packstore info {shell_quote(store)}"
        click.echo(f"{printable(str(store))}: {said}", err=True)
    raise click.exceptions.Exit(EXIT_SKIPPED)

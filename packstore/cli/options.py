"""Options that several commands have, and help in groups."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial, wraps
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click

from packstore.cli.common import BYTE_SIZE, PIXEL_COUNT, ChartPath, LocalPath, PluginChoice, progress_bar
from packstore.cli.rows import Rows
from packstore.core.options import Description, list_options, split_union
from packstore.core.registry import ENCODINGS, EXPORTS, FORMATS, SOURCES

if TYPE_CHECKING:
    from packstore.core.progress import ProgressCallback


class Option(click.Option):
    """Option with a heading, under which the help of a :class:`Command` lists it.

    ``group``: the heading. Options with an empty ``group`` are under ``Options``.
    """

    def __init__(self, *names: Any, group: str = "", **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        self.group = group


run_option = partial(click.option, cls=Option, group="Run")
json_option = run_option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
everything_option = click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")


def plot_option(help: str) -> Callable[..., Any]:
    """Makes the option ``--plot`` for the file of a chart."""
    return click.option("--plot", type=ChartPath(), metavar="FILE", help=help)


def quiet_option(help: str = "No progress bar, no summary.") -> Callable[..., Any]:
    """Makes the option ``--quiet``."""
    return run_option("-q", "--quiet", is_flag=True, help=help)


@dataclass(frozen=True, kw_only=True)
class Output:
    """Options of a command's output.

    Attributes:
        as_json: Print the report as JSON, and no progress bar.
        quiet: No progress bar, no report.
        dry_run: Print the plan and write nothing.
    """

    as_json: bool
    quiet: bool = False
    dry_run: bool = False

    @property
    def silent(self) -> bool:
        """True if there is nothing to show during the run."""
        return self.quiet or self.as_json

    def progress_bar(self) -> AbstractContextManager[ProgressCallback]:
        """Returns the context of a progress bar, see :func:`packstore.cli.common.progress_bar`."""
        return progress_bar(self.silent)

    def show(self, rows: Rows, *, needed: bool = False) -> None:
        """Prints a report or a plan. If ``quiet``, prints only plans, JSON, and what is ``needed``."""
        if self.dry_run:
            rows.add_lines("nothing was written (--dry-run)")
        if self.as_json or self.dry_run or needed or not self.quiet:
            rows.echo(self.as_json)


def output_options(*, dry_run: bool = False, quiet: str = "No progress bar, no summary.") -> Callable[..., Any]:
    """Makes a decorator that adds ``--json``, ``--quiet`` and perhaps ``--dry-run``. The command gets them as
    ``output``.

    ``quiet``: help of ``--quiet``.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def call(*, as_json: bool, quiet: bool, dry_run: bool = False, **others: Any) -> None:
            command(output=Output(as_json=as_json, quiet=quiet, dry_run=dry_run), **others)

        call = json_option(quiet_option(quiet)(call))
        if dry_run:
            call = run_option("-n", "--dry-run", is_flag=True, help="Print the plan and write nothing.")(call)
        return call

    return decorate


def _note_dicom(context: click.Context, _: click.Parameter, value: str | None) -> None:
    """Keeps the value of ``--dicom`` for :func:`_add_dicom_column`."""
    context.meta[_DICOM] = value


def _add_dicom_column(context: click.Context, _: click.Parameter, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the values of ``--column``, with ``keep=file`` appended after ``--dicom keep-file``."""
    return (*columns, "keep=file") if context.meta.get(_DICOM) else columns


_DICOM = "packstore.dicom"


def _dicom_option() -> click.Option:
    """Makes ``--dicom``."""
    return Option(
        ["--dicom"],
        group="Source",
        type=click.Choice(["keep-file"]),
        expose_value=False,
        is_eager=True,
        callback=_note_dicom,
        help="DICOM: also keep the files, which identify their patients.",
    )


def cache_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--cache`` and ``--cache-size``, for copies of remote shards.

    They set environment variables while the command runs. Processes that the command starts have these variables, too.
    """

    def set_variable(context: click.Context, parameter: click.Parameter, value: Path | int | None) -> None:
        if value is None or context.resilient_parsing:
            return
        name = "PACKSTORE_CACHE" if parameter.name == "cache" else "PACKSTORE_CACHE_SIZE"
        before = os.environ.get(name)
        context.call_on_close(lambda: os.environ.pop(name) if before is None else os.environ.update({name: before}))
        os.environ[name] = f"{value}B" if isinstance(value, int) else str(value.absolute())

    for option in (
        run_option(
            "--cache-size", type=BYTE_SIZE, callback=set_variable, expose_value=False, is_eager=True,
            help="Limit of the cache, e.g. 200GB; default $PACKSTORE_CACHE_SIZE, or half of the free space.",
        ),
        run_option(
            "--cache", type=LocalPath(), metavar="DIR", callback=set_variable, expose_value=False, is_eager=True,
            help="Folder for copies of remote shards; default $PACKSTORE_CACHE, or the user's cache folder.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


_TYPES: Mapping[str, click.ParamType] = {  # type: ignore[type-arg]
    "encoding": PluginChoice(ENCODINGS),
    "format": PluginChoice(FORMATS),
    "max_pixels": PIXEL_COUNT,
    "shard_size": BYTE_SIZE,
    "source_kind": PluginChoice(SOURCES),
    "to": PluginChoice(EXPORTS),
}
"""Parsers of these options' texts. Other options are parsed by their types."""


class OptionsOf:
    """Decorator of a command: adds an option for each field of a dataclass, see :mod:`packstore.core.options`.

    The command must be a :class:`Command`. It imports the dataclass when it first needs the options. ``packstore
    --help`` imports no such dataclass.
    """

    def __init__(
        self,
        place: str,
        types: Mapping[str, click.ParamType] = MappingProxyType({}),  # type: ignore[type-arg]
        *,
        without: Sequence[str] = (),
    ) -> None:
        """Keeps its arguments.

        Args:
            place: Location of the dataclass, ``package.module:name``.
            types: Click types by name of the field, for options that only this command has.
            without: Names of fields to leave out.
        """
        self.place, self.types, self.without = place, types, without

    def __call__(self, command: Any) -> Any:
        """Adds itself to the parameters of a command, as a placeholder for the options. Returns the command."""
        command.__click_params__ = [*getattr(command, "__click_params__", ()), self]
        return command

    def make_options(self) -> Iterator[click.Option]:
        """Imports the dataclass and yields the options, in the order of the fields.

        Leaves out fields that only the library has. Puts ``--dicom`` before ``--column``.
        """
        module, _, name = self.place.partition(":")
        listed = [*list_options(getattr(import_module(module), name))]
        flags = {name: option.flag or f"--{name.replace('_', '-')}" for name, _, _, option in listed}
        for name, type, default, option in listed:
            if option.help is None or name in self.without:
                continue
            text = option.help or re.sub("``(.*?)``", lambda found: flags.get(found[1], found[1]), option.meaning)
            text += f"  [default: {option.none}]" if option.none else ""
            attributes = _find_attributes(type, default, option, self.types.get(name, _TYPES.get(name)))
            flag = f"{flags[name]}/--no-{flags[name][2:]}" if attributes.pop("switch", False) else flags[name]
            if flag == "--column":
                yield _dicom_option()
                attributes["callback"] = _add_dicom_column
            yield Option([flag, name], group=option.group, help=text, metavar=option.metavar, **attributes)


def _find_attributes(
    type: Any,
    default: Any,
    option: Description,
    parser: click.ParamType | None,  # type: ignore[type-arg]
) -> dict[str, Any]:
    """Returns the attributes of a click option for a field of type ``type`` and its default."""
    parts = split_union(type)
    shown = default is not None and default is not False and default not in ("", ())
    attributes: dict[str, Any] = {"default": default, "show_default": shown}
    # The click type ``parser`` replaces the one that follows from the type of the field.
    if parser is not None:
        return attributes | {"type": parser, "default": ",".join(default) if isinstance(default, tuple) else default}
    if bool in parts:
        # ``switch`` is not click's: it asks the caller for a second flag, ``--no-…``.
        switch = default is not False
        return attributes | ({"switch": True} if switch else {"is_flag": True})
    if any(get_origin(part) is Sequence for part in parts):
        return attributes | {"multiple": True}
    for part in parts:
        if get_origin(part) is Literal:
            return attributes | {"type": click.Choice(get_args(part))}
        if get_origin(part) is os.PathLike:
            return attributes | {"type": LocalPath()}
        if get_origin(part) is tuple:
            return attributes | {"type": get_args(part)}
    if int in parts and str not in parts:
        return attributes | {"type": click.IntRange(option.least, option.most)}
    return attributes | ({"type": click.FloatRange(option.least, option.most)} if float in parts else {})


class Command(click.Command):
    """Command that makes its options when they are needed first, and lists them under headings."""

    _params: list[Any]

    @property
    def params(self) -> list[click.Parameter]:
        """Arguments and options."""
        if any(isinstance(each, OptionsOf) for each in self._params):
            made = [each.make_options() if isinstance(each, OptionsOf) else [each] for each in self._params]
            self._params = [*chain.from_iterable(made)]
        return self._params

    @params.setter
    def params(self, params: list[Any]) -> None:
        self._params = params

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes a section of the help for each heading."""
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in _GROUPS}
        for parameter in self.get_params(ctx):
            record = None if isinstance(parameter, click.Argument) else parameter.get_help_record(ctx)
            if record is not None:
                group = "Run" if "--help" in parameter.opts else getattr(parameter, "group", "")
                groups[group or "Options"].append(record)
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


_GROUPS = ("Options", "Images", "Channels, depth and frames", "Source", "Store", "Run")
"""Headings in the help, in order."""

"""Options that several commands have, and help in groups."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import click

from packstore.cli.common import ByteSize, LocalPath, PixelCount, PluginChoice
from packstore.core.options import Option, list_options
from packstore.core.registry import ENCODINGS, EXPORTS, FORMATS, SOURCES
from packstore.images.sniff import MAX_PIXELS

dry_run_option = click.option("-n", "--dry-run", is_flag=True, help="Print the plan and write nothing.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
restart_option = click.option("--restart", is_flag=True, help="Start again instead of resuming an interrupted run.")
decoder_option = click.option(
    "--decoder", default="auto", show_default=True, metavar="NAME",
    help="turbojpeg, simplejpeg, jpeg4py, opencv or pillow.",
)  # fmt: skip


def quiet_option(help: str = "No progress bar, no summary.") -> Callable[..., Any]:
    """Makes the option ``--quiet``."""
    return click.option("-q", "--quiet", is_flag=True, help=help)


def workers_option(default: str = "one a core", task: str = "") -> Callable[..., Any]:
    """Makes the option ``--workers``. Its help is ``Threads``, followed by ``task``, and names ``default``."""
    return click.option("--workers", type=click.IntRange(1), metavar="N", help=f"Threads{task}.  [default: {default}]")


def max_pixels_option(images: str = "Refuse images that") -> Callable[..., Any]:
    """Makes the option ``--max-pixels``. Its help begins with ``images``."""
    return click.option(
        "--max-pixels", type=PixelCount(), default=MAX_PIXELS, show_default=True, metavar="N",
        help=f"{images} claim more pixels, e.g. 50M. Each thread needs up to 20 bytes a pixel.",
    )  # fmt: skip


def format_option(destination: str) -> Callable[..., Any]:
    """Makes the option ``--format`` of a new store at ``destination``."""
    return click.option("--format", type=PluginChoice(FORMATS), help=f"Format, whatever the suffix of {destination}.")


def overwrite_option(destination: str, kind: str = "a store") -> Callable[..., Any]:
    """Makes the option ``--overwrite``. ``kind``: description of what the option may replace."""
    return click.option(
        "--overwrite", is_flag=True, help=f"Replace {destination}, if it is {kind}, once the new one is complete."
    )


def checking_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options for bad files and images that are too large: ``--check``, ``--on-error``, ``--max-pixels``."""
    for option in (
        max_pixels_option(),
        click.option(
            "--on-error", type=click.Choice(["raise", "skip"]), default="raise", show_default=True,
            help="At a bad file, raise stops; skip leaves it out, lists it, and exits with 3 in the end.",
        ),
        click.option(
            "--check", type=click.Choice(["header", "decode", "none"]), default="header", show_default=True,
            help="Check each file. header: its kind, header and end; decode: every pixel.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def _note_dicom(context: click.Context, _: click.Parameter, value: str | None) -> None:
    """Keeps the value of ``--dicom`` for :func:`_add_dicom_column`."""
    context.meta[_DICOM] = value


def _add_dicom_column(context: click.Context, _: click.Parameter, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the values of ``--column``. After ``--dicom keep-file``, appends ``keep=file``."""
    return (*columns, "keep=file") if context.meta.get(_DICOM) else columns


_DICOM = "packstore.dicom"


def _dicom_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--dicom``."""
    return click.option(
        "--dicom",
        type=click.Choice(["keep-file"]),
        cls=GroupedOption,
        group="Source",
        expose_value=False,
        is_eager=True,
        callback=_note_dicom,
        help="DICOM: also keep each file, which names its patient.",
    )(command)


def array_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that choose files, arrays and columns of SOURCE, and ``--dicom``."""
    ignore_help = "Leave out files and folders of SOURCE, as .gitignore does: '*.txt', 'masks/'. Repeatable."
    layout_help = "HDF5, npz …: order of the images' axes, e.g. NCHW. Tables: form of boxes, e.g. xywh."
    column_help = (
        "Tables: role of a column: image=COL, label=COL, labels=COL, boxes=X1,Y1,X2,Y2, split=COL, keypoints=X,Y,… "
        "Further images: NAME.mode=, NAME.depth=, NAME.alpha=, NAME.frames=. Repeatable."
    )
    for option in (
        click.option("--ignore", multiple=True, metavar="PATTERN", help=ignore_help),
        click.option("--layout", metavar="AXES", help=layout_help),
        click.option(
            "--column", "columns", multiple=True, metavar="ROLE=COL", help=column_help, callback=_add_dicom_column
        ),
        _dicom_option,
        click.option("--label-key", metavar="NAME", help="HDF5, npz …: the array of class numbers."),
        click.option("--image-key", metavar="NAME", help="HDF5, npz …: the array of images."),
    ):
        command = option(command)
    return command


def source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options for reading SOURCE: its kind, its labels, and those of :func:`array_options`."""
    kind_help = "Kind of SOURCE, if packstore does not recognise it. packstore guide sources lists the kinds."
    for option in (
        array_options,
        click.option("--source", "source_kind", type=PluginChoice(SOURCES), metavar="KIND", help=kind_help),
        click.option("--labels", type=LocalPath(), metavar="CSV", help="Labels: columns file,label[,split]."),
    ):
        command = option(command)
    return command


def depth_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options for images with more bits, alpha or frames than their mode has."""
    for option in (
        click.option(
            "--frames", metavar="N",
            help="Files with several frames or pages: first, or the number of a frame from 0; all: each frame is a "
            "record; clips: each file, or folder of numbered frames, is a record with an array of its frames.",
        ),
        click.option("--alpha", metavar="HOW", help="Transparency: keep, drop or over:COLOUR (black, white, #rrggbb)."),
        click.option(
            "--depth", metavar="HOW", help="More than 8 bits: keep, scale, clip or window:LO,HI (black to white)."
        ),
    ):  # fmt: skip
        command = option(command)
    return command


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
        click.option(
            "--cache-size", type=ByteSize(), callback=set_variable, expose_value=False, is_eager=True,
            help="Limit of the cache, e.g. 200GB; default $PACKSTORE_CACHE_SIZE, or half of the free space.",
        ),
        click.option(
            "--cache", type=LocalPath(), metavar="DIR", callback=set_variable, expose_value=False, is_eager=True,
            help="Folder for copies of remote shards; default $PACKSTORE_CACHE, or the user's cache folder.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def source_check_options(images: str, quiet: str) -> Callable[..., Any]:
    """Returns a decorator that adds the options of a command that reads a store and its source.

    These are the options of the source, the decoder, threads, the report and the cache.

    Args:
        images: Beginning of the help of ``--max-pixels``.
        quiet: Help of ``--quiet``.
    """
    options = (
        *(cache_options, quiet_option(quiet), json_option, decoder_option),
        *(workers_option(), max_pixels_option(images), source_options),
    )

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in options:
            command = option(command)
        return command

    return add


_TYPES: Mapping[str, click.ParamType] = {  # type: ignore[type-arg]
    "encoding": PluginChoice(ENCODINGS),
    "format": PluginChoice(FORMATS),
    "max_pixels": PixelCount(),
    "shard_size": ByteSize(),
    "source_kind": PluginChoice(SOURCES),
    "to": PluginChoice(EXPORTS),
}
"""How texts of these options become values. The types of other options tell it."""


def options_of(options: type, types: Mapping[str, click.ParamType] = MappingProxyType({})) -> Callable[..., Any]:  # type: ignore[type-arg]
    """Returns a decorator that adds an option for each field of a dataclass of :mod:`packstore.core.options`.

    ``types``: parsers of options with types that only this command has.
    """
    listed = [*list_options(options)]
    flags = {name: option.flag or f"--{name.replace('_', '-')}" for name, _, _, option in listed}

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for name, type, default, option in reversed(listed):
            if option.help is None:
                continue
            text = option.help or re.sub("``(.*?)``", lambda found: flags.get(found[1], found[1]), option.meaning)
            text += f"  [default: {option.none}]" if option.none else ""
            attributes = _find_attributes(type, default, option, types.get(name, _TYPES.get(name)))
            flag = f"{flags[name]}/--no-{flags[name][2:]}" if attributes.pop("switch", False) else flags[name]
            command = click.option(
                flag, name, cls=GroupedOption, group=option.group, help=text, metavar=option.metavar, **attributes
            )(command)
            if name == "columns":
                command = _dicom_option(command)
        return command

    return add


def _find_attributes(type: Any, default: Any, option: Option, parser: click.ParamType | None) -> dict[str, Any]:  # type: ignore[type-arg]
    """Returns the attributes of a click option: default, type and others. ``switch`` means a second flag, ``--no-…``.

    Args:
        type: Type of the field.
        default: Its default.
        option: Its description.
        parser: Type of the click option; None if the type of the field tells it.
    """
    parts = get_args(type) if get_origin(type) in (Union, UnionType) else (type,)
    shown = default not in (None, "", ()) and not isinstance(default, bool)
    found: dict[str, Any] = {"default": default, "show_default": shown}
    if parser is not None:
        return found | {"type": parser, "default": ",".join(default) if isinstance(default, tuple) else default}
    if bool in parts:
        switch = default is not False
        return found | ({"switch": True} if switch else {"is_flag": True})
    if any(get_origin(part) is Sequence for part in parts):
        return found | {"multiple": True, "callback": _add_dicom_column if option.flag == "--column" else None}
    for part in parts:
        if get_origin(part) is Literal:
            return found | {"type": click.Choice(get_args(part))}
        if get_origin(part) is os.PathLike:
            return found | {"type": LocalPath()}
    if int in parts and str not in parts:
        return found | {"type": click.IntRange(option.least, option.most)}
    return found | ({"type": click.FloatRange(option.least, option.most)} if float in parts else {})


class GroupedOption(click.Option):
    """Option under a heading, in the help of a :class:`GroupedCommand`."""

    def __init__(self, *names: Any, group: str = "", **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        self.group = group


class GroupedCommand(click.Command):
    """Command whose help lists options under headings. Options without a group are under ``Options``."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes a section of the help for each heading."""
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in _GROUPS}
        for parameter in self.get_params(ctx):
            record = None if isinstance(parameter, click.Argument) else parameter.get_help_record(ctx)
            if record is not None:
                groups[getattr(parameter, "group", "Run") or "Options"].append(record)  # --help has no group
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


_GROUPS = ("Options", "Images", "Channels, depth and frames", "Source", "Store", "Run")
"""Headings in the help, in order."""


def heading(title: str) -> Callable[..., Any]:
    """Returns a decorator that puts a heading over the options below it, in the help of a :class:`GroupedCommand`.

    The heading ends at the next heading.
    """

    def mark(command: Any) -> Any:
        for parameter in command.__click_params__:
            parameter.group = getattr(parameter, "group", title)
        return command

    return mark

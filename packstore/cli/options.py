"""Options that several commands have, and help in groups."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from packstore.cli.common import ByteSize, LocalPath, PixelCount, PluginChoice
from packstore.core.registry import FORMATS, SOURCES
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
        click.option(
            "--dicom",
            type=click.Choice(["keep-file"]),
            expose_value=False,
            is_eager=True,
            callback=_note_dicom,
            help="DICOM: also keep each file, which names its patient.",
        ),
        click.option("--label-key", metavar="NAME", help="HDF5, npz …: the array of class numbers."),
        click.option("--image-key", metavar="NAME", help="HDF5, npz …: the array of images."),
    ):
        command = option(command)
    return command


def _note_dicom(context: click.Context, _: click.Parameter, value: str | None) -> None:
    """Keeps the value of ``--dicom`` for :func:`_add_dicom_column`."""
    context.meta[_DICOM] = value


def _add_dicom_column(context: click.Context, _: click.Parameter, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the values of ``--column``. After ``--dicom keep-file``, appends ``keep=file``."""
    return (*columns, "keep=file") if context.meta.get(_DICOM) else columns


_DICOM = "packstore.dicom"


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


class GroupedCommand(click.Command):
    """Command whose help lists options under the headings that :func:`heading` sets."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes a section of the help for each heading. Options above the first heading are under ``Options``."""
        groups: dict[str, list[tuple[str, str]]] = {}
        title = "Options"
        for parameter in self.get_params(ctx):
            title = getattr(parameter, "heading", title)  # --help comes last, without a heading
            record = None if isinstance(parameter, click.Argument) else parameter.get_help_record(ctx)
            if record is not None:
                groups.setdefault(title, []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def heading(title: str) -> Callable[..., Any]:
    """Returns a decorator that puts a heading over the options below it, in the help of a :class:`GroupedCommand`.

    The heading ends at the next heading.
    """

    def mark(command: Any) -> Any:
        for parameter in command.__click_params__:
            parameter.heading = getattr(parameter, "heading", title)
        return command

    return mark

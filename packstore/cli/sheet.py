"""``packstore sheet``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import click

from packstore.cli.common import LocalPath, StorePath, pluralize, suggest_packing
from packstore.cli.options import Command, OptionsOf, cache_options
from packstore.cli.terminal_images import terminal_graphics
from packstore.core.errors import UsageError, printable

_PIXELS_A_COLUMN = 9
"""Approximate width of a character: a wider image than the terminal would be cut off."""


@click.command(cls=Command, short_help="Draw some records of each class on one sheet.")
@click.argument("store", type=StorePath())
@click.argument("out", type=LocalPath())
@OptionsOf("packstore.seeing.sheet_options:SheetOptions", {"columns": click.STRING})
@cache_options
def sheet(store: Path, out: Path, columns: str | None, **options: Any) -> None:
    """Draw a contact sheet of STORE to OUT, a .png or .pdf file: some records of each class, chosen by --seed.

    If OUT is -, shows the sheet in the terminal, which needs kitty's graphics or sixel.
    With --augment, each image is bit for bit what PackedLoader returns for that record, seed and epoch, in its
    own size. Boxes are drawn over the images. Below an image are the first four of each list of further images;
    +3 says that three are left out. Damaged records are marked. A PNG has at most 60 classes, a PDF has all.

    \b
    Examples:
      packstore sheet imagenet.lmdb sheet.png
      packstore sheet coco.h5 sheet.pdf --split val --columns boxes,keypoints
      packstore sheet imagenet.lmdb - --per-class 3
      packstore sheet a.lmdb aug.png --augment 'RandomResizedCrop(224)' --epoch 3
    """
    from packstore.seeing.sheet import describe_window, draw_sheet, write_sheet
    from packstore.seeing.sheet_options import SheetOptions

    named = None if columns is None else [] if columns == "none" else [name.strip() for name in columns.split(",")]
    chosen = SheetOptions(columns=named, **options)
    with suggest_packing(store):
        if out != Path("-"):
            more = write_sheet(store, out, chosen)
            click.echo(f"{printable(str(out))}: drawn from {printable(str(store))}")
            if (shown := describe_window(store, chosen.window)) is not None:
                click.echo(shown)
            if more:
                missing = pluralize(more, "more class", "more classes")
                click.echo(f"{printable(str(out))} has no room for {missing}; a .pdf has")
            return
        graphics = terminal_graphics()
        if graphics is None:
            raise UsageError("this terminal shows no images (kitty's graphics or sixel): name a file, sheet.png")
        image, more = draw_sheet(store, chosen)
    _show_in_terminal(image, graphics)
    if more:
        click.echo(f"… and {pluralize(more, 'more class', 'more classes')}")


def _show_in_terminal(image: Any, graphics: str) -> None:
    """Prints an image with the terminal's graphics, ``kitty`` or ``sixel``. Shrinks a wider image to the terminal's
    width."""
    from packstore.seeing.terminal import encode_kitty, encode_sixel

    most = shutil.get_terminal_size().columns * _PIXELS_A_COLUMN
    if image.width > most:
        image = image.resize((most, max(1, image.height * most // image.width)))
    sys.stdout.buffer.write(encode_kitty(image) if graphics == "kitty" else encode_sixel(image))
    sys.stdout.flush()

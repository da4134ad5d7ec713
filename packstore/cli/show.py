"""``packstore sheet`` and ``view``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from packstore.cli.common import LocalPath, StorePath, suggest_packing
from packstore.cli.options import Command, OptionsOf, cache_options
from packstore.cli.rows import pluralize
from packstore.core.errors import UsageError, printable


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
        from packstore.cli.terminal import show_image, terminal_graphics

        graphics = terminal_graphics()
        if graphics is None:
            raise UsageError("this terminal shows no images (kitty's graphics or sixel): name a file, sheet.png")
        image, more = draw_sheet(store, chosen)
    show_image(image, graphics)
    if more:
        click.echo(f"… and {pluralize(more, 'more class', 'more classes')}")


@click.command(short_help="Show a store in the browser.")
@click.argument("store", type=StorePath())
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port.  [default: a free one]")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--audit", type=LocalPath(), metavar="FILE", help="Mark the findings of packstore audit --json FILE.")
@click.option(
    "--verified", type=LocalPath(), metavar="FILE", help="Mark the problems of packstore verify --json > FILE."
)
@click.option(
    "--window", nargs=2, type=float, metavar="LO HI",
    help="More than 8 bits: values shown as black and as white.  [default: 1st and 99th percentile of each image]",
)  # fmt: skip
@cache_options
def view(store: Path, no_browser: bool, **options: Any) -> None:
    """Show the store at STORE, a path or a URL, in the browser: its images, records and classes. Changes nothing.

    Only this machine can open the page; its address contains a secret. Ctrl-C ends the server. To see a store
    on another machine, run this there with --port 8000, and forward the port: ssh -L 8000:127.0.0.1:8000 HOST.

    \b
    Examples:
      packstore view imagenet.lmdb
      packstore view imagenet.lmdb --no-browser --port 8000
      packstore view s3://bucket/imagenet.lmdb
      packstore verify imagenet.lmdb --json > damage.json
      packstore view imagenet.lmdb --verified damage.json
    """
    from packstore.objects import interrupt
    from packstore.seeing.view.serve import serve_page

    with suggest_packing(store):
        serve_page(
            store,
            lambda address: click.echo(f"{address}\nCtrl-C ends it."),
            interrupt,
            browser=not no_browser,
            **options,
        )

"""``packstore sheet``, ``view`` and ``guide``, which shows the pages of ``packstore/guide/``, and ``completion``."""

from __future__ import annotations

import difflib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from packstore.cli.common import LocalPath, StorePath, suggest_packing
from packstore.cli.options import Command, OptionsOf, cache_options
from packstore.cli.rows import pluralize, wrap_text
from packstore.core.errors import UsageError, printable

_DEMO = """
  The examples of the pages use a small dataset and its store:
    packstore demo packstore-demo
    packstore convert packstore-demo demo.lmdb"""


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


@click.command(short_help="Read the guide, page by page.")
@click.argument("topic", required=False, shell_complete=lambda _context, _argument, start: _complete_topics(start))
def guide(topic: str | None) -> None:
    """Show the guide's page TOPIC in a pager; without TOPIC, list the pages.

    \b
    Examples:
      packstore guide
      packstore guide packing
      packstore guide formats > formats.md
    """
    pages = _find_pages()
    if topic is None:
        width = max(map(len, pages))
        for name, path in pages.items():
            summary = path.read_text("utf-8").split("\n\n")[1]  # the sentence below the title
            click.echo("\n".join(wrap_text(f"{name:<{width}}  ", " ".join(summary.split()), 80)))
        click.echo(_DEMO)
        return
    if topic not in pages:
        near = _complete_topics(topic) or difflib.get_close_matches(topic, pages, 1, cutoff=0.75)
        hint = f"did you mean {near[0]}? " if near else ""
        raise click.UsageError(f"no page about {topic!r}; {hint}pages: {', '.join(pages)}")
    text = pages[topic].read_text("utf-8")
    if sys.stdout.isatty():
        text = format_page(text, min(100, shutil.get_terminal_size().columns or 80))
    click.echo_via_pager(text)


def _find_pages() -> dict[str, Path]:
    """Returns the guide's pages by topic, in alphabetical order."""
    return {path.stem: path for path in sorted(Path(__file__).parents[1].glob("guide/*.md"))}


def _complete_topics(start: str) -> list[str]:
    """Returns the topics that begin with ``start``."""
    return [name for name in _find_pages() if name.startswith(start)]


def format_page(page: str, columns: int) -> str:
    """Formats a Markdown page for a terminal. Wraps text to ``columns``, turns tables into lists, keeps code blocks."""
    lines: list[str] = []
    for number, part in enumerate(re.split(r"^(```.*?^```)\n", page, flags=re.MULTILINE | re.DOTALL)):
        lines += [part] if number % 2 else _format_text(part, columns)
    return "\n".join(lines)


def _format_text(text: str, columns: int) -> Iterator[str]:
    """Yields the wrapped lines of Markdown without code blocks."""
    # Each row of a table becomes a list item.
    header: list[str] = []
    # A blank line, a heading, a list item or a table row begins a paragraph; any other line continues one.
    for paragraph in re.split(r"\n(?=\n|#| *- | *\d+\. |\|)", text):
        line = " ".join(paragraph.split())
        if not line or paragraph.startswith("\n"):
            yield ""
            header = []
        if line.startswith("|"):
            if not header:
                header = _split_cells(line)
            elif not set(line) <= set("|-: "):
                first, *others = _split_cells(line)
                yield from wrap_text("- ", first, columns)
                for name, cell in zip(header[1:], others, strict=True):
                    yield from wrap_text(f"  {name}: ", cell, columns) if cell else ()
        elif line:
            marker = re.match(r"\s*(- |\d+\. )?", paragraph)
            assert marker is not None
            yield from wrap_text(marker[0].lstrip("\n"), line.removeprefix(marker[1] or ""), columns)


def _split_cells(row: str) -> list[str]:
    """Splits a table row into the texts of its cells."""
    return [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", row.strip("|"))]


@click.command(short_help="Print a completion script for a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that lets SHELL complete packstore's commands, options, values and paths.

    Append it to the file that the shell reads at start, then open a new shell.

    \b
    Examples:
      packstore completion bash >> ~/.bashrc
      packstore completion zsh >> ~/.zshrc
      packstore completion fish > ~/.config/fish/completions/packstore.fish
    """
    complete = get_completion_class(shell)
    assert complete is not None
    click.echo(complete(context.find_root().command, {}, "packstore", "_PACKSTORE_COMPLETE").source())

"""``packstore guide``, which shows the pages of ``packstore/guide/``, and ``completion``."""

from __future__ import annotations

import difflib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from packstore.cli.rows import wrap_text

_DEMO = """
  The examples of the pages use a small dataset and its store:
    packstore demo packstore-demo
    packstore convert packstore-demo demo.lmdb"""


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

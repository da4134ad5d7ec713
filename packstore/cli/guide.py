"""``packstore guide``: the pages of ``packstore/guide/``."""

from __future__ import annotations

from pathlib import Path

import click

from packstore.cli.common import wrapped


@click.command(short_help="Read the guide, page by page.")
@click.argument("topic", required=False)
def guide(topic: str | None) -> None:
    """Show the page of the guide about TOPIC, in a pager; without TOPIC, list the pages.

    \b
    Examples:
      packstore guide
      packstore guide packing
      packstore guide formats | grep LMDB
    """
    pages = {path.stem: path for path in sorted(Path(__file__).parents[1].glob("guide/*.md"))}
    if topic is None:
        width = max(map(len, pages))
        for name, path in pages.items():
            click.echo("\n".join(wrapped(f"{name:<{width}}  ", _summary(path), 80)))
    elif topic in pages:
        click.echo_via_pager(pages[topic].read_text("utf-8"))
    else:
        raise click.UsageError(f"no page about {topic!r}; pages: {', '.join(pages)}")


def _summary(page: Path) -> str:
    """The sentence below the title."""
    return page.read_text("utf-8").split("\n\n")[1].replace("\n", " ")

"""``packstore index``."""

from __future__ import annotations

from pathlib import Path

import click

from packstore.cli.common import StorePath, progress_bar, quantity
from packstore.core.errors import printable


@click.command(short_help="Add a seek index to a store, so that crops decode faster.")
@click.argument("store", type=StorePath())
@click.option("-q", "--quiet", is_flag=True, help="No progress bar, no summary.")
def index(store: Path, quiet: bool) -> None:
    """Add a seek index to STORE, whose encoding is original, so that a crop decodes little more than it needs.

    STORE is written again beside itself, each record checked, and replaced when that is complete; until then it
    takes its space twice. At a URL it becomes a new version. The files of images stay as they are, byte for byte.

    \b
    Examples:
      packstore index imagenet.lmdb
      packstore index s3://bucket/imagenet.lmdb
    """
    from packstore.packing.index_store import add_index

    with progress_bar(quiet) as progress:
        report = add_index(store, progress=progress)
    if not quiet:
        count = quantity(report.manifest.records, "record")
        click.echo(f"{printable(str(store))}: {f'{count} indexed' if report.written else 'has a seek index already'}")

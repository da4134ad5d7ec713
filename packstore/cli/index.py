"""``packstore index``."""

from __future__ import annotations

from pathlib import Path

import click

from packstore.cli.common import StorePath, pluralize, progress_bar
from packstore.cli.options import quiet_option
from packstore.core.errors import printable


@click.command(short_help="Add a seek index to a store: crops decode faster.")
@click.argument("store", type=StorePath())
@quiet_option()
def index(store: Path, quiet: bool) -> None:
    """Add a seek index to STORE, so that a crop decodes little more of a JPEG than it needs.

    The encoding of STORE must be original. Writes a new store beside STORE, checks each record, then replaces
    STORE; until then both take space. At a URL, adds a new version. Image files stay byte for byte the same.

    \b
    Examples:
      packstore index imagenet.lmdb
      packstore index s3://bucket/imagenet.lmdb
    """
    from packstore.packing.index_store import add_index

    with progress_bar(quiet) as progress:
        report = add_index(store, progress=progress)
    if not quiet:
        count = pluralize(report.manifest.records, "record")
        click.echo(f"{printable(str(store))}: {f'{count} indexed' if report.written else 'has a seek index already'}")

"""``packstore index`` and ``packstore link``: they change a store in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from packstore.cli.common import StorePath, progress_bar
from packstore.cli.options import Command, json_option, quiet_option
from packstore.cli.rows import Rows, pluralize
from packstore.core.errors import printable


@click.command(cls=Command, short_help="Add a seek index to a store: crops decode faster.")
@click.argument("store", type=StorePath())
@json_option
@quiet_option()
def index(store: Path, as_json: bool, quiet: bool) -> None:
    """Add a seek index to STORE, so that a crop decodes little more of a JPEG than it needs.

    The encoding of STORE must be original. Writes a new store beside STORE, checks each record, then replaces
    STORE; until then both take space. At a URL, adds a new version. Image files stay byte for byte the same.

    \b
    Examples:
      packstore index imagenet.lmdb
      packstore index s3://bucket/imagenet.lmdb
    """
    from packstore.packing.rewriting import add_index

    with progress_bar(quiet or as_json) as progress:
        report = add_index(store, progress=progress)
    count, rows = report.manifest.records, Rows()
    said = f"{pluralize(count, 'record')} indexed" if report.written else "has a seek index already"
    rows.add_lines(f"{printable(str(store))}: {said}", store=str(store), records=count, written=report.written)
    if as_json or not quiet:
        rows.echo(as_json)


@click.command(cls=Command, short_help="Update the links of a linked store.")
@click.argument("store", type=StorePath())
@click.option("--rebase", nargs=2, metavar="OLD NEW", help="Files have moved from folder OLD to NEW; both may be URLs.")
@click.option("--relative", "links", flag_value="relative", help="Make links relative to the folder of STORE.")
@click.option("--absolute", "links", flag_value="absolute", help="Make links absolute paths.")
@json_option
@quiet_option()
def link(store: Path, rebase: tuple[str, str] | None, as_json: bool, quiet: bool, **options: Any) -> None:
    """Update the links of STORE, which "packstore convert --link" wrote, after its files were moved.

    All files must exist at the new paths. If a file's size or modification time differs, its images are read
    and compared with their checksums. Writes a new store beside STORE, then replaces STORE.

    \b
    Examples:
      packstore link train.lmdb --rebase /old/shards /data/shards
      packstore link train.lmdb --rebase s3://bucket/shards /data/shards
      packstore link train.lmdb --relative       to move STORE and files together
    """
    from packstore.packing.rewriting import relink

    if not rebase and options["links"] is None:
        raise click.UsageError("give the change: --rebase OLD NEW, --relative or --absolute")
    with progress_bar(quiet or as_json) as progress:
        report = relink(store, rebase=rebase or None, progress=progress, **options)
    rows, compared = Rows(), f"; {pluralize(report.proven, 'image')} compared" if report.proven else ""
    files = f"links to {pluralize(report.files, 'file')}, {report.moved:,} of them moved"
    rows.add_lines(f"{printable(str(store))}: {files}{compared}", store=str(store))
    rows.values |= {"files": report.files, "moved": report.moved, "compared": report.proven}
    if as_json or not quiet:
        rows.echo(as_json)

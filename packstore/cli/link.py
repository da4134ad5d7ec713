"""``packstore link``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from packstore.cli.common import StorePath, pluralize, progress_bar
from packstore.cli.options import quiet_option
from packstore.core.errors import printable


@click.command(short_help="Update the links of a linked store.")
@click.argument("store", type=StorePath())
@click.option("--rebase", nargs=2, metavar="OLD NEW", help="Files have moved from folder OLD to NEW; both may be URLs.")
@click.option("--relative", "links", flag_value="relative", help="Make links relative to the folder of STORE.")
@click.option("--absolute", "links", flag_value="absolute", help="Make links absolute paths.")
@quiet_option()
def link(store: Path, rebase: tuple[str, str] | None, quiet: bool, **options: Any) -> None:
    """Update the links of STORE, which "packstore convert --link" wrote, after its files were moved.

    All files must exist at the new paths. If a file's size or modification time differs, its images are read
    and compared with their checksums. Writes a new store beside STORE, then replaces STORE.

    \b
    Examples:
      packstore link train.lmdb --rebase /old/shards /data/shards
      packstore link train.lmdb --rebase s3://bucket/shards /data/shards
      packstore link train.lmdb --relative       to move STORE and files together
    """
    from packstore.packing.relink import relink

    if not rebase and options["links"] is None:
        raise click.UsageError("give the change: --rebase OLD NEW, --relative or --absolute")
    with progress_bar(quiet) as progress:
        report = relink(store, rebase=rebase or None, progress=progress, **options)
    if not quiet:
        compared = f"; {pluralize(report.proven, 'image')} compared" if report.proven else ""
        files = f"links to {pluralize(report.files, 'file')}, {report.moved:,} of them moved"
        click.echo(f"{printable(str(store))}: {files}{compared}")

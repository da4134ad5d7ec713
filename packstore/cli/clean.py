"""``packstore clean``: what interrupted runs have left."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click

from packstore.cli.common import human_bytes
from packstore.core.errors import UsageError, printable


@click.command(short_help="Remove what interrupted runs have left.")
@click.argument("places", nargs=-1, type=click.Path(path_type=Path), metavar="[PLACE]...")
@click.option("-y", "--yes", is_flag=True, help="Remove without asking.")
@click.option("-n", "--dry-run", is_flag=True, help="List and remove nothing.")
def clean(places: tuple[Path, ...], yes: bool, dry_run: bool) -> None:
    """Remove what interrupted runs of packstore have left.

    PLACE is a directory that stores are written to, or the name of a store there that was not finished;
    the current directory if none is given. A run that is killed leaves a hidden directory beside the
    store that was to be, .NAME.packstore; the same command goes on from it. Only directories that prove
    to be packstore's own, and that no running process holds, are listed. Asks before it removes anything.

    \b
    Examples:
      packstore clean                          in the current directory
      packstore clean /data/stores --dry-run   only list
      packstore clean imagenet.lmdb --yes      of this store, without asking
    """
    from packstore.stores.builder.work_directory import find_leftovers, remove_leftover

    leftovers = {}
    for place in places or (Path(),):
        directory, name = (place, None) if place.is_dir() and not _is_store(place) else (place.parent, place.name)
        if not directory.is_dir():
            raise UsageError(f"{printable(str(directory))}: no such directory")
        wanted = {found.path: found for found in find_leftovers(directory) if name in (None, found.owner.destination)}
        if name is not None and not wanted and not os.path.lexists(place):
            raise UsageError(f"{printable(str(place))}: no such directory, and no store of that name was being made")
        leftovers.update(wanted)
    if not leftovers:
        click.echo("nothing is left of interrupted runs")
        return
    for found in leftovers.values():
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.owner.started))
        click.echo(
            f"{printable(str(found.path))}: {human_bytes(found.nbytes)} of {printable(found.owner.destination)}, "
            f"begun {began} by process {found.owner.pid} on {printable(found.owner.host)}"
        )
    if dry_run:
        return
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("nobody is there to be asked: add --yes to remove this, or --dry-run to list it only")
        if not click.confirm("remove?"):
            click.echo("nothing was removed")
            return
    for found in leftovers.values():
        remove_leftover(found)
        click.echo(f"removed {printable(str(found.path))}")


def _is_store(path: Path) -> bool:
    from packstore.stores import is_store

    return is_store(path)

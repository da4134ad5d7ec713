"""``packstore clean``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click

from packstore.cli.common import LocalPath, human_bytes
from packstore.core.errors import UsageError, printable


@click.command(short_help="Remove the work directories of interrupted runs.")
@click.argument("places", nargs=-1, type=LocalPath(), metavar="[PLACE]...")
@click.option("-y", "--yes", is_flag=True, help="Remove without asking.")
@click.option("-n", "--dry-run", is_flag=True, help="List and remove nothing.")
def clean(places: tuple[Path, ...], yes: bool, dry_run: bool) -> None:
    """Remove the work directories of interrupted runs.

    A run that is killed leaves a hidden directory, .NAME.packstore, beside the store it was making; the
    same command goes on from it. PLACE is a directory to look in, or the name of a store that was not
    finished; the current directory by default. Lists only directories that prove to be packstore's own and
    that no process uses, and asks before it removes them. What a killed append has put into a store goes
    with them.

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
            raise UsageError(
                f"{printable(str(place))}: no such directory, and no interrupted run was making a store of that name"
            )
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
        if found.in_store:
            some = ", ".join(map(printable, found.in_store[:5])) + (", …" if len(found.in_store) > 5 else "")
            click.echo(f"  and in that store {len(found.in_store):,} files that it does not need: {some}")
    if dry_run:
        return
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                "cannot ask, since standard input is no terminal; add --yes to remove, or --dry-run to list"
            )
        if not click.confirm("remove?"):
            click.echo("nothing was removed")
            return
    for found in leftovers.values():
        remove_leftover(found)
        click.echo(f"removed {printable(str(found.path))}")


def _is_store(path: Path) -> bool:
    from packstore.stores import is_store

    return is_store(path)

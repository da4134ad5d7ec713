"""``packstore clean``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from packstore.cli.common import StorePath, human_bytes, pluralize
from packstore.core.errors import UsageError, printable
from packstore.core.urls import UrlPath

if TYPE_CHECKING:
    from packstore.stores.builder.work_directory import Leftover

_LISTED = 10


@click.command(short_help="Remove leftovers of interrupted runs.")
@click.argument("places", nargs=-1, type=StorePath(), metavar="[PLACE]...")
@click.option(
    "--older-than", type=click.FloatRange(0), default=7, show_default=True, metavar="DAYS",
    help="At a URL: only objects of at least this age.",
)  # fmt: skip
@click.option("-y", "--yes", is_flag=True, help="Remove without asking.")
@click.option("-n", "--dry-run", is_flag=True, help="List only; remove nothing.")
def clean(places: tuple[Path, ...], older_than: float, yes: bool, dry_run: bool) -> None:
    """Remove leftovers of interrupted runs.

    A killed run leaves a hidden directory, .NAME.packstore, beside the store it was writing; the same
    command would resume from it. PLACE is a directory to search, or the name of a store or export; by
    default the current directory. Lists only directories that are certainly packstore's own or empty, and
    that no process uses, and asks before it removes them. Files that a killed append has added to a store
    are removed too.

    If PLACE is the URL of a store, removes leftovers of killed uploads and conversions, and of replaced stores.
    Keeps all objects of the newest version, and of versions that were replaced within the last DAYS. Reads each
    object once, and removes it only if its SHA-256 is the one in its name.

    \b
    Examples:
      packstore clean                          in the current directory
      packstore clean /data/stores --dry-run   list only
      packstore clean imagenet.lmdb --yes      this store's, without asking
      packstore clean s3://bucket/imagenet.lmdb
    """
    from packstore.stores.builder.work_directory import find_leftover, find_leftovers, remove_leftover, work_path

    leftovers: dict[Path, Leftover] = {}
    for url in (place for place in places if isinstance(place, UrlPath)):
        _clean_url(url, older_than * 86400, yes, dry_run)
    local = [place for place in places if not isinstance(place, UrlPath)]
    if places and not local:
        return
    for place in local or (Path(),):
        if not place.is_dir() and not place.parent.is_dir():
            raise UsageError(f"{printable(str(place.parent))}: no such directory")
        found = list(find_leftovers(place)) if place.is_dir() and not _is_store(place) else []
        if (beside := find_leftover(work_path(place))) is not None:
            found.append(beside)
        if not found and not os.path.lexists(place):
            raise UsageError(
                f"{printable(str(place))}: no such directory, and no interrupted run was writing a store of that name"
            )
        leftovers.update((leftover.path, leftover) for leftover in found)
    if not leftovers:
        click.echo("there are no leftovers of interrupted runs")
        return
    for leftover in leftovers.values():
        click.echo(_describe_leftover(leftover))
        if leftover.in_store:
            some = ", ".join(map(printable, leftover.in_store[:5])) + (", …" if len(leftover.in_store) > 5 else "")
            click.echo(f"  and {len(leftover.in_store):,} unneeded files in that store: {some}")
    if dry_run:
        return
    if not _confirm(yes):
        return
    for leftover in leftovers.values():
        remove_leftover(leftover)
        click.echo(f"removed {printable(str(leftover.path))}")


def _describe_leftover(leftover: Leftover) -> str:
    """Formats a leftover as text: its directory and size, and who began it."""
    shown, owner = printable(str(leftover.path)), leftover.owner
    if owner is None:
        return f"{shown}: empty"
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(owner.started))
    return f"{shown}: {human_bytes(leftover.nbytes)} of {printable(owner.destination)}, started {began} by {owner}"


def _confirm(yes: bool) -> bool:
    """Asks if the listed files are to be removed. Returns True without asking if ``yes``.

    If the user declines, prints "nothing was removed" and returns False. Raises :class:`UsageError` if it has to ask
    without a terminal.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(
            "cannot ask, since standard input is not a terminal; add --yes to remove, or --dry-run to list"
        )
    if click.confirm("remove?"):
        return True
    click.echo("nothing was removed")
    return False


def _clean_url(url: UrlPath, grace_seconds: float, yes: bool, dry_run: bool) -> None:
    """Prints the objects that no version of the store at a URL needs. Removes them after asking, unless ``dry_run``.

    Keeps these objects:

    - objects younger than ``grace_seconds``;
    - all shards while a conversion runs or can resume;
    - objects that are not packstore's by their name or their SHA-256.

    Raises :class:`UsageError` if it has to ask without a terminal.
    """
    from packstore.objects import open_objects
    from packstore.stores.remote.cleaning import find_unneeded, remove_unneeded

    objects, now = open_objects(url), time.time()
    unneeded = find_unneeded(objects, now, grace_seconds)
    for name in unneeded.busy:
        click.echo(
            f"{url}: a conversion is running, or was interrupted and can resume ({name}), so all shards stay", err=True
        )
    for name in unneeded.foreign[:_LISTED]:
        click.echo(f"{url}: {printable(name)} is not packstore's, so it stays", err=True)
    if not unneeded.objects:
        click.echo(f"{url}: every object is needed, or too young to be removed")
        return
    for info in unneeded.objects[:_LISTED]:
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.modified))
        click.echo(f"{url}/{printable(info.name)}: {human_bytes(info.nbytes)}, written {since}")
    if len(unneeded.objects) > _LISTED:
        click.echo(f"… and {len(unneeded.objects) - _LISTED:,} more")
    click.echo(
        f"{url}: {pluralize(len(unneeded.objects), 'object')} of {human_bytes(unneeded.nbytes)} that no version needs"
    )
    if dry_run or not _confirm(yes):
        return
    removed = remove_unneeded(objects, unneeded, now, grace_seconds)
    for name in removed.foreign:
        click.echo(f"{url}: {printable(name)} does not have the SHA-256 in its name, so it stays", err=True)
    click.echo(f"removed {pluralize(len(removed.objects), 'object')} of {human_bytes(removed.nbytes)}")


def _is_store(path: Path) -> bool:
    """Tells if a store is at a path. Imports the stores at the first call."""
    from packstore.stores.opening import holds_store

    return holds_store(path)

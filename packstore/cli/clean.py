"""``packstore clean`` and ``cache``: what interrupted runs left, and copies of remote stores."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packstore.cli.common import BYTE_SIZE, StorePath, progress_bar
from packstore.cli.options import Command, cache_options, everything_option, json_option, quiet_option
from packstore.cli.rows import LISTED, Rows, format_time, human_bytes, pluralize
from packstore.core.errors import StoreError, UsageError, join_names, printable

if TYPE_CHECKING:
    from packstore.stores.places.leftovers import Leftover


@click.command(cls=Command, short_help="Remove leftovers of interrupted runs.")
@click.argument("places", nargs=-1, type=StorePath(), metavar="[PLACE]...")
@click.option(
    "--older-than", type=click.FloatRange(0), default=7, show_default=True, metavar="DAYS",
    help="At a URL: only objects of at least this age.",
)  # fmt: skip
@click.option("-y", "--yes", is_flag=True, help="Remove without asking.")
@click.option("-n", "--dry-run", is_flag=True, help="List only; remove nothing.")
@json_option
def clean(places: tuple[Path, ...], older_than: float, yes: bool, dry_run: bool, as_json: bool) -> None:
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
    from packstore.stores.places import place_of

    if as_json and not (yes or dry_run):
        raise UsageError("--json asks nothing; add --yes to remove, or --dry-run to list")
    rows = Rows()
    rows.values = {"leftovers": [], "urls": []}
    urls = [place for place in places if place_of(place).remote]
    for url in urls:
        rows.values["urls"].append(_clean_url(url, older_than * 86400, yes, dry_run, as_json))
    local = [place for place in places if place not in urls]
    if local or not places:
        leftovers = _find_leftovers(local or [Path()])
        for leftover in leftovers:
            rows.values["leftovers"].append(_add_leftover(rows, leftover))
        if not leftovers:
            rows.add_lines("there are no leftovers of interrupted runs")
        if not as_json:
            rows.echo()
        if leftovers and not dry_run and _confirm(yes):
            _remove(leftovers, as_json)
    rows.values["removed"] = yes and not dry_run
    if as_json:
        rows.echo(as_json)


def _find_leftovers(places: Sequence[Path]) -> list[Leftover]:
    """Finds the leftovers in directories, and those of stores and exports, each once."""
    from packstore.stores.opening import holds_store
    from packstore.stores.places.leftovers import find_leftover, find_leftovers
    from packstore.stores.places.work import work_path

    leftovers: dict[Path, Leftover] = {}
    for place in places:
        if not place.is_dir() and not place.parent.is_dir():
            raise UsageError(f"{printable(str(place.parent))}: no such directory")
        found = list(find_leftovers(place)) if place.is_dir() and not holds_store(place) else []
        if (beside := find_leftover(work_path(place))) is not None:
            found.append(beside)
        if not found and not os.path.lexists(place):
            raise UsageError(
                f"{printable(str(place))}: no such directory, and no interrupted run was writing a store of that name"
            )
        leftovers.update((leftover.path, leftover) for leftover in found)
    return [*leftovers.values()]


def _add_leftover(rows: Rows, leftover: Leftover) -> dict[str, Any]:
    """Adds lines on the size, owner and files of a leftover, and returns its JSON values."""
    path, owner, inside = printable(str(leftover.path)), leftover.owner, leftover.in_store
    said = "empty"
    if owner is not None:
        began = format_time(owner.started)
        said = f"{human_bytes(leftover.nbytes)} of {printable(owner.destination)}, started {began} by {owner}"
    rows.add_lines(f"{path}: {said}")
    if inside:
        rows.add_lines(f"  and {len(inside):,} unneeded files in that store: {join_names(inside, 5)}")
    return {
        "path": str(leftover.path),
        "destination": str(leftover.destination),
        "bytes": leftover.nbytes,
        "started": None if owner is None else owner.started,
        "files_in_store": inside,
    }


def _remove(leftovers: Sequence[Leftover], quiet: bool) -> None:
    """Removes leftovers, and prints each unless ``quiet``."""
    from packstore.stores.places.leftovers import remove_leftover

    for leftover in leftovers:
        remove_leftover(leftover)
        if not quiet:
            click.echo(f"removed {printable(str(leftover.path))}")


def _confirm(yes: bool) -> bool:
    """Asks if the listed files are to be removed, and returns the answer."""
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


def _clean_url(url: Path, grace_seconds: float, yes: bool, dry_run: bool, as_json: bool) -> dict[str, Any]:
    """Lists and, after asking, removes the objects that no version of the store at a URL needs."""
    from packstore.objects import open_objects
    from packstore.stores.places.leftovers import find_unneeded, remove_unneeded

    objects, now, rows = open_objects(url), time.time(), Rows()
    # Young objects are kept, and all shards while a conversion runs or can resume.
    unneeded = find_unneeded(objects, now, grace_seconds)
    for name in unneeded.busy:
        click.echo(
            f"{url}: a conversion is running, or was interrupted and can resume ({name}), so all shards stay", err=True
        )
    # Objects that are not packstore's are kept, by their name here, by their SHA-256 below.
    for name in unneeded.foreign[:LISTED]:
        click.echo(f"{url}: {printable(name)} is not packstore's, so it stays", err=True)
    found, nbytes = unneeded.objects, unneeded.nbytes
    listed = [
        f"{url}/{printable(info.name)}: {human_bytes(info.nbytes)}, written {format_time(info.modified)}"
        for info in found[:LISTED]
    ]
    rows.add_some(None, listed, len(found), LISTED, others="more")
    total = f"{pluralize(len(found), 'object')} of {human_bytes(nbytes)} that no version needs"
    rows.add_lines(f"{url}: {total}" if found else f"{url}: every object is needed, or too young to be removed")
    rows.values = {"url": str(url), "objects": [info.name for info in found], "bytes": nbytes, "removed": 0}
    if not as_json:
        rows.echo()
    if found and not dry_run and _confirm(yes):
        removed = remove_unneeded(objects, unneeded, now, grace_seconds)
        for name in removed.foreign:
            click.echo(f"{url}: {printable(name)} does not have the SHA-256 in its name, so it stays", err=True)
        rows.values["removed"] = len(removed.objects)
        if not as_json:
            click.echo(f"removed {pluralize(len(removed.objects), 'object')} of {human_bytes(removed.nbytes)}")
    return rows.values


@click.group(short_help="Fill, list and clean the cache of remote shards.")
def cache() -> None:
    """Fill, list and clean the cache: local copies of remote shards.

    Its folder is --cache, else the environment variable PACKSTORE_CACHE, else packstore in the user's cache
    folder. All processes of a machine share it. Copies that a process has open are never removed.

    \b
    Examples:
      packstore cache prefetch s3://bucket/imagenet.lmdb
      packstore cache list
      packstore cache list --json | jq .used
      packstore cache clean                      remove all that is not in use
      packstore cache clean --keep 100GB         keep the copies used last
      packstore cache list --cache /scratch/shards
    """


@cache.command(short_help="Fetch all shards of a store.")
@click.argument("url", type=StorePath())
@click.option("--workers", type=click.IntRange(1), default=4, show_default=True, metavar="N", help="Shards at a time.")
@quiet_option("No progress bar; print nothing.")
@cache_options
def prefetch(url: Path, workers: int, quiet: bool) -> None:
    """Fetch all shards of the store at URL that the cache lacks. Run it before training, on each machine.

    Fails if the cache may not hold the whole store. If it is interrupted, the same command resumes.

    \b
    Examples:
      packstore cache prefetch s3://bucket/imagenet.lmdb
      packstore cache prefetch s3://bucket/imagenet.lmdb --cache-size 500GB
    """
    from packstore.core.parallel import ordered_map
    from packstore.core.progress import Progress
    from packstore.stores.opening import open_reader
    from packstore.stores.places import place_of
    from packstore.stores.remote_shards import RemoteShards

    if not place_of(url).remote:
        raise UsageError(f"{printable(str(url))} is on this machine; only stores at URLs are cached")
    with closing(open_reader(url)) as reader:
        table = reader.table
        if not isinstance(table, RemoteShards):  # one object, which opening has fetched
            if not quiet:
                click.echo(f"{printable(str(url))}: 1 object, {human_bytes(reader.nbytes or 0)}")
            return
        shards, budget = list(reader.manifest.shards or ()), table.cache.budget
        nbytes = sum(shard.nbytes for shard in shards)
        if nbytes > budget:
            raise StoreError(
                f"the cache {printable(str(table.cache.root))} is too small: the store needs {nbytes:,} bytes, "
                f"it may hold {budget:,}; give it more with --cache-size or PACKSTORE_CACHE_SIZE"
            )
        absent = len(table.cache.list_missing(shard.digest for shard in shards))
        with progress_bar(quiet) as progress:
            done_bytes = 0
            for number, _ in enumerate(ordered_map(table.prefetch, range(len(shards)), workers)):
                done_bytes += shards[number].nbytes
                progress(Progress("fetch", number + 1, len(shards), done_bytes))
        if not quiet:
            click.echo(
                f"{printable(str(table.cache.root))}: {pluralize(absent, 'shard')} fetched, "
                f"{human_bytes(table.counts.fetched_bytes)}; {len(shards) - absent:,} were there already"
            )


@cache.command("list", short_help="List the content of the cache.")
@everything_option
@cache_options
def list_entries(as_json: bool) -> None:
    """List the objects in the cache by last use, the latest at the end: URL, size, time of last use.

    If an object's URL is unknown, its name in the cache is listed, which is its SHA-256. --json has both.

    \b
    Examples:
      packstore cache list
      packstore cache list --cache /scratch/shards --json
    """
    from packstore.cache import default_cache

    folder = default_cache()
    entries = folder.entries()
    used, rows = sum(entry.nbytes for entry in entries), Rows()
    for entry in entries:
        where, size, then = printable(entry.url or entry.name), human_bytes(entry.nbytes), format_time(entry.used)
        rows.add_lines(f"{where}  {size:>8}  {then}{'  in use' if entry.in_use else ''}")
    total = f"{pluralize(len(entries), 'object')}, {human_bytes(used)} of {human_bytes(folder.budget)}"
    rows.add_lines(f"{printable(str(folder.root))}: {total}", cache=str(folder.root), budget=folder.budget, used=used)
    rows.values["objects"] = [asdict(entry) for entry in entries]
    rows.echo(as_json)


@cache.command("clean", short_help="Remove objects that are not in use.")
@click.option("--keep", type=BYTE_SIZE, default=0, help="Keep so many bytes of the objects used last, e.g. 100GB.")
@cache_options
def clean_entries(keep: int) -> None:
    """Remove objects from the cache that no process has open. They are fetched again when needed.

    Removes only files that packstore has named, in a folder that packstore has created.

    \b
    Examples:
      packstore cache clean
      packstore cache clean --keep 100GB
    """
    from packstore.cache import default_cache

    folder = default_cache()
    removed = folder.clean(keep)
    left = sum(entry.nbytes for entry in folder.entries())
    click.echo(f"{printable(str(folder.root))}: removed {human_bytes(removed)}, {human_bytes(left)} are left")

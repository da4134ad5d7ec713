"""``packstore cache``."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import click

from packstore.cli.common import BYTE_SIZE, StorePath, progress_bar
from packstore.cli.options import cache_options, everything_option, quiet_option
from packstore.cli.rows import Rows, format_time, human_bytes, pluralize
from packstore.core.errors import StoreError, UsageError, printable


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
    from packstore.stores.remote.shards import RemoteShards

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

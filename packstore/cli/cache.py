"""``packstore cache``."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import click

from packstore.cli.common import ByteSize, cache_options, human_bytes, quantity
from packstore.core.errors import printable


@click.group(short_help="Look after the local copies of remote shards.")
def cache() -> None:
    """Look after the cache: the local copies of remote shards.

    Its folder is --cache, else the environment variable PACKSTORE_CACHE, else packstore in the user's cache
    folder. All processes of a machine share it. What a process has open stays.

    \b
    Examples:
      packstore cache list
      packstore cache list --json | jq .used
      packstore cache clean                      all that is not in use
      packstore cache clean --keep 100GB         what was used last stays
      packstore cache list --cache /scratch/shards
    """


@cache.command("list", short_help="List what is in the cache.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@cache_options
def list_entries(as_json: bool) -> None:
    """List what is in the cache, with what was used last at the end: name, size, last use.

    The name of an object is its SHA-256, as the table of its store has it.

    \b
    Examples:
      packstore cache list
      packstore cache list --cache /scratch/shards --json
    """
    from packstore.cache import default_cache

    found = default_cache()
    entries = found.entries()
    used = sum(entry.nbytes for entry in entries)
    if as_json:
        objects = [asdict(entry) for entry in entries]
        click.echo(json.dumps({"cache": str(found.root), "budget": found.budget, "used": used, "objects": objects}))
        return
    for entry in entries:
        then = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        click.echo(f"{entry.name}  {human_bytes(entry.nbytes):>8}  {then}{'  in use' if entry.in_use else ''}")
    click.echo(
        f"{printable(str(found.root))}: {quantity(len(entries), 'object')}, {human_bytes(used)} of "
        f"{human_bytes(found.budget)}"
    )


@cache.command("clean", short_help="Remove what is not in use.")
@click.option("--keep", type=ByteSize(), default=0, help="Leave so much of what was used last, e.g. 100GB.")
@cache_options
def clean_entries(keep: int) -> None:
    """Remove from the cache what no process has open; it is fetched again when it is needed.

    Removes only files with names that packstore gives, in a folder that packstore made.

    \b
    Examples:
      packstore cache clean
      packstore cache clean --keep 100GB
    """
    from packstore.cache import default_cache

    found = default_cache()
    removed = found.clean(keep)
    left = sum(entry.nbytes for entry in found.entries())
    click.echo(f"{printable(str(found.root))}: removed {human_bytes(removed)}, {human_bytes(left)} are left")

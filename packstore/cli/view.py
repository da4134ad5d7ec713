"""``packstore view``."""

from __future__ import annotations

from pathlib import Path

import click

from packstore.cli.common import LocalPath, StorePath, cache_options, expecting_store


@click.command(short_help="Look at a store in the browser.")
@click.argument("store", type=StorePath())
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port.  [default: a free one]")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--audit", type=LocalPath(), metavar="FILE", help="Mark what packstore audit --json FILE found.")
@click.option("--verified", type=LocalPath(), metavar="FILE", help="Mark what packstore verify --json found.")
@cache_options
def view(store: Path, port: int, no_browser: bool, audit: Path | None, verified: Path | None) -> None:
    """Show the store at STORE, a path or a URL, in the browser: its images, records and classes. Nothing is changed.

    The page is served to this machine alone, at an address with a secret in it; Ctrl-C ends it. To see a
    store on another machine, forward the port: ssh -L 8000:127.0.0.1:8000 HOST, with --port 8000 there.

    \b
    Examples:
      packstore view imagenet.lmdb
      packstore view imagenet.lmdb --no-browser --port 8000
      packstore view s3://bucket/imagenet.lmdb
      packstore verify imagenet.lmdb --json > damage.json
      packstore view imagenet.lmdb --verified damage.json
    """
    from packstore.objects import interrupt
    from packstore.seeing.view.serve import serve

    with expecting_store(store):
        serve(store, _announce, interrupt, port=port, browser=not no_browser, audit=audit, verified=verified)


def _announce(address: str) -> None:
    click.echo(f"{address}\nCtrl-C ends it.")

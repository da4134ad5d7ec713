"""``packstore view``."""

from __future__ import annotations

from pathlib import Path

import click

from packstore.cli.common import LocalPath, StorePath, suggest_packing
from packstore.cli.options import cache_options


@click.command(short_help="Show a store in the browser.")
@click.argument("store", type=StorePath())
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port.  [default: a free one]")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--audit", type=LocalPath(), metavar="FILE", help="Mark the findings of packstore audit --json FILE.")
@click.option(
    "--verified", type=LocalPath(), metavar="FILE", help="Mark the problems of packstore verify --json > FILE."
)
@click.option(
    "--window", nargs=2, type=float, metavar="LO HI",
    help="More than 8 bits: values shown as black and as white.  [default: 1st and 99th percentile of each image]",
)  # fmt: skip
@cache_options
def view(
    store: Path,
    port: int,
    no_browser: bool,
    audit: Path | None,
    verified: Path | None,
    window: tuple[float, float] | None,
) -> None:
    """Show the store at STORE, a path or a URL, in the browser: its images, records and classes. Changes nothing.

    Only this machine can open the page; its address contains a secret. Ctrl-C ends the server. To see a store
    on another machine, run this there with --port 8000, and forward the port: ssh -L 8000:127.0.0.1:8000 HOST.

    \b
    Examples:
      packstore view imagenet.lmdb
      packstore view imagenet.lmdb --no-browser --port 8000
      packstore view s3://bucket/imagenet.lmdb
      packstore verify imagenet.lmdb --json > damage.json
      packstore view imagenet.lmdb --verified damage.json
    """
    from packstore.objects import interrupt
    from packstore.seeing.view.serve import serve_page

    with suggest_packing(store):
        serve_page(
            store,
            _print_address,
            interrupt,
            port=port,
            browser=not no_browser,
            audit=audit,
            verified=verified,
            window=window,
        )


def _print_address(address: str) -> None:
    """Prints the address of the page, and how to end the server."""
    click.echo(f"{address}\nCtrl-C ends it.")

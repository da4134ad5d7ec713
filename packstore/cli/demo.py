"""``packstore demo``."""

from __future__ import annotations

from pathlib import Path

import click

from packstore.cli.common import LocalPath, shell_quote
from packstore.cli.rows import pluralize
from packstore.core.errors import printable


@click.command(short_help="Create a small image folder to experiment with.")
@click.argument("directory", type=LocalPath(), default=Path("packstore-demo"))
def demo(directory: Path) -> None:
    """Create DIRECTORY (packstore-demo by default), a small image folder with the splits train and val.

    The images are drawn, not downloaded: JPEG of several kinds, PNG, BMP, WebP, GIF and TIFF.

    \b
    Examples:
      packstore demo
      packstore convert packstore-demo demo.lmdb
      packstore verify demo.lmdb --decode --against packstore-demo
    """
    from packstore.diagnose.demo import make_demo

    make_demo(directory)
    files = sum(1 for p in directory.rglob("*") if p.is_file())
    made = f"{printable(str(directory))}: {pluralize(files, 'file')}"
    click.echo(f"{made}; now try: packstore convert {shell_quote(directory)} demo.lmdb")

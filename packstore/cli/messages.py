"""What the library logs, on standard error. A module of its own, for `packstore --help` has no use for logging."""

from __future__ import annotations

import logging
import sys

import click

from packstore.core.errors import printable


class MessageHandler(logging.Handler):
    """Shows a message in a line of its own, above whatever bar there is."""

    def emit(self, record: logging.LogRecord) -> None:
        text = f"packstore: {printable(record.getMessage())}"
        if sys.stderr.isatty():
            text = "\r\x1b[K" + text  # a status line may stand there
        if "tqdm" in sys.modules:
            from tqdm import tqdm

            tqdm.write(text, file=sys.stderr)
        else:
            click.echo(text, err=True)


def show_messages() -> None:
    """Shows warnings from now on, unless somebody has said already what is to become of them."""
    log = logging.getLogger("packstore")
    if not log.handlers:
        log.addHandler(MessageHandler(logging.WARNING))

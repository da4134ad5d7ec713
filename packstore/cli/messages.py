"""Messages that the library logs, on standard error. A module of its own: `packstore --help` does not load logging."""

from __future__ import annotations

import logging
import sys

import click

from packstore.cli.colour import yellow
from packstore.core.errors import printable


class MessageHandler(logging.Handler):
    """Shows a message on a line of its own, above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{yellow('packstore:', 2)} {printable(record.getMessage())}"
        if sys.stderr.isatty():
            text = "\r\x1b[K" + text  # a status line may stand there
        if "tqdm" in sys.modules:
            from tqdm import tqdm

            # tqdm's own lock is shared with forked processes, and one that is killed would keep it for ever.
            tqdm.set_lock(self.lock)
            tqdm.write(text, file=sys.stderr)
        else:
            click.echo(text, err=True)


def show_messages() -> None:
    """Shows warnings from now on, unless the application has a handler of its own."""
    log = logging.getLogger("packstore")
    if not log.handlers:
        log.addHandler(MessageHandler(logging.WARNING))

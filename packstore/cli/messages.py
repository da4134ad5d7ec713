"""Shows the library's log messages on standard error. A separate module, so `packstore --help` loads no logging."""

from __future__ import annotations

import logging
import sys

import click

from packstore.cli.rows import yellow
from packstore.core.errors import printable


class MessageHandler(logging.Handler):
    """Prints log messages on standard error, above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        """Prints a message on standard error, above a progress bar. In a terminal, clears a status line first."""
        text = f"{yellow('packstore:', 2)} {printable(record.getMessage())}"
        if sys.stderr.isatty():
            text = "\r\x1b[K" + text  # clears a status line
        if "tqdm" in sys.modules:
            from tqdm import tqdm

            # tqdm's own lock is shared with forked processes; a killed process would hold it for ever.
            tqdm.set_lock(self.lock)
            tqdm.write(text, file=sys.stderr)
        else:
            click.echo(text, err=True)


def show_messages() -> None:
    """Shows the library's warnings from now on, unless its logger has a handler already."""
    log = logging.getLogger("packstore")
    if not log.handlers:
        log.addHandler(MessageHandler(logging.WARNING))

"""Colour for terminals; none for pipes and files, nor if ``NO_COLOR`` is set (https://no-color.org)."""

from __future__ import annotations

import os
import sys

import click


def bold(text: str) -> str:
    """Returns ``text`` in bold if standard output shows colours, else unchanged. For key figures."""
    return click.style(text, bold=True) if _uses_colour(1) else text


def red(text: str, stream: int = 1) -> str:
    """Returns ``text`` in red if the stream shows colours, else unchanged. For marks of errors.

    ``stream``: 1 for standard output, 2 for standard error.
    """
    return click.style(text, fg="red", bold=True) if _uses_colour(stream) else text


def yellow(text: str, stream: int = 1) -> str:
    """Returns ``text`` in yellow if the stream shows colours, else unchanged. For marks of warnings.

    ``stream``: 1 for standard output, 2 for standard error.
    """
    return click.style(text, fg="yellow", bold=True) if _uses_colour(stream) else text


def _uses_colour(stream: int) -> bool:
    """Tells if standard output (1) or error (2) is a terminal that shows colours. False with ``NO_COLOR`` or
    ``TERM=dumb``."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return (sys.stdout if stream == 1 else sys.stderr).isatty()

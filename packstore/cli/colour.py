"""Colour, where a terminal shows it: never in pipes and files, nor where ``NO_COLOR`` is set (https://no-color.org)."""

from __future__ import annotations

import os
import sys

import click


def bold(text: str) -> str:
    """A key figure on standard output."""
    return click.style(text, bold=True) if _coloured(1) else text


def red(text: str, stream: int = 1) -> str:
    """The mark of an error, on standard output (1) or error (2)."""
    return click.style(text, fg="red", bold=True) if _coloured(stream) else text


def yellow(text: str, stream: int = 1) -> str:
    """The mark of a warning, on standard output (1) or error (2)."""
    return click.style(text, fg="yellow", bold=True) if _coloured(stream) else text


def _coloured(stream: int) -> bool:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return (sys.stdout if stream == 1 else sys.stderr).isatty()

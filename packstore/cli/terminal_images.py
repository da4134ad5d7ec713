"""Finds out which graphics protocol a terminal has."""

from __future__ import annotations

import os
import select
import sys
import time

_KITTY_TERMS = ("xterm-kitty", "xterm-ghostty")
_KITTY_PROGRAMS = ("WezTerm", "ghostty")
_ASK_KITTY = b"\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\"
_ASK_ATTRIBUTES = b"\x1b[c"
"""Request of the primary device attributes, which every terminal answers: sixel is attribute 4."""
_TIMEOUT_SECONDS = 0.5


def terminal_graphics() -> str | None:
    """Returns the protocol of the terminal at standard output, ``kitty`` or ``sixel``. Returns None if it shows no
    images, or is no terminal.

    Knows some terminals by their environment variables, and asks the others.
    """
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return None
    if os.environ.get("KITTY_WINDOW_ID") or os.environ.get("TERM") in _KITTY_TERMS:
        return "kitty"
    if os.environ.get("TERM_PROGRAM") in _KITTY_PROGRAMS:
        return "kitty"
    return parse_graphics(ask_terminal())


def parse_graphics(answer: bytes) -> str | None:
    """Returns the protocol in a terminal's answer to :func:`ask_terminal`: ``kitty`` or ``sixel``. Returns None for
    neither."""
    if b"_Gi=31;OK" in answer:
        return "kitty"
    _, start, attributes = answer.rpartition(b"\x1b[?")
    return "sixel" if start and b"4" in attributes.rstrip(b"c").split(b";")[1:] else None


def ask_terminal() -> bytes:
    """Asks the terminal which graphics it supports, and returns its answer.

    Returns ``b""`` without a terminal. Waits for half a second at most: the answer may be incomplete.
    """
    try:
        import termios
        import tty

        file = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except (ImportError, OSError):
        return b""
    try:
        before = termios.tcgetattr(file)
        try:
            tty.setcbreak(file, termios.TCSANOW)
            os.write(file, _ASK_KITTY + _ASK_ATTRIBUTES)
            return _read_answer(file)
        finally:
            termios.tcsetattr(file, termios.TCSANOW, before)
    except (OSError, termios.error):
        return b""
    finally:
        os.close(file)


def _read_answer(file: int) -> bytes:
    """Reads a terminal's answer up to the end of the attributes. Stops after half a second."""
    answer, end = b"", time.monotonic() + _TIMEOUT_SECONDS
    while (left := end - time.monotonic()) > 0 and select.select([file], [], [], left)[0]:
        answer += os.read(file, 1024)
        start = answer.find(b"\x1b[?")
        if start >= 0 and b"c" in answer[start:]:
            break
    return answer

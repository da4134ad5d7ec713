"""Pictures in a terminal: kitty's graphics protocol, and sixel."""

from __future__ import annotations

import base64
import io
import os
import select
import shutil
import sys
import time
from typing import Any

import numpy as np

_PIXELS_A_COLUMN = 9
"""Approximate width of a character: a wider image than the terminal would be cut off."""
_KITTY_TERMS = ("xterm-kitty", "xterm-ghostty")
_KITTY_PROGRAMS = ("WezTerm", "ghostty")
_ASK_KITTY = b"\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\"
_ASK_ATTRIBUTES = b"\x1b[c"
"""Request of the primary device attributes, which every terminal answers: sixel is attribute 4."""
_TIMEOUT_SECONDS = 0.5
_CHUNK = 4096
_BAND = 6


def show_image(image: Any, graphics: str) -> None:
    """Prints an image with the terminal's graphics, ``kitty`` or ``sixel``, at most as wide as the terminal."""
    most = shutil.get_terminal_size().columns * _PIXELS_A_COLUMN
    if image.width > most:
        image = image.resize((most, max(1, image.height * most // image.width)))
    sys.stdout.buffer.write(encode_kitty(image) if graphics == "kitty" else encode_sixel(image))
    sys.stdout.flush()


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
    """Reads a terminal's answer up to the end of the attributes, for at most half a second."""
    answer, end = b"", time.monotonic() + _TIMEOUT_SECONDS
    while (left := end - time.monotonic()) > 0 and select.select([file], [], [], left)[0]:
        answer += os.read(file, 1024)
        start = answer.find(b"\x1b[?")
        if start >= 0 and b"c" in answer[start:]:
            break
    return answer


def encode_kitty(image: Any) -> bytes:
    """Encodes ``image`` as PNG in the graphics protocol of the terminal kitty
    (https://sw.kovidgoyal.net/kitty/graphics-protocol)."""
    file = io.BytesIO()
    image.save(file, "PNG")
    data = base64.standard_b64encode(file.getvalue())
    chunks = [data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK)]
    parts = []
    for number, chunk in enumerate(chunks):
        head = "a=T,f=100," if number == 0 else ""
        parts.append(b"\x1b_G%sm=%d;%s\x1b\\" % (head.encode(), number < len(chunks) - 1, chunk))
    return b"".join(parts) + b"\n"


def encode_sixel(image: Any) -> bytes:
    """Encodes ``image`` for a terminal with sixel graphics (DEC STD 070). Reduces it to 256 colours.

    A character stands for six pixels of a column: its code is 63 plus their bits. ``!n`` repeats a character.
    """
    few = image.convert("RGB").quantize(256)
    numbers = np.asarray(few)
    palette = np.array(few.getpalette(), np.int64).reshape(-1, 3)
    height, width = numbers.shape
    out = [f'\x1bPq"1;1;{width};{height}']
    for number in np.unique(numbers).tolist():
        out.append(f"#{number};2;" + ";".join(str(value * 100 // 255) for value in palette[number].tolist()))
    for top in range(0, height, _BAND):
        band = numbers[top : top + _BAND]
        weights = (1 << np.arange(len(band)))[:, None]
        lines = []
        for color in np.unique(band).tolist():
            bits = ((band == color) * weights).sum(0) + 63
            lines.append(f"#{color}{_encode_runs(bits)}")
        out.append("$".join(lines) + "-")
    return ("".join(out) + "\x1b\\").encode("ascii") + b"\n"


def _encode_runs(values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> str:
    """Encodes character codes as text, with more than three in a row as ``!n`` and the character."""
    edges = np.flatnonzero(np.diff(values, prepend=-1, append=-1))
    runs = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    return "".join(
        f"!{stop - start}{chr(int(values[start]))}" if stop - start > 3 else chr(int(values[start])) * (stop - start)
        for start, stop in runs
    )

"""Encodes images for a terminal: kitty's graphics protocol, and sixel."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image

_CHUNK = 4096
_BAND = 6


def encode_kitty(image: Image.Image) -> bytes:
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


def encode_sixel(image: Image.Image) -> bytes:
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

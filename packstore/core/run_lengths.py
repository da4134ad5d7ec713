"""Run lengths of COCO (https://cocodataset.org/#format-data): column by column, beginning with the background."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def decode_run_lengths(text: bytes) -> list[int]:
    """Decodes COCO's string of run lengths. Each character has five bits.

    From the fourth on, a length is stored as its difference to the length two before it. Raises :class:`ValueError` for
    any other text.
    """
    counts: list[int] = []
    value = bits = 0
    for character in text:
        part = character - 48
        if not 0 <= part < 64 or bits > 60:
            raise ValueError("run lengths are not COCO's string")
        value |= (part & 0x1F) << bits
        bits += 5
        if part & 0x20:
            continue
        if part & 0x10:
            value -= 1 << bits
        counts.append(value + counts[-2] if len(counts) > 2 else value)
        if not 0 <= counts[-1] < 1 << 40:
            raise ValueError("run lengths are not COCO's string: one is out of range")
        value = bits = 0
    if bits:
        raise ValueError("run lengths end within a number")
    return counts


def compute_run_lengths_box(counts: Sequence[int], height: int, width: int) -> list[float]:
    """Computes left, top, right and bottom of a mask's pixels; zeros if it has none.

    Raises :class:`ValueError` if the run lengths do not add up to the image's pixels.
    """
    lengths = np.asarray(counts, np.int64)
    if height < 1 or width < 1 or (lengths < 0).any() or int(lengths.sum()) != height * width:
        raise ValueError(f"run lengths do not add up to the {height} x {width} pixels of the image")
    ends = np.cumsum(lengths)
    begin, last = (ends - lengths)[1::2][lengths[1::2] > 0], ends[1::2][lengths[1::2] > 0] - 1
    if not len(begin):
        return [0.0, 0.0, 0.0, 0.0]
    spans = (
        begin // height < last // height
    ).any()  # a run continues from the bottom of a column at the top of the next
    top, bottom = (0, height) if spans else (int((begin % height).min()), int((last % height).max()) + 1)
    return [float(begin[0] // height), float(top), float(last[-1] // height + 1), float(bottom)]

"""Run lengths of COCO (https://cocodataset.org/#format-data): column by column, beginning with the background."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


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


def fill_run_lengths(segmentation: dict[str, Any], mask: NDArray[np.uint8]) -> None:
    """Sets the pixels of run lengths in ``mask`` to 1.

    Raises :class:`ValueError` unless they have the mask's size and fill it exactly.
    """
    if list(segmentation.get("size", ())) != list(mask.shape):
        raise ValueError(f"run lengths of size {segmentation.get('size')!r:.40} in an image {mask.shape}")
    counts = segmentation.get("counts")
    if isinstance(counts, (str, bytes)):
        lengths = np.asarray(decode_run_lengths(counts.encode() if isinstance(counts, str) else counts), np.int64)
    else:
        lengths = np.asarray(counts)
        if lengths.ndim != 1 or (lengths.dtype.kind not in "iu" and len(lengths)):
            raise ValueError("run lengths are neither a list of whole numbers nor a string")
    if (lengths < 0).any() or (lengths > mask.size).any() or int(lengths.sum()) != mask.size:
        raise ValueError(f"run lengths do not add up to the {mask.size} pixels of the image")
    values = np.arange(len(lengths), dtype=np.int64) & 1
    mask |= np.repeat(values.astype(np.uint8), lengths.astype(np.int64)).reshape(mask.shape[::-1]).T


def encode_run_lengths(mask: NDArray[np.bool_], corner: tuple[int, int] = (0, 0), sides: Any = None) -> list[int]:
    """Encodes a mask as COCO's run lengths: column by column, beginning with the background.

    Args:
        mask: Mask ``(H, W)``, or a part of it that has all its pixels.
        corner: Top and left of the part.
        sides: Height and width of the whole mask; None for those of ``mask``.
    """
    height, width = mask.shape if sides is None else sides
    columns, rows = np.nonzero(mask.T)
    flat = (columns + corner[1]) * height + rows + corner[0]
    breaks = np.flatnonzero(np.diff(flat) != 1)
    edges = np.sort(np.concatenate([flat[:1], flat[breaks] + 1, flat[breaks + 1], flat[-1:] + 1]))
    lengths: list[int] = np.diff([0, *edges.tolist(), height * width]).tolist()
    return lengths if lengths[-1] else lengths[:-1]

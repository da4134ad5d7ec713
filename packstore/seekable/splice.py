"""The crop: a JPEG of just the restart segments that a box needs, out of a seekable one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.seekable.index import Index, lengths
from packstore.seekable.markers import EOI, RST0, Data


def _numbered(count: int) -> NDArray[np.uint16]:
    """FF D0 … FF D7 over and over."""
    return (0xFFD0 + np.arange(count) % 8).astype(">u2")


_MARKERS = _numbered(1 << 14)
_WORTH = 0.9
"""Share of the segments from which on the whole image is decoded instead."""
_NARROWEST = 8
"""Fewest columns of a part: more than two samples of chroma, of which every MCU of subsampled chroma has 8 or more."""


class Splice(NamedTuple):
    """Part of an image.

    Attributes:
        jpeg: The bytes of a JPEG file that shows it.
        height: Its pixels.
        width: Likewise.
        top: Where in it the box begins.
        left: Likewise.
    """

    jpeg: bytearray
    height: int
    width: int
    top: int
    left: int


def splice(data: Data, index: Index, box: tuple[int, int, int, int]) -> Splice | None:
    """The segments of ``data`` that a box needs, as a JPEG whose pixels there are those of the whole image.

    Each segment decodes alone: at a restart the prediction begins anew, on a whole byte. So a rectangle of them behind
    the same tables is a JPEG, once the frame header has its size and the restart markers are numbered anew.

    Args:
        data: A seekable JPEG file.
        index: Its index, as :func:`packstore.seekable.read_index` gave it.
        box: Top, left, height and width of what is wanted, in pixels, within the image.

    Returns:
        None where nearly all segments are needed, or where a segment's boundary is not where the index says.
    """
    top, left, height, width = box
    rows_margin, columns_margin = index.margins >> 4, index.margins & 15
    mcu_height, segment_width, across = index.mcu_height, index.mcu_width * index.interval, index.across
    first_row, first = max(0, top - rows_margin) // mcu_height, max(0, left - columns_margin) // segment_width
    bottom = min(index.height, top + height + rows_margin)
    right = min(index.width, left + width + columns_margin)
    if right - first * segment_width < _NARROWEST:
        # Of narrower images libjpeg upsamples chroma in another way.
        first = max(0, first - 1)
        right = min(index.width, max(right, first * segment_width + _NARROWEST))
    last_row, last = -(-bottom // mcu_height), -(-right // segment_width)
    rows, columns = last_row - first_row, last - first
    if rows * columns >= _WORTH * across * index.rows:
        return None
    count, begin = last_row * across, first_row * across
    each = lengths(index, count)
    # Here and below in ways in which numpy keeps the GIL: to give it away and wait for it again takes longer.
    bounds = np.empty(count + 1, np.int64)
    bounds[0] = 0
    np.add.accumulate(each, 0, np.int64, bounds[1:])
    if bounds[-1] > index.scan_bytes:
        return None
    step = count if columns == across else across  # rows that are needed whole are one run
    starts = bounds[begin + first : count : step] + index.scan_at
    stops = bounds[count if columns == across else begin + last :: step] + index.scan_at
    markers = _MARKERS if count + 8 <= len(_MARKERS) else _numbered(count + 8)
    # Each start has a marker before it, but the very first of the image.
    skip = int(begin + first == 0)
    found = _pairs(data)[starts[skip:] - 2]
    if found.tobytes() != markers[begin + first + 7 : count + 7 : step][skip:].tobytes():
        return None
    view = memoryview(data)
    tables_at, frame_at = index.tables_at, index.tables_at + index.frame_at
    # Not beyond the margin, as far as the number of MCUs allows, so that no more is transformed than what is needed.
    right = min(index.width, max(right, last * segment_width - index.mcu_width + 1))
    total_height, total_width = bottom - first_row * mcu_height, right - first * segment_width
    size = total_height.to_bytes(2, "big") + total_width.to_bytes(2, "big")
    parts: list[Data] = [
        view[: index.prefix_bytes],
        view[tables_at : frame_at + 5],
        size,
        view[frame_at + 9 : index.scan_at],
    ]
    header_bytes = index.prefix_bytes + index.scan_at - tables_at
    parts += [view[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    jpeg = bytearray().join(parts)
    if count == index.rows * across and last == across and jpeg[-1] == EOI:
        jpeg[-1] = RST0 + (count - 1) % 8  # which is what any other segment would end with
    ends = np.add.accumulate(each[begin:].reshape(rows, across)[:, first:last].reshape(-1), 0, np.int64)
    ends += header_bytes - 2
    pairs = _pairs(jpeg)
    if pairs[ends].tobytes() != markers[begin:count].reshape(rows, across)[:, first:last].tobytes():
        return None
    pairs[ends] = markers[: len(ends)]
    jpeg[-1] = EOI
    return Splice(jpeg, total_height, total_width, top - first_row * mcu_height, left - first * segment_width)


def _pairs(data: Data) -> NDArray[np.uint16]:
    """Every two neighbouring bytes of ``data`` as a number."""
    return np.ndarray(len(data) - 1, ">u2", data, 0, (1,))

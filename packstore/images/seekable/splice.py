"""Crops of seekable JPEG files: a JPEG of just the restart segments that a box needs.

Each segment decodes alone: at a restart the prediction begins anew, on a whole byte. So a rectangle of segments behind
the same tables is a JPEG, once the frame header has its size and the restart markers are renumbered. Which segments a
box needs is planned for many images at once, in arrays: image by image, numpy's calls, a microsecond each, would double
the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.images.seekable.index import Index, lengths
from packstore.images.seekable.markers import EOI, RST0, Data

_WORTH = 0.9
"""Share of the segments from which on the whole image is decoded instead."""
_NARROWEST = 8
"""Fewest columns of a part: libjpeg upsamples chroma of two columns or fewer in another way."""
_AT_ONCE = 1 << 17
"""Segments planned at once, which bounds memory to 10 MB. A single image may have more."""
NUMBERS = Index._fields[: Index._fields.index("lengths_in")]
"""The fields of an index that are numbers."""


class CropPlan(NamedTuple):
    """The segments of a seekable JPEG that a box needs; together they are the *part*, a smaller JPEG.

    Attributes:
        height: Height of the part in pixels; 0 where the box needs so much that decoding the whole image is cheaper.
        width: Width of the part in pixels.
        top: Row of the part at which the box begins.
        left: Column of the part at which the box begins.
        starts: Offsets in the file at which runs of segments begin.
        stops: Offsets at which these runs end.
        checked: Offsets at which the file has restart markers if the index is right: those around the needed segments,
            and every eighth of all.
        markers: These markers.
        ends: Offset in the part of the marker that ends each segment.
    """

    height: int
    width: int = 0
    top: int = 0
    left: int = 0
    starts: Sequence[int] = ()
    stops: Sequence[int] = ()
    checked: NDArray[np.int64] | None = None
    markers: bytes = b""
    ends: NDArray[np.int64] | None = None


WHOLE = CropPlan(0)


@dataclass(eq=False)
class CropPlans:
    """The plans of N crops, in arrays; a sequence of :class:`CropPlan`, which says what each array holds.

    ``x_at`` has ``N + 1`` entries: plan ``n`` owns the entries ``x_at[n]`` to ``x_at[n + 1]`` of its arrays.

    Attributes:
        fields: int64 ``(N, F)``: the fields :data:`NUMBERS` of each :class:`packstore.images.seekable.Index`.
        parts: int64 ``(N, 4)``: height, width, top and left of each part; all 0 for :data:`WHOLE`.
        runs_at: Ranges in ``starts`` and ``stops``.
        starts: int64.
        stops: int64.
        ends_at: Ranges in ``ends``.
        ends: int64.
        checked_at: Ranges in ``checked`` and ``markers``.
        checked: int64.
        markers: uint8 ``(C, 2)``.
    """

    fields: NDArray[np.int64]
    parts: NDArray[np.int64]
    runs_at: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    ends_at: NDArray[np.int64]
    ends: NDArray[np.int64]
    checked_at: NDArray[np.int64]
    checked: NDArray[np.int64]
    markers: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, n: int) -> CropPlan:
        height, width, top, left = self.parts[n].tolist()
        if not height:
            return WHOLE
        runs, ends, checked = (slice(*at[n : n + 2]) for at in (self.runs_at, self.ends_at, self.checked_at))
        return CropPlan(
            *(height, width, top, left, self.starts[runs].tolist(), self.stops[runs].tolist()),
            *(self.checked[checked], self.markers[checked].tobytes(), self.ends[ends]),
        )

    def __iter__(self) -> Iterator[CropPlan]:
        return (self[n] for n in range(len(self)))


def plan_crops(indexes: Sequence[Index], boxes: NDArray[np.int64]) -> CropPlans:
    """Plans one crop of each image.

    Args:
        indexes: The index of each file, from :func:`packstore.images.seekable.read_index`.
        boxes: int64 ``(N, 4)``: top, left, height and width in pixels, within the image.
    """
    fields = np.array([index[: len(NUMBERS)] for index in indexes], np.int64).reshape(-1, len(NUMBERS))
    field = dict(zip(NUMBERS, fields.T, strict=True))
    top, left, height, width = boxes.T
    rows_margin, columns_margin = field["margins"] >> 4, field["margins"] & 15
    mcu_height, segment_width, across = field["mcu_height"], field["mcu_width"] * field["interval"], field["across"]
    first_row, first = _floor(top - rows_margin, mcu_height), _floor(left - columns_margin, segment_width)
    bottom = np.minimum(field["height"], top + height + rows_margin)
    right = np.minimum(field["width"], left + width + columns_margin)
    narrow = right - first * segment_width < _NARROWEST
    first = np.where(narrow, np.maximum(0, first - 1), first)
    wider = np.minimum(field["width"], np.maximum(right, first * segment_width + _NARROWEST))
    right = np.where(narrow, wider, right)
    last_row, last = -(-bottom // mcu_height), -(-right // segment_width)
    rows, columns = last_row - first_row, last - first
    # Up to the margin and no further, as far as the number of MCUs allows: nothing is transformed in vain.
    right = np.minimum(field["width"], np.maximum(right, last * segment_width - field["mcu_width"] + 1))
    parts = np.stack(
        [
            bottom - first_row * mcu_height,
            right - first * segment_width,
            top - first_row * mcu_height,
            left - first * segment_width,
        ],
        1,
    )
    wanted = rows * columns < _WORTH * across * field["rows"]
    worth = np.flatnonzero(wanted)
    if not len(worth):
        return _all_whole(fields)
    segments = _Segments(field, first_row, first, rows, columns)
    located = []
    totals = np.cumsum(segments.counts[worth])
    begin = 0
    while begin < len(worth):
        done = totals[begin - 1] if begin else 0
        stop = max(begin + 1, int(np.searchsorted(totals, done + _AT_ONCE, "right")))
        located.append(segments.locate(indexes, worth[begin:stop]))
        begin = stop
    fine, runs, starts, stops, ends_in, ends, checked_in, checked, markers = (
        np.concatenate(each) for each in zip(*located, strict=True)
    )
    wanted[worth] = fine
    parts[~wanted] = 0

    def begins(counts: NDArray[np.int64]) -> NDArray[np.int64]:
        at = np.zeros(len(indexes) + 1, np.int64)
        at[worth + 1] = counts
        return at.cumsum()

    return CropPlans(
        fields, parts, begins(runs), starts, stops, begins(ends_in), ends, begins(checked_in), checked, markers
    )


def _all_whole(fields: NDArray[np.int64]) -> CropPlans:
    none, at = np.zeros(0, np.int64), np.zeros(len(fields) + 1, np.int64)
    return CropPlans(
        fields, np.zeros((len(fields), 4), np.int64), at, none, none, at, none, at, none, np.zeros((0, 2), np.uint8)
    )


def plan_crop(index: Index, box: tuple[int, int, int, int]) -> CropPlan:
    """:func:`plan_crops` of one image: 100 µs, where one of many takes 8 µs."""
    (plan,) = plan_crops([index], np.array([box], np.int64))
    return plan


def splice(data: Data, index: Index, plan: CropPlan) -> bytearray | None:
    """The part of a plan: a JPEG whose pixels, in the plan's box, are those of the whole image.

    Args:
        data: The whole file.
        index: Its index.
        plan: Its plan; not :data:`WHOLE`.

    Returns:
        None where a segment's boundary is not where the index says. Restart markers count to eight over and over, so a
        wrong index could skip eight of them unseen. Checking every eighth of all excludes that: if each of them is in
        its own place, and there are as many as the image can have, none was skipped.
    """
    assert plan.checked is not None
    assert plan.ends is not None
    if _pairs(data)[plan.checked].tobytes() != plan.markers:
        return None
    view = memoryview(data)
    tables_at, frame_at = index.tables_at, index.tables_at + index.frame_at
    parts: list[Data] = [
        view[: index.prefix_bytes],
        view[tables_at : frame_at + 5],
        plan.height.to_bytes(2, "big") + plan.width.to_bytes(2, "big"),
        view[frame_at + 9 : index.scan_at],
    ]
    parts += [view[start:stop] for start, stop in zip(plan.starts, plan.stops, strict=True)]
    jpeg = bytearray().join(parts)
    _pairs(jpeg)[plan.ends] = _numbered(len(plan.ends))
    jpeg[-1] = EOI
    return jpeg


class _Segments:
    """The segments that boxes need, of many images; each array has one entry an image."""

    def __init__(
        self,
        field: dict[str, NDArray[np.int64]],
        first_row: NDArray[np.int64],
        first: NDArray[np.int64],
        rows: NDArray[np.int64],
        columns: NDArray[np.int64],
    ) -> None:
        across = field["across"]
        self.counts = field["rows"] * across
        """Number of segments of each whole image."""
        self._begin = first_row * across + first
        whole_rows = columns == across  # consecutive in the file: one run
        self._runs = np.where(whole_rows, 1, rows)
        self._run = np.where(whole_rows, rows * across, columns)
        self._across = across
        self._scan_at, self._scan_bytes = field["scan_at"], field["scan_bytes"]
        self._header_bytes = field["prefix_bytes"] + field["scan_at"] - field["tables_at"]

    def locate(self, indexes: Sequence[Index], chosen: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
        """Offsets of the needed segments of the ``chosen`` images, in the file and in the part.

        Returns:
            Whether each image's index can be right; then the arrays of :class:`CropPlans`, with each image's number of
            entries in place of ranges.
        """
        counts, runs, run = self.counts[chosen], self._runs[chosen], self._run[chosen]
        each = lengths([indexes[n] for n in chosen.tolist()])
        # All images' segments one after the other; `own` is the number of each image's first.
        bounds = np.zeros(len(each) + 1, np.int64)
        np.cumsum(each, dtype=np.int64, out=bounds[1:])
        own = np.cumsum(counts) - counts
        # Every segment has at least a byte and a marker, so no two boundaries coincide.
        right = (bounds[own + counts] - bounds[own] == self._scan_bytes[chosen]) & (np.minimum.reduceat(each, own) > 2)
        # All runs: one for each row of segments, or one for the whole image; `segment` is the first of each run.
        stops = np.cumsum(runs)
        image = np.repeat(np.arange(len(chosen)), runs)
        segment = (own + self._begin[chosen])[image]
        segment += (np.arange(len(image)) - (stops - runs)[image]) * self._across[chosen][image]
        run = run[image]
        origin = (self._scan_at[chosen] - bounds[own])[image]
        run_starts, run_stops = bounds[segment] + origin, bounds[segment + run] + origin
        # All needed segments.
        offsets = np.cumsum(run)
        within = np.arange(int(offsets[-1])) + np.repeat(segment - (offsets - run), run)
        ends = np.cumsum(each[within], dtype=np.int64)
        last = offsets[stops - 1]
        needed = np.diff(last, prepend=0)
        before_it = np.concatenate([[0], ends[last[:-1] - 1]])
        ends += np.repeat(self._header_bytes[chosen] - 2 - before_it, needed)
        eighth = np.arange(len(each), dtype=np.int32) - np.repeat(own.astype(np.int32), counts) & 7
        check = eighth == 7
        check[within] = True
        check[segment[segment > own[image]] - 1] = True
        check[own + counts - 1] = False  # the last ends with the image, not with a restart marker
        checked = np.flatnonzero(check)
        markers = _numbered(8).view(np.uint8).reshape(8, 2)[eighth[checked]]
        after = np.searchsorted(checked, own + counts)
        checks = np.diff(after, prepend=0)
        checked = bounds[checked + 1] + np.repeat(self._scan_at[chosen] - 2 - bounds[own], checks)
        return right, runs, run_starts, run_stops, needed, ends, checks, checked, markers


def _floor(pixels: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.maximum(0, pixels) // size


def _numbered(count: int) -> NDArray[np.uint16]:
    """The restart markers behind the first ``count`` segments: FF D0 … FF D7 over and over."""
    return _MARKERS[:count] if count <= len(_MARKERS) else _count_up(count)


def _count_up(count: int) -> NDArray[np.uint16]:
    return (0xFF00 + RST0 + (np.arange(count) & 7)).astype(">u2")


_MARKERS = _count_up(1 << 14)


def _pairs(data: Data) -> NDArray[np.uint16]:
    """Every pair of neighbouring bytes of ``data`` as a number; a view."""
    return np.ndarray(len(data) - 1, ">u2", data, 0, (1,))

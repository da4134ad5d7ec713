"""Images that are there several times: the same bytes, the same pixels, or nearly the same picture."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.checking.audit.report import Collector
from packstore.core.errors import UsageError, printable
from packstore.core.manifest import Column, Manifest
from packstore.core.progress import Progress, ProgressCallback
from packstore.images.perceptual import THRESHOLD, WORDS, bits_set, distances

_BAND_BITS = 16
_BANDS = WORDS * 64 // _BAND_BITS
_QUERIES = 1 << 16
_PAIRS = 1 << 17
_MOST_IN_A_BUCKET = 1024
"""Of a larger bucket each image is compared with the first so many only: where so many look alike, those do as well."""
_FIRST_WORD = THRESHOLD // 2
"""Most bits by which the first word, of the lowest frequencies, may differ: a cheap test before the whole one. Of two
different images 32 of its 64 bits differ on average."""
_NONE = np.uint64((1 << 64) - 1)
_NUMBER_BITS = np.uint64(40)


class Classes(NamedTuple):
    """A column of class numbers.

    Attributes:
        column: The column.
        values: ``int64``: of each record the class number, or of several a hash of them; negative without a value.
    """

    column: Column
    values: NDArray[np.int64]


class Rows(NamedTuple):
    """What the search needs to know of all records.

    Attributes:
        splits: Number of the split of each, ``int32``; 0 for all without splits.
        labels: Its class number, ``int64``; negative without one.
        sizes: Records of each split.
        classes: All columns of class numbers, that of ``labels`` first.
    """

    splits: NDArray[np.int32]
    labels: NDArray[np.int64]
    sizes: list[int]
    classes: list[Classes]


def report_groups(
    found: Collector, manifest: Manifest, rows: Rows, values: NDArray[np.uint64], valid: NDArray[np.bool_], what: str
) -> None:
    """Notes records with equal ``values``, uint64 ``(N,)``, of those that are ``valid``."""
    for group in groups_of(values, valid):
        splits = rows.splits[group]
        for column, numbers in rows.classes:
            different = np.unique(numbers[group][numbers[group] >= 0])
            if len(different) > 1:
                found.add("conflict", f"{what} under {_said(column, different)}", group.tolist())
        there = np.unique(splits).tolist()
        if len(there) > 1:
            names = ", ".join(printable(manifest.splits[number].name) for number in there)
            # The copies in larger splits go, so that sets for testing stay what they are.
            kept = min(there, key=lambda number: (rows.sizes[number], -number))
            found.add("leakage", f"{what} in the splits {names}", group.tolist(), group[splits != kept].tolist())
        for split in there:
            inside = group[splits == split]
            if len(inside) > 1:
                found.add("duplicate", f"{what} {len(inside)} times", inside.tolist(), inside[1:].tolist())


def groups_of(values: NDArray[np.uint64], valid: NDArray[np.bool_]) -> Iterator[NDArray[np.int64]]:
    """Numbers of the valid records that have one value, ascending, for each value that several have."""
    order = np.flatnonzero(valid)
    order = order[np.argsort(values[order], kind="stable")]
    ordered = values[order]
    edges = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1], [True]])) if len(order) else order
    for number in np.flatnonzero(np.diff(edges) > 1):
        yield order[edges[number] : edges[number + 1]]


class Hashes:
    """Perceptual hashes of all records: those of whole images in memory (32 bytes each), those of crops in a file."""

    def __init__(self, records: int, windows: int) -> None:
        self.whole = np.zeros((records, WORDS), np.uint64)
        self.valid = np.zeros(records, np.bool_)
        shape = (records, windows, WORDS)
        self.windows: NDArray[np.uint64] = np.zeros((0, windows, WORDS), np.uint64)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - close() does
        if records and windows:
            try:
                _reserve(self._file.fileno(), records * windows * WORDS * 8)
            except OSError as error:
                self._file.close()
                room = f"{records * windows * WORDS * 8 / 1e6:,.0f} MB in {tempfile.gettempdir()}"
                raise UsageError(
                    f"nearly the same pictures take a temporary file of {room}: {error.strerror}; TMPDIR names another "
                    "directory, and near=False (--no-near) leaves them out"
                ) from error
            self.windows = np.memmap(self._file, np.uint64, "r+", shape=shape)

    def close(self) -> None:
        """Removes the file."""
        self.windows = self.windows[:0, :0].copy()
        self._file.close()

    def put(self, start: int, valid: NDArray[np.bool_], hashes: NDArray[np.uint64]) -> None:
        """Keeps hashes ``(n, 1 + windows, 4)`` of records from ``start`` on: of the whole, then of the windows."""
        rows = slice(start, start + len(valid))
        self.whole[rows], self.valid[rows] = hashes[:, 0], valid
        if len(self.windows):
            self.windows[rows] = hashes[:, 1:]


def _reserve(file: int, size: int) -> None:
    """Makes a file ``size`` bytes long. Where the disk has no room for them, that is said now: writing to the map of a
    file that has none would end the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.ftruncate(file, size)


class Nearest(NamedTuple):
    """For each record the nearest one before it.

    Attributes:
        partners: ``int64`` numbers of records; -1 where none is near.
        bits: Bits in which the hashes differ.
    """

    partners: NDArray[np.int64]
    bits: NDArray[np.int64]


def report_near(found: Collector, manifest: Manifest, rows: Rows, within: Nearest, across: Nearest) -> None:
    """Notes pairs of records that are nearly the same picture."""
    for kind, nearest in (("near_leakage", across), ("near_duplicate", within)):
        for later in np.flatnonzero(nearest.partners >= 0).tolist():
            earlier = int(nearest.partners[later])
            what = f"differ in {int(nearest.bits[later])} of {WORDS * 64} bits"
            drop = later
            if kind == "near_leakage":
                sizes = [rows.sizes[rows.splits[record]] for record in (earlier, later)]
                drop = earlier if sizes[0] >= sizes[1] else later
            found.add(kind, what, (earlier, later), (drop,))
            for column, values in rows.classes:
                both = values[[earlier, later]]
                if both.min() >= 0 and both[0] != both[1]:
                    found.add("near_conflict", f"{_said(column, both)}; {what}", (earlier, later))


def nearest_before(
    hashes: Hashes, splits: NDArray[np.int32], same: NDArray[np.uint64], progress: ProgressCallback
) -> tuple[Nearest, Nearest]:
    """The nearest earlier record of each, within its split and in another one, at most :data:`THRESHOLD` bits away.

    Hashes are cut into 16 bands of 16 bits. Only records that agree in a whole band are compared; nearly all that
    are near do, in some crop (tools/bench/audit.py measures how many).

    Args:
        hashes: Of all records.
        splits: Number of the split of each.
        same: Records with equal numbers are known to be the same, and are no pairs.
        progress: Called after each step.
    """
    chosen = _first_of_each(same, splits, hashes.valid)
    best = np.full((2, len(splits)), _NONE, np.uint64)
    count = 1 + hashes.windows.shape[1]
    for band in range(_BANDS):
        keys = _band(hashes.whole[chosen], band)
        order = chosen[np.argsort(keys, kind="stable")]
        starts = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=1 << _BAND_BITS))])
        for variant in range(count):
            for first in range(0, len(chosen), _QUERIES):
                asking = chosen[first : first + _QUERIES]
                queries = hashes.whole[asking] if variant == 0 else np.asarray(hashes.windows[asking, variant - 1])
                _search(hashes.whole, order, starts, asking, queries, _band(queries, band), splits, same, best)
        progress(Progress("compare", (band + 1) * len(splits) // _BANDS, len(splits), 0))
    within, across = (_nearest(row) for row in best)
    return within, across


def _search(
    whole: NDArray[np.uint64],
    order: NDArray[np.int64],
    starts: NDArray[np.int64],
    asking: NDArray[np.int64],
    queries: NDArray[np.uint64],
    keys: NDArray[np.int64],
    splits: NDArray[np.int32],
    same: NDArray[np.uint64],
    best: NDArray[np.uint64],
) -> None:
    """Compares each query with the records in its bucket, ``order[starts[key] : starts[key + 1]]``."""
    low = starts[keys]
    counts = np.minimum(starts[keys + 1] - low, _MOST_IN_A_BUCKET)
    ends = np.cumsum(counts)
    row = 0
    while row < len(asking):
        before = int(ends[row - 1]) if row else 0
        stop = max(row + 1, int(np.searchsorted(ends, before + _PAIRS, "right")))
        some = counts[row:stop]
        which = np.repeat(np.arange(row, stop), some)
        offset = np.arange(len(which)) - np.repeat(ends[row:stop] - some - before, some)
        there = order[low[which] + offset]
        close = bits_set(queries[which, 0] ^ whole[there, 0]) <= _FIRST_WORD
        close &= there != asking[which]
        which, there = which[close], there[close]
        bits = distances(queries[which], whole[there])
        near = (bits <= THRESHOLD) & (same[asking[which]] != same[there])
        _keep(best, asking[which[near]], there[near], bits[near], splits)
        row = stop


def _keep(
    best: NDArray[np.uint64],
    one: NDArray[np.int64],
    other: NDArray[np.int64],
    bits: NDArray[np.int64],
    splits: NDArray[np.int32],
) -> None:
    earlier, later = np.minimum(one, other), np.maximum(one, other)
    values = (bits.astype(np.uint64) << _NUMBER_BITS) | earlier.astype(np.uint64)
    np.minimum.at(best, ((splits[one] != splits[other]).astype(np.intp), later), values)


def _nearest(best: NDArray[np.uint64]) -> Nearest:
    none = best == _NONE
    partners = (best & np.uint64((1 << int(_NUMBER_BITS)) - 1)).astype(np.int64)
    return Nearest(np.where(none, -1, partners), (best >> _NUMBER_BITS).astype(np.int64))


def _first_of_each(same: NDArray[np.uint64], splits: NDArray[np.int32], valid: NDArray[np.bool_]) -> NDArray[np.int64]:
    chosen = np.flatnonzero(valid)
    order = chosen[np.lexsort((chosen, splits[chosen], same[chosen]))]
    again = (same[order][1:] == same[order][:-1]) & (splits[order][1:] == splits[order][:-1])
    return np.sort(order[np.concatenate([[True], ~again])]) if len(order) else chosen


def _band(hashes: NDArray[np.uint64], band: int) -> NDArray[np.int64]:
    word, shift = divmod(band * _BAND_BITS, 64)
    return ((hashes[:, word] >> np.uint64(shift)) & np.uint64((1 << _BAND_BITS) - 1)).astype(np.int64)


def _said(column: Column, values: NDArray[np.int64]) -> str:
    """``2 labels: ant, bee``; of another column ``2 classes of 'kind': big, small`` or ``2 lists of classes in
    'objects'``."""
    if column.kind == "ragged":
        return f"{len(values)} lists of classes in {printable(column.name)!r}"
    named: Sequence[str] = column.classes or ()
    names = ", ".join(printable(named[n]) if n < len(named) else str(n) for n in values[:5].tolist())
    of = "labels" if column.name == "label" else f"classes of {printable(column.name)!r}"
    return f"{len(values)} {of}: {names}"

"""Finds images that occur several times: the same bytes, the same pixels, or nearly the same picture."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.checking.reports import FindingCollector
from packstore.core.errors import UsageError, printable
from packstore.core.files import allocate_bytes
from packstore.core.manifest import Column, Manifest
from packstore.core.progress import Progress, ProgressCallback
from packstore.images.perceptual import THRESHOLD, WORDS, count_bits, hamming_distances

_BAND_BITS = 16
_BANDS = WORDS * 64 // _BAND_BITS
_QUERIES = 1 << 16
_PAIRS = 1 << 17
_MOST_IN_A_BUCKET = 1024
"""Each image is compared with at most this many others in its bucket; if there are more, these look-alikes suffice."""
_FIRST_WORD = THRESHOLD // 2
"""Most bits by which the first word, of the lowest frequencies, may differ: a cheap test before comparing all words. In
two different images 32 of its 64 bits differ on average."""
_NONE = np.uint64((1 << 64) - 1)
_NUMBER_BITS = np.uint64(40)


class ClassNumbers(NamedTuple):
    """A column of class numbers.

    Attributes:
        column: The column.
        values: ``int64``: class number of each record, or a hash of its list of classes; negative without a value.
    """

    column: Column
    values: NDArray[np.int64]


class RecordLabels(NamedTuple):
    """Splits and classes of all records.

    Attributes:
        splits: Number of each record's split, ``int32``; 0 if there are no splits.
        labels: Class number of each record, ``int64``; negative without one.
        sizes: Number of records of each split.
        classes: All columns of class numbers, the column ``label`` first.
    """

    splits: NDArray[np.int32]
    labels: NDArray[np.int64]
    sizes: list[int]
    classes: list[ClassNumbers]


def report_duplicates(
    collector: FindingCollector,
    manifest: Manifest,
    rows: RecordLabels,
    values: NDArray[np.uint64],
    valid: NDArray[np.bool_],
    what: str,
) -> None:
    """Adds findings about ``valid`` records with equal ``values``, uint64 ``(N,)``, and the records to drop for each.

    - Label conflict, in any column of classes: drops all.
    - Leakage between splits: drops the records outside the smallest split.
    - Duplicates in a split: drops all but the first.

    ``what`` names in the findings what is equal, such as ``same bytes``.
    """
    for group in group_equal(values, valid):
        splits = rows.splits[group]
        for column, numbers in rows.classes:
            different = np.unique(numbers[group][numbers[group] >= 0])
            if len(different) > 1:
                collector.add("conflict", f"{what} under {_describe_classes(column, different)}", group.tolist())
        there = np.unique(splits).tolist()
        if len(there) > 1:
            names = ", ".join(printable(manifest.splits[number].name) for number in there)
            # Copies in larger splits are dropped, so that test sets stay unchanged.
            kept = min(there, key=lambda number: (rows.sizes[number], -number))
            collector.add("leakage", f"{what} in the splits {names}", group.tolist(), group[splits != kept].tolist())
        for split in there:
            inside = group[splits == split]
            if len(inside) > 1:
                collector.add("duplicate", f"{what} {len(inside)} times", inside.tolist(), inside[1:].tolist())


def group_equal(values: NDArray[np.uint64], valid: NDArray[np.bool_]) -> Iterator[NDArray[np.int64]]:
    """Yields the numbers of valid records with equal values: an ascending array for each value.

    Leaves out values that only one valid record has.
    """
    order = np.flatnonzero(valid)
    order = order[np.argsort(values[order], kind="stable")]
    ordered = values[order]
    edges = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1], [True]])) if len(order) else order
    for number in np.flatnonzero(np.diff(edges) > 1):
        yield order[edges[number] : edges[number + 1]]


class RecordHashes:
    """Perceptual hashes of all records.

    Hashes of whole images are in memory (32 bytes each), hashes of crops in a temporary file. Creating the object
    creates this file, and raises :class:`UsageError` if the file does not fit on the disk. :meth:`close` removes the
    file.
    """

    def __init__(self, records: int, windows: int) -> None:
        self.whole = np.zeros((records, WORDS), np.uint64)
        self.valid = np.zeros(records, np.bool_)
        shape = (records, windows, WORDS)
        self.windows: NDArray[np.uint64] = np.zeros((0, windows, WORDS), np.uint64)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - close() does
        if records and windows:
            try:
                allocate_bytes(self._file.fileno(), records * windows * WORDS * 8)
            except OSError as error:
                self._file.close()
                room = f"{records * windows * WORDS * 8 / 1e6:,.0f} MB in {tempfile.gettempdir()}"
                raise UsageError(
                    f"finding near duplicates takes a temporary file of {room}: {error.strerror}; set TMPDIR to "
                    "another directory, or skip them with near=False (--no-near)"
                ) from error
            self.windows = np.memmap(self._file, np.uint64, "r+", shape=shape)

    def close(self) -> None:
        """Removes the temporary file."""
        # Releases the memory map, which would keep the disk space of the file.
        self.windows = self.windows[:0, :0].copy()
        self._file.close()

    def store(self, start: int, valid: NDArray[np.bool_], hashes: NDArray[np.uint64]) -> None:
        """Stores the hashes of records from ``start`` on, ``(n, 1 + windows, 4)``.

        The first hash of a record is of the whole image, the others are of windows. ``valid``: whether the hashes of
        each record mean anything.
        """
        rows = slice(start, start + len(valid))
        self.whole[rows], self.valid[rows] = hashes[:, 0], valid
        if len(self.windows):
            self.windows[rows] = hashes[:, 1:]


class NearestRecords(NamedTuple):
    """Nearest earlier record of each record.

    Attributes:
        partners: ``int64``, number of the nearest record; -1 if none is near.
        bits: Bits in which the hashes differ.
    """

    partners: NDArray[np.int64]
    bits: NDArray[np.int64]


def report_near(
    collector: FindingCollector, rows: RecordLabels, within: NearestRecords, across: NearestRecords
) -> None:
    """Adds findings of pairs of records that are nearly the same picture, and findings of their different labels.

    The record to drop:
    - Within a split: the later one.
    - Across splits: the one in the larger split; in splits of equal size the earlier one.
    """
    for kind, nearest in (("near_leakage", across), ("near_duplicate", within)):
        for later in np.flatnonzero(nearest.partners >= 0).tolist():
            earlier = int(nearest.partners[later])
            what = f"differ in {int(nearest.bits[later])} of {WORDS * 64} bits"
            drop = later
            if kind == "near_leakage":
                sizes = [rows.sizes[rows.splits[record]] for record in (earlier, later)]
                drop = earlier if sizes[0] >= sizes[1] else later
            collector.add(kind, what, (earlier, later), (drop,))
            for column, values in rows.classes:
                both = values[[earlier, later]]
                if both.min() >= 0 and both[0] != both[1]:
                    collector.add("near_conflict", f"{_describe_classes(column, both)}; {what}", (earlier, later))


def find_nearest_before(
    hashes: RecordHashes, splits: NDArray[np.int32], same: NDArray[np.uint64], progress: ProgressCallback
) -> tuple[NearestRecords, NearestRecords]:
    """Finds for each record the nearest earlier record: one in its split, and one in another split.

    Near means at most :data:`THRESHOLD` different bits. Hashes are cut into 16 bands of 16 bits. Only records with an
    equal band are compared, and each with at most 1,024 others. Some near pairs are missed (tools/bench/audit.py
    measures how many).

    Args:
        hashes: Hashes of all records.
        splits: Number of each record's split.
        same: Records with equal numbers are known duplicates, and are not paired.
        progress: Called after each step.
    """
    search = _NearSearch(hashes.whole, splits, same, np.full((2, len(splits)), _NONE, np.uint64))
    chosen = _select_distinct(same, splits, hashes.valid)
    # An image is searched by its own hash, and by those of its crops and mirror image.
    count = 1 + hashes.windows.shape[1]
    for band in range(_BANDS):
        # Records with an equal band lie together in ``order``, from ``starts[band]`` on.
        keys = _extract_band(hashes.whole[chosen], band)
        order = chosen[np.argsort(keys, kind="stable")]
        starts = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=1 << _BAND_BITS))])
        for variant in range(count):
            for first in range(0, len(chosen), _QUERIES):
                asking = chosen[first : first + _QUERIES]
                queries = hashes.whole[asking] if variant == 0 else np.asarray(hashes.windows[asking, variant - 1])
                keys = _extract_band(queries, band)
                low, counts = starts[keys], np.minimum(starts[keys + 1] - starts[keys], _MOST_IN_A_BUCKET)
                search.search_buckets(asking, queries, order, low, counts)
        progress(Progress("compare", (band + 1) * len(splits) // _BANDS, len(splits), 0))
    within, across = (_unpack_nearest(row) for row in search.best)
    return within, across


class _NearSearch(NamedTuple):
    """The nearest earlier record of each record, as far as known.

    Attributes:
        whole: Hashes of all records.
        splits: Number of each record's split.
        same: Records with equal numbers are known duplicates.
        best: Partner and bits of each record, see :func:`_unpack_nearest`: row 0 in its split, row 1 in another one.
    """

    whole: NDArray[np.uint64]
    splits: NDArray[np.int32]
    same: NDArray[np.uint64]
    best: NDArray[np.uint64]

    def search_buckets(
        self,
        asking: NDArray[np.int64],
        queries: NDArray[np.uint64],
        order: NDArray[np.int64],
        low: NDArray[np.int64],
        counts: NDArray[np.int64],
    ) -> None:
        """Compares each query with the records of its bucket, ``order[low : low + count]``, updates :attr:`best`."""
        ends = np.cumsum(counts)
        row = 0
        while row < len(asking):
            before = int(ends[row - 1]) if row else 0
            stop = max(row + 1, int(np.searchsorted(ends, before + _PAIRS, "right")))
            some = counts[row:stop]
            which = np.repeat(np.arange(row, stop), some)
            offset = np.arange(len(which)) - np.repeat(ends[row:stop] - some - before, some)
            there = order[low[which] + offset]
            # Skips pairs whose first 64 bits differ too much.
            close = count_bits(queries[which, 0] ^ self.whole[there, 0]) <= _FIRST_WORD
            close &= there != asking[which]
            which, there = which[close], there[close]
            bits = hamming_distances(queries[which], self.whole[there])
            near = (bits <= THRESHOLD) & (self.same[asking[which]] != self.same[there])
            one, other = asking[which[near]], there[near]
            earlier, later = np.minimum(one, other), np.maximum(one, other)
            # Distance above number: the minimum is the nearest record, the first of several.
            values = (bits[near].astype(np.uint64) << _NUMBER_BITS) | earlier.astype(np.uint64)
            across = (self.splits[one] != self.splits[other]).astype(np.intp)
            np.minimum.at(self.best, (across, later), values)
            row = stop


def _unpack_nearest(best: NDArray[np.uint64]) -> NearestRecords:
    """Unpacks a row of ``best``: partners from the low 40 bits of each integer, distances from the rest."""
    none = best == _NONE
    partners = (best & np.uint64((1 << int(_NUMBER_BITS)) - 1)).astype(np.int64)
    # A distance is the number of different bits.
    return NearestRecords(np.where(none, -1, partners), (best >> _NUMBER_BITS).astype(np.int64))


def _select_distinct(
    same: NDArray[np.uint64], splits: NDArray[np.int32], valid: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Returns the ascending numbers of the valid records; of equal images in a split, only the first."""
    chosen = np.flatnonzero(valid)
    order = chosen[np.lexsort((chosen, splits[chosen], same[chosen]))]
    again = (same[order][1:] == same[order][:-1]) & (splits[order][1:] == splits[order][:-1])
    return np.sort(order[np.concatenate([[True], ~again])]) if len(order) else chosen


def _extract_band(hashes: NDArray[np.uint64], band: int) -> NDArray[np.int64]:
    """Returns the band with the number ``band`` of each hash, which is 16 of its bits."""
    word, shift = divmod(band * _BAND_BITS, 64)
    return ((hashes[:, word] >> np.uint64(shift)) & np.uint64((1 << _BAND_BITS) - 1)).astype(np.int64)


def _describe_classes(column: Column, values: NDArray[np.int64]) -> str:
    """Describes different class numbers, at most five by name: ``2 labels: ant, bee``."""
    if column.kind == "ragged":
        return f"{len(values)} lists of classes in {printable(column.name)!r}"
    named: Sequence[str] = column.classes or ()
    names = ", ".join(printable(named[n]) if n < len(named) else str(n) for n in values[:5].tolist())
    of = "labels" if column.name == "label" else f"classes of {printable(column.name)!r}"
    return f"{len(values)} {of}: {names}"

"""A query of the page: conditions on records and their order, parsed from the parameters of an address, and the records
that it selects; and the overview, which counts classes by split, and measures of images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import PackstoreError, UsageError
from packstore.core.manifest import Manifest
from packstore.seeing.facts import (
    MISSING,
    UNREAD,
    UNREADABLE,
    ImageHeaders,
    Report,
    choose_sample,
    find_class,
    find_class_column,
    find_keys,
    find_parts_of,
    iterate_parts,
    read_labels,
    sort_by_key,
)
from packstore.stores import Reader

SORTS = ("record", "key", "pixels", "bytes", "aspect", "width", "height")
"""Orders of records."""
MEASURES = ("width", "height", "pixels", "aspect", "bytes")
"""Measures that can be filtered by a range; both ends are included."""
NO_CLASS = -1
"""Class number that means records without a label."""

_LONGEST_TEXT = 200
_MOST_DIGITS = 18


@dataclass(frozen=True)
class Query:
    """Conditions that a record must all meet, and the order of the records. Only :meth:`parse` checks them.

    Attributes:
        split: Name of the split; None for all records.
        label: Class number, :data:`NO_CLASS` for no class; None for any.
        text: Text in the key, ignoring ASCII case; empty for any key.
        ranges: Measures to filter by: name from :data:`MEASURES`, lowest and highest value of each.
        kind: Kind of image, such as ``jpeg RGB``; None for any.
        mark: Finding, such as ``damaged``; None for any.
        sort: One of :data:`SORTS`.
        descending: Reverse the order.
    """

    split: str | None = None
    label: int | None = None
    text: str = ""
    ranges: tuple[tuple[str, float, float], ...] = ()
    kind: str | None = None
    mark: str | None = None
    sort: str = "record"
    descending: bool = False

    @property
    def needs_headers(self) -> bool:
        """True if the query needs the header of every image: for a range, a kind, or an order by size."""
        return bool(self.ranges) or self.kind is not None or self.sort not in ("record", "key")

    @property
    def needs_all(self) -> bool:
        """True if the query needs a value of every record: a header, a label or a key."""
        return self.needs_headers or self.label is not None or bool(self.text) or self.sort == "key"

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Query:
        """Parses the parameters of an address; ignores unknown ones.

        Raises :class:`UsageError` for an unknown order, a wrong number or range, and a text of more than 200 letters.
        """
        sort = given.get("sort") or "record"
        if sort not in SORTS:
            raise UsageError(f"sort should be one of {', '.join(SORTS)}, got {sort!r}")
        text = given.get("q", "")
        if len(text) > _LONGEST_TEXT:
            raise UsageError(f"a search should have at most {_LONGEST_TEXT} letters, got {len(text)}")
        ranges = tuple((name, *_parse_range(name, given[name])) for name in MEASURES if given.get(name))
        return cls(
            split=given.get("split") or None,
            label=parse_number("class", given["class"], least=NO_CLASS) if given.get("class") else None,
            text=text,
            ranges=ranges,
            kind=given.get("kind") or None,
            mark=given.get("mark") or None,
            sort=sort,
            descending=given.get("desc") == "1",
        )


def parse_number(name: str, text: str, least: int = 0) -> int:
    """Parses a whole number in an address. Raises :class:`UsageError` for other text, a number below ``least``, and
    more than 18 digits."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS) or int(text) < least:
        raise UsageError(f"{name} should be a whole number from {least}, got {text[:40]!r}")
    return int(text)


def _parse_range(name: str, text: str) -> tuple[float, float]:
    """Parses a range such as ``"10:20"``, in which a missing end is infinite."""
    low, colon, high = text.partition(":")
    try:
        ends = float(low or "-inf"), float(high or "inf")
    except ValueError:
        ends = math.nan, math.nan
    if not colon or len(text) > 2 * _MOST_DIGITS + 12 or any(map(math.isnan, ends)):
        raise UsageError(f"{name} should be from:to, such as 10:200, got {text[:40]!r}")
    return ends  # ends in the wrong order are accepted, and match nothing


MOST_SORTED = 5_000_000
"""Most records that are sorted by key, which takes about 100 bytes of memory for each."""


@dataclass(frozen=True, eq=False)
class Selection:
    """Selected records in order: a range, or an array. ``len()`` is their number.

    Attributes:
        start: First record of the range, if ``records`` is None.
        stop: End of the range.
        records: The records in order; None for a range.
        descending: Positions count from the end.
    """

    start: int
    stop: int
    records: NDArray[np.int64] | None = None
    descending: bool = False

    def __len__(self) -> int:
        return self.stop - self.start if self.records is None else len(self.records)

    def slice_records(self, first: int, last: int) -> list[int]:
        """Returns the records at positions ``first`` to ``last - 1``. Leaves out positions beyond the end."""
        count = len(self)
        first, last = min(first, count), min(last, count)
        if self.descending:
            first, last = count - last, count - first
        records = range(self.start + first, self.start + last) if self.records is None else self.records[first:last]
        numbers = [int(n) for n in records]
        return numbers[::-1] if self.descending else numbers

    def position(self, record: int) -> int | None:
        """Returns the position of a record; None if the record is not selected."""
        if self.records is None:
            at = record - self.start if self.start <= record < self.stop else None
        else:
            places = np.flatnonzero(self.records == record)
            at = int(places[0]) if len(places) else None
        return len(self) - 1 - at if at is not None and self.descending else at


def select_records(
    reader: Reader,
    query: Query,
    headers: ImageHeaders | None,
    marks: Mapping[str, NDArray[np.int64]],
    report: Report,
) -> Selection:
    """Selects and sorts the records of a query. A finding or kind that no record has selects none.

    An unreadable image has no size: no range of sizes matches it, and it counts as the smallest.

    Args:
        reader: The store.
        query: Conditions and order.
        headers: Headers of all images, needed if :attr:`Query.needs_headers`; else None. With None, ranges and kind are
            ignored.
        marks: Records by finding.
        report: Called with the number of records done.

    Raises:
        UsageError: The split is unknown, the store has no classes, or there are too many keys to sort.
    """
    start, stop = _split_range(reader, query)
    conditions = []
    if query.label is not None:
        conditions.append(_match_label(reader, query.label, report)[start:stop])
    if query.text:
        conditions.append(find_keys(reader, query.text, report)[start:stop])
    if query.mark is not None:
        marked = np.zeros(len(reader), np.bool_)
        marked[marks.get(query.mark, np.zeros(0, np.int64))] = True
        conditions.append(marked[start:stop])
    if headers is not None:
        for name, low, high in query.ranges:
            values = headers.get_measure(name)[start:stop]
            conditions.append((values >= low) & (values <= high))
        if query.kind is not None:
            known = headers.kinds.index(query.kind) if query.kind in headers.kinds else -1
            conditions.append(headers.kind[start:stop] == known)
    if not conditions and query.sort == "record":
        return Selection(start, stop, None, query.descending)
    kept = np.logical_and.reduce(conditions) if conditions else np.ones(stop - start, np.bool_)
    records = np.flatnonzero(kept).astype(np.int64) + start
    if query.sort == "key":
        if len(records) > MOST_SORTED:
            raise UsageError(
                f"{len(records):,} keys are too many to sort, at most {MOST_SORTED:,}: choose a split or a class"
            )
        records = sort_by_key(reader, records, report)
    elif query.sort != "record":
        assert headers is not None
        values = headers.get_measure(query.sort)[records]
        records = records[np.argsort(np.where(np.isnan(values), -1.0, values), kind="stable")]
    return Selection(0, len(records), records, query.descending)


def _split_range(reader: Reader, query: Query) -> tuple[int, int]:
    """Returns first record and end of the query's split."""
    try:
        split = reader.split(query.split)
    except KeyError as error:
        raise UsageError(str(error.args[0])) from None
    return split.start, split.stop


def _match_label(reader: Reader, number: int, report: Report) -> NDArray[np.bool_]:
    """Finds the records that have a class number: bool ``(N,)``."""
    column = find_class_column(reader.manifest)
    if column is None:
        raise UsageError("the store has no classes to choose by")
    if column.kind == "ragged":
        return find_class(reader, column, number, report)
    matches: NDArray[np.bool_] = read_labels(reader, column, report) == number
    return matches


_ALL = "all"
"""Name of all records of a store without splits."""
_BINS = 24
_TOGETHER = 20
"""Number of the most frequent classes in the table of joint occurrences."""
_MOST_CLASSES = 100_000


def count_classes(reader: Reader, report: Report, fetch: bool = True) -> dict[str, Any]:
    """Counts the records of each class by split. For a column of lists of classes, also counts joint occurrences.

    Without ``fetch``, counts only records on this machine. Of a large store with lists of classes, counts an evenly
    spread sample. Without class names, counts numbers below 100,000.

    Returns:
        A JSON object; only ``{"column": None}`` in a store without classes.

        - ``column``: name of the column.
        - ``classes``: number of classes.
        - ``splits``: ``name``, ``counts`` by class, and numbers of ``missing`` and ``unreadable`` labels of each split.
          Unreadable lists count as missing.
        - ``seen``: number of counted records.
        - ``together``: result of :func:`_count_pairs` for lists of classes, else None.
    """
    manifest = reader.manifest
    column = find_class_column(manifest)
    if column is None:
        return {"column": None}
    named = column.classes
    if column.kind == "fixed":
        labels = read_labels(reader, column, report, fetch)
        count = len(named) if named is not None else min(_MOST_CLASSES, int(labels.max(initial=-1)) + 1)
        splits = [
            {"name": name or _ALL, "counts": counts, "missing": missing, "unreadable": unreadable}
            for name, start, stop in manifest.ranges
            for counts, missing, unreadable in [_count_labels(labels[start:stop], count)]
        ]
        seen = int((labels != UNREAD).sum())
        return {"column": column.name, "classes": count, "splits": splits, "seen": seen, "together": None}
    chosen = choose_sample(reader, fetch)
    records = np.arange(len(reader), dtype=np.int64) if chosen is None else chosen
    owners, numbers = _read_class_lists(reader, column.name, records, report)
    count = len(named) if named is not None else min(_MOST_CLASSES, int(numbers.max(initial=-1)) + 1)
    valid = (numbers >= 0) & (numbers < count)
    # A class counts once for each record, even if it occurs several times there.
    pairs = np.unique(np.stack([owners[valid], numbers[valid]], 1), axis=0) if valid.any() else np.zeros((0, 2), int)
    splits = []
    for name, start, stop in manifest.ranges:
        inside = pairs[(pairs[:, 0] >= start) & (pairs[:, 0] < stop)]
        with_any = len(np.unique(inside[:, 0]))
        looked_at = int(((records >= start) & (records < stop)).sum())
        counts = np.bincount(inside[:, 1], minlength=count).tolist()
        splits.append({"name": name or _ALL, "counts": counts, "missing": looked_at - with_any, "unreadable": 0})
    together = _count_pairs(pairs, count)
    return {"column": column.name, "classes": count, "splits": splits, "seen": len(records), "together": together}


def summarize_images(headers: ImageHeaders, manifest: Manifest, start: int, stop: int) -> dict[str, Any]:
    """Summarises the images of records ``start`` to ``stop - 1``.

    Returns:
        A JSON object:

        - ``seen``: number of images whose headers were read.
        - ``total``: number of records.
        - ``kinds``: ``name`` and ``count`` of each kind.
        - ``histograms``: by measure, see :func:`_compute_histogram`.
    """
    inside = (headers.records >= start) & (headers.records < stop)
    kinds = np.bincount(headers.kind[inside], minlength=len(headers.kinds)).tolist()
    records = headers.records[inside]
    owners = {
        name or _ALL: (records >= first) & (records < end)
        for name, first, end in manifest.ranges
        if first < stop and end > start
    }
    return {
        "seen": int(inside.sum()),
        "total": stop - start,
        "kinds": [{"name": name, "count": n} for name, n in zip(headers.kinds, kinds, strict=True) if n],
        "histograms": {name: _compute_histogram(headers.get_measure(name)[inside], owners) for name in MEASURES},
    }


def _count_labels(labels: NDArray[np.int32], count: int) -> tuple[list[int], int, int]:
    """Returns three counts: labels of each class, missing labels, and labels that are unreadable or not below
    ``count``."""
    valid = labels[(labels >= 0) & (labels < count)]
    missing = int((labels == MISSING).sum())
    wrong = int((labels == UNREADABLE).sum()) + int((labels >= count).sum())
    return np.bincount(valid, minlength=count).tolist(), missing, wrong


def _read_class_lists(
    reader: Reader, name: str, records: NDArray[np.int64], report: Report
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Reads the classes of ``records`` as two parallel arrays: record numbers and class numbers."""
    owners: list[NDArray[np.int64]] = []
    numbers: list[NDArray[np.int64]] = []
    for start, stop, part in iterate_parts(reader, find_parts_of(reader, records)):
        first, last = np.searchsorted(records, (start, stop)).tolist()
        report(first)
        if part is None:  # a shard that cannot be opened
            continue
        for record in records[first:last].tolist():
            try:
                classes = np.asarray(part.item(name, record - start) if part.has_value(name, record - start) else ())
            except PackstoreError:  # skips a damaged record
                continue
            owners.append(np.full(len(classes), record, np.int64))
            numbers.append(classes.astype(np.int64))
    if not owners:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate(owners), np.concatenate(numbers)


def _count_pairs(pairs: NDArray[np.int64], count: int) -> dict[str, Any]:
    """Counts the records in which two of the 20 most frequent classes occur together."""
    totals = np.bincount(pairs[:, 1], minlength=count)  # a row of ``pairs`` is a record and a class number
    top = np.argsort(-totals, kind="stable")[: min(_TOGETHER, int((totals > 0).sum()))]
    place = np.full(max(count, 1), -1)
    place[top] = np.arange(len(top))
    kept = pairs[place[pairs[:, 1]] >= 0] if len(pairs) else pairs
    _, rows = np.unique(kept[:, 0], return_inverse=True)
    # One row for each record, 20 columns: the product is a small matrix.
    having = np.zeros((int(rows.max(initial=-1)) + 1, len(top)), np.float64)
    having[rows, place[kept[:, 1]]] = 1
    # Most frequent first; the diagonal of ``counts`` counts each class.
    return {"classes": top.tolist(), "counts": (having.T @ having).astype(np.int64).tolist()}


def _compute_histogram(given: NDArray[np.float64], owners: Mapping[str, NDArray[np.bool_]]) -> dict[str, Any] | None:
    """Computes a histogram of positive finite values in 24 logarithmic bins; None if there are none."""
    sound = np.isfinite(given) & (given > 0)
    values = given[sound]
    if not len(values):
        return None
    low, high = float(values.min()), float(values.max())
    if low == high:
        return {"edges": [low, high], "counts": [len(values)], "splits": {}}  # one bin
    edges = np.geomspace(low, high, _BINS + 1)
    edges[0], edges[-1] = low, high
    splits = {name: np.histogram(given[sound & own], edges)[0].tolist() for name, own in owners.items()}
    return {"edges": edges.tolist(), "counts": np.histogram(values, edges)[0].tolist(), "splits": splits}

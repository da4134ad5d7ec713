"""Selects the records of a query, in its order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.seeing.view.facts import ImageHeaders, find_class, find_class_column, find_keys, read_labels, sort_by_key
from packstore.seeing.view.jobs import Report
from packstore.seeing.view.query import Query
from packstore.stores.base import Reader

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
    """Returns first record and end of the query's split. Raises :class:`UsageError` if the split is unknown."""
    try:
        split = reader.split(query.split)
    except KeyError as error:
        raise UsageError(str(error.args[0])) from None
    return split.start, split.stop


def _match_label(reader: Reader, number: int, report: Report) -> NDArray[np.bool_]:
    """Finds the records that have a class number: bool ``(N,)``. Raises :class:`UsageError` in a store without
    classes."""
    column = find_class_column(reader.manifest)
    if column is None:
        raise UsageError("the store has no classes to choose by")
    if column.kind == "ragged":
        return find_class(reader, column, number, report)
    matches: NDArray[np.bool_] = read_labels(reader, column, report) == number
    return matches

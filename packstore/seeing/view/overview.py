"""The overview: classes by split, sizes, aspects, bytes and kinds of images, classes that occur together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import PackstoreError
from packstore.core.manifest import Manifest
from packstore.seeing.facts import (
    MISSING,
    UNREAD,
    UNREADABLE,
    ImageHeaders,
    Report,
    choose_sample,
    find_class_column,
    find_parts_of,
    iterate_parts,
    read_labels,
)
from packstore.seeing.view.query import MEASURES
from packstore.stores import Reader

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

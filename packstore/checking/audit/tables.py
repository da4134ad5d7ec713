"""What columns alone say: labels, classes and boxes. No image is read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from packstore.checking.audit.report import Collector
from packstore.checking.audit.same import Classes, Rows
from packstore.checking.store_check import OpenFile, open_files
from packstore.core.columns import NUMPY_DTYPE, Ragged
from packstore.core.errors import PackstoreError, StoreError, printable
from packstore.core.manifest import Column, Manifest
from packstore.packing.keys import double_keys, key_digests
from packstore.stores.base import Reader

_RECORDS = 1 << 14
_MOST_BOXES = 5
_OUTSIDE = 1.0
"""A box may reach out of its image by a pixel: conventions differ by so much."""


class Columns:
    """The checksums, labels and keys of all records, read file by file.

    Attributes:
        checksums: ``uint64``, of the images.
        there: Which records could be read.
        rows: Splits and labels.
    """

    def __init__(self, reader: Reader, found: Collector) -> None:
        manifest, count = reader.manifest, len(reader)
        self.checksums = np.zeros(count, np.uint64)
        self.there = np.zeros(count, np.bool_)
        classes = [Classes(column, np.full(count, -1, np.int64)) for column in _class_columns(manifest)]
        digests = np.zeros((count, 2), np.uint64)
        keyed = np.zeros(count, np.bool_)
        known = 0
        for file in files(reader):
            rows = slice(file.start, file.start + len(file.reader))
            known += len(file.reader)
            try:
                self.checksums[rows] = file.reader.fixed("checksum")
                self.there[rows] = True
                digests[rows] = key_digests(file.reader.ragged("key"), len(file.reader))
                keyed[rows] = True
                for column, values in classes:
                    numbers = _numbers if column.kind == "fixed" else _lists
                    values[rows] = numbers(file.reader, column, file.start, found)
            except StoreError as error:
                found.add("damaged", f"{file.name or 'the store'}: {error}")
        known_keys = np.flatnonzero(keyed)
        again, firsts = double_keys(digests[keyed])
        for record, first in zip(known_keys[again].tolist(), known_keys[firsts].tolist(), strict=True):
            found.add("double_key", "one key", [first, record], [record])
        if known < count:
            found.add(
                "damaged", f"{count - known:,} records are in shards that do not open; packstore verify names them"
            )
        splits = np.zeros(count, np.int32)
        for number, split in enumerate(manifest.splits):
            splits[split.start : split.stop] = number
        labels = classes[0].values if _has_label(manifest) else np.full(count, -1, np.int64)
        self.rows = Rows(splits, labels, [len(split) for split in manifest.splits] or [count], classes)


def _has_label(manifest: Manifest) -> bool:
    """Whether ``label`` is one class a record: it may be a list of them, or text."""
    return manifest.has_column("label") and manifest.column("label").type == "label"


def _class_columns(manifest: Manifest) -> list[Column]:
    """The columns of class numbers, ``label`` first."""
    found = [column for column in manifest.columns if column.type in ("label", "labels")]
    return sorted(found, key=lambda column: column.name != "label")


def files(reader: Reader) -> Iterator[OpenFile]:
    """The files of a store that open, in order."""
    return (file for file in open_files(reader) if file is not None)


def _numbers(reader: Reader, column: Column, start: int, found: Collector) -> NDArray[np.int64]:
    """Class numbers, -1 for a missing one, and for one that is none of the classes, which is noted."""
    labels = reader.fixed(column.name).astype(np.int64)
    if column.nullable:
        labels[~reader.fixed(column.valid_name)] = -1
        none = np.zeros(len(labels), np.bool_)
    else:
        none = labels < 0
    if column.classes is not None:
        none |= labels >= len(column.classes)
    for record in np.flatnonzero(none).tolist():
        found.add("bad_label", f"{printable(column.name)} {labels[record]}", [start + record])
    labels[none] = -1
    return labels


def _lists(reader: Reader, column: Column, start: int, found: Collector) -> NDArray[np.int64]:
    """Hashes of the classes of each record, in whatever order they are listed; -1 where there is no list. One with a
    number that is none of the classes is noted."""
    values = reader.ragged(column.name)
    there = reader.fixed(column.valid_name) if column.nullable else np.ones(len(values), np.bool_)
    hashes = np.full(len(values), -1, np.int64)
    for record in np.flatnonzero(there).tolist():
        data = bytes(values[record])
        numbers = np.sort(np.frombuffer(data[: len(data) // column.record_nbytes * column.record_nbytes], "<i8"))
        wrong = numbers[(numbers < 0) | (numbers >= len(column.classes))] if column.classes is not None else numbers[:0]
        if len(wrong):
            found.add("bad_label", f"{printable(column.name)} {wrong[0]}", [start + record])
        else:
            hashes[record] = xxh3_64_intdigest(numbers.data) >> 1
    return hashes


def report_classes(found: Collector, manifest: Manifest, rows: Rows, most_ratio: float) -> None:
    """Notes classes that are empty, that a split lacks, and large differences in size."""
    if not _has_label(manifest):
        return
    classes = manifest.classes
    labels, has = rows.labels, rows.labels >= 0
    length = len(classes) if classes is not None else int(labels.max(initial=-1)) + 1
    if not length or (classes is None and length > 1_000_000):  # numbers of something else
        return
    counts = np.stack([np.bincount(labels[has & (rows.splits == n)], minlength=length) for n in range(len(rows.sizes))])
    names = [printable(name) for name in classes] if classes is not None else [str(n) for n in range(length)]
    if classes is not None:
        for number in np.flatnonzero(counts.sum(0) == 0).tolist():
            found.add("class_empty", f"{names[number]} has no record")
    labelled = [n for n in range(len(rows.sizes)) if counts[n].any()]
    for number in range(length):
        of = [n for n in labelled if counts[n, number]]
        if of and len(of) < len(labelled):
            missing = ", ".join(printable(manifest.splits[n].name) for n in labelled if n not in of)
            found.add("class_split", f"{names[number]}: {int(counts[:, number].sum()):,} in all, none in {missing}")
    for n in labelled:
        there = np.flatnonzero(counts[n])
        low, high = there[counts[n, there].argmin()], there[counts[n, there].argmax()]
        if counts[n, high] >= most_ratio * counts[n, low]:
            where = f"in {printable(manifest.splits[n].name)}, " if manifest.splits else ""
            what = f"{names[high]} has {counts[n, high]:,} records, {names[low]} {counts[n, low]:,}"
            found.add("imbalance", where + what)


def report_boxes(found: Collector, reader: Reader, sizes: NDArray[np.int32] | None) -> None:
    """Notes boxes that are empty, inverted or outside; ``sizes`` are height and width of the images ``(N, 2)``, zeros
    where one is not known, or None."""
    for column in reader.manifest.columns:
        if column.type != "boxes":
            continue
        for file in files(reader):
            try:
                values = file.reader.ragged(column.name)
                for start in range(0, len(values), _RECORDS):
                    _boxes(found, column, values, range(start, min(start + _RECORDS, len(values))), file.start, sizes)
            except PackstoreError as error:
                found.add("damaged", f"{file.name or 'the store'}: column {column.name!r}: {error}")


def _boxes(
    found: Collector, column: Column, values: Ragged, part: range, first: int, sizes: NDArray[np.int32] | None
) -> None:
    each = [bytes(values[i]) for i in part]
    counts = np.array([len(value) // column.record_nbytes for value in each])
    whole = b"".join(value[: n * column.record_nbytes] for value, n in zip(each, counts.tolist(), strict=True))
    boxes = np.frombuffer(whole, NUMPY_DTYPE[column.dtype]).reshape(-1, 4)
    records = first + np.repeat(np.asarray(part), counts)
    numbers = np.arange(len(boxes)) - np.repeat(np.cumsum(counts) - counts, counts)
    low, high = boxes[:, :2], boxes[:, 2:]
    finite = np.isfinite(boxes).all(1)
    inverted = ~finite | (low > high).any(1)
    empty = ~inverted & (low == high).any(1)
    outside = finite & (low < -_OUTSIDE).any(1)
    if sizes is not None and len(boxes):
        limits = sizes[records][:, ::-1].astype(np.float32)
        outside |= finite & (limits > 0).all(1) & (high > limits + _OUTSIDE).any(1)
    for kind, wrong in (("box_inverted", inverted), ("box_empty", empty), ("box_outside", outside)):
        rows = np.flatnonzero(wrong)
        for record in np.unique(records[rows]).tolist():
            start, stop = np.searchsorted(records[rows], (record, record + 1))
            of = rows[start:stop]
            shown = "; ".join(f"{numbers[r]}: {boxes[r].round(2).tolist()}" for r in of[:_MOST_BOXES])
            size = "" if kind != "box_outside" or sizes is None else f" in {sizes[record][1]} x {sizes[record][0]}"
            found.add(kind, f"{column.name!r} {shown}{size}", [record])

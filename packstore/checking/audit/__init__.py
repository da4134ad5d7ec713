"""``audit``: points out what to inspect in a dataset: leaks between splits, conflicting labels, odd images, wrong
boxes.

Checks checksums, labels and boxes, which takes seconds; images only on request.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from packstore.checking import AuditOptions
from packstore.checking.audit.images import ImageInspector
from packstore.checking.audit.same import (
    ClassNumbers,
    RecordHashes,
    RecordLabels,
    find_nearest_before,
    report_duplicates,
    report_near,
)
from packstore.checking.reports import AuditReport, Finding, FindingCollector
from packstore.checking.store_check import StoreFile, open_files, record_batches
from packstore.core.columns import NUMPY_DTYPE
from packstore.core.errors import PackstoreError, StoreError, printable
from packstore.core.findings import list_kinds
from packstore.core.manifest import Column, Manifest
from packstore.core.options import argument, progress_option, takes
from packstore.core.parallel import default_workers, ordered_map
from packstore.core.progress import Progress, ProgressCallback, progress_callback
from packstore.images.perceptual import CROPS
from packstore.stores import Reader, open_store, with_checksums
from packstore.stores.keys import digest_keys, list_double_keys

_RECORDS = 1 << 14
_AT_ONCE = 128
"""Most images that a thread inspects at once."""
_MOST_ROWS = 5

__all__ = ["AuditOptions", "AuditReport", "Finding", "audit", "list_kinds"]


@dataclass(frozen=True)
class AuditArguments(AuditOptions):
    """Arguments of :func:`packstore.audit`."""

    store: str | os.PathLike[str] = field(metadata=argument("The store; it is only read."))
    _: KW_ONLY
    progress: bool | ProgressCallback = progress_option()


@takes(AuditArguments)
def audit(arguments: AuditArguments) -> AuditReport:
    """Finds data that spoils training: the same image in two splits or under two labels, odd images, wrong boxes.

    Reads checksums, keys, labels, splits and boxes; with ``pixels`` also images and masks.

    Needs about 80 bytes of memory a record, and 8 more for each column of class numbers beside ``label``. With
    ``pixels`` the memory is 200 bytes a record. A temporary file then takes 288 bytes a record.

    Returns:
        The report. Damaged records are reported too, and do not end the audit.

    Raises:
        StoreError: ``store`` does not open. A :class:`MissingStoreError` if it does not exist; an
            :class:`~packstore.core.errors.UnreachableError` if a shard cannot be fetched now.
        UsageError: ``store`` is empty, or an option is out of range. Or ``mirrored`` or ``mask_classes`` is given
            without ``pixels``.
    """
    with open_store(arguments.store) as reader, progress_callback(arguments.progress) as report:
        return _Audit(reader, arguments, report).audit_store()


@dataclass
class _Audit:
    """One run of an audit: collects findings from all checks."""

    reader: Reader
    options: AuditOptions
    progress: ProgressCallback
    collector: FindingCollector = field(default_factory=FindingCollector)

    def audit_store(self) -> AuditReport:
        """Makes the checks that the options ask for; returns the report."""
        reader, options, collector = self.reader, self.options, self.collector
        manifest = reader.manifest
        table = RecordTable(reader, collector)
        checks = ["checksums of images, within and across splits", "labels and classes", "double keys"]
        sizes = _read_uniform_sizes(reader)
        report_classes(collector, manifest, table.rows, options.imbalance)
        if options.pixels:
            checks += [
                "images decoded: files, headers, pixels"
                + (", masks" if any(column.holds_masks for column in manifest.columns) else "")
            ]
            sizes = self.inspect_images(table)
        else:
            report_duplicates(collector, manifest, table.rows, table.checksums, table.there, "same bytes")
        checks += report_faulty_rows(collector, reader, sizes)
        if options.pixels and options.near:
            checks.append("nearly the same pictures" + (", mirrored too" if options.mirrored else ""))
        return collector.make_report(reader, options.pixels, checks)

    def inspect_images(self, table: RecordTable) -> NDArray[np.int32]:
        """Decodes and inspects all images, adds findings about them, and returns their heights and widths."""
        options, collector, manifest = self.options, self.collector, self.reader.manifest
        count = len(self.reader)
        done_bytes = 0
        self.progress(Progress("look", 0, count, 0))
        with closing(RecordHashes(count if options.near else 0, len(CROPS) + options.mirrored)) as hashes:
            # A damaged image is one finding, and not also an odd one.
            reader = with_checksums(self.reader, "always")
            images = ImageInspector(reader, options, hashes if options.near else None)
            workers = options.workers or default_workers()
            for seen in ordered_map(images.inspect_records, record_batches(self.reader, _AT_ONCE), workers):
                for kind, record, what in seen.found:
                    collector.add(kind, what, [record])
                done_bytes += seen.nbytes
                self.progress(Progress("look", seen.records.stop, count, done_bytes))
            # In a dataset of gray images, gray is nothing odd.
            if 0 < int(images.greys.sum()) < int(images.decoded.sum()) / 2:
                for record in np.flatnonzero(images.greys).tolist():
                    collector.add("grey", "grey", [record])
            # Images that do not decode can still be copies of each other.
            lost = table.there & ~images.decoded
            report_duplicates(collector, manifest, table.rows, table.checksums, lost, "same bytes")
            report_duplicates(collector, manifest, table.rows, images.pixels, images.decoded, "same pixels")
            if options.near:
                within, across = find_nearest_before(hashes, table.rows.splits, images.pixels, self.progress)
                report_near(collector, table.rows, within, across)
        return images.sizes


def _read_uniform_sizes(reader: Reader) -> NDArray[np.int32] | None:
    """Returns height and width of each image, ``(N, 2)``; None if the images have different shapes."""
    column = reader.manifest.image
    # The manifest has no shape that holds for all images.
    if column.layout is None or column.kind != "fixed":
        return None
    size = column.shape[:2] if column.layout == "HWC" else column.shape[1:]
    return np.broadcast_to(np.array(size, np.int32), (len(reader), 2))


class RecordTable:
    """Checksums, splits and labels of all records. Creating it reads them file by file.

    Adds findings of damage, double keys and labels without a class to ``collector``.

    Attributes:
        checksums: ``uint64``, checksums of the images.
        there: Mask of the records whose checksum could be read.
        rows: Splits and labels. A label is -1 if it is missing, unreadable or without a class. All labels are -1 if
            ``label`` is not one class a record.
    """

    def __init__(self, reader: Reader, collector: FindingCollector) -> None:
        manifest, count = reader.manifest, len(reader)
        self.checksums = np.zeros(count, np.uint64)
        self.there = np.zeros(count, np.bool_)
        columns = [column for column in manifest.columns if column.traits.has_classes]
        columns.sort(key=lambda column: column.name != "label")  # ``label`` is the first
        classes = [ClassNumbers(column, np.full(count, -1, np.int64)) for column in columns]
        digests: dict[int, NDArray[np.uint64]] = {}
        known = 0
        for file in open_files(reader):
            rows = slice(file.start, file.start + len(file.reader))
            known += len(file.reader)
            try:
                self.checksums[rows] = file.reader.fixed_column("checksum")
                self.there[rows] = True
                digests[file.start] = digest_keys(file.reader.ragged_column("key"), len(file.reader))
                for column, values in classes:
                    numbers = _read_classes if column.kind == "fixed" else _read_class_lists
                    values[rows] = numbers(file.reader, column, file.start, collector)
            except StoreError as error:
                collector.add("damaged", f"{file.name or 'the store'}: {error}")
        for record, first in list_double_keys(digests):
            collector.add("double_key", "one key", [first, record], [record])
        if known < count:
            collector.add(
                "damaged", f"{count - known:,} records are in shards that do not open; packstore verify names them"
            )
        splits = np.zeros(count, np.int32)
        for number, split in enumerate(manifest.splits):
            splits[split.start : split.stop] = number
        labels = classes[0].values if manifest.has_label else np.full(count, -1, np.int64)
        self.rows = RecordLabels(splits, labels, [len(split) for split in manifest.splits] or [count], classes)


def _read_classes(reader: Reader, column: Column, start: int, collector: FindingCollector) -> NDArray[np.int64]:
    """Reads the class numbers of one file, from record ``start`` on; -1 for a missing or wrong one."""
    labels = reader.fixed_column(column.name).astype(np.int64)
    if column.nullable:
        labels[~reader.fixed_column(column.valid_name)] = -1
        none = np.zeros(len(labels), np.bool_)
    else:
        none = labels < 0
    if column.classes is not None:
        none |= labels >= len(column.classes)
    for record in np.flatnonzero(none).tolist():
        collector.add("bad_label", f"{printable(column.name)} {labels[record]}", [start + record])
    labels[none] = -1
    return labels


def _read_class_lists(reader: Reader, column: Column, start: int, collector: FindingCollector) -> NDArray[np.int64]:
    """Returns a hash of each record's classes, equal for any order; -1 if missing or wrong."""
    values = reader.ragged_column(column.name)
    there = reader.fixed_column(column.valid_name) if column.nullable else np.ones(len(values), np.bool_)
    hashes = np.full(len(values), -1, np.int64)
    for record in np.flatnonzero(there).tolist():
        data = bytes(values[record])
        # A damaged value may end within a number.
        numbers = np.sort(np.frombuffer(data[: len(data) // column.record_nbytes * column.record_nbytes], "<i8"))
        wrong = numbers[(numbers < 0) | (numbers >= len(column.classes))] if column.classes is not None else numbers[:0]
        if len(wrong):
            collector.add("bad_label", f"{printable(column.name)} {wrong[0]}", [start + record])
        else:
            # Shifted, since negative numbers mean that there is no value.
            hashes[record] = xxh3_64_intdigest(numbers.data) >> 1
    return hashes


def report_classes(collector: FindingCollector, manifest: Manifest, rows: RecordLabels, most_ratio: float) -> None:
    """Adds findings about classes to ``collector``:

    - classes without records, if the classes have names;
    - classes that one split with labels has and another lacks;
    - splits whose largest class has at least ``most_ratio`` times the records of their smallest class with records.

    Adds nothing if the store has no column ``label`` of one class a record. Adds nothing either if the column has no
    class names and a number of 1,000,000 or more.
    """
    if not manifest.has_label:
        return
    classes = manifest.classes
    labels, has = rows.labels, rows.labels >= 0
    length = len(classes) if classes is not None else int(labels.max(initial=-1)) + 1
    if not length or (classes is None and length > 1_000_000):  # these are not numbers of classes
        return
    counts = np.stack([np.bincount(labels[has & (rows.splits == n)], minlength=length) for n in range(len(rows.sizes))])
    names = [printable(name) for name in classes] if classes is not None else [str(n) for n in range(length)]
    if classes is not None:
        for number in np.flatnonzero(counts.sum(0) == 0).tolist():
            collector.add("class_empty", f"{names[number]} has no record")
    # A test set without labels lacks all classes, which is no finding.
    labelled = [n for n in range(len(rows.sizes)) if counts[n].any()]
    for number in range(length):
        of = [n for n in labelled if counts[n, number]]
        if of and len(of) < len(labelled):
            missing = ", ".join(printable(manifest.splits[n].name) for n in labelled if n not in of)
            collector.add("class_split", f"{names[number]}: {int(counts[:, number].sum()):,} in all, none in {missing}")
    for n in labelled:
        there = np.flatnonzero(counts[n])
        low, high = there[counts[n, there].argmin()], there[counts[n, there].argmax()]
        if counts[n, high] >= float(most_ratio) * counts[n, low]:
            where = f"in {printable(manifest.splits[n].name)}, " if manifest.splits else ""
            what = f"{names[high]} has {counts[n, high]:,} records, {names[low]} {counts[n, low]:,}"
            collector.add("imbalance", where + what)


def report_faulty_rows(collector: FindingCollector, reader: Reader, sizes: NDArray[np.int32] | None) -> list[str]:
    """Adds findings of rows that their column types call faulty, such as boxes outside their image.

    Returns the names of the checks, each once. Unreadable columns become findings, too; shards that do not open are
    left out. ``sizes`` are height and width of the images ``(N, 2)``, zeros for unknown ones; None if no image was
    read.
    """
    checks: dict[str, None] = {}
    for column in reader.manifest.columns:
        check = column.traits.name_checks(sizes is not None)
        if not check:
            continue
        checks[check] = None
        for file in open_files(reader):
            try:
                for start in range(0, len(file.reader), _RECORDS):
                    part = range(start, min(start + _RECORDS, len(file.reader)))
                    _check_rows(collector, column, file, part, sizes)
            except PackstoreError as error:
                collector.add("damaged", f"{file.name or 'the store'}: column {column.name!r}: {error}")
    return [*checks]


def _check_rows(
    collector: FindingCollector, column: Column, file: StoreFile, part: range, sizes: NDArray[np.int32] | None
) -> None:
    """Adds findings about faulty rows of a column: one for each record and kind of fault."""
    rows, counts = _read_rows(file.reader, column, part)
    # For each row, its record and its number in the record.
    records = file.start + np.repeat(np.asarray(part), counts)
    numbers = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    for kind, faulty, depends_on_size in column.traits.find_faults(
        column, rows, None if sizes is None else sizes[records]
    ):
        places = np.flatnonzero(faulty)
        for record in np.unique(records[places]).tolist():
            start, stop = np.searchsorted(records[places], (record, record + 1))
            shown = "; ".join(f"{numbers[r]}: {rows[r].round(2).tolist()}" for r in places[start:stop][:_MOST_ROWS])
            size = f" in {sizes[record][1]} x {sizes[record][0]}" if depends_on_size and sizes is not None else ""
            collector.add(kind, f"{column.name!r} {shown}{size}", [record])


def _read_rows(reader: Reader, column: Column, part: range) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Reads the rows of all records in ``part``; returns them, and the number of rows of each record."""
    if column.kind == "fixed":
        there = np.ones(len(part), np.bool_)
        if column.nullable:
            there = reader.fixed_column(column.valid_name)[part.start : part.stop]
        return reader.column(column.name)[part.start : part.stop][there], there.astype(np.int64)
    values = reader.ragged_column(column.name)
    each = [bytes(values[i]) for i in part]
    counts = np.array([len(value) // column.record_nbytes for value in each], np.int64)
    whole = b"".join(value[: n * column.record_nbytes] for value, n in zip(each, counts.tolist(), strict=True))
    return np.frombuffer(whole, NUMPY_DTYPE[column.dtype]).reshape(-1, *column.shape), counts

"""``salvage``: saves every undamaged record of a store whose index or manifest is damaged, and lists the missing ones.

A record is undamaged if its image matches its checksum in the store, and its other fields match their row checksum. In
a store without row checksums, the columns must match the digests in a proven manifest. Records that nothing proves are
left out unless the caller asks for them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from packstore.checking.damaged_store import DamagedFile, DamagedStore, inspect_damaged_store
from packstore.checking.mending import RecordWriter, check_destination_name, find_split
from packstore.checking.reports import ProblemList, SalvageReport
from packstore.checking.source_records import LostRecordError
from packstore.core.columns import Buffer, ColumnData
from packstore.core.errors import StoreError, UsageError, printable
from packstore.core.files import refuse_nested_paths, writing
from packstore.core.manifest import Manifest, Skipped
from packstore.core.options import check_bools
from packstore.core.progress import Progress, ProgressCallback, progress_callback
from packstore.core.proof import (
    ROW_CHECKSUM,
    Comparison,
    column_digest,
    compare_rows,
    image_checksum,
    row_checksum,
    row_columns,
)
from packstore.core.urls import check_paths
from packstore.stores import Problem
from packstore.stores.batch import check_batch
from packstore.stores.scavenge import ScavengedData

_BATCH_RECORDS = 1024
_OTHER_IMAGE = "its image has another checksum"
_MAX_COMBINATIONS = 64
"""Most combinations of candidates for a record's values that are tried; few values have more than one."""


def salvage(
    damaged: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    unproven: bool = False,
    progress: bool | ProgressCallback = False,
) -> SalvageReport:
    """Writes the undamaged records of a damaged store to a new one. ``damaged`` is only read.

    The records keep their order, and their splits if a manifest still names them. Nothing in the store is executed;
    memory grows by about 40 bytes a record.

    Args:
        damaged: The damaged store: a file, an LMDB's directory, or a directory of shards.
        destination: Path of the new store.
        unproven: Also save records that no checksum proves, unchanged.
        progress: True for a bar, in a terminal or a notebook; or a function that is called after each batch.

    Returns:
        The report. If no record can be saved, nothing is written.

    Raises:
        UsageError: There is nothing at ``damaged``, or a linked store, which holds no images.
        StoreError: Nothing of a store can be found there.
        DestinationError: The destination may not be written.
    """
    check_paths(damaged, destination)
    check_bools(unproven=unproven)
    damaged, destination = Path(damaged), Path(destination)
    if not damaged.exists():
        raise UsageError(f"{printable(str(damaged))}: no such file or directory")
    refuse_nested_paths(destination, damaged)
    store = inspect_damaged_store(damaged)
    manifest = store.manifest
    if manifest.is_linked:
        raise UsageError(
            f"{printable(str(damaged))} is a linked store, which holds no images to salvage; link the source again: "
            "packstore convert SOURCE OUT --link"
        )
    check_destination_name(destination, manifest.format)
    shards = () if store.shard_size is None else store.files
    shard = next((file.manifest for file in shards if file.manifest is not None), None)
    writer = RecordWriter(destination, manifest, shard, shard_size=store.shard_size)
    with writing(destination), writer.builder, progress_callback(progress) as report:
        return _Salvage(damaged, store, writer, unproven, report).save_records(destination)


@dataclass
class _Salvage:
    """One salvage: collects undamaged records and writes the new store. With ``allow_unproven`` also collects unproven
    records."""

    damaged: Path
    store: DamagedStore
    writer: RecordWriter
    allow_unproven: bool
    progress: ProgressCallback
    keys: set[int] = field(default_factory=set)  # hashes of the saved keys: unproven records may repeat one
    recovered: int = 0
    unproven: ProblemList = field(default_factory=ProblemList)
    missing: ProblemList = field(default_factory=ProblemList)

    def save_records(self, destination: Path) -> SalvageReport:
        """Writes all records that can be saved to the new store, and publishes it; returns the report."""
        for file in self.store.files:
            self._salvage_file(file)
        lost_files = any(file.records is None for file in self.store.files)
        report = SalvageReport(
            self.damaged,
            None,
            None,
            self.store.notes,
            self.recovered,
            tuple(self.unproven.kept),
            self.unproven.count,
            tuple(self.missing.kept),
            self.missing.count,
            not (self.missing.count or self.unproven.count or lost_files),
        )
        if not self.recovered:
            return report
        lost = [Skipped(p.key or f"record {p.record}", f"not salvaged: {p.what}") for p in self.missing.kept]
        return replace(report, destination=destination, manifest=self.writer.commit(lost, recount=True))

    def _salvage_file(self, file: DamagedFile) -> None:
        """Saves the records of a file, or lists them as missing."""
        records = range(file.start, file.start + (file.records or 0))
        if file.scavenged is None:
            for record in records:
                self.missing.add(Problem(file.why, record, None, file.name))
            return
        total = sum(each.records or 0 for each in self.store.files)
        found = _FoundRecords(self.store.manifest, file.scavenged, len(records))
        for record, (fields, row_proven) in zip(records, found.choose_fields(), strict=True):
            if record % _BATCH_RECORDS == 0:
                self.progress(Progress("salvage", record, total, 0))
            key = None if fields["key"] is None else bytes(fields["key"]).decode("utf-8", "surrogateescape")
            try:
                image, doubts = found.choose_image(record - file.start)
                doubts += [] if row_proven else ["its label and key"]
                doubt = f"nothing proves {' and '.join(doubts)}" if doubts[:1] != [_OTHER_IMAGE] else _OTHER_IMAGE
                if doubts and not self.allow_unproven:
                    raise LostRecordError(doubt)
                self._save_record(record, image, fields, bool(doubts))
            except LostRecordError as error:
                self.missing.add(Problem(str(error), record, key, file.name))
            else:
                if doubts:
                    self.unproven.add(Problem(doubt, record, key, file.name))

    def _save_record(self, record: int, image: Buffer, fields: Mapping[str, Any], doubted: bool) -> None:
        """Writes a record to the new store; raises :class:`LostRecordError` if it does not fit the store."""
        for column in row_columns(self.store.manifest.columns):
            value = fields[column.name]
            if value is None:
                raise LostRecordError(f"its {column.name} is lost")
            if column.classes is not None and column.kind == "fixed" and not 0 <= int(value) < len(column.classes):
                raise LostRecordError(f"its {column.name} is {int(value)}, but there are {len(column.classes)} classes")
        column = self.store.manifest.image
        nbytes = memoryview(image).nbytes
        shape = fields.get("shape") if column.layout is not None and column.kind == "ragged" else None
        if shape is not None and nbytes != column.record_nbytes * int(np.prod(np.asarray(shape, np.int64))):
            raise LostRecordError(f"its image has {nbytes} bytes, which does not fit its shape")
        if doubted:
            one = {
                name: np.asarray(value)[None] if isinstance(value, (np.ndarray, np.generic)) else [bytes(value)]
                for name, value in fields.items()
            }
            try:
                check_batch(self.store.manifest.columns, one, [nbytes], record)
            except StoreError as error:
                raise LostRecordError(str(error)) from None
        if self.allow_unproven:
            mark = xxh3_64_intdigest(fields["key"])
            if mark in self.keys:
                raise LostRecordError("another record has the same key")
            self.keys.add(mark)
        self.writer.add(image, fields, find_split(self.store.manifest, record))
        self.recovered += 1


class _FoundRecords:
    """Chooses the image and fields of each record, from 0 on, among the data of a damaged file, by its checksums."""

    def __init__(self, manifest: Manifest, data: ScavengedData, count: int) -> None:
        self._manifest = manifest
        self._data = data
        self._count = count
        self._fields = [column.name for column in row_columns(manifest.columns)]
        self._checksums = self._find_checksums("checksum")
        self._rows = self._find_checksums(ROW_CHECKSUM.name)
        lost = (
            set() if self._checksums is None else {int(n) for i, n in enumerate(self._checksums) if not data.images(i)}
        )
        # Images to which no record points any more, by checksum.
        self._orphans = dict(data.orphans(lost)) if lost else {}

    def _find_checksums(self, name: str) -> NDArray[np.uint64] | None:
        """Returns a column of checksums, or None if it is incomplete."""
        data = self._data.columns.get(name)
        whole = isinstance(data, np.ndarray) and data.dtype == np.uint64 and data.shape == (self._count,)
        return np.asarray(data) if whole else None

    def choose_image(self, i: int) -> tuple[Buffer, list[str]]:
        """Returns the image of a record, the likeliest if no candidate has its checksum; and what is doubtful then."""
        candidates = self._data.images(i)
        if self._checksums is not None:
            expected = int(self._checksums[i])
            for candidate in reversed(candidates):
                if image_checksum(candidate) == expected:
                    return candidate, []
            if expected in self._orphans:
                return self._orphans[expected], []
        column = self._manifest.image
        if column.kind == "fixed":
            candidates = [c for c in candidates if memoryview(c).nbytes == column.record_nbytes]
        if not candidates:
            raise LostRecordError("its image was not found")
        return candidates[-1], ["its image" if self._checksums is None else _OTHER_IMAGE]

    def choose_fields(self) -> Iterator[tuple[dict[str, Any], bool]]:
        """Yields the fields of each record, None for a lost one, and whether a digest or checksum proves them."""
        columns = {name: self._data.columns[name] for name in self._fields if name in self._data.columns}
        whole = len(columns) == len(self._fields)
        proven = whole and self._match_digests(columns)
        for start in range(0, self._count, _BATCH_RECORDS):
            stop, differing = min(start + _BATCH_RECORDS, self._count), dict[int, Comparison]()
            if whole and not proven and self._rows is not None:
                differing = compare_rows(self._manifest.columns, columns, self._rows[start:stop], start)
            for i in range(start, stop):
                fields = {name: _try_value(columns.get(name), i) for name in self._fields}
                if i in differing:
                    chosen = self._choose_values(i, fields, differing[i].expected)
                    yield chosen or fields, chosen is not None
                else:
                    yield fields, proven or (whole and self._rows is not None)

    def _match_digests(self, columns: Mapping[str, ColumnData]) -> bool:
        """Returns whether all columns have their digests in a proven manifest."""
        recovered = self._data.recovered
        if recovered is None or not recovered.proven:
            return False
        try:
            return all(column_digest(data) == recovered.manifest.column(name).digest for name, data in columns.items())
        except StoreError:  # a single value of a column is lost
            return False

    def _choose_values(self, i: int, fields: Mapping[str, Any], expected: int) -> dict[str, Any] | None:
        """Searches a record's candidate values for fields that match its row checksum; None if none do."""
        # The likeliest first; equal candidates count once.
        candidates = {
            name: [*{bytes(value): value for value in reversed(find(i))}.values()]
            for name, find in self._data.alternatives.items()
        }
        if all(len(values) == 1 for values in candidates.values()):
            return None
        for combination in islice(product(*candidates.values()), _MAX_COMBINATIONS):
            tried = {**fields, **dict(zip(candidates, combination, strict=True))}
            if row_checksum(self._manifest.columns, tried) == expected:
                return tried
        return None


def _try_value(data: ColumnData | None, i: int) -> Any:
    """Returns a value, or None if it cannot be read."""
    try:
        return None if data is None else data[i]
    except (StoreError, IndexError):
        return None

"""``salvage``: saves every undamaged record of a store whose index or manifest is damaged, and lists the missing ones.

A record is undamaged if its image matches its checksum in the store, and its other fields match their row checksum. In
a store without row checksums, the columns must match the digests in a proven manifest. Records that nothing proves are
left out unless the caller asks for them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from packstore.checking.damaged_store import DamagedStore, inspect_damaged_store
from packstore.checking.mending import FoundRecord, RecordWalk, RecordWriter, check_destination_name
from packstore.checking.reports import ProblemList, SalvageReport
from packstore.checking.source_records import LostRecordError
from packstore.core.columns import Buffer
from packstore.core.errors import StoreError, UsageError, printable
from packstore.core.files import refuse_nested_paths, writing
from packstore.core.manifest import Manifest, Skipped
from packstore.core.options import check_bools
from packstore.core.progress import Progress, ProgressCallback, progress_callback
from packstore.core.proof import ROW_CHECKSUM, column_digest, image_checksum, row_checksum, row_columns
from packstore.core.urls import check_paths
from packstore.stores import Problem
from packstore.stores.batch import check_batch
from packstore.stores.parts import decode_key
from packstore.stores.scavenge import ScavengedData

_REPORT_EVERY = 1024
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
        return _save_records(damaged, store, writer, unproven, report, destination)


def _save_records(
    damaged: Path,
    store: DamagedStore,
    writer: RecordWriter,
    allow_unproven: bool,
    progress: ProgressCallback,
    destination: Path,
) -> SalvageReport:
    """Writes all records that can be saved to the new store, and publishes it; returns the report."""
    recovered, unproven, missing = 0, ProblemList(), ProblemList()
    total = sum(file.records or 0 for file in store.files)
    keys: set[int] | None = set() if allow_unproven else None
    for file in store.files:
        records = range(file.start, file.start + (file.records or 0))
        if file.scavenged is None:
            for record in records:
                missing.add(Problem(file.why, record, None, file.name))
            continue
        for found in _SalvageWalk(store.manifest, file.scavenged, records, keys).walk(records):
            if found.record % _REPORT_EVERY == 0:
                progress(Progress("salvage", found.record, total, 0))
            if found.image is None:
                missing.add(Problem(found.why, found.record, found.key, file.name))
                continue
            writer.add(found)
            recovered += 1
            if found.why:
                unproven.add(Problem(found.why, found.record, found.key, file.name))
    lost_files = any(file.records is None for file in store.files)
    report = SalvageReport(
        damaged,
        None,
        None,
        store.notes,
        recovered,
        tuple(unproven.kept),
        unproven.count,
        tuple(missing.kept),
        missing.count,
        not (missing.count or unproven.count or lost_files),
    )
    if not recovered:
        return report
    lost = [Skipped(p.key or f"record {p.record}", f"not salvaged: {p.what}") for p in missing.kept]
    return replace(report, destination=destination, manifest=writer.commit(lost, recount=True))


class _SalvageWalk(RecordWalk):
    """Chooses image and fields of each record of a damaged file by their checksums, among what was found of them."""

    def __init__(self, manifest: Manifest, data: ScavengedData, records: range, keys: set[int] | None) -> None:
        """``keys``: receives hashes of the keys, since unproven records may repeat one; None refuses these records."""
        super().__init__(manifest)
        self._data, self._first, self._keys = data, records.start, keys
        self._checksums = self._find_checksums("checksum", len(records))
        self._rows = self._find_checksums(ROW_CHECKSUM.name, len(records))
        # A row checksum covers all columns, so a missing one makes it useless.
        self._whole = data.columns.keys() >= {*self.fields}
        self._proven = self._whole and self._columns_match_digests()
        sums = () if self._checksums is None else enumerate(self._checksums.tolist())
        lost = {checksum for i, checksum in sums if not data.images(i)}
        # Images to which no record points any more, by checksum.
        self._orphans = dict(data.orphans(lost)) if lost else {}

    def read_value(self, name: str, record: int) -> Any:
        return self._data.columns[name][record - self._first]

    def read(self, record: int) -> FoundRecord:
        fields = self.read_fields(record)
        proven = fields if self._proven else self._find_proven_fields(record, fields)
        fields, why = (fields, "its label and key") if proven is None else (proven, "")
        key = None if fields["key"] is None else decode_key(fields["key"])
        return FoundRecord(record, key, fields, why)

    def prove(self, found: FoundRecord) -> FoundRecord:
        image, why = self._choose_image(found.record - self._first)
        if why != _OTHER_IMAGE:
            doubts = [*filter(None, (why, found.why))]
            why = f"nothing proves {' and '.join(doubts)}" if doubts else ""
        if why and self._keys is None:
            raise LostRecordError(why)
        self._check_fit(found, memoryview(image).nbytes, bool(why))
        return found._replace(image=image, why=why)

    def _find_checksums(self, name: str, count: int) -> NDArray[np.uint64] | None:
        """Returns a column of checksums, or None if it is incomplete."""
        data = self._data.columns.get(name)
        whole = isinstance(data, np.ndarray) and data.dtype == np.uint64 and data.shape == (count,)
        return np.asarray(data) if whole else None

    def _columns_match_digests(self) -> bool:
        """Tells if the manifest is proven, and every column of fields has the digest in it."""
        recovered = self._data.recovered
        if recovered is None or not recovered.proven:
            return False
        column = recovered.manifest.column
        try:
            return all(column_digest(self._data.columns[name]) == column(name).digest for name in self.fields)
        except StoreError:  # a single value of a column is lost
            return False

    def _find_proven_fields(self, record: int, fields: dict[str, Any]) -> dict[str, Any] | None:
        """Returns fields that match the row checksum of a record, ``fields`` or other candidates; None if none do."""
        if self._rows is None or not self._whole:
            return None
        expected = int(self._rows[record - self._first])
        tried = (fields, *self._combine_candidates(record - self._first, fields))
        return next((each for each in tried if row_checksum(self.manifest.columns, each) == expected), None)

    def _combine_candidates(self, i: int, fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields ``fields`` with other candidates for their values, the likeliest first."""
        # Equal candidates count once.
        candidates = {
            name: [*{bytes(value): value for value in reversed(find(i))}.values()]
            for name, find in self._data.alternatives.items()
        }
        for combination in islice(product(*candidates.values()), _MAX_COMBINATIONS):
            yield {**fields, **dict(zip(candidates, combination, strict=True))}

    def _choose_image(self, i: int) -> tuple[Buffer, str]:
        """Returns the image of a record, the likeliest if no candidate has its checksum; and what is doubtful then."""
        candidates = self._data.images(i)
        if self._checksums is not None:
            expected = int(self._checksums[i])
            # The last candidate is the likeliest.
            for candidate in reversed(candidates):
                if image_checksum(candidate) == expected:
                    return candidate, ""
            if expected in self._orphans:
                return self._orphans[expected], ""
        column = self.manifest.image
        if column.kind == "fixed":
            candidates = [c for c in candidates if memoryview(c).nbytes == column.record_nbytes]
        if not candidates:
            raise LostRecordError("its image was not found")
        return candidates[-1], "its image" if self._checksums is None else _OTHER_IMAGE

    def _check_fit(self, found: FoundRecord, nbytes: int, doubted: bool) -> None:
        """Raises :class:`LostRecordError` if a record with an image of ``nbytes`` does not fit the store."""
        for column in row_columns(self.manifest.columns):
            value = found.fields[column.name]
            if value is None:
                raise LostRecordError(f"its {column.name} is lost")
            if column.classes is not None and column.kind == "fixed" and not 0 <= int(value) < len(column.classes):
                raise LostRecordError(f"its {column.name} is {int(value)}, but there are {len(column.classes)} classes")
        column = self.manifest.image
        shape = found.fields.get("shape") if column.layout is not None and column.kind == "ragged" else None
        if shape is not None and nbytes != column.record_nbytes * int(np.prod(np.asarray(shape, np.int64))):
            raise LostRecordError(f"its image has {nbytes} bytes, which does not fit its shape")
        # Proven records were checked when the store was written.
        if doubted:
            one = {
                name: np.asarray(value)[None] if isinstance(value, (np.ndarray, np.generic)) else [bytes(value)]
                for name, value in found.fields.items()
            }
            try:
                check_batch(self.manifest.columns, one, [nbytes], found.record)
            except StoreError as error:
                raise LostRecordError(str(error)) from None
        if self._keys is not None:
            mark = xxh3_64_intdigest(found.fields["key"])
            if mark in self._keys:
                raise LostRecordError("another record has the same key")
            self._keys.add(mark)

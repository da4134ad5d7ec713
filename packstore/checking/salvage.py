"""``salvage``: saves every undamaged record of a store whose index or manifest is broken, and lists the missing ones.

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
from packstore.checking.repair import check_destination_name
from packstore.core.arguments import check_bools
from packstore.core.checksums import ROW_CHECKSUM, column_digest, row_checksum, row_columns
from packstore.core.columns import Buffer, ColumnData, Ragged
from packstore.core.errors import StoreError, UsageError, printable
from packstore.core.files import check_paths, refuse_nested_paths, writing
from packstore.core.manifest import Manifest, Skipped
from packstore.core.progress import Progress, ProgressCallback, progress_callback
from packstore.core.proof import compare_rows
from packstore.images.encode.options import keeps_exif
from packstore.images.orientation import count_oriented
from packstore.images.seek_index import index_values
from packstore.packing.recorded_options import EXIF_ORIENTED
from packstore.stores.base import Problem
from packstore.stores.builder import StoreBuilder
from packstore.stores.builder.batch import check_batch
from packstore.stores.scavenge import ScavengedData

_BATCH_RECORDS, _BATCH_BYTES = 1024, 8 << 20
_MAX_COMBINATIONS = 64
"""Most combinations of candidates for a record's values that are tried; few values have more than one."""
_MAX_LISTED = 10_000
"""Most missing records that the report and the new store's manifest list; further ones are only counted."""


@dataclass(frozen=True, slots=True, repr=False)
class SalvageReport:
    """Report of a salvage.

    Attributes:
        damaged: The damaged store.
        destination: The new store, or None if no record could be saved.
        manifest: Its manifest.
        notes: Faults of the store as a whole, and how they were handled.
        recovered: Number of saved records.
        unproven: The first 10,000 saved records that nothing proves.
        unproven_count: Number of all such records.
        missing: The first 10,000 records that were not saved, and why.
        missing_count: Number of all such records, without those of lost files whose number is unknown.
        complete: Whether every record was saved and proven, and nothing is known to be lost.
    """

    damaged: Path
    destination: Path | None
    manifest: Manifest | None
    notes: tuple[str, ...]
    recovered: int
    unproven: tuple[Problem, ...]
    unproven_count: int
    missing: tuple[Problem, ...]
    missing_count: int
    complete: bool

    def __repr__(self) -> str:
        written = "nothing written" if self.destination is None else f"written to {str(self.destination)!r}"
        return (
            f"<SalvageReport of {str(self.damaged)!r}: {self.recovered:,} recovered, {self.missing_count:,} missing, "
            f"{written}>"
        )


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
    builder = StoreBuilder(
        destination,
        format=manifest.format,
        encoding=manifest.encoding,
        columns=manifest.columns,
        shard_size=store.shard_size,
    )
    with writing(destination), builder, progress_callback(progress) as report:
        return _Salvage(damaged, store, builder, unproven, report).save_records(destination)


@dataclass(slots=True)
class _PendingRecords:
    """Records of one split on their way into the new store.

    ``images`` has the image of each. ``values`` has a list for each column, with the value of each record.
    """

    split: str = ""
    images: list[Buffer] = field(default_factory=list)
    values: dict[str, list[Any]] = field(default_factory=dict)
    nbytes: int = 0


class _LostError(Exception):
    """A record cannot be saved; the message says why."""


class _Salvage:
    """One salvage: collects undamaged records and writes the new store. With ``unproven`` also collects unproven
    records.

    Lists the first 10,000 unproven and the first 10,000 missing records.
    """

    def __init__(
        self, damaged: Path, store: DamagedStore, builder: StoreBuilder, unproven: bool, progress: ProgressCallback
    ) -> None:
        self.damaged = damaged
        self.store = store
        self.manifest = store.manifest
        self.builder = builder
        self.allow_unproven = unproven
        self.progress = progress
        self.fields = row_columns(self.manifest.columns)
        self.batch = _PendingRecords()
        self.chosen: dict[int, Mapping[str, Any]] = {}  # by record of a file: its fields, if not the likeliest ones
        self.keys: set[int] = set()  # hashes of the saved keys: unproven records may repeat one
        self.recovered = 0
        # None if there are none to count.
        self.oriented = 0 if EXIF_ORIENTED in store.manifest.options and keeps_exif(store.manifest) else None
        self.unproven: list[Problem] = []
        self.unproven_count = 0
        self.missing: list[Problem] = []
        self.missing_count = 0

    def save_records(self, destination: Path) -> SalvageReport:
        """Adds all records that can be saved to the new store, and publishes it; returns the report. Reports progress.

        The new manifest lists lost records as skipped, at most 10,000 of them. Publishes nothing if no record can be
        saved.
        """
        total = sum(file.records or 0 for file in self.store.files)
        for file in self.store.files:
            for record, outcome in self._salvage_file(file):
                if isinstance(outcome, Problem):
                    self._add_missing(outcome)
                if record % _BATCH_RECORDS == 0:
                    self.progress(Progress("salvage", record, total, 0))
        self._append_batch()
        lost_files = any(file.records is None for file in self.store.files)
        report = SalvageReport(
            self.damaged,
            None,
            None,
            self.store.notes,
            self.recovered,
            tuple(self.unproven),
            self.unproven_count,
            tuple(self.missing),
            self.missing_count,
            not (self.missing_count or self.unproven_count or lost_files),
        )
        if not self.recovered:
            return report
        lost = [Skipped(p.key or f"record {p.record}", f"not salvaged: {p.what}") for p in self.missing]
        counted = self.store.whole_store_counts
        if self.oriented is not None:
            counted = counted | {EXIF_ORIENTED: self.oriented}
        manifest = self.builder.commit(
            origin=self.manifest.origin,
            normalization=self.manifest.normalization,
            options={name: value for name, value in self.manifest.options.items() if name not in counted},
            counted=counted,
            versions=self.manifest.versions,
            skipped=(*self.manifest.skipped, *lost),
        )
        return replace(report, destination=destination, manifest=manifest)

    def _salvage_file(self, file: DamagedFile) -> Iterator[tuple[int, Problem | None]]:
        """Adds the records of a file to the batch. Yields the number of each record, and a problem if it is lost, else
        None.

        Counts and lists unproven records if they are allowed; else they are lost.
        """
        if file.scavenged is None:
            for record in range(file.start, file.start + (file.records or 0)):
                yield record, Problem(file.why, record, None, file.name)
            return
        columns, count = file.scavenged.columns, file.records or 0
        sums = _check_checksum_column(columns.get("checksum"), count)
        orphans = self._find_orphans(file, sums)
        proven_rows = self._make_row_prover(file)
        for start in range(0, count, _BATCH_RECORDS):
            stop = min(start + _BATCH_RECORDS, count)
            rows = proven_rows(start, stop)
            for i in range(start, stop):
                record = file.start + i
                key = _try_key(columns.get("key"), i)
                try:
                    image, image_proven = _choose_image(file, i, sums, orphans)
                    doubts = [] if image_proven else ["its image" if sums is None else "its image has another checksum"]
                    doubts += [] if rows[i - start] else ["its label and key"]
                    doubt = f"nothing proves {' and '.join(doubts)}" if sums is None or image_proven else doubts[0]
                    if doubts and not self.allow_unproven:
                        raise _LostError(doubt)
                    self._add_record(file, i, image, bool(doubts))
                except _LostError as error:
                    yield record, Problem(str(error), record, key, file.name)
                    continue
                if doubts:
                    self.unproven_count += 1
                    if len(self.unproven) < _MAX_LISTED:
                        self.unproven.append(Problem(doubt, record, key, file.name))
                yield record, None

    def _find_orphans(self, file: DamagedFile, sums: NDArray[np.uint64] | None) -> Mapping[int, Buffer]:
        """Searches a file for orphans: images to which no record points any more. Returns them by checksum.

        Looks only for the checksums of records without an image. Empty if ``sums``, the checksums of the records, is
        None.
        """
        assert file.scavenged is not None
        if sums is None:
            return {}
        scavenged = file.scavenged
        lost = {int(sums[i]) for i in range(len(sums)) if not scavenged.images(i)}
        return dict(scavenged.orphans(lost)) if lost else {}

    def _make_row_prover(self, file: DamagedFile) -> Any:
        """Returns a function that tells for the records ``start`` to ``stop - 1`` if their fields are proven.

        The digests of all columns prove them, else the row checksums. With row checksums the function fills
        :attr:`chosen`.
        """
        assert file.scavenged is not None
        scavenged, names = file.scavenged, [c.name for c in self.fields]
        columns = {name: scavenged.columns[name] for name in names if name in scavenged.columns}
        whole = len(columns) == len(names)
        sound = False
        if whole and scavenged.recovered is not None and scavenged.recovered.proven:
            described = scavenged.recovered.manifest
            try:
                sound = all(column_digest(columns[name]) == described.column(name).digest for name in names)
            except StoreError:  # a single value of a column is lost
                sound = False
        stored = _check_checksum_column(scavenged.columns.get(ROW_CHECKSUM.name), file.records or 0)
        if sound or not whole or stored is None:
            return lambda start, stop: [sound] * (stop - start)

        def by_row(start: int, stop: int) -> list[bool]:
            wrong = compare_rows(self.manifest.columns, columns, stored[start:stop], start)
            self.chosen = {}
            return [i not in wrong or self._choose_values(scavenged, i, wrong[i].expected) for i in range(start, stop)]

        return by_row

    def _choose_values(self, scavenged: ScavengedData, i: int, expected: int) -> bool:
        """Searches a record's candidate values for a combination with its row checksum; keeps the combination in
        :attr:`chosen`.

        Tries the likeliest 64 combinations. Returns whether it found one.
        """
        # The likeliest first; equal candidates count once.
        candidates = {
            name: [*{bytes(value): value for value in reversed(find(i))}.values()]
            for name, find in scavenged.alternatives.items()
        }
        if all(len(values) == 1 for values in candidates.values()):
            return False
        try:
            fields = {c.name: scavenged.columns[c.name][i] for c in self.fields if c.name not in candidates}
        except StoreError:
            return False
        for combination in islice(product(*candidates.values()), _MAX_COMBINATIONS):
            tried = fields | dict(zip(candidates, combination, strict=True))
            if row_checksum(self.manifest.columns, tried) == expected:
                self.chosen[i] = tried
                return True
        return False

    def _add_record(self, file: DamagedFile, i: int, image: Buffer, doubted: bool) -> None:
        """Adds a record to the batch. If the batch is full or has another split, appends it to the store first.

        Raises :class:`_LostError` for a lost field, a label without a class, and an image that does not fit its shape.
        Checks other fields only of a doubted record. If unproven records are allowed, raises it also for a key that was
        saved before.
        """
        assert file.scavenged is not None
        values: dict[str, Any] = {}
        chosen = self.chosen.get(i)
        for column in self.fields:
            data = file.scavenged.columns.get(column.name)
            try:
                value: Any = None if data is None else data[i] if chosen is None else chosen[column.name]
            except (StoreError, IndexError):
                value = None
            if value is None:
                raise _LostError(f"its {column.name} is lost")
            if column.classes is not None and column.kind == "fixed" and not 0 <= int(value) < len(column.classes):
                raise _LostError(f"its {column.name} is {int(value)}, but there are {len(column.classes)} classes")
            values[column.name] = bytes(value) if column.kind == "ragged" else value
        image_column = self.manifest.image
        nbytes = memoryview(image).nbytes
        shape = values.get("shape") if image_column.layout is not None and image_column.kind == "ragged" else None
        if shape is not None and nbytes != image_column.record_nbytes * int(np.prod(np.asarray(shape, np.int64))):
            raise _LostError(f"its image has {nbytes} bytes, which does not fit its shape")
        if doubted:
            one = {
                name: np.asarray(v)[None] if isinstance(v, (np.ndarray, np.generic)) else [v]
                for name, v in values.items()
            }
            try:
                check_batch(self.manifest.columns, one, [nbytes], file.start + i)
            except StoreError as error:
                raise _LostError(str(error)) from None
        if self.allow_unproven:
            mark = xxh3_64_intdigest(values["key"])
            if mark in self.keys:
                raise _LostError("another record has the same key")
            self.keys.add(mark)
        split = self.store.find_split(file.start + i)
        if self.batch.images and (split != self.batch.split or self.batch.nbytes >= _BATCH_BYTES
                                  or len(self.batch.images) >= _BATCH_RECORDS):  # fmt: skip
            self._append_batch()
        self.batch.split = split
        self.batch.images.append(image)
        self.batch.nbytes += nbytes + sum(memoryview(value).nbytes for value in values.values())
        for name, value in values.items():
            self.batch.values.setdefault(name, []).append(value)
        self.recovered += 1

    def _append_batch(self) -> None:
        """Appends the batch to the new store and begins an empty one."""
        batch, self.batch = self.batch, _PendingRecords()
        if batch.images:
            if self.oriented is not None:
                self.oriented += count_oriented(batch.images)
            values = {
                c.name: batch.values[c.name] if c.kind == "ragged" else np.stack(batch.values[c.name])
                for c in self.fields
            }
            self.builder.append(batch.images, values | index_values(self.manifest.columns, batch.images), batch.split)

    def _add_missing(self, problem: Problem) -> None:
        """Counts a lost record; keeps the first 10,000."""
        self.missing_count += 1
        if len(self.missing) < _MAX_LISTED:
            self.missing.append(problem)


def _choose_image(
    file: DamagedFile, i: int, sums: NDArray[np.uint64] | None, orphans: Mapping[int, Buffer]
) -> tuple[Buffer, bool]:
    """Returns the image of a record, and whether its checksum proves the image.

    Prefers a candidate or orphan with the checksum. Else takes the likeliest candidate; if all images of the file have
    one length, it must have this length. Raises :class:`_LostError` if there is no candidate.
    """
    assert file.scavenged is not None
    candidates = file.scavenged.images(i)
    expected = None if sums is None else int(sums[i])
    for candidate in reversed(candidates):
        if expected is not None and xxh3_64_intdigest(candidate) == expected:
            return candidate, True
    if expected is not None and expected in orphans:
        return orphans[expected], True
    width = file.width
    candidates = [c for c in candidates if width is None or memoryview(c).nbytes == width]
    if not candidates:
        raise _LostError("its image was not found")
    return candidates[-1], False


def _try_key(data: ColumnData | None, i: int) -> str | None:
    """Returns the key of a record, or None if it cannot be read."""
    try:
        return None if not isinstance(data, Ragged) else bytes(data[i]).decode("utf-8", "surrogateescape")
    except (StoreError, IndexError):
        return None


def _check_checksum_column(data: ColumnData | None, count: int) -> NDArray[np.uint64] | None:
    """Returns ``data`` if it is a complete column of checksums, else None."""
    good = isinstance(data, np.ndarray) and data.dtype == np.uint64 and data.shape == (count,)
    return data if good and isinstance(data, np.ndarray) else None

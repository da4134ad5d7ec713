"""``salvage``: saves every undamaged record of a store whose index or manifest is damaged, and lists the missing ones.

A record is undamaged if its image matches its checksum in the store, and its other fields match their row checksum. In
a store without row checksums, the columns must match the digests in a proven manifest. Records that nothing proves are
left out unless the caller asks for them. At first the damaged store is inspected: which of its files exist, and which
records each holds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, islice, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from packstore.checking.mending import FoundRecord, RecordWalk, RecordWriter, check_destination_name
from packstore.checking.reports import ProblemList, SalvageReport
from packstore.checking.source_records import LostRecordError
from packstore.core.columns import NUMPY_DTYPE, Buffer, Ragged, guess_column
from packstore.core.errors import StoreError, UsageError, printable
from packstore.core.files import MANIFEST_FILE, open_regular, refuse_nested_paths, writing
from packstore.core.manifest import MAX_JSON_BYTES, Column, Manifest, Origin, Skipped, Split
from packstore.core.options import check_bools
from packstore.core.progress import Progress, ProgressCallback, progress_callback
from packstore.core.proof import ROW_CHECKSUM, column_digest, image_checksum, row_checksum, row_columns
from packstore.core.registry import FORMATS
from packstore.core.shards import TABLE_ROW, ShardTable, shard_name
from packstore.core.urls import check_paths
from packstore.images.sniff import HeaderError, sniff
from packstore.stores import Problem
from packstore.stores.folder import read_table
from packstore.stores.format import Format
from packstore.stores.opening import directory_format, open_reader, scavenge_file
from packstore.stores.parts import decode_key
from packstore.stores.places.owned import is_shard_name, parse_shard_number
from packstore.stores.places.work import find_writer, list_needless_files
from packstore.stores.scavenge import RecoveredManifest, ScavengedData, find_manifest, scavenge_reader
from packstore.stores.staged_columns import check_batch

_STATE_NOTES = {
    "intact": "",
    "corrected": "its manifest was damaged, and is corrected: the digest in it proves that",
    "unproven": "its manifest is damaged and its digest does not prove it; it is trusted as far as records prove it",
}
_REPORT_EVERY = 1024
_OTHER_IMAGE = "its image has another checksum"
_MAX_COMBINATIONS = 64
"""Most combinations of candidates for a record's values that are tried; few values have more than one."""


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """One file of a damaged store.

    Attributes:
        name: Name of the shard, or None in a store of one file.
        start: Number of its first record.
        records: Number of records that it had; None if unknown.
        scavenged: Data recovered from it, or None.
        why: Reason why nothing was recovered, else empty.
    """

    name: str | None
    start: int
    records: int | None
    scavenged: ScavengedData | None
    why: str = ""

    @property
    def manifest(self) -> Manifest | None:
        """Its manifest, or None if that was not recovered."""
        recovered = None if self.scavenged is None else self.scavenged.recovered
        return None if recovered is None else recovered.manifest


@dataclass(frozen=True, slots=True)
class DamagedStore:
    """A damaged store as a whole, as far as it can be recovered.

    Attributes:
        manifest: Its manifest, as far as known.
        files: Its files, in order.
        notes: Faults of the store as a whole.
        shard_size: Bytes of images of its largest shard with several records, at least 1. None if the store was one
            file.
    """

    manifest: Manifest
    files: tuple[DamagedFile, ...]
    notes: tuple[str, ...]
    shard_size: int | None


def inspect_damaged_store(path: Path) -> DamagedStore:
    """Recovers as much as possible of the store at ``path``: manifest, files and their records. Writes nothing.

    Raises :class:`StoreError` if no manifest can be recovered or inferred.
    """
    shown = printable(str(path))
    if path.is_dir() and directory_format(path) is None:
        return _ShardedInspection(path).inspect()
    scavenged, note = _read_file(path)
    recovered = scavenged.recovered or _infer_manifest(scavenged, path)
    if recovered is None:
        raise StoreError(
            f"{shown} holds no readable manifest, without which only image files can be recovered, and it "
            "holds none; pack it again from its source"
        )
    file = DamagedFile(None, 0, recovered.manifest.records, scavenged)
    lost = "its manifest is lost, and with it the names of classes and splits, options and origin"
    notes = [note, lost if scavenged.recovered is None else _STATE_NOTES[recovered.state]]
    return DamagedStore(recovered.manifest, (file,), tuple(filter(None, notes)), None)


def _read_file(path: Path) -> tuple[ScavengedData, str]:
    """Returns the content of a store file, and why it does not open as a store, else ``""``."""
    try:
        reader = open_reader(path)
        # A store that opens may still have damaged records, which some formats find better by searching the file.
        if not FORMATS[reader.manifest.format].scavenges_sound_stores:
            return scavenge_reader(reader), ""
        return scavenge_file(path, RecoveredManifest(reader.manifest, True, "intact")), ""
    except StoreError as error:
        return scavenge_file(path), str(error).partition("; restore it")[0]


class _ShardedInspection:
    """Recovers a sharded store from its manifest and its table of shards, and notes its faults.

    If these are lost, uses the shards' own manifests. The order of the shards is then guessed from their numbers and
    splits.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._notes: list[str] = []

    def inspect(self) -> DamagedStore:
        """Inspects all shards, which file names tell without a manifest; notes lost and foreign ones.

        Raises :class:`StoreError` if nothing is readable."""
        path, notes = self._path, self._notes
        whole, table, proven = self._recover_manifest(), None, False
        there = {p.name: f for p in path.iterdir() for f in FORMATS.values() if is_shard_name(p.name, f)}
        if whole is not None and whole.shards is not None:
            table, proven = self._recover_table(whole.records, whole.shards)
            names = _list_shard_names(table, proven, there)
            known = {*names, *(list_needless_files(path) if find_writer(path) is not None else ())}
            notes += [f"{name} does not belong to the store, and is left out" for name in sorted(there.keys() - known)]
        elif len({*there.values()}) == 1:
            # Without a manifest, the highest number tells how many shards there were.
            last = max(there, key=parse_shard_number)
            names = [there[last].shard_name(i) for i in range(parse_shard_number(last) + 1)]
        else:
            raise StoreError(f"{printable(str(path))} holds no store: no manifest and no shards of one format")
        files: list[DamagedFile] = []
        for number, name in enumerate(names):
            row = None if table is None or table.rows is None else table.rows[number]
            expected = row["manifest_digest"].tobytes().hex() if row is not None and proven else None
            file = self._inspect_shard(name, expected)
            files.append(file if row is None else replace(file, records=int(row["records"])))
            if files[-1].records is None:
                lost = f"{name} is lost, and its number of records is unknown"
                notes.append(f"{lost}; later records have lower numbers now")
        if not proven:
            files = _order_by_split(files, whole)
        starts = accumulate((file.records or 0 for file in files), initial=0)
        files = [replace(file, start=start) for file, start in zip(files, starts, strict=False)]
        manifests = [file.manifest for file in files if file.manifest is not None]
        if whole is None and not manifests:
            raise StoreError(f"{printable(str(path))} holds shards, but nothing in them can be read")
        # A shard of one record may exceed the shard size.
        largest = max((m.image.nbytes for m in manifests if m.records > 1), default=1)
        return DamagedStore(whole or _merge_manifests(manifests, files), tuple(files), tuple(notes), max(1, largest))

    def _recover_manifest(self) -> Manifest | None:
        """Recovers the store's manifest; returns None if it cannot be read or names no table of shards."""
        try:
            with os.fdopen(open_regular(self._path / MANIFEST_FILE), "rb") as file:
                recovery, why = find_manifest(file.read(MAX_JSON_BYTES)), ""
        except OSError as error:
            recovery, why = None, f" ({error.strerror or error})"
        if recovery is None or recovery.manifest.shards is None:
            self._notes.append(f"{MANIFEST_FILE} cannot be read{why}; the shards' own manifests are used")
            return None
        self._note_state(MANIFEST_FILE, recovery)
        return recovery.manifest

    def _note_state(self, name: str, recovery: RecoveredManifest) -> None:
        """Notes the state of a manifest that was damaged."""
        if _STATE_NOTES[recovery.state]:
            self._notes.append(f"{name}: {_STATE_NOTES[recovery.state]}")

    def _recover_table(self, records: int, table: ShardTable) -> tuple[ShardTable, bool]:
        """Returns the table of shards, without rows if unreadable, and whether its digest proves it."""
        try:
            return read_table(self._path, table), True
        except StoreError as error:
            self._notes.append(f"{error}; the shards' own manifests are used")
        try:
            with os.fdopen(open_regular(self._path / table.file), "rb") as file:
                rows = np.frombuffer(file.read(table.nbytes), TABLE_ROW)
        except (OSError, ValueError):
            return table, False
        # If the sum is right, the damage is elsewhere in the rows.
        adds_up = len(rows) == table.length and sum(rows["records"].tolist()) == records
        return (replace(table, rows=rows) if adds_up else table), False

    def _inspect_shard(self, name: str, expected: str | None) -> DamagedFile:
        """Recovers the content of a shard, whose manifest should have the digest ``expected`` unless that is None."""
        path = self._path / name
        if not path.exists():
            return DamagedFile(name, 0, None, None, "its shard is missing")
        try:
            scavenged, note = _read_file(path)
        except StoreError as error:
            return DamagedFile(name, 0, None, None, f"nothing in its shard can be read: {error}")
        if note:
            self._notes.append(f"{name}: {note}")
        recovered = scavenged.recovered
        if recovered is None:
            return DamagedFile(name, 0, None, None, "the manifest of its shard is lost")
        if expected is not None and recovered.proven and recovered.manifest.digest != expected:
            return DamagedFile(name, 0, None, None, "its shard is another one, or belongs to another store")
        self._note_state(name, recovered)
        return DamagedFile(name, 0, recovered.manifest.records, scavenged)


def _list_shard_names(table: ShardTable, proven: bool, there: Mapping[str, Format]) -> list[str]:
    """Returns the names of the shards: those of a proven table, else those in the directory by number."""
    if proven:
        return table.names()
    # With another number of files than the table has rows, the usual names are as good a guess.
    mine = sorted((name for name in there if name.endswith(table.suffix)), key=parse_shard_number)
    return mine if len(mine) == table.length else [shard_name(i, table.suffix) for i in range(table.length)]


def _order_by_split(files: list[DamagedFile], whole: Manifest | None) -> list[DamagedFile]:
    """Reorders files to make the records of each split consecutive."""
    order = [split.name for split in whole.splits] if whole is not None else []
    places: list[int] = []
    for file in files:
        name = file.manifest.splits[0].name if file.manifest is not None and file.manifest.splits else None
        if name is not None and name not in order:
            order.append(name)
        # A file whose split is unknown stays behind the one before it.
        places.append(order.index(name) if name is not None else places[-1] if places else 0)
    return [files[number] for number in sorted(range(len(files)), key=places.__getitem__)]


def _merge_manifests(manifests: list[Manifest], files: list[DamagedFile]) -> Manifest:
    """Builds a manifest of the whole store, without digests, from the manifests of its shards."""
    first = manifests[0]
    total = sum(file.records or 0 for file in files)
    splits: list[Split] = []
    for file in files:
        for split in () if file.manifest is None else file.manifest.splits:
            begin, end = file.start + split.start, file.start + split.stop
            if splits and splits[-1].name == split.name:
                splits[-1] = replace(splits[-1], stop=end)
            else:
                splits.append(Split(split.name, splits[-1].stop if splits else 0, end))
            splits[-1] = replace(splits[-1], start=min(splits[-1].start, begin))
    columns = []
    for column in first.columns:
        # Classes are only appended: the longest list has all.
        lists = [m.column(column.name).classes for m in manifests if m.has_column(column.name)]
        classes = max((each for each in lists if each is not None), key=len, default=None)
        columns.append(replace(column, nbytes=column.record_nbytes * total, digest=None, classes=classes))
    return replace(first, records=total, columns=tuple(columns), splits=tuple(splits), shards=None)


def _infer_manifest(scavenged: ScavengedData, path: Path) -> RecoveredManifest | None:
    """Builds a manifest for a store of image files from its data, if its manifest is lost."""
    format = directory_format(path)
    if format is None or "shape" in scavenged.columns or not {"key", "checksum"} <= scavenged.columns.keys():
        return None
    # The first image found tells if the store holds image files.
    for candidates in islice(filter(None, map(scavenged.images, range(scavenged.records))), 1):
        try:
            sniff(candidates[-1])
        except HeaderError:
            return None
    columns = [Column("image", "ragged", "uint8", type="image")]
    # In the order in which packstore writes columns: row checksums depend on it.
    last = ("key", "checksum", "row_checksum")
    names = [*sorted(scavenged.columns.keys() - set(last)), *(name for name in last if name in scavenged.columns)]
    for name in names:
        data = scavenged.columns[name]
        if isinstance(data, Ragged):
            columns.append(guess_column(name, "ragged", "uint8"))
        else:
            dtype = next(n for n, d in NUMPY_DTYPE.items() if d == data.dtype)
            columns.append(guess_column(name, "fixed", dtype, data.shape[1:], data.nbytes))
    manifest = Manifest(format.name, "original", scavenged.records, tuple(columns), Origin("", ""))
    return RecoveredManifest(manifest, False, "unproven")


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
        """Returns the image that its checksum proves, or else the likeliest; and what nothing proves then, or ``""``.

        Raises :class:`LostRecordError` if none was found.
        """
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

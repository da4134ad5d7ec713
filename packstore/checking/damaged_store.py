"""Inspects a damaged store: which of its files exist, and which records each holds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from pathlib import Path

import numpy as np

from packstore.core.column import guess_column
from packstore.core.columns import NUMPY_DTYPE, Ragged
from packstore.core.errors import StoreError, printable
from packstore.core.files import MANIFEST_FILE, open_regular
from packstore.core.manifest import MAX_JSON_BYTES, Column, Manifest, Origin, Split
from packstore.core.registry import FORMATS
from packstore.core.shards import TABLE_ROW, ShardTable, shard_name
from packstore.images.sniff import HeaderError, sniff
from packstore.stores.folder import read_table
from packstore.stores.format import Format
from packstore.stores.opening import directory_format, open_reader, scavenge_file
from packstore.stores.places.owned import is_shard_name, parse_shard_number
from packstore.stores.places.work import find_writer, list_needless_files
from packstore.stores.scavenge import RecoveredManifest, ScavengedData, find_manifest, scavenge_reader

_STATE_NOTES = {
    "intact": "",
    "corrected": "its manifest was damaged, and is corrected: the digest in it proves that",
    "unproven": "its manifest is damaged and its digest does not prove it; it is trusted as far as records prove it",
}


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

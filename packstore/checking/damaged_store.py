"""What is left of a damaged store: which of its files are there, and which records each holds."""

from __future__ import annotations

import bisect
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from packstore.stores.format import Format
from packstore.stores.manifest_recovery import RecoveredManifest, find_manifest
from packstore.stores.opening import directory_format, open_reader, scavenge_file
from packstore.stores.ownership import is_shard, shard_number
from packstore.stores.scavenge import Scavenged, scavenge_reader
from packstore.stores.sharded import read_table

_STATE_NOTES = {
    "intact": "",
    "corrected": "its manifest was damaged, and is corrected: the digest in it proves that",
    "unproven": "its manifest is damaged and does not prove itself; it is believed as far as the records do",
}


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """One file of a damaged store.

    Attributes:
        name: The shard's, or None in a store of one file.
        start: Number of its first record.
        records: How many records it had; None if nothing says so.
        scavenged: What was found in it, or None.
        why: Why nothing was found, else empty.
        width: Bytes of each image, or None where they differ.
    """

    name: str | None
    start: int
    records: int | None
    scavenged: Scavenged | None
    why: str = ""
    width: int | None = None


@dataclass(frozen=True, slots=True)
class DamagedStore:
    """What is left of a store as a whole.

    Attributes:
        manifest: What it was, as far as that is known.
        files: Its files, in order.
        notes: What was wrong with it as a whole.
        shard_size: Bytes of images of its largest shard, or None when it was one file.
    """

    manifest: Manifest
    files: tuple[DamagedFile, ...]
    notes: tuple[str, ...]
    shard_size: int | None

    @property
    def counted(self) -> dict[str, int]:
        """Counts of all records: options that the whole store has and its shards have not. Empty in one file."""
        shard = next((m for m in map(_manifest, self.files) if m is not None), None)
        if shard is None or self.shard_size is None:
            return {}
        options = self.manifest.options
        return {name: int(value or 0) for name, value in options.items() if name not in shard.options}

    def split(self, record: int) -> str:
        """The split of a record; empty when there are none."""
        place = bisect.bisect_right([s.start for s in self.manifest.splits], record) - 1
        return self.manifest.splits[place].name if place >= 0 else ""


def inspect_store(path: Path) -> DamagedStore:
    """Finds what is left at ``path``. Raises :class:`StoreError` if that is nothing."""
    shown = printable(str(path))
    if path.is_dir() and directory_format(path) is None:
        return _sharded(path)
    try:
        scavenged, note = _opened(path), ""
    except StoreError as error:
        scavenged, note = scavenge_file(path), _reason(error)
    found = scavenged.recovered or _inferred(scavenged, path)
    if found is None:
        raise StoreError(
            f"{shown} holds no manifest that can be read, and its images are no image files, so nothing says what they "
            "are; pack it again from its source"
        )
    width = found.manifest.image.record_nbytes if found.manifest.image.kind == "fixed" else None
    file = DamagedFile(None, 0, found.manifest.records, scavenged, width=width)
    if scavenged.recovered is None:
        notes = [note, "its manifest is lost: names of classes and splits, options and origin are, too"]
    else:
        notes = [each for each in (note, _STATE_NOTES[found.state]) if each]
    return DamagedStore(found.manifest, (file,), tuple(notes), None)


def _reason(error: StoreError) -> str:
    """The message without the advice to pack the store again."""
    return str(error).partition("; restore it")[0]


def _opened(path: Path) -> Scavenged:
    """The content of a store that opens. Raises :class:`StoreError` if it does not."""
    reader = open_reader(path)
    if FORMATS[reader.manifest.format].scavenges_sound_stores:
        return scavenge_file(path, RecoveredManifest(reader.manifest, True, "intact"))
    return scavenge_reader(reader)


def _sharded(path: Path) -> DamagedStore:
    """The shards of a store; from their own manifests if the one of the whole store is lost."""
    notes: list[str] = []
    whole, proven = _whole(path, notes), False
    formats: list[Format] = list(FORMATS.values())
    there = {p.name: f for p in path.iterdir() for f in formats if is_shard(p.name, f)}
    table = whole.manifest.shards if whole is not None else None
    if table is not None:
        assert whole is not None
        table, proven = _table(path, whole.manifest.records, table, notes)
        names = _names(table, proven, there)
        notes += [f"{name} is not the store's, and is left out" for name in sorted(there.keys() - set(names))]
    else:
        if len(set(there.values())) != 1:
            raise StoreError(f"{printable(str(path))} holds no store: no manifest and no shards of one format")
        last = max(there, key=shard_number)
        names = [there[last].shard_name(i) for i in range(shard_number(last) + 1)]
    files: list[DamagedFile] = []
    start = 0
    for number, name in enumerate(names):
        row = table.rows[number] if table is not None and table.rows is not None else None
        expected = row["manifest_digest"].tobytes().hex() if row is not None and proven else None
        file = _shard(path / name, name, start, expected, notes)
        if row is not None:
            file = replace(file, records=int(row["records"]))
        files.append(file)
        start += file.records or 0
        if file.records is None:
            notes.append(f"{name} is lost, and how many records it had; those behind it have lower numbers now")
    if not proven:
        files = _by_split(files, whole)
    manifests = [m for m in map(_manifest, files) if m is not None]
    if whole is None and not manifests:
        raise StoreError(f"{printable(str(path))} holds shards, but nothing in them can be read")
    manifest = whole.manifest if whole is not None else _merged(manifests, files)
    width = manifest.image.record_nbytes if manifest.image.kind == "fixed" else None
    # A shard of one record may be larger than the size that was asked for.
    largest = max((m.image.nbytes for m in manifests if m.records > 1), default=1)
    return DamagedStore(manifest, tuple(replace(p, width=width) for p in files), tuple(notes), max(1, largest))


def _names(table: ShardTable, proven: bool, there: Mapping[str, Format]) -> list[str]:
    """The names of the shards in order; of a table that nothing proves, by their numbers."""
    if proven:
        return table.names()
    mine = sorted((name for name in there if name.endswith(table.suffix)), key=shard_number)
    return mine if len(mine) == table.length else [shard_name(i, table.suffix) for i in range(table.length)]


def _by_split(files: list[DamagedFile], whole: RecoveredManifest | None) -> list[DamagedFile]:
    """Files that are in the order of their numbers, in that of a store: those of a split follow each other."""
    order = [split.name for split in whole.manifest.splits] if whole is not None else []
    places: list[int] = []
    for file in files:
        manifest = _manifest(file)
        name = manifest.splits[0].name if manifest is not None and manifest.splits else None
        if name is not None and name not in order:
            order.append(name)
        # One that tells nothing stays behind the one before it.
        places.append(order.index(name) if name is not None else places[-1] if places else 0)
    start, ordered = 0, []
    for _, file in sorted(zip(places, files, strict=True), key=lambda pair: pair[0]):
        ordered.append(replace(file, start=start))
        start += file.records or 0
    return ordered


def _whole(path: Path, notes: list[str]) -> RecoveredManifest | None:
    """The manifest of a sharded store."""
    try:
        with os.fdopen(open_regular(path / MANIFEST_FILE), "rb") as file:
            text = file.read(MAX_JSON_BYTES)
    except OSError as error:
        notes.append(f"{MANIFEST_FILE} cannot be read ({error.strerror or error}); the shards tell what they are")
        return None
    found = find_manifest(text)
    if found is None or found.manifest.shards is None:
        notes.append(f"{MANIFEST_FILE} cannot be read; the shards tell what they are")
        return None
    if _STATE_NOTES[found.state]:
        notes.append(f"{MANIFEST_FILE}: {_STATE_NOTES[found.state]}")
    return found


def _table(path: Path, records: int, table: ShardTable, notes: list[str]) -> tuple[ShardTable, bool]:
    """The table with its rows, and whether they are proven; without rows where these say nothing that can be used."""
    try:
        return read_table(path, table), True
    except StoreError as error:
        notes.append(f"{error}; the shards tell what they are")
    try:
        with os.fdopen(open_regular(path / table.file), "rb") as file:
            rows = np.frombuffer(file.read(table.nbytes), TABLE_ROW)
    except (OSError, ValueError):
        return table, False
    # A sum that is right says that the damage is elsewhere in the rows.
    good = len(rows) == table.length and sum(rows["records"].tolist()) == records
    return (replace(table, rows=rows) if good else table), False


def _shard(path: Path, name: str, start: int, expected: str | None, notes: list[str]) -> DamagedFile:
    if not path.exists():
        return DamagedFile(name, start, None, None, "its shard is missing")
    try:
        scavenged = _opened(path)
    except StoreError as error:
        try:
            scavenged = scavenge_file(path)
        except StoreError as worse:
            return DamagedFile(name, start, None, None, f"nothing in its shard can be read: {worse}")
        notes.append(f"{name}: {_reason(error)}")
    found = scavenged.recovered
    if found is None:
        return DamagedFile(name, start, None, None, "the manifest of its shard is lost")
    if expected is not None and found.proven and found.manifest.digest != expected:
        return DamagedFile(name, start, None, None, "its shard is another one, or one of another store")
    if _STATE_NOTES[found.state]:
        notes.append(f"{name}: {_STATE_NOTES[found.state]}")
    return DamagedFile(name, start, found.manifest.records, scavenged)


def _manifest(file: DamagedFile) -> Manifest | None:
    return (
        file.scavenged.recovered.manifest
        if file.scavenged is not None and file.scavenged.recovered is not None
        else None
    )


def _merged(manifests: list[Manifest], files: list[DamagedFile]) -> Manifest:
    """The manifest of the whole store, put together from those of its shards."""
    first = manifests[0]
    total = sum(file.records or 0 for file in files)
    splits: list[Split] = []
    for file in files:
        manifest = _manifest(file)
        for split in manifest.splits if manifest is not None else ():
            begin, end = file.start + split.start, file.start + split.stop
            if splits and splits[-1].name == split.name:
                splits[-1] = replace(splits[-1], stop=end)
            else:
                splits.append(Split(split.name, splits[-1].stop if splits else 0, end))
            splits[-1] = replace(splits[-1], start=min(splits[-1].start, begin))
    columns = tuple(replace(c, classes=_classes(c.name, manifests)) for c in _blank(first, total))
    return replace(first, records=total, columns=columns, splits=tuple(splits), shards=None)


def _classes(name: str, manifests: list[Manifest]) -> tuple[str, ...] | None:
    """The classes of a column: those of the shard that knows most, since others may have been packed before."""
    known = [m.column(name).classes for m in manifests if m.has_column(name)]
    return max((classes for classes in known if classes is not None), key=len, default=None)


def _blank(manifest: Manifest, records: int) -> tuple[Column, ...]:
    return tuple(replace(c, nbytes=c.record_nbytes * records, digest=None) for c in manifest.columns)


def _inferred(found: Scavenged, path: Path) -> RecoveredManifest | None:
    """A manifest for image files that are there without one; None when the images are anything else."""
    format = directory_format(path)
    if format is None or "shape" in found.columns or not {"key", "checksum"} <= found.columns.keys():
        return None
    for record in range(found.records):
        candidates = found.images(record)
        if candidates:
            try:
                sniff(candidates[-1])
            except HeaderError:
                return None
            break
    columns = [Column("image", "ragged", "uint8", type="image")]
    # In the order in which packstore writes them, on which the row checksums depend.
    last = ("key", "checksum", "row_checksum")
    names = [*sorted(found.columns.keys() - set(last)), *(name for name in last if name in found.columns)]
    for name in names:
        data = found.columns[name]
        if isinstance(data, Ragged):
            columns.append(guess_column(name, "ragged", "uint8"))
        else:
            dtype = next(n for n, d in NUMPY_DTYPE.items() if d == data.dtype)
            columns.append(guess_column(name, "fixed", dtype, data.shape[1:], data.nbytes))
    manifest = Manifest(format.name, "original", found.records, tuple(columns), Origin("", ""))
    return RecoveredManifest(manifest, False, "unproven")

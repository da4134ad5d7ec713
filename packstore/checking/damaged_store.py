"""Inspects a damaged store: which of its files exist, and which records each holds."""

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
from packstore.stores.places.owned import is_shard_name, parse_shard_number
from packstore.stores.places.work import find_writer, list_needless_files
from packstore.stores.scavenge import ScavengedData, scavenge_reader
from packstore.stores.sharded_manifest import read_table

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
        width: Bytes of each image, or None if they differ.
    """

    name: str | None
    start: int
    records: int | None
    scavenged: ScavengedData | None
    why: str = ""
    width: int | None = None


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

    @property
    def whole_store_counts(self) -> dict[str, int]:
        """Counts of records by option name, such as ``exif_oriented``, from the manifest of the whole store.

        The manifests of shards leave such counts out. So these are the options of the whole store that the manifest of
        the first readable shard lacks. Empty for a single file, or if no shard's manifest is known.
        """
        shard = next((m for m in map(_find_recovered_manifest, self.files) if m is not None), None)
        if shard is None or self.shard_size is None:
            return {}
        options = self.manifest.options
        return {name: int(value or 0) for name, value in options.items() if name not in shard.options}

    def find_split(self, record: int) -> str:
        """Returns the name of a record's split; ``""`` if there are no splits."""
        place = bisect.bisect_right([s.start for s in self.manifest.splits], record) - 1
        return self.manifest.splits[place].name if place >= 0 else ""


def inspect_damaged_store(path: Path) -> DamagedStore:
    """Recovers as much as possible of the store at ``path``: manifest, files and their records. Writes nothing.

    Raises :class:`StoreError` if no manifest can be recovered or inferred.
    """
    shown = printable(str(path))
    if path.is_dir() and directory_format(path) is None:
        return _inspect_sharded(path)
    try:
        scavenged, note = _read_sound_store(path), ""
    except StoreError as error:
        scavenged, note = scavenge_file(path), _strip_advice(error)
    recovered = scavenged.recovered or _infer_manifest(scavenged, path)
    if recovered is None:
        raise StoreError(
            f"{shown} holds no readable manifest, without which only image files can be recovered, and it "
            "holds none; pack it again from its source"
        )
    width = recovered.manifest.image.record_nbytes if recovered.manifest.image.kind == "fixed" else None
    file = DamagedFile(None, 0, recovered.manifest.records, scavenged, width=width)
    if scavenged.recovered is None:
        notes = [note, "its manifest is lost, and with it the names of classes and splits, options and origin"]
    else:
        notes = [each for each in (note, _STATE_NOTES[recovered.state]) if each]
    return DamagedStore(recovered.manifest, (file,), tuple(notes), None)


def _strip_advice(error: StoreError) -> str:
    """Returns an error's message without the advice to restore the store."""
    return str(error).partition("; restore it")[0]


def _read_sound_store(path: Path) -> ScavengedData:
    """Returns the content of a store file that opens normally. Scavenges the file anyway if the format asks for that.

    Raises :class:`StoreError` if the file does not open.
    """
    reader = open_reader(path)
    if FORMATS[reader.manifest.format].scavenges_sound_stores:
        return scavenge_file(path, RecoveredManifest(reader.manifest, True, "intact"))
    return scavenge_reader(reader)


def _inspect_sharded(path: Path) -> DamagedStore:
    """Recovers a sharded store from its manifest and its table of shards.

    If these are lost, uses the shards' own manifests. The order of the shards is then guessed from their numbers and
    splits. Notes lost shards, and shards that do not belong to the store.

    Raises :class:`StoreError` if the store's manifest is lost and the shards do not help. They must have one format,
    and one of them a readable manifest.
    """
    notes: list[str] = []
    whole, proven = _recover_manifest(path, notes), False
    formats: list[Format] = list(FORMATS.values())
    there = {p.name: f for p in path.iterdir() for f in formats if is_shard_name(p.name, f)}
    table = whole.manifest.shards if whole is not None else None
    if table is not None:
        assert whole is not None
        table, proven = _recover_table(path, whole.manifest.records, table, notes)
        names = _list_shard_names(table, proven, there)
        known = {*names, *(list_needless_files(path) if find_writer(path) is not None else ())}
        notes += [f"{name} does not belong to the store, and is left out" for name in sorted(there.keys() - known)]
    else:
        if len(set(there.values())) != 1:
            raise StoreError(f"{printable(str(path))} holds no store: no manifest and no shards of one format")
        last = max(there, key=parse_shard_number)
        names = [there[last].shard_name(i) for i in range(parse_shard_number(last) + 1)]
    files: list[DamagedFile] = []
    start = 0
    for number, name in enumerate(names):
        row = table.rows[number] if table is not None and table.rows is not None else None
        expected = row["manifest_digest"].tobytes().hex() if row is not None and proven else None
        file = _inspect_shard(path / name, name, start, expected, notes)
        if row is not None:
            file = replace(file, records=int(row["records"]))
        files.append(file)
        start += file.records or 0
        if file.records is None:
            notes.append(f"{name} is lost, and its number of records is unknown; later records have lower numbers now")
    if not proven:
        files = _order_by_split(files, whole)
    manifests = [m for m in map(_find_recovered_manifest, files) if m is not None]
    if whole is None and not manifests:
        raise StoreError(f"{printable(str(path))} holds shards, but nothing in them can be read")
    manifest = whole.manifest if whole is not None else _merge_manifests(manifests, files)
    width = manifest.image.record_nbytes if manifest.image.kind == "fixed" else None
    # A shard of one record may exceed the shard size.
    largest = max((m.image.nbytes for m in manifests if m.records > 1), default=1)
    return DamagedStore(manifest, tuple(replace(p, width=width) for p in files), tuple(notes), max(1, largest))


def _list_shard_names(table: ShardTable, proven: bool, there: Mapping[str, Format]) -> list[str]:
    """Returns the names of the shards. If the table of shards is proven, takes its names.

    Else takes the names in the directory, in the order of their numbers. If their count is not the table's, returns the
    usual names instead.
    """
    if proven:
        return table.names()
    mine = sorted((name for name in there if name.endswith(table.suffix)), key=parse_shard_number)
    return mine if len(mine) == table.length else [shard_name(i, table.suffix) for i in range(table.length)]


def _order_by_split(files: list[DamagedFile], whole: RecoveredManifest | None) -> list[DamagedFile]:
    """Reorders files to make the records of each split consecutive, and updates the files' first records.

    A file of an unknown split stays behind the file before it. Splits that ``whole`` does not name follow in order of
    appearance.
    """
    order = [split.name for split in whole.manifest.splits] if whole is not None else []
    places: list[int] = []
    for file in files:
        manifest = _find_recovered_manifest(file)
        name = manifest.splits[0].name if manifest is not None and manifest.splits else None
        if name is not None and name not in order:
            order.append(name)
        # A file whose split is unknown stays behind the one before it.
        places.append(order.index(name) if name is not None else places[-1] if places else 0)
    start, ordered = 0, []
    for _, file in sorted(zip(places, files, strict=True), key=lambda pair: pair[0]):
        ordered.append(replace(file, start=start))
        start += file.records or 0
    return ordered


def _recover_manifest(path: Path, notes: list[str]) -> RecoveredManifest | None:
    """Recovers the manifest of a sharded store. Returns None if it cannot be read or names no table of shards.

    Appends faults to ``notes``.
    """
    try:
        with os.fdopen(open_regular(path / MANIFEST_FILE), "rb") as file:
            text = file.read(MAX_JSON_BYTES)
    except OSError as error:
        notes.append(f"{MANIFEST_FILE} cannot be read ({error.strerror or error}); the shards' own manifests are used")
        return None
    recovery = find_manifest(text)
    if recovery is None or recovery.manifest.shards is None:
        notes.append(f"{MANIFEST_FILE} cannot be read; the shards' own manifests are used")
        return None
    if _STATE_NOTES[recovery.state]:
        notes.append(f"{MANIFEST_FILE}: {_STATE_NOTES[recovery.state]}")
    return recovery


def _recover_table(path: Path, records: int, table: ShardTable, notes: list[str]) -> tuple[ShardTable, bool]:
    """Returns the table of shards, and whether its digest proves it.

    The table has no rows if they cannot be read, or if their records do not add up to ``records``. Appends a fault to
    ``notes``.
    """
    try:
        return read_table(path, table), True
    except StoreError as error:
        notes.append(f"{error}; the shards' own manifests are used")
    try:
        with os.fdopen(open_regular(path / table.file), "rb") as file:
            rows = np.frombuffer(file.read(table.nbytes), TABLE_ROW)
    except (OSError, ValueError):
        return table, False
    # If the sum is right, the damage is elsewhere in the rows.
    good = len(rows) == table.length and sum(rows["records"].tolist()) == records
    return (replace(table, rows=rows) if good else table), False


def _inspect_shard(path: Path, name: str, start: int, expected: str | None, notes: list[str]) -> DamagedFile:
    """Recovers the content of a shard; :attr:`DamagedFile.why` says why nothing was recovered.

    ``expected`` is the digest of the shard's manifest, None if unknown. A shard whose manifest is proven, but has
    another digest, counts as lost. Appends faults to ``notes``.
    """
    if not path.exists():
        return DamagedFile(name, start, None, None, "its shard is missing")
    try:
        scavenged = _read_sound_store(path)
    except StoreError as error:
        try:
            scavenged = scavenge_file(path)
        except StoreError as worse:
            return DamagedFile(name, start, None, None, f"nothing in its shard can be read: {worse}")
        notes.append(f"{name}: {_strip_advice(error)}")
    recovered = scavenged.recovered
    if recovered is None:
        return DamagedFile(name, start, None, None, "the manifest of its shard is lost")
    if expected is not None and recovered.proven and recovered.manifest.digest != expected:
        return DamagedFile(name, start, None, None, "its shard is another one, or belongs to another store")
    if _STATE_NOTES[recovered.state]:
        notes.append(f"{name}: {_STATE_NOTES[recovered.state]}")
    return DamagedFile(name, start, recovered.manifest.records, scavenged)


def _find_recovered_manifest(file: DamagedFile) -> Manifest | None:
    """Returns the manifest that was recovered from a file, or None."""
    return (
        file.scavenged.recovered.manifest
        if file.scavenged is not None and file.scavenged.recovered is not None
        else None
    )


def _merge_manifests(manifests: list[Manifest], files: list[DamagedFile]) -> Manifest:
    """Builds a manifest of the whole store from the manifests of its shards, without digests.

    It has the splits of all shards and the longest lists of classes. Columns, encoding and options are those of the
    first manifest.
    """
    first = manifests[0]
    total = sum(file.records or 0 for file in files)
    splits: list[Split] = []
    for file in files:
        manifest = _find_recovered_manifest(file)
        for split in manifest.splits if manifest is not None else ():
            begin, end = file.start + split.start, file.start + split.stop
            if splits and splits[-1].name == split.name:
                splits[-1] = replace(splits[-1], stop=end)
            else:
                splits.append(Split(split.name, splits[-1].stop if splits else 0, end))
            splits[-1] = replace(splits[-1], start=min(splits[-1].start, begin))
    columns = tuple(replace(c, classes=_longest_classes(c.name, manifests)) for c in _blank_columns(first, total))
    return replace(first, records=total, columns=columns, splits=tuple(splits), shards=None)


def _longest_classes(name: str, manifests: list[Manifest]) -> tuple[str, ...] | None:
    """Returns the longest list of a column's classes in the shards' manifests. None if no manifest has a list.

    Classes are only appended: the longest list has all.
    """
    known = [m.column(name).classes for m in manifests if m.has_column(name)]
    return max((classes for classes in known if classes is not None), key=len, default=None)


def _blank_columns(manifest: Manifest, records: int) -> tuple[Column, ...]:
    """Returns a manifest's columns without digests, each with the size of ``records`` records. Ragged columns get the
    size 0."""
    return tuple(replace(c, nbytes=c.record_nbytes * records, digest=None) for c in manifest.columns)


def _infer_manifest(scavenged: ScavengedData, path: Path) -> RecoveredManifest | None:
    """Builds a manifest for a store of image files whose manifest is lost. Guesses the columns from the data.

    Returns None in these cases:
    - The format is unknown.
    - Keys or checksums are lost.
    - There is a column ``shape``: the images are raw pixels.
    - The first recovered image is no image file.
    """
    format = directory_format(path)
    if format is None or "shape" in scavenged.columns or not {"key", "checksum"} <= scavenged.columns.keys():
        return None
    for record in range(scavenged.records):
        candidates = scavenged.images(record)
        if candidates:
            try:
                sniff(candidates[-1])
            except HeaderError:
                return None
            break
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

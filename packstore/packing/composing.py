"""Makes new stores from the records of existing ones: links whole shards, copies single records byte for byte.

Records are copied without decoding or encoding, and every checksum is verified.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import LINK_LENGTH, SEEK_INDEX, Buffer, join_hidden_boxes
from packstore.core.errors import StoreError, printable
from packstore.core.files import check_space, sync_file_system, writing
from packstore.core.manifest import Column, Manifest, Origin
from packstore.core.progress import Progress, ProgressCallback
from packstore.core.proof import ROW_CHECKSUM, Proof, row_columns
from packstore.core.registry import FORMATS
from packstore.core.urls import UrlPath
from packstore.images.engine import index_values, reads_gray
from packstore.images.orientation import count_oriented, keeps_exif
from packstore.packing.encoding import EXIF_ORIENTED, drop_record_counts, record_counts
from packstore.stores import Reader, StoreBuilder
from packstore.stores.assembly import (
    ShardList,
    build_sharded_manifest,
    link_shards,
    list_runs,
    list_shards,
    write_manifest_and_table,
)
from packstore.stores.folder import columns_match
from packstore.stores.lenses import map_class_numbers
from packstore.stores.linked import read_link_values, relative_link_folder
from packstore.stores.opening import read_manifest
from packstore.stores.places import place_of
from packstore.stores.places.local import Staging
from packstore.stores.places.owned import list_owned_files, remove_unfinished
from packstore.stores.places.work import KEPT
from packstore.stores.proven import DamagedCopies
from packstore.stores.remote_objects import fetch_shard_manifest
from packstore.stores.staged_columns import BATCH_BYTES, BATCH_RECORDS

LinkGetter = Callable[[Reader, NDArray[np.int64]], dict[str, Any]]
"""Returns the links of some records of a store, as values by column."""
NO_LIMIT = 1 << 60
"""Size of a shard that no shard reaches."""


@dataclass(frozen=True, slots=True)
class CopiedRecords:
    """Piece of a composition: records of one store that are copied into one split.

    Attributes:
        reader: Reader of the store that contains them.
        records: ``int64``, their numbers, in order.
        split: Their split in the new store; ``""`` for none.
        labels: By column, an array that maps old class numbers to new ones; missing values become 0.
        cut: Begin a new shard with them.
    """

    reader: Reader
    records: NDArray[np.int64]
    split: str
    labels: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    cut: bool = False

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.records)

    @property
    def runs(self) -> list[tuple[str, int]]:
        """Split in the new store and number of consecutive records."""
        return [(self.split, self.count)]


@dataclass(slots=True)
class CopiedCounts:
    """Counts of copied records of stores that have image files with an EXIF orientation.

    Attributes:
        oriented: Number of those whose image has an EXIF orientation.
        unread: Number of records that were copied without their images.
    """

    oriented: int = 0
    unread: int = 0


def copy_records(
    builder: StoreBuilder, piece: CopiedRecords, links: LinkGetter, counts: CopiedCounts
) -> Iterator[tuple[int, int]]:
    """Copies records of an open store to a builder, batch by batch. Yields the number of records and bytes of each.

    Verifies the checksums. Between linked stores it reads no images, and then verifies only the other fields. To add a
    seek index it reads them. Fields of a store without row checksums are not verified.

    Args:
        builder: Receives the records. Columns that its store does not have are dropped.
        piece: The records.
        links: Returns the links of records; called only if the builder's store is linked.
        counts: Gets the counts of these records.

    Raises:
        CorruptRecordError: The image or another value of a record does not match its checksum.
    """
    reader, own, given = piece.reader, builder.columns, piece.reader.manifest.columns
    wanted = {column.name for column in row_columns(own)}
    linked = any(column.name == LINK_LENGTH for column in own)
    adds_index = {c.name for c in own} - {c.name for c in given} == {SEEK_INDEX.name}
    unread = linked and not adds_index and reads_gray(own) == reads_gray(given)
    has_oriented = bool(reader.manifest.options.get(EXIF_ORIENTED)) and keeps_exif(reader.manifest)
    step = max(1, min(BATCH_RECORDS, BATCH_BYTES // reader.manifest.mean_nbytes))
    for some in (piece.records[start : start + step] for start in range(0, piece.count, step)):
        checksums, images, values = _read_proven(reader, some, unread)
        for name, numbers in piece.labels.items():
            if isinstance(values[name], list):  # of a ragged column
                values[name] = [renumber_classes(value, numbers) for value in values[name]]
                continue
            values[name] = renumber_classes(values[name], numbers)
            if f"{name}_valid" in values:
                values[name][~values[f"{name}_valid"]] = 0  # missing values have no class
        kept = {name: value for name, value in values.items() if name in wanted}
        if unread and reader.manifest.has_column(SEEK_INDEX.name):
            kept |= dict(_read_values(reader, [c for c in own if c.name == SEEK_INDEX.name], some))
        else:
            kept |= index_values(own, images)
        if has_oriented and unread:
            counts.unread += len(some)
        elif has_oriented:
            counts.oriented += count_oriented(images)
        nbytes = sum(map(len, images))
        if linked:
            kept |= links(reader, some)
            images, nbytes = [b""] * len(some), sum(kept[LINK_LENGTH].tolist())
        builder.append(images, kept, piece.split, checksums=checksums)
        yield len(some), nbytes


def renumber_classes(value: Any, numbers: NDArray[np.int64]) -> Any:
    """Maps the class numbers in a value, or in the values of a column, to new ones. Keeps stored bytes in that form."""
    if isinstance(value, bytes | memoryview):
        return numbers[np.frombuffer(value, "<i8")].astype("<i8").tobytes()
    given = np.asarray(value)
    # Texts have no class numbers and stay as they are.
    return numbers[given] if given.dtype.kind in "iu" else value


def _read_proven(
    reader: Reader, some: NDArray[np.int64], unread: bool
) -> tuple[NDArray[np.uint64], Sequence[Buffer], dict[str, Any]]:
    """Reads records and verifies their checksums; returns the images' checksums, the images and all other fields."""
    copies, proof, numbers = DamagedCopies(reader), Proof(reader.manifest.columns, reader.value), some.tolist()
    while True:
        try:
            checksums = reader.values("checksum", some)
            images: Sequence[Buffer] = [b""] * len(some)  # with ``unread``, images stay empty
            if not unread:
                images = reader.views(some)
                proof.check_images(numbers, images, checksums)
            values = dict(_read_values(reader, proof.columns, some))
            if proof.has_rows:
                proof.check_rows(numbers, values, reader.values(ROW_CHECKSUM.name, some))
        except StoreError as error:
            if not copies.refetch([error], some):  # damaged shards in the cache can be fetched again
                raise
        else:
            return checksums, images, values


def _read_values(reader: Reader, columns: Iterable[Column], some: NDArray[np.int64]) -> Iterator[tuple[str, Any]]:
    """Yields name and values of each column, for some records."""
    for column in columns:
        if column.kind == "fixed":
            yield column.name, reader.values(column.name, some)
        else:
            yield column.name, [bytes(reader.value(column.name, i)) for i in some.tolist()]


@dataclass(frozen=True, slots=True)
class LinkedShards:
    """Piece of a composition: shards of one store that are hard-linked into one split.

    Attributes:
        parts: The shards.
        split: Their split in the new store; ``""`` for none, None for the splits that they have.
        manifest: Manifest of the store that contains them.
    """

    parts: ShardList
    split: str | None
    manifest: Manifest

    @property
    def count(self) -> int:
        """Number of records."""
        return int(self.parts.rows["records"].sum())

    @property
    def runs(self) -> list[tuple[str, int]]:
        """Split in the new store and number of consecutive records."""
        return [run for runs in self.new_parts.runs for run in runs]

    @property
    def new_parts(self) -> ShardList:
        """The shards with their split in the new store."""
        if self.split is None:
            return self.parts
        return replace(self.parts, runs=[((self.split, count),) for count in self.parts.rows["records"].tolist()])


Piece = CopiedRecords | LinkedShards


@dataclass(frozen=True, slots=True)
class Composition:
    """Plan of a new store: its pieces, columns and destination.

    Refuses to write a store without records, or a store for which the disk has no space.

    Attributes:
        destination: Path or URL of the new store.
        base: Manifest from which it takes format, encoding, origin and options.
        columns: Its columns.
        pieces: Its records in order, split after split.
        sharded: Make a directory of shards even if nothing is linked.
        shard_size: Bytes of images after which a new shard begins; each split begins one, too. None: a new shard
            begins only after a linked shard, and with a piece that is marked ``cut``.
        overwrite: Replace a store at the destination.
        moved: Number of records that change their split, by (old split, new split).
        duplicates: Number of records left out because another store has their keys.
        links: Returns the links of copied records of a linked store. None keeps the files that they point to.
        stage: Name of the copying in progress reports.
    """

    destination: Path
    base: Manifest
    columns: tuple[Column, ...]
    pieces: Sequence[Piece]
    sharded: bool = True
    shard_size: int | None = None
    overwrite: bool = False
    moved: Mapping[tuple[str, str], int] = field(default_factory=dict)
    duplicates: int = 0
    links: LinkGetter | None = None
    stage: str = "copy"

    @property
    def records(self) -> int:
        """Number of records of the new store."""
        return sum(piece.count for piece in self.pieces)

    @property
    def copied_count(self) -> int:
        """Number of records to copy."""
        return sum(piece.count for piece in self.pieces if isinstance(piece, CopiedRecords))

    @property
    def linked_shard_count(self) -> int:
        """Number of shards to link."""
        return sum(len(piece.parts) for piece in self.pieces if isinstance(piece, LinkedShards))

    def count_by_split(self) -> dict[str, int]:
        """Counts the records of each split; ``""`` stands for none."""
        counts = Counter[str]()
        for piece in self.pieces:
            for name, count in piece.runs:
                counts[name] += count
        return dict(counts)

    @property
    def estimate_bytes(self) -> int:
        """Estimated size on disk of the new store, without linked shards."""
        total = int(FORMATS[self.base.format].overhead_bytes)
        linked = any(column.name == LINK_LENGTH for column in self.columns)  # then the images take no space
        for piece in self.pieces:
            if isinstance(piece, CopiedRecords):
                manifest = piece.reader.manifest
                nbytes = sum(column.nbytes for column in manifest.columns[1 if linked else 0 :])
                total += nbytes * len(piece.records) // max(1, manifest.records)
        return total

    def check_writable(self) -> None:
        """Raises :class:`StoreError` if there are no records.

        Raises :class:`DestinationError` if the destination may not be written, or if the disk has too little space.
        """
        self._check_size()
        place_of(self.destination).check_new_store(overwrite=self.overwrite)

    def _check_size(self) -> None:
        """Raises :class:`StoreError` if there are no records, and :class:`DestinationError` for too little space."""
        if not self.records:
            raise StoreError(
                f"no records are chosen, so there is nothing to put into {printable(str(self.destination))}"
            )
        check_space(self.destination, self.estimate_bytes)

    def write_store(self, progress: ProgressCallback) -> Manifest:
        """Writes and publishes the store; uploads it if the destination is a URL. Returns its manifest.

        Raises the errors of :meth:`check_writable`, and :class:`CorruptRecordError` for a damaged record to copy.
        """
        self._check_size()
        place = place_of(self.destination)
        with place.new_store(overwrite=self.overwrite) as draft:
            drafted = self
            if place.remote:
                base = self.base
                if self.links is None:  # the store moves, so its links to images are absolute
                    options = {k: "absolute" if k == "link" else v for k, v in base.options.items()}
                    base = replace(base, options=options)
                drafted = replace(self, destination=draft.path, base=base)
                drafted._check_size()
            if self.linked_shard_count:
                manifest = drafted._link_and_publish(progress)
            else:
                path, building = drafted.destination, {"overwrite": self.overwrite, "sharded": self.sharded}
                manifest = drafted._copy_records(path, progress, **building)
            return draft.publish(manifest, progress)

    def _copy_records(self, path: Path, progress: ProgressCallback, *, overwrite: bool, sharded: bool) -> Manifest:
        """Copies the records that are not linked to a new store at ``path``, and returns its manifest."""
        links = self.links or partial(read_link_values, folder=relative_link_folder(self.base, self.destination))
        # Shards have no counts of the whole store.
        base = replace(self.base, options=drop_record_counts(self.base)).blank(self.columns)
        size = self.shard_size if sharded else None
        with StoreBuilder(path, base, overwrite=overwrite, sharded=sharded, shard_size=size) as builder:
            counts, done, done_bytes, total = CopiedCounts(), 0, 0, self.copied_count
            progress(Progress(self.stage, 0, total, 0))
            last: Piece | None = None
            for piece in self.pieces:
                if isinstance(piece, CopiedRecords):
                    if piece.cut or isinstance(last, LinkedShards):
                        builder.cut()
                    for count, nbytes in copy_records(builder, piece, links, counts):
                        done, done_bytes = done + count, done_bytes + nbytes
                        progress(Progress(self.stage, done, total, done_bytes))
                last = piece
            oriented = self._count_oriented(counts.oriented, counts.unread)
            return builder.commit(counted=record_counts(self.base) | oriented, skipped=self.base.skipped)

    def _count_oriented(self, counted: int, unread: int) -> dict[str, int]:
        """Returns the option with the number of turned photos, or ``{}`` if the stores have none."""
        known = self.base.options.get(EXIF_ORIENTED)
        if not isinstance(known, int):
            return {}
        # An upper limit: nobody has counted the turned photos in linked shards and ``unread`` records.
        return {EXIF_ORIENTED: counted + min(max(known - counted, 0), self.records - self.copied_count + unread)}

    def _link_and_publish(self, progress: ProgressCallback) -> Manifest:
        """Publishes copied and linked shards as one store, and returns its manifest."""
        staging = Staging(self.destination, overwrite=self.overwrite, owned=list_owned_files)
        try:
            parts, copied = self.make_shards(staging.work.path / KEPT, progress)
            parts = parts.renumber(range(len(parts)))
            columns = sum_columns(self.columns, self.pieces, [] if copied is None else [copied])
            oriented = {} if copied is None else {k: v for k, v in copied.options.items() if k == EXIF_ORIENTED}
            base = replace(self.base, options={**self.base.options, **(oriented or self._count_oriented(0, 0))})
            head = build_sharded_manifest(base, parts, columns, skipped=self.base.skipped)
            progress(Progress("publish", 0, 1, 0))
            with writing(self.destination):
                staging.path.mkdir()
                link_shards(parts, staging.path, FORMATS[self.base.format])
                write_manifest_and_table(staging.path, head)
            staging.publish(sync=sync_file_system)
        except BaseException:
            staging.discard()
            raise
        return head

    def make_shards(self, path: Path, progress: ProgressCallback, first: int = 0) -> tuple[ShardList, Manifest | None]:
        """Copies the records that are not linked to new shards at ``path``. Replaces an unfinished store there.

        Returns all shards in order, and the manifest of the new ones: None if there are no records to copy.

        Args:
            path: A local path.
            progress: Called after each batch.
            first: Number of the first new shard.
        """
        if not self.copied_count:
            return self._order_shards(ShardList.join()), None
        remove_unfinished(path)
        copied = self._copy_records(path, progress, overwrite=False, sharded=True)
        fresh = list_shards(path, copied)
        return self._order_shards(fresh.renumber(range(first, first + len(fresh)))), copied

    def _order_shards(self, fresh: ShardList) -> ShardList:
        """Lists all shards of the new store in the order of the pieces."""
        ordered: list[ShardList] = []
        place = left = 0  # of the shards in ``fresh``; of the records of the last pieces
        for piece in (*self.pieces, None):
            if isinstance(piece, CopiedRecords):
                left += piece.count
                continue
            # ``fresh`` has the shards of the copied records, in order.
            first = place
            while left > 0:
                left -= int(fresh.rows["records"][place])
                place += 1
            ordered.append(fresh.take_shards(range(first, place)))
            if piece is not None:
                ordered.append(piece.new_parts)
        return ShardList.join(*ordered)


def sum_columns(columns: Sequence[Column], pieces: Iterable[Piece], written: Sequence[Manifest]) -> list[Column]:
    """Returns the columns of a store with their bytes in all its shards, those linked and those ``written``.

    Reads the shards' manifests if only a part of a store is linked.
    """
    totals = {column.name: sum(manifest.column(column.name).nbytes for manifest in written) for column in columns}
    stores: dict[int, list[LinkedShards]] = {}
    for piece in pieces:
        if isinstance(piece, LinkedShards):
            stores.setdefault(id(piece.manifest), []).append(piece)
    for linked in stores.values():
        whole, records = linked[0].manifest, sum(piece.count for piece in linked)
        sizes = {column.name: column.nbytes for column in whole.columns}
        if records != whole.records:
            sizes = _sum_ragged_columns(whole, [piece.parts for piece in linked])
        for column in columns:
            totals[column.name] += column.record_nbytes * records if column.kind == "fixed" else sizes[column.name]
    manifests = [*written, *(linked[0].manifest for linked in stores.values())]
    return [
        replace(
            column,
            nbytes=totals[column.name],
            hides_boxes=join_hidden_boxes(manifest.column(column.name) for manifest in manifests),
        )
        for column in columns
    ]


def _sum_ragged_columns(whole: Manifest, taken: Sequence[ShardList]) -> dict[str, int]:
    """Sums the bytes of each ragged column in some shards of a store."""
    shards = [pair for parts in taken for pair in zip(parts.rows, parts.places, strict=True)]
    places = [place for _, place in shards]
    fewer = False
    if isinstance(places[0], UrlPath):
        manifests = [
            # Fetches the shard into the cache.
            fetch_shard_manifest(UrlPath(place), row["digest"].tobytes().hex(), int(row["nbytes"]), whole.format)
            for row, place in shards
        ]
    else:
        directory, names = Path(places[0]).parent, whole.shards.names() if whole.shards else ()
        # Read the manifests of the other shards instead, and subtract, if these are fewer.
        others = sorted({f"{directory}/{name}" for name in names} - set(places))
        fewer = len(others) < len(places)
        manifests = [read_manifest(Path(place)) for place in (others if fewer else places)]
    sizes = {"image": sum(int(row["image_nbytes"]) for row, _ in shards)}
    for column in whole.columns[1:]:
        if column.kind == "ragged":
            read = sum(manifest.column(column.name).nbytes for manifest in manifests)
            sizes[column.name] = column.nbytes - read if fewer else read
    return sizes


def describe_stores_origin(readers: Sequence[Reader]) -> Origin:
    """Returns the manifest's entry about the origin of a new store's records: the names of their stores.

    Cuts the names to 1,000 characters. For a single store adds its dataset digest.
    """
    names = [reader.path.resolve().name.encode("utf-8", "backslashreplace").decode("utf-8") for reader in readers]
    digest = readers[0].manifest.dataset_digest if len(readers) == 1 else None
    return Origin("store", " + ".join(names)[:1000], 0, digest)


def largest_shard_bytes(manifest: Manifest) -> int | None:
    """Returns the bytes of images of a store's largest shard, at least 1. None for a store of one file."""
    return None if manifest.shards is None else max(1, int(manifest.shards.table["image_nbytes"].max()))


def list_linkable_shards(reader: Reader, format: str, columns: Sequence[Column]) -> ShardList | None:
    """Lists the shards of an open store if another store can link them unchanged, else returns None.

    Conditions:
    - Format and columns are the other store's.
    - The store is not a single object at a URL, whose digest is unknown.
    - Links to images are absolute.
    """
    manifest = reader.manifest
    one_object = manifest.shards is None and reader.nbytes is not None  # its digest is not known
    relative = relative_link_folder(manifest, reader.path) is not None
    if manifest.format != format or one_object or relative or not columns_match(manifest.columns, columns):
        return None
    return list_shards(reader.path, manifest, reader.table.places())


def link_whole_shards(copied: CopiedRecords, linkable: ShardList | None) -> list[Piece]:
    """Returns the pieces of some records, in ascending order: links to shards that are wanted whole, copies of
    others.

    ``linkable``: all shards of their store; None copies everything.
    """
    reader, records, pieces = copied.reader, copied.records, list[Piece]()
    shards = reader.manifest.shards
    starts = np.array([0, len(reader)]) if shards is None or linkable is None else shards.starts
    edges = np.searchsorted(records, starts)
    whole = (np.diff(edges) == np.diff(starts)).tolist()
    for linked, run in groupby(range(len(whole)), key=whole.__getitem__):
        numbers = [*run]
        some = records[edges[numbers[0]] : edges[numbers[-1] + 1]]
        if linked and linkable is not None:
            pieces.append(LinkedShards(linkable.take_shards(numbers), copied.split, reader.manifest))
        elif len(some):
            pieces.append(replace(copied, records=some))
    return pieces


def copy_shards(reader: Reader, linked: ShardList | None = None) -> list[Piece]:
    """Returns the pieces that copy each shard of a store to a shard of its own.

    With ``linked``, the store's shards, only copies those with several splits, each to one shard per split. Links the
    others.
    """
    pieces: list[Piece] = []
    start = 0
    for number, runs in enumerate(list_runs(reader.manifest)):
        if linked is not None and len(runs) == 1:
            pieces.append(LinkedShards(linked.take_shards([number]), None, reader.manifest))
            start += runs[0][1]
            continue
        for place, (name, count) in enumerate(runs):
            cut = not place or linked is not None
            pieces.append(CopiedRecords(reader, np.arange(start, start + count), name, cut=cut))
            start += count
    return pieces


def copy_split(
    reader: Reader, split: str, new_split: str, columns: Sequence[Column], left_out: Collection[str]
) -> CopiedRecords:
    """Returns the piece that copies a split's records, without those whose keys are in ``left_out``.

    Maps class numbers to those of ``columns``.

    ``split`` ``""``: all records. Reads the keys if some are left out.
    """
    whole = reader.split(split or None)
    records: NDArray[np.int64] = np.arange(whole.start, whole.stop)
    if left_out:
        records = records[[reader.key(i) not in left_out for i in records.tolist()]]
    own = {column.name: column for column in reader.manifest.columns}
    maps = {c.name: map_class_numbers(own[c.name], c) for c in columns if c.name in own}
    return CopiedRecords(
        reader, records, new_split, {name: numbers for name, numbers in maps.items() if numbers is not None}
    )

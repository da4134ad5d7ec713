"""Repairs a store on this machine, and writes the records that repair and salvage have saved."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from packstore.checking.options import RepairOptions
from packstore.checking.reports import CheckReport, RepairReport, try_key
from packstore.checking.source_records import DamagedRecord, Donor, LostRecordError
from packstore.checking.store_check import StoreCheck, open_files
from packstore.core.column import LINK_COLUMNS, Link
from packstore.core.columns import Buffer
from packstore.core.errors import DestinationError, SourceError, StoreError, printable
from packstore.core.files import refuse_nested_paths, writing
from packstore.core.manifest import Manifest, Skipped
from packstore.core.parallel import default_workers
from packstore.core.progress import Progress, ProgressCallback
from packstore.core.proof import ROW_CHECKSUM, hash_values, image_checksum, row_checksum, row_columns
from packstore.core.registry import FORMATS
from packstore.images.encode.options import keeps_exif
from packstore.images.orientation import count_oriented
from packstore.images.seek_index import index_values
from packstore.packing.recorded_options import EXIF_ORIENTED
from packstore.stores import Problem, Reader, StoreBuilder, format_of
from packstore.stores.linked import read_link_values, relative_link_folder
from packstore.stores.opening import open_reader

_BATCH_RECORDS, _BATCH_BYTES = 1024, 8 << 20


def repair_files(
    damaged: Path, source: Path, destination: Path, options: RepairOptions, progress: ProgressCallback
) -> RepairReport:
    """Repairs a store on this machine into a new one at ``destination``. Writes nothing if nothing is damaged."""
    refuse_nested_paths(destination, damaged)
    refuse_nested_paths(destination, source)
    with _open_damaged(damaged) as reader:
        manifest = reader.manifest
        check_destination_name(destination, manifest.format)
        # Counts of all records are options that the whole store has and its shards do not.
        shard = next((file.reader.manifest for file in open_files(reader)), None)
        writer = RecordWriter(destination, manifest, shard, sharded=manifest.shards is not None)
        with writing(destination), writer.builder, closing(options.open_packed(source, manifest, progress)) as opened:
            found = StoreCheck(reader, workers=options.workers or default_workers(), progress=progress).run()
            if not found.problems.count:
                return RepairReport(damaged, None, 0, len(reader), (), (), False)
            donor = Donor(opened, manifest, options)
            return _Repair(reader, found, donor, writer, progress).repair_store(destination, options.partial)


def _open_damaged(path: Path) -> Reader:
    """Opens a store and each of its shards; an error recommends salvage."""
    with ExitStack() as opened:
        try:
            reader = opened.enter_context(open_reader(path))
            if reader.manifest.shards is not None:
                for _ in reader.parts():
                    pass
        except StoreError as error:
            if not path.exists():
                raise
            raise StoreError(f"{error}; packstore salvage may get records out of it") from error
        opened.pop_all()
        return reader


@dataclass
class _Repair:
    """One repair of a local store: finds replacements, proves them by checksums, and writes the new store."""

    reader: Reader
    found: CheckReport
    donor: Donor
    writer: RecordWriter
    progress: ProgressCallback

    def __post_init__(self) -> None:
        found, self.manifest = self.found, self.reader.manifest
        self.fields = [column.name for column in row_columns(self.manifest.columns)]
        self.links = [column.name for column in LINK_COLUMNS] if self.manifest.is_linked else []
        everything = set(range(len(self.reader)))
        # If no checksum names the damaged records of a column, the source has to confirm all of them.
        self.rows = everything if found.unproven.intersection(self.fields) else found.rows
        self.images = everything if found.unproven & {"checksum"} or found.columns & {*self.links} else found.images

    def repair_store(self, destination: Path, partial: bool) -> RepairReport:
        """Finds replacements, writes and publishes the new store, and returns the report."""
        self.link_folder = relative_link_folder(self.manifest, destination)
        damaged = sorted(self.images | self.rows)
        self.donor.locate_samples(map(self._gather_checksums, damaged), self.progress)
        replaced, lost = [], []
        for done, record in enumerate(damaged):
            self.progress(Progress("replace", done, len(damaged), 0))
            key = try_key(self.reader, record)
            try:
                self._fix_record(record)
                if self.links:
                    self._make_link(record)
            except LostRecordError as error:
                lost.append(Problem(str(error), record, key))
            else:
                what = [name for name, some in (("image", self.images), ("label and key", self.rows)) if record in some]
                replaced.append(Problem(" and ".join(what), record, key))
        copied, problems = len(self.reader) - len(damaged), self.found.problems.count
        report = RepairReport(self.reader.path, None, problems, copied, tuple(replaced), tuple(lost), False)
        if lost and (not partial or len(lost) == len(self.reader)):
            return report
        self._write_store({problem.record for problem in lost})
        if not lost:
            self.writer.flush()
            digest = self.writer.builder.records_digest()
            if digest != self.manifest.records_digest:
                names = ", ".join(sorted(self.found.columns)) or "image"
                raise StoreError(
                    f"{printable(str(self.reader.path))}: {names} is damaged, and with the source's values the digest "
                    f"of the records is {digest}, expected {self.manifest.records_digest}; nothing was written"
                )
        skipped = [Skipped(problem.key or f"record {problem.record}", problem.what) for problem in lost]
        manifest = self.writer.commit(skipped, recount=bool(lost))
        return replace(report, destination=destination, identical=manifest.digest == self.manifest.digest)

    def _gather_checksums(self, record: int) -> DamagedRecord:
        """Returns a damaged record with its key, and its possible row checksums if its fields may be damaged."""
        rows = tuple(self._list_row_checksums(record)) if record in self.rows else ()
        return DamagedRecord(record, self._try_value("key", record), rows)

    def _list_row_checksums(self, record: int) -> list[int]:
        """Returns the row checksums that a record may have; none if the store has none."""
        if not self.manifest.has_column(ROW_CHECKSUM.name):
            return []
        fields = {name: self._try_value(name, record) for name in self.fields}
        readable = all(value is not None for value in fields.values())
        own = row_checksum(self.manifest.columns, fields) if readable else None
        return self._list_checksums(ROW_CHECKSUM.name, record, own)

    def _list_checksums(self, name: str, record: int, own: int | None) -> list[int]:
        """Returns the checksums that a record may have: the stored one, and possibly ``own``."""
        stored = self._try_value(name, record)
        known = [] if stored is None else [int(stored)]
        # ``own`` is the checksum of the present content. It counts if the column ``name`` is damaged: if the source
        # confirms the content, the stored checksum was damaged.
        return [*known, own] if own is not None and name in self.found.columns else known

    def _fix_record(self, record: int) -> tuple[Any, Mapping[str, Any]]:
        """Returns image and fields of a damaged record, with proven replacements from the source."""
        try:
            image: Any = self.reader.view(record)
        except StoreError:
            image = None
        fields = {name: self._try_value(name, record) for name in self.fields}
        if record in self.images:
            known = self._list_checksums("checksum", record, None if image is None else image_checksum(image))
            image = self.donor.encode_image(self.donor.find_entry(record)).record
            found = image_checksum(image)
            if found not in known:
                expected = " or ".join(f"{value:016x}" for value in known) or "one that is lost"
                raise LostRecordError(
                    f"the source's image has the checksum {found:016x}, expected {expected}: it is another image, or "
                    "was made with another version of a decoder or encoder"
                )
        if record in self.rows:
            known = self._list_row_checksums(record)
            fields |= self.donor.make_fields(self.donor.find_entry(record))
            missing = [name for name in self.fields if fields[name] is None]
            if missing:
                raise LostRecordError(f"the source does not have its {' or '.join(missing)}")
            found = row_checksum(self.manifest.columns, fields)
            if known and found not in known:
                raise LostRecordError(
                    f"its label, key and other fields have the row checksum {found:016x} in the source, expected "
                    f"{known[0]:016x}: they have changed"
                )
        return image, fields

    def _try_value(self, name: str, record: int) -> Any:
        """Returns a stored value, or None if it cannot be read."""
        try:
            return self.reader.value(name, record)
        except (StoreError, IndexError):
            return None

    def _write_store(self, lost: set[int | None]) -> None:
        """Writes all records except the lost ones, in the damaged store's shards and splits."""
        shards = self.manifest.shards
        begins = {0} if shards is None else {*shards.starts.tolist()}
        written = 0
        for record in range(len(self.reader)):
            if record in begins:
                self.writer.cut()
            if record not in lost:
                with self._refusing_changed_source(record):
                    if record in self.images or record in self.rows:
                        image, fields = self._fix_record(record)
                    else:
                        image = self.reader.view(record)
                        fields = {name: self._try_value(name, record) for name in self.fields}
                    link = self._make_link(record) if self.links else None
                self.writer.add(image, fields, find_split(self.manifest, record), link)
            if self.writer.builder.records > written or record + 1 == len(self.reader):  # after each batch
                written = self.writer.builder.records
                self.progress(Progress("repair", record + 1, len(self.reader), self.writer.nbytes))

    @contextmanager
    def _refusing_changed_source(self, record: int) -> Iterator[None]:
        """Raises :class:`SourceError` if the source can no longer replace a record that it could replace before."""
        try:
            yield
        except LostRecordError as error:
            raise SourceError(
                f"the source {printable(str(self.donor.source.path))} has changed during the repair: record {record} "
                f"({try_key(self.reader, record)}): {error}; nothing was written, so give the same command again"
            ) from error

    def _make_link(self, record: int) -> Link:
        """Returns a record's link, or the link to the source's file that replaces its image."""
        if record in self.images:
            return self.donor.make_link(self.donor.find_entry(record), self.link_folder)
        values = read_link_values(self.reader, np.array([record]), self.link_folder)
        return Link(*(values[name][0] for name in self.links))


class RecordWriter:
    """Writes records to a new store like another one. Collects batches of 1,024 records or 8 MiB.

    Attributes:
        builder: Builder of the new store; abort it, or call :meth:`commit`.
        nbytes: Bytes of all images that were added.
    """

    def __init__(self, path: Path, manifest: Manifest, shard: Manifest | None, **building: Any) -> None:
        """
        Args:
            path: The new store.
            manifest: Manifest of the other store.
            shard: Manifest of one of its shards, or None. The options that it lacks are counts of all records.
            building: Further arguments of :func:`packstore.stores.StoreBuilder`.
        """
        self._manifest = manifest
        options = manifest.options if shard is None else shard.options
        self._counted = {name: int(value or 0) for name, value in manifest.options.items() if name not in options}
        self.builder = StoreBuilder(path, replace(manifest, options=options), **building)
        self._fields = row_columns(manifest.columns)
        self._images: list[Buffer] = []
        self._rows: list[Mapping[str, Any]] = []
        self._links: list[Link] = []
        self._split = ""
        self._pending = 0
        self._counts_oriented = EXIF_ORIENTED in manifest.options and keeps_exif(manifest)
        self._oriented = 0
        self.nbytes = 0

    def add(self, image: Buffer, fields: Mapping[str, Any], split: str, link: Link | None = None) -> None:
        """Adds a record with its image and its values of the other columns. ``link``: its link, in a linked store."""
        if self._pending >= _BATCH_BYTES or len(self._images) >= _BATCH_RECORDS or split != self._split:
            self.flush()
        self._split = split
        self._images.append(image)
        self._rows.append(fields)
        self._links += [] if link is None else [link]
        self.nbytes += memoryview(image).nbytes
        self._pending += memoryview(image).nbytes + sum(memoryview(fields[c.name]).nbytes for c in self._fields)

    def cut(self) -> None:
        """Begins a new shard with the next record."""
        self.flush()
        self.builder.cut()

    def flush(self) -> None:
        """Hands the collected records to the builder."""
        if not self._images:
            return
        images, rows, links = self._images, self._rows, self._links
        self._images, self._rows, self._links, self._pending = [], [], [], 0
        self._oriented += count_oriented(images) if self._counts_oriented else 0
        values: dict[str, Any] = {}
        for column in self._fields:
            taken = [row[column.name] for row in rows]
            values[column.name] = [bytes(v) for v in taken] if column.kind == "ragged" else np.stack(taken)
        values |= index_values(self._manifest.columns, images)
        if not links:
            self.builder.append(images, values, self._split)
            return
        values |= {c.name: list(some) for c, some in zip(LINK_COLUMNS, zip(*links, strict=True), strict=True)}
        checksums = hash_values(images, len(images))
        self.builder.append([b""] * len(images), values, self._split, checksums=checksums)

    def commit(self, skipped: Sequence[Skipped] = (), *, recount: bool = False) -> Manifest:
        """Publishes the store and returns its manifest.

        Args:
            skipped: Lost records. The manifest lists them after those that the other store skipped.
            recount: Whether records are lost, so that the images with an EXIF orientation are counted again.
        """
        self.flush()
        recounted = {EXIF_ORIENTED: self._oriented} if recount and self._counts_oriented else {}
        return self.builder.commit(counted=self._counted | recounted, skipped=(*self._manifest.skipped, *skipped))


def find_split(manifest: Manifest, record: int) -> str:
    """Returns the name of a record's split; ``""`` if there are no splits."""
    place = bisect_right([split.start for split in manifest.splits], record) - 1
    return manifest.splits[place].name if place >= 0 else ""


def check_destination_name(destination: Path, format: str) -> None:
    """Raises :class:`DestinationError` if something is at the path, or if the path has the suffix of another format."""
    shown = printable(str(destination))
    if os.path.lexists(destination):
        raise DestinationError(f"{shown} exists already; choose another name")
    named = format_of(destination)
    if named not in (None, format):
        raise DestinationError(
            f"{shown} has the suffix of {FORMATS[named].title}, but the new store will be {FORMATS[format].title} like "
            "the damaged one; choose another name, and change the format afterwards with packstore convert"
        )

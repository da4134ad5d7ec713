"""Repairs a store on this machine. Walks the records of a damaged store, and writes those that repair and salvage
save.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packstore.checking import RepairOptions
from packstore.checking.reports import CheckReport, RepairReport, try_key
from packstore.checking.source_records import Donor, LostRecordError
from packstore.checking.store_check import StoreCheck, open_files
from packstore.core.columns import LINK_COLUMNS, Buffer, Link
from packstore.core.errors import DestinationError, SourceError, StoreError, printable
from packstore.core.files import refuse_nested_paths, writing
from packstore.core.manifest import Manifest, Skipped
from packstore.core.parallel import default_workers
from packstore.core.progress import Progress, ProgressCallback
from packstore.core.proof import ROW_CHECKSUM, hash_values, image_checksum, row_checksum, row_columns
from packstore.core.registry import FORMATS
from packstore.images.engine import index_values
from packstore.images.orientation import count_oriented, keeps_exif
from packstore.packing.encoding import EXIF_ORIENTED
from packstore.stores import Problem, Reader, StoreBuilder, format_of
from packstore.stores.linked import read_link_values, relative_link_folder
from packstore.stores.opening import open_reader
from packstore.stores.staged_columns import BATCH_BYTES, BATCH_RECORDS


def repair_files(
    damaged: Path, source: Path, destination: Path, options: RepairOptions, progress: ProgressCallback
) -> RepairReport:
    """Repairs a local store into a new one at ``destination``; writes nothing if nothing is damaged."""
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


class FoundRecord(NamedTuple):
    """A record of a damaged store: its values, or the reason that there are none.

    Attributes:
        record: Its number.
        key: Its key; None if that cannot be read.
        fields: Its values of the columns that the row checksum covers; None for an unreadable one.
        why: Why the record is lost; of a record with an image, what nothing proves.
        image: Its image; None if the record is lost.
        link: Its link, in a linked store.
    """

    record: int
    key: str | None
    fields: Mapping[str, Any]
    why: str = ""
    image: Buffer | None = None
    link: Link | None = None


class RecordWalk(ABC):
    """A walk over a damaged store that finds the proven values of each record, or why there are none.

    Attributes:
        manifest: Manifest of the damaged store.
        fields: Names of the columns that the row checksum covers.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.fields = [column.name for column in row_columns(manifest.columns)]

    @abstractmethod
    def read_value(self, name: str, record: int) -> Any:
        """Returns the stored value of a column for a record, in stored form.

        Raises :class:`StoreError`, :class:`IndexError` or :class:`KeyError` if it cannot be read.
        """

    @abstractmethod
    def read(self, record: int) -> FoundRecord:
        """Returns what the damaged store has of a record, without its image."""

    @abstractmethod
    def prove(self, found: FoundRecord) -> FoundRecord:
        """Returns a record of :meth:`read` with its image, and with proven values.

        Raises :class:`LostRecordError` if it is lost.
        """

    def walk(self, records: Iterable[int]) -> Iterator[FoundRecord]:
        """Yields what is found of each of these records."""
        for record in records:
            found = self.read(record)
            try:
                yield self.prove(found)
            except LostRecordError as error:
                yield found._replace(why=str(error))

    def try_value(self, name: str, record: int) -> Any:
        """Returns a stored value, or None if it cannot be read."""
        try:
            return self.read_value(name, record)
        except (StoreError, IndexError, KeyError):
            return None

    def read_fields(self, record: int) -> dict[str, Any]:
        """Returns a record's stored values of the columns that the row checksum covers."""
        return {name: self.try_value(name, record) for name in self.fields}


class _Repair(RecordWalk):
    """One repair of a local store: finds replacements, proves them by checksums, and writes the new store."""

    def __init__(
        self, reader: Reader, found: CheckReport, donor: Donor, writer: RecordWriter, progress: ProgressCallback
    ) -> None:
        super().__init__(reader.manifest)
        self.reader, self.found, self.donor, self.writer, self.progress = reader, found, donor, writer, progress
        links = {column.name for column in LINK_COLUMNS} if self.manifest.is_linked else set()
        everything = set(range(len(self.reader)))
        # If no checksum names the damaged records of a column, the source has to confirm all of them.
        self.rows = everything if found.unproven.intersection(self.fields) else found.rows
        self.images = everything if found.unproven & {"checksum"} or found.columns & links else found.images

    def repair_store(self, destination: Path, partial: bool) -> RepairReport:
        """Finds replacements, writes and publishes the new store, and returns the report."""
        self.link_folder = relative_link_folder(self.manifest, destination)
        damaged = sorted(self.images | self.rows)
        self.donor.locate_samples(map(self._gather_checksums, damaged), self.progress)
        replaced, lost = [], []
        for done, found in enumerate(self.walk(damaged)):
            self.progress(Progress("replace", done, len(damaged), 0))
            if found.image is None:
                lost.append(Problem(found.why, found.record, found.key))
                continue
            parts = (("image", self.images), ("label and key", self.rows))
            what = [name for name, some in parts if found.record in some]
            replaced.append(Problem(" and ".join(what), found.record, found.key))
        copied, problems = len(self.reader) - len(damaged), self.found.problems.count
        report = RepairReport(self.reader.path, None, problems, copied, tuple(replaced), tuple(lost), False)
        if lost and (not partial or len(lost) == len(self.reader)):
            return report
        self._write_store({problem.record for problem in lost})
        if not lost:
            self.writer.flush()
            digest = self.writer.builder.records_digest()
            # Every record may match its checksum, and the checksums be damaged themselves.
            if digest != self.manifest.records_digest:
                names = ", ".join(sorted(self.found.columns)) or "image"
                raise StoreError(
                    f"{printable(str(self.reader.path))}: {names} is damaged, and with the source's values the digest "
                    f"of the records is {digest}, expected {self.manifest.records_digest}; nothing was written"
                )
        skipped = [Skipped(problem.key or f"record {problem.record}", problem.what) for problem in lost]
        manifest = self.writer.commit(skipped, recount=bool(lost))
        return replace(report, destination=destination, identical=manifest.digest == self.manifest.digest)

    def read_value(self, name: str, record: int) -> Any:
        return self.reader.value(name, record)

    def read(self, record: int) -> FoundRecord:
        return FoundRecord(record, try_key(self.reader, record), self.read_fields(record))

    def prove(self, found: FoundRecord) -> FoundRecord:
        record, fields = found.record, found.fields
        image = self._replace_image(record) if record in self.images else self.reader.view(record)
        if record in self.rows:
            fields = self._replace_fields(record, fields)
        link = self._make_link(record) if self.manifest.is_linked else None
        return found._replace(image=image, fields=fields, link=link)

    def _gather_checksums(self, record: int) -> tuple[int, Any, list[int]]:
        """Returns a damaged record, its key, and its possible row checksums if its fields may be damaged."""
        fields = self.read_fields(record)
        return record, fields["key"], self._list_row_checksums(record, fields) if record in self.rows else []

    def _list_row_checksums(self, record: int, fields: Mapping[str, Any]) -> list[int]:
        """Returns the row checksums that a record may have; none if the store has none."""
        readable = all(value is not None for value in fields.values())
        own = row_checksum(self.manifest.columns, fields) if readable else None
        return self._list_checksums(ROW_CHECKSUM.name, record, own)

    def _list_checksums(self, name: str, record: int, own: int | None) -> list[int]:
        """Returns the checksums that a record may have: the stored one, and possibly ``own``."""
        stored = self.try_value(name, record)
        known = [] if stored is None else [int(stored)]
        # ``own`` is the checksum of the present content. It counts if the column ``name`` is damaged: if the source
        # confirms the content, the stored checksum was damaged.
        return [*known, own] if own is not None and name in self.found.columns else known

    def _replace_image(self, record: int) -> Buffer:
        """Returns a record's image from the source, which has a checksum that the record may have."""
        try:
            own = image_checksum(self.reader.view(record))
        except StoreError:
            # An image that cannot be read has no checksum of its own.
            own = None
        known = self._list_checksums("checksum", record, own)
        image = self.donor.encode_image(self.donor.find_entry(record)).record
        found = image_checksum(image)
        if found not in known:
            expected = " or ".join(f"{value:016x}" for value in known) or "one that is lost"
            raise LostRecordError(
                f"the source's image has the checksum {found:016x}, expected {expected}: it is another image, or "
                "was made with another version of a decoder or encoder"
            )
        return image

    def _replace_fields(self, record: int, damaged: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a record's fields from the source, which have a row checksum that the record may have."""
        fields = self.donor.make_fields(self.donor.find_entry(record))
        missing = [name for name in self.fields if fields[name] is None]
        if missing:
            raise LostRecordError(f"the source does not have its {' or '.join(missing)}")
        known, found = self._list_row_checksums(record, damaged), row_checksum(self.manifest.columns, fields)
        if known and found not in known:
            raise LostRecordError(
                f"its label, key and other fields have the row checksum {found:016x} in the source, expected "
                f"{known[0]:016x}: they have changed"
            )
        return fields

    def _write_store(self, lost: set[int | None]) -> None:
        """Writes all records except the lost ones, in the damaged store's shards and splits."""
        shards = self.manifest.shards
        begins = {0} if shards is None else {*shards.starts.tolist()}
        written = 0
        for record in range(len(self.reader)):
            if record in begins:
                self.writer.cut()
            if record not in lost:
                (found,) = self.walk([record])
                if found.image is None:  # it could be replaced before
                    raise SourceError(
                        f"the source {printable(str(self.donor.source.path))} has changed during the repair: record "
                        f"{record} ({found.key}): {found.why}; nothing was written, so give the same command again"
                    )
                self.writer.add(found)
            if self.writer.builder.records > written or record + 1 == len(self.reader):  # after each batch
                written = self.writer.builder.records
                self.progress(Progress("repair", record + 1, len(self.reader), self.writer.nbytes))

    def _make_link(self, record: int) -> Link:
        """Returns a record's link, or the link to the source's file that replaces its image."""
        if record in self.images:
            return self.donor.make_link(self.donor.find_entry(record), self.link_folder)
        values = read_link_values(self.reader, np.array([record]), self.link_folder)
        return Link(*(values[column.name][0] for column in LINK_COLUMNS))


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
        self._batch: list[FoundRecord] = []
        self._split = ""
        self._pending = 0
        self._counts_oriented = EXIF_ORIENTED in manifest.options and keeps_exif(manifest)
        self._oriented = 0
        self.nbytes = 0

    def add(self, found: FoundRecord, split: str | None = None) -> None:
        """Adds a record. ``split``: its split; None takes that of the record's number in the other store."""
        if split is None:
            place = bisect_right([each.start for each in self._manifest.splits], found.record) - 1
            split = self._manifest.splits[place].name if place >= 0 else ""
        if self._pending >= BATCH_BYTES or len(self._batch) >= BATCH_RECORDS or split != self._split:
            self.flush()
        assert found.image is not None
        self._split = split
        self._batch.append(found)
        nbytes = memoryview(found.image).nbytes
        self.nbytes += nbytes
        self._pending += nbytes + sum(memoryview(found.fields[c.name]).nbytes for c in self._fields)

    def cut(self) -> None:
        """Begins a new shard with the next record."""
        self.flush()
        self.builder.cut()

    def flush(self) -> None:
        """Hands the collected records to the builder."""
        batch, self._batch, self._pending = self._batch, [], 0
        if not batch:
            return
        images = [found.image for found in batch if found.image is not None]
        self._oriented += count_oriented(images) if self._counts_oriented else 0
        values: dict[str, Any] = {}
        for column in self._fields:
            taken = [found.fields[column.name] for found in batch]
            values[column.name] = [bytes(v) for v in taken] if column.kind == "ragged" else np.stack(taken)
        values |= index_values(self._manifest.columns, images)
        links = [found.link for found in batch if found.link is not None]
        if not links:
            self.builder.append(images, values, self._split)
            return
        values |= {c.name: list(some) for c, some in zip(LINK_COLUMNS, zip(*links, strict=True), strict=True)}
        # A linked store has no image bytes, but their checksums.
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

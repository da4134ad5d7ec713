"""``repair``: restores a damaged store, with records from its source or from another store.

Everything from the source is proven: each record must have its checksum in the store, and in the end every column its
digest in the manifest. Another image of the same name cannot slip in.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

from packstore.checking.donor import CannotReplaceError, DamagedRecord, Donor, gather_values
from packstore.checking.options import RepairOptions
from packstore.checking.repair_remote import repair_at_url
from packstore.checking.repair_report import RepairReport
from packstore.checking.store_check import StoreCheck, open_files, record_batches, try_key
from packstore.core.checksums import ROW_CHECKSUM, row_checksum, row_columns
from packstore.core.column import LINK_COLUMNS, Link
from packstore.core.errors import DestinationError, SourceError, StoreError, UsageError, printable
from packstore.core.files import check_paths, refuse_empty, refuse_nested_paths, writing
from packstore.core.manifest import Column, Skipped
from packstore.core.options import argument, option, progress_option, takes
from packstore.core.parallel import default_workers
from packstore.core.progress import Progress, ProgressCallback, progress_callback
from packstore.core.registry import FORMATS
from packstore.core.urls import UrlPath, location
from packstore.images.encode.options import keeps_exif
from packstore.images.orientation import count_oriented
from packstore.packing.recorded_options import EXIF_ORIENTED
from packstore.stores import format_of
from packstore.stores.base import Problem, Reader
from packstore.stores.builder import StoreBuilder
from packstore.stores.linked import read_link_values, relative_link_folder
from packstore.stores.opening import open_reader
from packstore.stores.sharded import ShardedReader


@dataclass(frozen=True)
class RepairArguments(RepairOptions):
    """Arguments of :func:`packstore.repair`."""

    damaged: str | os.PathLike[str] = field(metadata=argument("The store; it must still open."))
    source: str | os.PathLike[str] = field(
        metadata=argument("The source that it was packed from, or another store of the same images.")
    )
    destination: str | os.PathLike[str] | None = option(None, "Path of the new store; None if ``damaged`` is a URL.")
    _: KW_ONLY
    progress: bool | ProgressCallback = progress_option()


@takes(RepairArguments)
def repair(arguments: RepairArguments) -> RepairReport:
    """Writes an undamaged store from a damaged one and its source. ``damaged`` is only read, unless it is a URL.

    The new store has the same format, encoding, splits and shards. If everything could be replaced, it has the bytes
    that the damaged store had before it was damaged. Equal bytes need the same versions of the libraries that write
    the format.

    At a URL, damaged and missing shards are replaced in place, and must get exactly the bytes that they had. If
    ``source`` is a store with the same shard, the shard is copied. Other shards are rebuilt from their undamaged
    records and ``source``. A shard that is missing or does not open is packed again from the samples of ``source`` that
    no other shard has.

    ``image_key``, ``label_key``, ``layout``, ``ignore``, ``splits`` and ``columns`` that are not given are those with
    which the store was packed.

    Returns:
        The report. Nothing is written if nothing is damaged. Without ``partial``, nothing is written if a record is
        lost. At a URL, shards are replaced even if others are lost.

    Raises:
        StoreError: The damaged store does not open, or a shard of it does not.
        SourceError: The source cannot be read, or the records cannot be made from it.
        UsageError: ``destination`` is missing, or is given for a URL. Or an argument is wrong, such as ``partial`` for
            a URL.
        DestinationError: The destination may not be written.
    """
    refuse_empty(arguments.source)
    refuse_empty(arguments.damaged)
    damaged, source = location(arguments.damaged), location(arguments.source)
    with progress_callback(arguments.progress) as report:
        if isinstance(damaged, UrlPath):
            if arguments.destination is not None or arguments.partial:
                raise UsageError("a store at a URL is repaired in place: omit destination and partial")

            def repair_shard(broken: Path, whole: Path) -> RepairReport:
                return _repair_files(broken, source, whole, arguments, report)

            return repair_at_url(damaged, source, arguments, repair_shard, report)
        if arguments.destination is None:
            raise UsageError("give a destination (--out) for the repaired store: the damaged one is not changed")
        check_paths(damaged, arguments.destination, arguments.labels)
        return _repair_files(damaged, source, Path(arguments.destination), arguments, report)


def _repair_files(
    damaged: Path, source: Path, destination: Path, options: RepairOptions, progress: ProgressCallback
) -> RepairReport:
    """Repairs a store on this machine into a new one at ``destination``. Writes nothing if nothing is damaged.

    Raises the errors of :func:`repair`.
    """
    refuse_nested_paths(destination, damaged)
    refuse_nested_paths(destination, source)
    with open_damaged(damaged) as reader:
        manifest = reader.manifest
        check_destination_name(destination, manifest.format)
        builder = StoreBuilder(
            destination,
            format=manifest.format,
            encoding=manifest.encoding,
            columns=manifest.columns,
            sharded=manifest.shards is not None,
        )
        with writing(destination), builder, closing(options.open_packed(source, manifest, progress)) as opened:
            check = StoreCheck(reader, workers=options.workers or default_workers(), progress=progress)
            count = sum(1 for _ in check.find_problems())
            if not count:
                return RepairReport(damaged, None, 0, len(reader), (), (), False)
            donor = Donor(opened, manifest, options.decoder, options.annotation_frame)
            return _Repair(reader, check, donor, builder, progress).repair_store(destination, count, options.partial)


def open_damaged(path: Path) -> Reader:
    """Opens a store and each of its shards.

    Raises :class:`StoreError` if the store or a shard does not open. The message recommends salvage, unless nothing is
    at ``path``.
    """
    hint = "packstore salvage may get records out of it"
    try:
        reader = open_reader(path)
    except StoreError as error:
        if not path.exists():
            raise
        raise StoreError(f"{error}; {hint}") from error
    try:
        if isinstance(reader, ShardedReader):
            for _ in reader.parts():
                pass
    except StoreError as error:
        reader.close()
        raise StoreError(f"{error}; {hint}") from error
    return reader


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


class _Repair:
    """One repair of a local store: finds replacements, proves them by checksums, and writes the new store.

    Creating it opens all columns of all files. ``check`` must have run.
    """

    def __init__(
        self, reader: Reader, check: StoreCheck, donor: Donor, builder: StoreBuilder, progress: ProgressCallback
    ) -> None:
        self.reader = reader
        self.manifest = reader.manifest
        self.donor = donor
        self.builder = builder
        self.progress = progress
        self.oriented = 0
        self.columns = {c.name: _DamagedColumn(reader, c) for c in self.manifest.columns[1:]}
        fields = {c.name for c in row_columns(self.manifest.columns)}
        everything = range(len(reader))
        # If no checksum names the damaged records of a column, the source has to confirm all of them.
        self.rows = set(everything) if check.unproven & fields else check.rows
        self.check = check
        self.images = check.images
        if not self.columns["checksum"].opens:
            self.images = set(everything)
        self.links = [column.name for column in LINK_COLUMNS] if self.manifest.is_linked else []
        if check.damaged & {*self.links}:  # of which records is unknown
            self.images = set(everything)
        self.trusted = self.columns.keys() - check.damaged

    def repair_store(self, destination: Path, problem_count: int, partial: bool) -> RepairReport:
        """Finds replacements, writes and publishes the new store, and returns the report. Reports progress.

        If records are lost, writes the others only with ``partial``. Writes nothing if all are lost. Raises
        :class:`StoreError` if no record is lost, but the digest of the records is not the manifest's.
        """
        self.relative_link_folder = relative_link_folder(self.manifest, destination)
        damaged = sorted(self.images | self.rows)
        self.donor.locate_samples((self._describe_damage(record) for record in damaged), self.progress)
        replaced, lost = [], []
        for done, record in enumerate(damaged):
            self.progress(Progress("replace", done, len(damaged), 0))
            try:
                self._fix_record(record)
                if self.links and record in self.images:
                    self.donor.make_link(record, self.relative_link_folder)
            except CannotReplaceError as error:
                lost.append(Problem(str(error), record, try_key(self.reader, record)))
            else:
                what = [name for name, some in (("image", self.images), ("label and key", self.rows)) if record in some]
                replaced.append(Problem(" and ".join(what), record, try_key(self.reader, record)))
        report = RepairReport(
            self.reader.path, None, problem_count, len(self.reader) - len(damaged), tuple(replaced), tuple(lost), False
        )
        if lost and (not partial or len(lost) == len(self.reader)):
            return report
        self._write_store({problem.record for problem in lost})
        if not lost:
            digest = self.builder.records_digest()
            if digest != self.manifest.records_digest:
                names = ", ".join(sorted(self.check.damaged)) or "image"
                raise StoreError(
                    f"{printable(str(self.reader.path))}: {names} is damaged, and with the source's values the digest "
                    f"of the records is {digest}, expected {self.manifest.records_digest}; nothing was written"
                )
        # Counts of all records are options that the whole store has and its shards do not.
        opened = (file.reader.manifest.options for file in open_files(self.reader) if file is not None)
        options = next(opened, self.manifest.options)
        counted = {name: int(value or 0) for name, value in self.manifest.options.items() if name not in options}
        if lost and EXIF_ORIENTED in self.manifest.options:
            counted[EXIF_ORIENTED] = self.oriented
        manifest = self.builder.commit(
            origin=self.manifest.origin,
            normalization=self.manifest.normalization,
            options=options,
            counted=counted,
            versions=self.manifest.versions,
            skipped=(*self.manifest.skipped, *(Skipped(p.key or f"record {p.record}", p.what) for p in lost)),
        )
        return replace(report, destination=destination, identical=manifest.digest == self.manifest.digest)

    def _describe_damage(self, record: int) -> DamagedRecord:
        """Returns a damaged record with its key. Adds its possible row checksums if its fields may be damaged."""
        key = self.columns["key"].try_value(record)
        return DamagedRecord(
            record, key, tuple(self._list_possible_row_checksums(record)) if record in self.rows else ()
        )

    def _list_possible_row_checksums(self, record: int) -> list[int]:
        """Returns the row checksums that a record may have; empty if the store has none.

        These are the stored one and, if the column of row checksums is damaged, the checksum of its present fields.
        """
        if ROW_CHECKSUM.name not in self.columns:
            return []
        stored = self.columns[ROW_CHECKSUM.name].try_value(record)
        known = [] if stored is None else [int(stored)]
        own = {c.name: self.columns[c.name].try_value(record) for c in row_columns(self.manifest.columns)}
        if ROW_CHECKSUM.name not in self.trusted and all(value is not None for value in own.values()):
            # If the source confirms these fields, the stored checksum was damaged.
            known.append(row_checksum(self.manifest.columns, own))
        return known

    def _fix_record(self, record: int) -> tuple[Any, Mapping[str, Any]]:
        """Returns image and fields of a damaged record. Takes the damaged ones from the source.

        Raises :class:`CannotReplaceError` if the source lacks them, or if they do not match the stored checksums.
        """
        stored = self.columns["checksum"].try_value(record)
        own = self._read_damaged_image(record)
        image, fields = own, {name: values.try_value(record) for name, values in self.columns.items()}
        if record in self.images:
            image = self.donor.make_image(record)
            actual = xxh3_64_intdigest(image)
            known = [] if stored is None else [int(stored)]
            if "checksum" not in self.trusted and own is not None:
                known.append(xxh3_64_intdigest(own))  # if the source confirms the image, the checksum was damaged
            if actual not in known:
                expected = " or ".join(f"{value:016x}" for value in known) or "one that is lost"
                raise CannotReplaceError(
                    f"the source's image has the checksum {actual:016x}, expected {expected}: it is another image, or "
                    "was made with another version of a decoder or encoder"
                )
        if record in self.rows:
            fields |= self.donor.make_fields(record)
            missing = [c.name for c in row_columns(self.manifest.columns) if fields[c.name] is None]
            if missing:
                raise CannotReplaceError(f"the source does not have its {' or '.join(missing)}")
            row, known = row_checksum(self.manifest.columns, fields), self._list_possible_row_checksums(record)
            if known and row not in known:
                raise CannotReplaceError(
                    f"its label, key and other fields have the row checksum {row:016x} in the source, expected "
                    f"{known[0]:016x}: they have changed"
                )
        return image, fields

    def _read_damaged_image(self, record: int) -> Any:
        """Reads a record's image from the damaged store: an image file or an array of pixels, as stored.

        Returns None if it cannot be read.
        """
        try:
            return self.reader.view(record)
        except StoreError:
            return None

    def _write_store(self, lost: set[int | None]) -> None:
        """Appends all records except the lost ones to the builder, in the damaged store's shards and splits.

        Reports progress after each batch.
        """
        splits = self.manifest.splits
        edges = [(s.name, s.start, s.stop) for s in splits] or [("", 0, len(self.reader))]
        starts = [0] if self.manifest.shards is None else self.manifest.shards.starts.tolist()
        begins = set(starts)
        nbytes = 0
        for batch in record_batches(self.reader):
            inside = starts[bisect_right(starts, batch.start) : bisect_left(starts, batch.stop)]
            for first, last in pairwise([batch.start, *inside, batch.stop]):
                if first in begins:
                    self.builder.cut()
                for name, start, stop in edges:
                    chosen = [r for r in range(max(first, start), min(last, stop)) if r not in lost]
                    if chosen:
                        nbytes += self._append_records(chosen, name)
            self.progress(Progress("repair", batch.stop, len(self.reader), nbytes))

    def _append_records(self, records: list[int], split: str) -> int:
        """Repairs the damaged ones among some records of one split, and appends all to the builder.

        Returns the bytes of their images.
        """
        images: list[Any] = []
        rows: list[Mapping[str, Any]] = []
        for record in records:
            if record in self.images or record in self.rows:
                with self._refuse_changed_source(record):
                    image, fields = self._fix_record(record)
            else:
                image = self.reader.view(record)
                fields = {name: values.try_value(record) for name, values in self.columns.items()}
            images.append(image)
            rows.append(fields)
        self.oriented += count_oriented(images) if keeps_exif(self.manifest) else 0
        values = gather_values(self.manifest.columns, images, rows)
        if self.links:
            values |= self._make_link_values(records)
            checksums = np.array([xxh3_64_intdigest(image) for image in images], np.uint64)
            self.builder.append([b""] * len(images), values, split, checksums=checksums)
        else:
            self.builder.append(images, values, split)
        return sum(memoryview(image).nbytes for image in images)

    @contextmanager
    def _refuse_changed_source(self, record: int) -> Iterator[None]:
        """Raises :class:`SourceError` if the source cannot replace a record now that it could replace before."""
        try:
            yield
        except CannotReplaceError as error:
            raise SourceError(
                f"the source {printable(str(self.donor.path))} has changed during the repair: record {record} "
                f"({try_key(self.reader, record)}): {error}; nothing was written, so give the same command again"
            ) from error

    def _make_link_values(self, records: list[int]) -> dict[str, Any]:
        """Returns the link columns of some records.

        A record keeps its link, unless its image is replaced from the source. Then the link names the source's file.
        """
        rows = []
        for record in records:
            if record in self.images:
                with self._refuse_changed_source(record):
                    link = self.donor.make_link(record, self.relative_link_folder)
            else:
                values = read_link_values(self.reader, np.array([record]), self.relative_link_folder)
                link = Link(*(values[name][0] for name in self.links))
            rows.append(link)
        return {name: list(column) for name, column in zip(self.links, zip(*rows, strict=True), strict=True)}


class _DamagedColumn:
    """A column of the damaged store; some or all of its values may be unreadable.

    Creating the object opens the column in each file of the store.

    Attributes:
        opens: Whether the column can be read; single values may still be damaged.
    """

    def __init__(self, reader: Reader, column: Column) -> None:
        self._reader = reader
        self._name = column.name
        self.opens = True
        for part in reader.parts():
            try:
                part.column(column.name)
            except StoreError:
                self.opens = False

    def try_value(self, record: int) -> Any:
        """Returns a value, or None if it cannot be read. It is an array or scalar; bytes or a memoryview in a ragged
        column."""
        try:
            return self._reader.value(self._name, record)
        except (StoreError, IndexError):
            return None

"""``export``: writes a store in a foreign format and publishes the result once it is complete."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from packstore.core.files import check_space, sync_file_system, sync_tree, writing
from packstore.core.manifest import Column, Manifest
from packstore.core.options import argument, progress_option, takes
from packstore.core.parallel import default_workers, ordered_map
from packstore.core.progress import Progress, ProgressCallback, no_progress, progress_callback
from packstore.core.proof import image_checksum, join_records_digests, records_digest, row_checksum
from packstore.core.urls import location
from packstore.exports import ExportOptions
from packstore.exports.base import Export, Record
from packstore.exports.plan import (
    ExportPlan,
    ExportStaging,
    ShardReceipt,
    image_from_stored,
    plan_export,
    was_published,
)
from packstore.stores.export_manifest import ROWS_FILE, ExportManifest, ExportShard, format_record_line
from packstore.stores.places import place_of
from packstore.stores.places.owned import read_manifest_of_export
from packstore.stores.places.work import WorkDirectory
from packstore.stores.proven import Proven
from packstore.stores.records import disk_bytes

_CHUNK_BYTES, _CHUNK_RECORDS = 64 << 20, 2000
"""Size of a shard if each record is a file of its own: a resumed run repeats at most so much."""
_REPORT_EVERY = 64


@dataclass(frozen=True, slots=True, repr=False)
class ExportReport:
    """Report of a finished export.

    Attributes:
        destination: The new folder or file, or its URL.
        kind: Name of the kind of export.
        manifest: Manifest of the written records; with ``encode`` it differs from the store's.
        shards: Number of shards. 0 if each record is a file of its own, or all are in one file.
        losses: A text for each part of the store that other readers than packstore do not get.
        disk_bytes: Size on disk.
        seconds: Duration of this run.
        resumed: Number of records that an interrupted run had written already.
    """

    destination: Path
    kind: str
    manifest: Manifest
    shards: int
    losses: tuple[str, ...]
    disk_bytes: int
    seconds: float
    resumed: int = 0

    def __repr__(self) -> str:
        return (
            f"<ExportReport of {str(self.destination)!r}: {self.manifest.records:,} records as {self.kind}, "
            f"{self.disk_bytes / 1e6:,.1f} MB, {self.seconds:.1f} s>"
        )


@dataclass(frozen=True)
class ExportArguments(ExportOptions):
    """Arguments of :func:`packstore.export`."""

    store: str | os.PathLike[str] = field(metadata=argument("The store, or its URL. The store is not changed."))
    destination: str | os.PathLike[str] = field(
        metadata=argument(
            "A new folder or file, or a URL. Its suffix, such as ``.zip``, chooses the kind. An export to a URL is "
            "written to a temporary directory first, and uploaded when it is complete."
        )
    )
    _: KW_ONLY
    progress: bool | ProgressCallback = progress_option()


@takes(ExportArguments)
def export(arguments: ExportArguments) -> ExportReport:
    """Writes a store in another program's format. Importing the export gives the same dataset digest.

    Data that the format cannot hold go into two files that other readers ignore: ``packstore.json``, and
    ``packstore.rows.jsonl`` with a line for each record. Each record is verified by its checksums when it is read.

    The export appears under its name only when it is complete. If a run is killed, the next run resumes it after its
    last complete shard.

    Returns:
        A report with the losses for other readers.

    Raises:
        UsageError: An argument is wrong, the kind is unknown, or the format cannot hold the store. If ``encode`` would
            help, the message says so.
        StoreError: The store does not open or is empty. For a damaged record: :class:`CorruptRecordError`.
        SampleError: An image cannot be re-encoded, or is too large for the format.
        DestinationError: The destination exists without ``overwrite``, is no export, cannot be written or has too
            little space.
    """
    started = time.monotonic()
    place = location(arguments.destination)
    # Around everything, since ending a failed export writes, too.
    with progress_callback(arguments.progress) as report, writing(place), ExitStack() as stack:
        draft = stack.enter_context(place_of(place).new_export(overwrite=arguments.overwrite))
        done = run_export(plan_export(location(arguments.store), draft.path, arguments, stack), report, started)
        draft.publish(report)
        return replace(done, destination=place)


def run_export(
    plan: ExportPlan, progress: ProgressCallback = no_progress, started: float | None = None
) -> ExportReport:
    """Writes and publishes the export of a plan, see :func:`export`. Resumes an interrupted run.

    If that run was killed after publishing, only removes its work directory. After an error, keeps complete shards. A
    note of the error names their directory.

    Raises :class:`DestinationError` before it writes if the estimated size exceeds the free space. Raises errors like
    :func:`export`.
    """
    started = time.monotonic() if started is None else started
    if was_published(plan.destination, plan.request):
        WorkDirectory(plan.destination).remove()
        published = read_manifest_of_export(plan.destination) or ExportManifest(
            kind=plan.kind.name, source=plan.kind.source, manifest=plan.manifest, held=plan.held
        )
        return _make_report(plan, published, started, plan.manifest.records)
    check_space(plan.destination, plan.estimate_bytes)
    options = plan.options
    staging = ExportStaging(
        plan.destination, plan.kind, plan.request, overwrite=options.overwrite, restart=options.restart
    )
    output = plan.export
    output.path = staging.path
    try:
        with writing(plan.destination):
            done = staging.find_complete_shards(output)
            resumed = sum(part.records for part in done)
            if done and plan.kind.one_file:
                output.resume(done[-1].size)
            output.export_manifest = ExportManifest(
                kind=plan.kind.name,
                source=plan.kind.source,
                manifest=plan.manifest,
                held=plan.held,
                image=plan.recoding.form,
                rows=plan.has_lines,
            )
            parts = _ShardLoop(plan, output, staging, done, progress).write_shards()
            manifest = plan.manifest
            if plan.recoding.new:
                manifest = replace(
                    manifest, records_digest=join_records_digests((p.records_digest, p.records) for p in parts)
                )
            shards = tuple(ExportShard(p.file, p.split, p.records) for p in parts if p.file is not None)
            export_manifest = replace(output.export_manifest, manifest=manifest, shards=shards)
            lines = staging.join_lines(len(parts)) if plan.has_lines else None
            if lines is not None and not plan.kind.one_file:
                lines = lines.rename(staging.path / ROWS_FILE)
            export_manifest = output.finish(export_manifest, lines)
            if options.bare and lines is not None:
                lines.unlink()
        staging.publish(sync_file_system if plan.kind.shard_bytes is None else sync_tree)
    except BaseException as error:
        output.abort()
        if kept := staging.keep_complete(output):
            error.add_note(kept)
        raise
    return _make_report(plan, export_manifest, started, resumed)


@dataclass(slots=True)
class _Written:
    """Counts of a shard's records until now: their number, the bytes of their images, checksums of re-encoded ones."""

    records: int = 0
    nbytes: int = 0
    checksums: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)


@dataclass
class _ShardLoop:
    """Writes the shards that an interrupted run has not completed, with their record lines and receipts.

    Verifies the checksums of each record.
    """

    plan: ExportPlan
    output: Export
    staging: ExportStaging
    parts: list[ShardReceipt]
    progress: ProgressCallback
    nbytes: int = 0

    def __post_init__(self) -> None:
        self.records = Proven(self.plan.reader)
        self.columns = {column.name: column for column in self.plan.manifest.columns}
        self.not_held = [column.name for column in self.output.columns if column.name not in self.plan.held]

    def write_shards(self) -> list[ShardReceipt]:
        """Writes the remaining shards, and a receipt for each. Returns the receipts of all shards, earlier ones
        included."""
        manifest = self.plan.manifest
        first = sum(part.records for part in self.parts)
        self.progress(Progress("export", first, manifest.records, 0))
        with contextlib.closing(self._read_records(first)) as records:
            for split, _, stop in [("", 0, manifest.records)] if self.plan.kind.one_file else manifest.ranges:
                while first < stop:
                    part = self._write_shard(records, split, stop - first)
                    self.staging.mark_complete(len(self.parts), part)
                    self.parts.append(part)
                    first += part.records
        return self.parts

    def _write_shard(self, records: Iterator[Record], split: str, most: int) -> ShardReceipt:
        """Writes at most ``most`` records of a split to a new durable shard, and returns its receipt."""
        number, written = sum(part.split == split for part in self.parts), _Written()
        lines_path = self.staging.lines_path(len(self.parts))
        with lines_path.open("wb") as lines:
            taken = self._take_records(records, most, lines, written)
            file = self.output.write_shard(number, split, taken)
            if next(taken, None) is not None:
                raise RuntimeError(f"the export {self.plan.kind.name!r} has to write all records of a shard")
        self.output.sync(file)  # makes it durable
        measured = file or ("" if self.plan.kind.one_file else None)
        return ShardReceipt(
            split=split,
            records=written.records,
            file=file,
            size=0 if measured is None else (self.staging.path / measured).stat().st_size,
            records_digest=records_digest(np.array(written.checksums, np.uint64), np.array(written.rows, np.uint64)),
            lines=lines_path.stat().st_size,
        )

    def _take_records(
        self, records: Iterator[Record], most: int, lines: IO[bytes], written: _Written
    ) -> Iterator[Record]:
        """Yields the records of a shard. Writes the line of each, and counts it, when the export takes the next."""
        limit = self.plan.shard_bytes
        if limit is None:
            limit, most = _CHUNK_BYTES, min(most, _CHUNK_RECORDS)
        for record in records:
            yield record
            if self.plan.has_lines:
                key = {} if self.plan.kind.keeps_keys else {"key": record.key}
                lines.write(format_record_line(self._line_columns(record), record.stored, **key, **record.line))
            if isinstance(record.image, bytes) and self.plan.recoding.new:
                written.checksums.append(image_checksum(record.image))
                written.rows.append(row_checksum(self.plan.manifest.columns, record.stored))
            image_bytes = len(record.image) if isinstance(record.image, bytes) else record.image.nbytes
            written.records += 1
            written.nbytes += image_bytes
            self.nbytes += image_bytes
            # After some records, and after the last.
            if record.number % _REPORT_EVERY == 0 or record.number + 1 == self.plan.manifest.records:
                self.progress(Progress("export", record.number + 1, self.plan.manifest.records, self.nbytes))
            if written.records >= most or written.nbytes >= limit:
                return

    def _line_columns(self, record: Record) -> list[Column]:
        """Returns the columns whose values go into the line of a record, with their companions."""
        # These are the columns that the format does not hold, or does not hold exactly in this record.
        columns = (self.columns[name] for name in (*self.not_held, *record.inexact))
        return [each for column in columns for each in (column, *column.companions)]

    def _read_records(self, first: int) -> Generator[Record]:
        """Yields the records from number ``first`` on, in order."""
        ranges = self.plan.manifest.ranges
        wanted = ((number, name) for name, start, stop in ranges for number in range(max(first, start), stop))
        if self.plan.recoding.recode is None:
            yield from (self._read_record(*pair) for pair in wanted)
            return
        # Re-encoding takes most of the time: use several threads.
        workers = self.plan.options.workers or default_workers()
        yield from ordered_map(lambda pair: self._read_record(*pair), wanted, workers)

    def _read_record(self, number: int, split: str) -> Record:
        """Reads a record, verifies its checksums, and re-encodes its image if the plan says so."""
        row = self.records.prove_fields(number)
        key = bytes(row["key"]).decode("utf-8", "surrogateescape")
        image: Any = image_from_stored(self.plan.reader.manifest, self.records.prove_image(number), row.get("shape"))
        recode = self.plan.recoding.recode
        if recode is not None:
            image = recode(key, image)
        return Record(number, key, split, image, row, self.columns)


def _make_report(plan: ExportPlan, written: ExportManifest, started: float, resumed: int) -> ExportReport:
    """Makes the report of a finished export from its export manifest."""
    return ExportReport(
        destination=plan.destination,
        kind=plan.kind.name,
        manifest=written.manifest,
        shards=len(written.shards),
        losses=plan.losses,
        disk_bytes=disk_bytes(plan.destination),
        seconds=time.monotonic() - started,
        resumed=resumed,
    )

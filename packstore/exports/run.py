"""``export``: writes a store in a foreign format, and publishes it when complete."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from packstore.core.checksums import image_checksum, joined_records_digest, records_digest, row_checksum
from packstore.core.errors import SampleError, printable
from packstore.core.export_manifest import ROWS_FILE, ExportManifest, Shard, row_line
from packstore.core.files import refuse_empty, sync_file_system, sync_tree, writing
from packstore.core.manifest import Column, Manifest
from packstore.core.parallel import default_workers, ordered_map
from packstore.core.progress import Progress, ProgressCallback, no_progress, progress_callback
from packstore.core.urls import location
from packstore.exports.base import Export, Record
from packstore.exports.plan import ExportOptions, ExportPlan, check_space, plan_export, value_columns
from packstore.exports.recoding import image_of
from packstore.exports.staging import ExportStaging, Part, was_published
from packstore.exports.to_url import local_destination
from packstore.stores.base import disk_bytes
from packstore.stores.builder.work_directory import WorkDirectory
from packstore.stores.records import ProvenRecords

_CHUNK_BYTES, _CHUNK_RECORDS = 64 << 20, 2000
"""How much is done again at most after an interruption, where each record is a file of its own."""
_REPORT_EVERY = 64


@dataclass(frozen=True, slots=True, repr=False)
class ExportReport:
    """What an export made.

    Attributes:
        destination: Where it lies.
        kind: Its kind.
        manifest: Of the records that were written; with ``encode`` other than the store's.
        shards: Number of shards; 0 where each record is a file of its own, or all are in one file.
        losses: What others than packstore do not get from it, a line each.
        disk_bytes: Bytes that it takes on disk.
        seconds: How long it took.
        resumed: Records that an interrupted run had written already.
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


def export(
    store: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    to: str | None = None,
    encode: Literal["jpeg", "png"] | None = None,
    quality: int | None = None,
    shard_size: int | str | None = None,
    bare: bool = False,
    overwrite: bool = False,
    restart: bool = False,
    workers: int | None = None,
    progress: bool | ProgressCallback = False,
) -> ExportReport:
    """Writes a store in a format of others. Importing the export gives the same dataset, with the same digest.

    What the format cannot hold is kept in ``packstore.json``, and per record in ``packstore.rows.jsonl``; other readers
    pass these over. Each record is proven by its checksums when it is read. The export appears under its name only when
    it is complete; a run that was killed is gone on with, shard by shard.

    Args:
        store: The store, or its URL. It stays as it is.
        destination: A new folder or file; its suffix chooses the kind (``.zip``). At a URL it is made in a temporary
            directory first, and uploaded then.
        to: The kind instead of going by the suffix, such as ``webdataset``.
        encode: Make image files of a store's pixels: ``png`` without loss, or ``jpeg``; of a store of files, new ones.
            None refuses where a format cannot hold the images as they are.
        quality: Of ``encode="jpeg"``, 1 … 100; None for 90.
        shard_size: About how many bytes of images a shard has, as a number or as text (``500MB``); None for the kind's
            usual size.
        bare: Leave out ``packstore.json`` and ``packstore.rows.jsonl``: what the format cannot hold is lost then, and
            nothing tells that the export is packstore's, so ``overwrite`` does not replace it.
        overwrite: Replace an existing export.
        restart: Do not go on from an interrupted run.
        workers: Threads for ``encode``; None for one a core.
        progress: True for a bar, in a terminal or a notebook; or a function that is called now and then.

    Returns:
        What was done, and what other readers do not get.

    Raises:
        UsageError: An unknown kind, or images that the format cannot hold unless they are encoded.
        StoreError: The store does not open; :class:`CorruptRecordError` for a damaged record.
        DestinationError: The destination may not be written or has too little space.
    """
    options = ExportOptions(
        to=to,
        encode=encode,
        quality=quality,
        shard_size=shard_size,
        bare=bare,
        overwrite=overwrite,
        restart=restart,
        workers=workers,
    )
    started = time.monotonic()
    refuse_empty(store)
    refuse_empty(destination)
    place = location(destination)
    with progress_callback(progress) as report, ExitStack() as stack:
        path, publish = stack.enter_context(local_destination(place, overwrite=overwrite))
        done = run_export(plan_export(location(store), path, options, stack), report, started)
        publish(report)
        return replace(done, destination=place)


def run_export(
    plan: ExportPlan, progress: ProgressCallback = no_progress, started: float | None = None
) -> ExportReport:
    """Runs a plan of :func:`plan_export`; see :func:`export`."""
    started = time.monotonic() if started is None else started
    if was_published(plan.destination, plan.identity):
        WorkDirectory(plan.destination).remove()
        return _report(plan, plan.manifest, 0, started, plan.manifest.records)
    check_space(plan)
    staging = ExportStaging(
        plan.destination,
        plan.kind,
        plan.identity,
        overwrite=plan.options.overwrite,
        restart=plan.options.restart,
    )
    made = plan.new_export(staging.path)
    try:
        with writing(plan.destination):
            done = staging.parts(made)
            resumed = sum(part.records for part in done)
            if done and plan.kind.one_file:
                made.go_on(done[-1].size)
            made.export_manifest = ExportManifest(
                kind=plan.kind.name,
                source=plan.kind.source,
                manifest=plan.manifest,
                held=plan.held,
                image=plan.recoding.form,
                rows=plan.has_lines,
            )
            parts = _Run(plan, made, staging, done, progress).write()
            manifest = plan.manifest
            if plan.recoding.new:
                manifest = replace(manifest, records_digest=joined_records_digest((p.digest, p.records) for p in parts))
            shards = tuple(Shard(p.file, p.split, p.records) for p in parts if p.file is not None)
            export_manifest = replace(made.export_manifest, manifest=manifest, shards=shards)
            lines = staging.join_lines(len(parts)) if plan.has_lines else None
            if lines is not None and not plan.kind.one_file:
                lines = lines.rename(staging.path / ROWS_FILE)
            made.finish(export_manifest, lines)
            if plan.options.bare and lines is not None:
                lines.unlink()
        staging.publish(sync_file_system if plan.kind.shard_bytes is None else sync_tree)
    except BaseException as error:
        made.abort()
        if staging.leave(made):
            error.add_note(
                f"what is exported so far is kept in {printable(str(staging.work.path))}: the same command goes on "
                "from there, and packstore clean removes it"
            )
        raise
    return _report(plan, manifest, len(export_manifest.shards), started, resumed)


class _Run:
    """Writes all shards that are not done yet."""

    def __init__(
        self,
        plan: ExportPlan,
        made: Export,
        staging: ExportStaging,
        done: list[Part],
        progress: ProgressCallback,
    ) -> None:
        self._plan = plan
        self._staging = staging
        self._parts = done
        self._progress = progress
        self._records = ProvenRecords(plan.reader)
        self._columns = {column.name: column for column in plan.manifest.columns}
        self._not_held = [name for name in value_columns(plan.manifest) if name not in plan.held]
        self._export = made
        self._bytes = 0

    def write(self) -> list[Part]:
        """All shards, with those that were done before."""
        manifest = self._plan.manifest
        first = sum(part.records for part in self._parts)
        self._progress(Progress("export", first, manifest.records, 0))
        with contextlib.closing(self._read(first)) as records:
            for split, stop in _ranges(manifest, self._plan.kind.one_file):
                while first < stop:
                    part = self._write_shard(records, split, stop - first)
                    self._staging.done(len(self._parts), part)
                    self._parts.append(part)
                    first += part.records
        return self._parts

    def _write_shard(self, records: Iterator[Record], split: str, most: int) -> Part:
        number = len(self._parts)
        checksums: list[int] = []
        rows: list[int] = []
        limit, limit_records = self._plan.shard_bytes, most
        if limit is None:
            limit, limit_records = _CHUNK_BYTES, min(most, _CHUNK_RECORDS)
        nbytes = count = 0
        shard = self._export.begin(sum(part.split == split for part in self._parts), split)
        try:
            with self._staging.lines(number).open("wb") as lines:
                for record in records:
                    facts = shard.add(record)
                    if self._plan.has_lines:
                        key = {} if self._plan.kind.keeps_keys else {"key": record.key}
                        lines.write(row_line(self._in_line(record), record.at_rest, **key, **facts))
                    if isinstance(record.image, bytes) and self._plan.recoding.new:
                        checksums.append(image_checksum(record.image))
                        rows.append(row_checksum(self._plan.manifest.columns, record.at_rest))
                    nbytes += len(record.image) if isinstance(record.image, bytes) else record.image.nbytes
                    count += 1
                    self._report(record, nbytes)
                    if count >= limit_records or (limit is not None and nbytes >= limit):
                        break
            shard.close()
        except BaseException:
            shard.abort()
            raise
        self._bytes += nbytes
        self._export.sync(shard)
        file = shard.file or ("" if self._plan.kind.one_file else None)
        return Part(
            split=split,
            records=count,
            file=shard.file,
            size=0 if file is None else (self._staging.path / file).stat().st_size,
            digest=records_digest(np.array(checksums, np.uint64), np.array(rows, np.uint64)),
            lines=self._staging.lines(number).stat().st_size,
        )

    def _in_line(self, record: Record) -> list[Column]:
        """The columns whose values go into the line of a record."""
        columns = (self._columns[name] for name in (*self._not_held, *record.kept))
        return [each for column in columns for each in (column, *column.companions)]

    def _report(self, record: Record, nbytes: int) -> None:
        records = self._plan.manifest.records
        if record.number % _REPORT_EVERY == 0 or record.number + 1 == records:
            self._progress(Progress("export", record.number + 1, records, self._bytes + nbytes))

    def _read(self, first: int) -> Generator[Record]:
        """The records from ``first`` on, as they are to be written."""
        splits = self._plan.manifest.splits or ()
        names = (split.name for split in splits for _ in range(len(split)))
        numbers = range(self._plan.manifest.records)
        wanted = ((number, next(names, "")) for number in numbers)
        wanted = (pair for pair in wanted if pair[0] >= first)
        if self._plan.recoding.recode is None:
            yield from (self._record(*pair) for pair in wanted)
            return
        workers = self._plan.options.workers or default_workers()
        yield from ordered_map(lambda pair: self._record(*pair), wanted, workers)

    def _record(self, number: int, split: str) -> Record:
        row = self._records.row(number)
        key = bytes(row["key"]).decode("utf-8", "surrogateescape")
        image: Any = image_of(self._plan.reader.manifest, self._records.image(number), row.get("shape"))
        recode = self._plan.recoding.recode
        if recode is not None:
            try:
                image = recode(key, image)
            except ValueError as error:
                raise SampleError(key, printable(str(error))) from error
        return Record(number, key, split, image, row, self._columns)


def _ranges(manifest: Manifest, one_file: bool) -> list[tuple[str, int]]:
    """The splits, each with the number of the record after its last; all as one for an export of one file."""
    if one_file or not manifest.splits:
        return [("", manifest.records)]
    return [(split.name, split.stop) for split in manifest.splits]


def _report(plan: ExportPlan, manifest: Manifest, shards: int, started: float, resumed: int) -> ExportReport:
    return ExportReport(
        destination=plan.destination,
        kind=plan.kind.name,
        manifest=manifest,
        shards=shards,
        losses=plan.losses,
        disk_bytes=disk_bytes(plan.destination),
        seconds=time.monotonic() - started,
        resumed=resumed,
    )

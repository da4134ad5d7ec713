"""``convert``: packs a source into a store, checks everything on the way, and publishes it when complete."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import packstore
from packstore.core.checksums import ROW_CHECKSUM
from packstore.core.errors import SampleError, SourceError, printable
from packstore.core.manifest import Column, Manifest, Origin, Skipped
from packstore.core.parallel import default_workers, ordered_map, ordered_pieces
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.images.encode import DatasetStatistics, Encoder
from packstore.packing.batches import DECODE_BYTES, DECODE_RECORDS, PASS_BYTES, PASS_RECORDS, Packed, batches, pack
from packstore.packing.plan import (
    ConvertOptions,
    Plan,
    check_space,
    make_encoder,
    make_plan,
    recorded_options,
    with_overrides,
)
from packstore.packing.resume import PositionTracker, ResumedRecords, identity_of
from packstore.sources.base import Entry
from packstore.stores import create_store
from packstore.stores.base import disk_bytes
from packstore.stores.builder import StoreBuilder
from packstore.stores.builder.interrupted import end_published_run

_SMALL_FILE = 16 << 10


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """What a conversion did.

    Attributes:
        destination: The store.
        manifest: Its manifest.
        source_bytes: Bytes of the images that were read.
        disk_bytes: Bytes that the store takes on disk.
        seconds: From the survey to the published store.
        skipped: Samples left out by policy.
        ignored: Files of the source passed over because they are not images, by reason.
        resumed: Records that an interrupted run had packed already.
        kept: For ``seekable``: files that this run kept as they are because they cannot be made so, by reason. The
            manifest's option ``not_seekable`` counts all such records of the store.
        lossy: For ``seekable``: images that were no JPEG and that this run made one of, so that pixels changed.
    """

    destination: Path
    manifest: Manifest
    source_bytes: int
    disk_bytes: int
    seconds: float
    skipped: tuple[Skipped, ...]
    ignored: Mapping[str, int]
    resumed: int = 0
    kept: Mapping[str, int] = field(default_factory=dict)
    lossy: int = 0


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    options: ConvertOptions | None = None,
    *,
    progress: ProgressCallback = no_progress,
    **overrides: Any,
) -> ConvertReport:
    """Packs ``source`` into a new store at ``destination``.

    The store appears under its name only when it is complete. A run that was killed, or that failed after a few
    seconds, leaves what it has done in a hidden directory beside it; the same conversion goes on from there.

    Args:
        source: An image folder, a flat folder, CIFAR-10 or CIFAR-100 in any published layout, or a store.
        destination: Where the store goes; its suffix chooses the format.
        options: How; defaults where None.
        progress: Called after each batch.
        **overrides: Fields of :class:`ConvertOptions` that replace those of ``options``.

    Returns:
        What was done: manifest, bytes, seconds, what was skipped and ignored.

    Raises:
        UsageError: Unknown options, or options that do not go together, or not with this source.
        SourceError: The source cannot be read, or changed meanwhile; :class:`SampleError` for one bad sample.
        DestinationError: The destination may not be written or has too little space.
        StoreError: Writing failed.
    """
    chosen = with_overrides(options or ConvertOptions(), overrides)
    started = time.monotonic()
    plan = make_plan(Path(source), Path(destination), chosen, progress)
    try:
        return run_plan(plan, progress, started)
    finally:
        plan.source.close()


def run_plan(plan: Plan, progress: ProgressCallback = no_progress, started: float | None = None) -> ConvertReport:
    """Runs a plan of :func:`packstore.packing.plan.make_plan`; see :func:`convert`."""
    started = time.monotonic() if started is None else started
    check_space(plan)
    workers = plan.options.workers or default_workers()
    if plan.auto_normalize:
        normalization = _statistics(plan, workers, progress).normalization()
        plan = replace(plan, encode=replace(plan.encode, normalization=normalization), auto_normalize=False)
    encoder = plan.encoder()
    if encoder.passes_through:
        # Reading a small file is system calls and Python: threads would only wait for each other's GIL. Measured for
        # 50,000 files of 2 KB on 2 cores: 0.92 s with one thread beside the writing one, 1.08 s with two. With larger
        # files the writing thread has as much to do as a core can: 600 of 110 KB take 68 ms so, and 79 ms with two.
        small = plan.survey.size_bytes < _SMALL_FILE * plan.survey.records
        workers = plan.options.workers or (1 if small else max(1, workers - 1))
    columns = _columns(encoder, plan)
    reached = PositionTracker()
    kept, counted, lossy = Counter[str](), Counter[str](), 0
    if encoder.encoding.waits and not encoder.passes_through and plan.options.workers is None:
        # These threads wait for other programs to start and to end, and cores should not wait with them. Measured on 2
        # cores: 122 images/s with 2 threads, 142 with 3, 142 with 4.
        workers += (workers + 1) // 2
    source_bytes, total = 0, plan.survey.records
    stamp = plan.source.stamp()
    identity = identity_of(plan, encoder, columns)
    published = end_published_run(plan.destination, identity, overwrite=plan.options.overwrite)
    if published is not None:
        return _report(plan, published, 0, started, (), published.records)
    builder = create_store(
        plan.destination,
        format=plan.format,
        encoding=plan.encode.encoding,
        columns=columns,
        overwrite=plan.options.overwrite,
        shard_size=plan.options.shard_size,
        identity=identity,
        restart=plan.options.restart,
    )
    options = recorded_options(plan)

    def describe() -> None:
        builder.describe(
            origin=_origin(plan),
            normalization=plan.encode.normalization,
            options=options,
            versions={"packstore": packstore.__version__} | encoder.versions(),
        )

    try:
        with builder:
            describe()
            progress(Progress("pack", 0, total, 0))
            resumed = ResumedRecords(plan, builder)
            for packed in _records(plan, encoder, resumed, workers):
                _append(builder, packed, columns)
                reached.add(packed.seen, packed.skipped)
                kept.update(packed.kept)
                lossy += packed.lossy
                counted.update(encoder.encoding.count(packed.records))
                builder.checkpoint(reached.position)
                source_bytes += packed.source_bytes
                progress(Progress("pack", reached.consumed, total, source_bytes))
            if reached.consumed != total:
                raise SourceError(
                    f"{plan.source.path} changed while it was packed: {total} images at first, {reached.consumed} in "
                    "the end; run the conversion again when nothing writes to it"
                )
            if plan.source.stamp() != stamp:
                raise SourceError(f"{plan.source.path} changed while it was packed; pack it when nothing writes to it")
            if reached.consumed == len(reached.skipped):
                raise SourceError(f"{plan.source.path}: all {total} images were skipped, so there is nothing to pack")
            if counted:
                options.update(counted)
                describe()
            skipped = (*_inherited_skips(plan), *reached.skipped)
            manifest = builder.commit(skipped=skipped, position=reached.position)
    except BaseException as error:
        if builder.kept is not None:
            error.add_note(
                f"what is packed so far is kept in {printable(str(builder.kept))}: the same command goes on from "
                "there, and packstore clean removes it"
            )
        raise
    report = _report(plan, manifest, source_bytes, started, tuple(reached.skipped), resumed.records)
    return replace(report, kept=dict(kept), lossy=lossy)


def _report(
    plan: Plan, manifest: Manifest, source_bytes: int, started: float, skipped: tuple[Skipped, ...], resumed: int
) -> ConvertReport:
    return ConvertReport(
        destination=plan.destination,
        manifest=manifest,
        source_bytes=source_bytes,
        disk_bytes=disk_bytes(plan.destination),
        seconds=time.monotonic() - started,
        skipped=skipped,
        ignored=plan.survey.ignored,
        resumed=resumed,
    )


def _records(plan: Plan, encoder: Encoder, resumed: ResumedRecords, workers: int) -> Iterator[Packed]:
    """The records of an interrupted run, then those that are left to pack."""
    yield from resumed
    yield from _packed_batches(plan, encoder, resumed.rest, workers)


def _packed_batches(plan: Plan, encoder: Encoder, entries: Iterator[Entry], workers: int) -> Iterator[Packed]:
    limits = (PASS_RECORDS, PASS_BYTES) if encoder.passes_through else (DECODE_RECORDS, DECODE_BYTES)
    source, skip = plan.source, plan.options.on_error == "skip"
    return ordered_pieces(
        lambda batch: pack(batch, source, encoder, skip),
        batches(entries, *limits),
        workers,
        size=lambda packed: packed.record_bytes,
    )


def _append(builder: StoreBuilder, packed: Packed, columns: tuple[Column, ...]) -> None:
    entries = packed.entries
    first = 0
    while first < len(entries):
        split = entries[first].split
        last = first + 1
        while last < len(entries) and entries[last].split == split:
            last += 1
        run = slice(first, last)
        values: dict[str, Any] = {"key": [entry.key for entry in entries[run]]}
        labels = zip(*(entry.labels for entry in entries[run]), strict=True)
        names = [c.name for c in columns if c.name not in ("image", "shape", "key", "checksum", ROW_CHECKSUM.name)]
        values.update({name: np.array(v, np.int64) for name, v in zip(names, labels, strict=True)})
        if any(c.name == "shape" for c in columns):
            values["shape"] = np.array(packed.shapes[run], np.int32)
        checksums = np.array(packed.checksums[run], np.uint64)
        builder.append(packed.records[run], values, split, checksums=checksums)
        first = last


def _statistics(plan: Plan, workers: int, progress: ProgressCallback) -> DatasetStatistics:
    """Mean and standard deviation over the training split (or all, where there is none), as the images will be
    stored: resized, cropped."""
    names = list(plan.survey.splits)
    split = next((name for name in names if name.lower().startswith("train")), None)
    total = plan.survey.splits[split] if split else plan.survey.records
    pixels = make_encoder(replace(plan.encode, encoding="uint8", normalization=None), plan.survey, plan.shape)
    source, skip = plan.source, plan.options.on_error == "skip"

    def measure(batch: list[Entry]) -> tuple[int, int, DatasetStatistics]:
        statistics = DatasetStatistics()
        for entry in batch:
            try:
                record, shape, *_ = pixels(entry.key, source.read(entry))
            except SampleError:
                if not skip:
                    raise
                continue  # it is counted and named when the conversion itself meets it
            statistics.update(np.frombuffer(record, np.uint8).reshape(shape or pixels.columns()[0].shape))
        return len(batch), sum(entry.size_bytes for entry in batch), statistics

    statistics = DatasetStatistics()
    done = done_bytes = 0
    entries = source.entries(split or plan.options.split)
    for count, nbytes, part in ordered_map(measure, batches(entries, DECODE_RECORDS, DECODE_BYTES), workers):
        statistics.merge(part)
        done, done_bytes = done + count, done_bytes + nbytes
        progress(Progress("statistics", done, total, done_bytes))
    return statistics


def _columns(encoder: Encoder, plan: Plan) -> tuple[Column, ...]:
    image, *shape = encoder.columns()
    key, checksum = Column("key", "ragged", "uint8"), Column("checksum", "fixed", "uint64")
    return (image, *shape, *plan.survey.columns, key, checksum, ROW_CHECKSUM)


def _origin(plan: Plan) -> Origin:
    name = plan.source.path.resolve().name.encode("utf-8", "backslashreplace").decode("utf-8")
    store = plan.survey.store
    digest = store.dataset_digest if store else None
    return Origin(plan.source.kind, name, sum(plan.survey.ignored.values()), digest)


def _inherited_skips(plan: Plan) -> tuple[Skipped, ...]:
    return plan.survey.store.skipped if plan.survey.store else ()

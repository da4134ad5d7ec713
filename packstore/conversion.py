"""``convert``: a source into a store, everything checked on the way and published only when complete."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

import packstore
from packstore.encode import DatasetStatistics, Encoder
from packstore.errors import CorruptRecordError, SampleError, SourceError
from packstore.manifest import Column, Manifest, Origin, Skipped
from packstore.parallel import default_workers, ordered_map, ordered_pieces
from packstore.plan import ConvertOptions, Plan, check_space, make_encoder, make_plan, recorded_options, with_overrides
from packstore.progress import Progress, ProgressCallback, no_progress
from packstore.sources.base import Entry, Source
from packstore.stores import create_store
from packstore.stores.base import Buffer, disk_bytes
from packstore.stores.builder import StoreBuilder
from packstore.stores.rows import ROW_CHECKSUM

# A batch is what one thread works on at a time. Files that pass through are cheap each, so a batch holds many; decoded
# images are large (a 1 MB JPEG has 10 MB and more of pixels), so a batch holds few. How large they come out shows only
# when they are decoded (50 KB of PNG can have 100 MB of pixels), so a worker hands over what it has at each
# _PIECE_BYTES, and ordered_pieces bounds what is in flight.
_PASS_RECORDS, _PASS_BYTES = 256, 4 << 20
_DECODE_RECORDS, _DECODE_BYTES = 16, 1 << 20
_PIECE_BYTES = 4 << 20
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
    """

    destination: Path
    manifest: Manifest
    source_bytes: int
    disk_bytes: int
    seconds: float
    skipped: tuple[Skipped, ...]
    ignored: Mapping[str, int]


class _Packed(NamedTuple):
    """A batch, or a part of one, that a worker has finished; the first four lists are parallel."""

    entries: list[Entry]
    records: list[Buffer]
    checksums: list[int]
    shapes: list[tuple[int, ...] | None]
    skipped: list[Skipped]
    source_bytes: int
    record_bytes: int


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    options: ConvertOptions | None = None,
    *,
    progress: ProgressCallback = no_progress,
    **overrides: Any,
) -> ConvertReport:
    """Packs ``source`` into a new store at ``destination``.

    The store appears under its name only when it is complete; an error or an interrupt leaves nothing behind.

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
    """Runs a plan of :func:`packstore.plan.make_plan`; see :func:`convert`."""
    started = time.monotonic() if started is None else started
    check_space(plan)
    workers = plan.options.workers or default_workers()
    if plan.auto_normalize:
        normalization = _statistics(plan, workers, progress).normalization()
        plan = replace(plan, encode=replace(plan.encode, normalization=normalization), auto_normalize=False)
    encoder = plan.encoder()
    if encoder.passes_through and plan.survey.size_bytes < _SMALL_FILE * plan.survey.records:
        # Reading a small file is system calls and Python: threads would only wait for each other's GIL. Measured for
        # 50,000 files of 2 KB on 2 cores: 0.92 s with one thread beside the writing one, 1.08 s with two.
        workers = min(workers, plan.options.workers or 1)
    columns = _columns(encoder, plan)
    skipped: list[Skipped] = []
    source_bytes = done = 0
    with create_store(
        plan.destination,
        format=plan.format,
        encoding=plan.encode.encoding,
        columns=columns,
        overwrite=plan.options.overwrite,
        shard_size=plan.options.shard_size,
    ) as builder:
        total = plan.survey.records
        progress(Progress("pack", 0, total, 0))
        for packed in _packed_batches(plan, encoder, workers):
            _append(builder, packed, columns)
            skipped += packed.skipped
            source_bytes += packed.source_bytes
            done += len(packed.entries) + len(packed.skipped)
            progress(Progress("pack", done, total, source_bytes))
        if done != total:
            raise SourceError(
                f"{plan.source.path} changed while it was packed: {total} images at first, {done} in the end; "
                "run the conversion again when nothing writes to it"
            )
        if done == len(skipped):
            raise SourceError(f"{plan.source.path}: all {done} images were skipped, so there is nothing to pack")
        manifest = builder.commit(
            origin=_origin(plan),
            normalization=plan.encode.normalization,
            options=recorded_options(plan),
            versions=_versions(encoder),
            skipped=(*_inherited_skips(plan), *skipped),
        )
    return ConvertReport(
        destination=plan.destination,
        manifest=manifest,
        source_bytes=source_bytes,
        disk_bytes=disk_bytes(plan.destination),
        seconds=time.monotonic() - started,
        skipped=tuple(skipped),
        ignored=plan.survey.ignored,
    )


def _packed_batches(plan: Plan, encoder: Encoder, workers: int) -> Iterator[_Packed]:
    limits = (_PASS_RECORDS, _PASS_BYTES) if encoder.passes_through else (_DECODE_RECORDS, _DECODE_BYTES)
    source, skip = plan.source, plan.options.on_error == "skip"
    entries = source.entries(plan.options.split)
    return ordered_pieces(
        lambda batch: _pack(batch, source, encoder, skip),
        batches(entries, *limits),
        workers,
        size=lambda packed: packed.record_bytes,
    )


def _pack(batch: list[Entry], source: Source, encoder: Encoder, skip: bool) -> Iterator[_Packed]:
    """Yields the records of ``batch`` in parts of about ``_PIECE_BYTES``."""
    read, checksum = source.read, xxhash.xxh3_64_intdigest
    remaining = iter(batch)
    while True:
        entries: list[Entry] = []
        records: list[Buffer] = []
        checksums: list[int] = []
        shapes: list[tuple[int, ...] | None] = []
        skipped: list[Skipped] = []
        source_bytes = record_bytes = 0
        for entry in remaining:
            source_bytes += entry.size_bytes
            try:
                record, shape = encoder(entry.key, read(entry))
            except (SampleError, CorruptRecordError) as error:
                if not skip:
                    raise
                skipped.append(Skipped(entry.key, error.reason if isinstance(error, SampleError) else str(error)))
                continue
            entries.append(entry)
            records.append(record)
            checksums.append(checksum(record))
            shapes.append(shape)
            record_bytes += len(record)
            if record_bytes >= _PIECE_BYTES:
                break
        if not entries and not skipped:
            return
        yield _Packed(entries, records, checksums, shapes, skipped, source_bytes, record_bytes)


def _append(builder: StoreBuilder, packed: _Packed, columns: tuple[Column, ...]) -> None:
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


def batches(entries: Iterable[Entry], max_records: int, max_bytes: int) -> Iterator[list[Entry]]:
    """Entries in lists of at most ``max_records`` and about ``max_bytes``."""
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        batch.append(entry)
        size += entry.size_bytes
        if len(batch) >= max_records or size >= max_bytes:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


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
                record, shape = pixels(entry.key, source.read(entry))
            except SampleError:
                if not skip:
                    raise
                continue  # it is counted and named when the conversion itself meets it
            statistics.update(np.frombuffer(record, np.uint8).reshape(shape or pixels.columns()[0].shape))
        return len(batch), sum(entry.size_bytes for entry in batch), statistics

    statistics = DatasetStatistics()
    done = done_bytes = 0
    entries = source.entries(split or plan.options.split)
    for count, nbytes, part in ordered_map(measure, batches(entries, _DECODE_RECORDS, _DECODE_BYTES), workers):
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


def _versions(encoder: Encoder) -> dict[str, str]:
    versions = {"packstore": packstore.__version__}
    if not encoder.passes_through:
        versions["decoder"] = encoder.decoder_version()
    return versions

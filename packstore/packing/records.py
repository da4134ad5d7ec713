"""Packs the records of a plan into a store builder: the records of a whole conversion, or of one shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import packstore
from packstore.core.checksums import ROW_CHECKSUM
from packstore.core.column import CHECKSUM, KEY, LINK_COLUMNS, SEEK_INDEX
from packstore.core.columns import Buffer
from packstore.core.manifest import Column, Manifest, Origin, Skipped
from packstore.core.parallel import ordered_flat_map
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.images.encode import Encoder
from packstore.packing.batches import (
    DECODE_BYTES,
    DECODE_RECORDS,
    LINK_BYTES,
    PASS_BYTES,
    PASS_RECORDS,
    PackedBatch,
    group_entries,
    pack_batch,
)
from packstore.packing.frames import FrameAligner
from packstore.packing.further_images import FileChecks
from packstore.packing.plan import Plan
from packstore.packing.recorded_options import options_to_record
from packstore.packing.shard_rule import ShardCuts
from packstore.packing.values import ValueConverter, stack_values
from packstore.sources.base import Entry, Source, Survey
from packstore.sources.ledger import file_counts
from packstore.stores import create_store
from packstore.stores.builder import StoreBuilder


@dataclass(slots=True)
class PackedShard:
    """Result of packing one shard.

    Attributes:
        manifest: Manifest of the shard; None if all samples were skipped and there is no shard.
        skipped: Samples left out by policy.
        counted: Numbers of records to add to the manifest's options, by option.
        kept: Number of progressive files that could not be made baseline, by reason.
        oriented: Number of images whose EXIF orientation asks for a rotation or flip.
        palette: Number of PNG files with a palette, by class; class 0 without labels.
        source_bytes: Bytes of the images that were read.
    """

    manifest: Manifest | None = None
    skipped: list[Skipped] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    oriented: int = 0
    palette: Counter[int] = field(default_factory=Counter)
    source_bytes: int = 0


def pack_shard(
    plan: Plan, entries: Iterable[Entry], path: Path, progress: ProgressCallback = no_progress
) -> PackedShard:
    """Packs one shard of a plan to ``path``. It has the same bytes as in the store of the whole plan.

    Writes nothing if all of its samples are skipped. Raises :class:`SampleError` at a bad sample, unless ``on_error``
    is ``skip``. The shards of a plan can be packed in any order and by any number of machines.

    Args:
        plan: The plan, its normalisation already computed.
        entries: Entries of the shard, see :meth:`packstore.packing.shard_rule.ShardRule.split_entries`.
        path: Destination of the shard.
        progress: Called after each batch.
    """
    encoder, result = plan.make_encoder(), PackedShard()
    columns, workers = list_store_columns(plan, encoder), plan.options.workers or plan.source.workers()
    with create_store(path, format=plan.format, encoding=plan.encode.encoding, columns=columns) as builder:
        describe_store(builder, plan, encoder)
        for packed in pack_batches(plan, encoder, iter(entries), workers):
            append_batch(builder, packed, plan.survey)
            result.skipped += packed.skipped
            result.kept.update(packed.kept)
            result.oriented += len(packed.oriented)
            result.counted.update(how for _, how in packed.unified)
            result.palette.update(first_label(packed.seen[place]) for place in packed.palette)
            result.source_bytes += packed.source_bytes
            progress(Progress("pack", builder.records + len(result.skipped), None, result.source_bytes))
        if builder.records:
            result.manifest = builder.commit()
    return result


def first_label(entry: Entry) -> int:
    """Returns the class number of an entry: its first label, or 0 without labels."""
    return entry.labels[0] if entry.labels else 0


def describe_store(builder: StoreBuilder, plan: Plan, encoder: Encoder) -> None:
    """Sets origin, normalisation, options and libraries' versions in a builder's manifest."""
    builder.describe(
        origin=describe_source_origin(plan),
        normalization=plan.encode.normalization,
        options=options_to_record(plan),
        versions={"packstore": packstore.__version__} | encoder.versions(),
    )


def pack_batches(
    plan: Plan, encoder: Encoder, entries: Iterator[Entry], workers: int, aligner: FrameAligner | None = None
) -> Iterator[PackedBatch]:
    """Reads and encodes entries with ``workers`` threads; yields the packed batches in the entries' order.

    ``aligner``: moves annotations; None makes one for the plan.

    Raises the errors of :func:`pack_batch`. Under ``on_error="skip"`` skips bad samples.
    """
    limits = (PASS_RECORDS, PASS_BYTES) if encoder.passes_through else (DECODE_RECORDS, DECODE_BYTES)
    # Entries of sources that prepare them may hold their images.
    if plan.options.link and not plan.index and type(plan.source).fetch is Source.fetch:
        limits = (PASS_RECORDS, LINK_BYTES)
    source, skip = plan.source, plan.options.on_error == "skip"
    checks = FileChecks(plan.survey, plan.encode, plan.options) or None
    converter = ValueConverter(plan.survey, checks, aligner or plan.make_aligner())
    linker = None
    if plan.options.link:
        from packstore.packing.linking import Linker

        linker = Linker(source, plan.relative_link_folder)
    return ordered_flat_map(
        lambda batch: pack_batch(batch, source, encoder, converter, skip, plan.index, linker),
        group_entries(source.fetch(entries), *limits, source.nbytes),
        workers,
        size=lambda packed: packed.record_bytes,
    )


def _find_shard_starts(packed: PackedBatch, cuts: ShardCuts) -> set[int]:
    """Returns the positions in ``packed.entries`` at which shards begin, and advances ``cuts``.

    If the first entry of a shard was skipped, the next record begins the shard.
    """
    firsts, place = set(), 0
    for entry in packed.seen:
        if cuts.begins_shard(entry):
            firsts.add(place)
        place += place < len(packed.entries) and packed.entries[place] is entry
    return firsts


def append_batch(builder: StoreBuilder, packed: PackedBatch, survey: Survey, cuts: ShardCuts | None = None) -> None:
    """Appends a packed batch to a builder, split by split. Begins new shards at ``cuts``, and advances ``cuts``."""
    entries = packed.entries
    has_shape = any(column.name == "shape" for column in builder.columns)
    firsts = _find_shard_starts(packed, cuts) if cuts is not None else set()
    first = 0
    while first < len(entries):
        if first in firsts:
            builder.cut()
        split = entries[first].split
        last = first + 1
        while last < len(entries) and entries[last].split == split and last not in firsts:
            last += 1
        run = slice(first, last)
        sampled = packed.values[run]
        gives_keys = survey.gives_keys and bool(sampled)
        keys = [each["key"] for each in sampled] if gives_keys else [entry.key for entry in entries[run]]
        values: dict[str, Any] = {"key": keys}
        if survey.labels:
            labels = zip(*(entry.labels for entry in entries[run]), strict=True)
            values.update({c.name: np.array(v, np.int64) for c, v in zip(survey.labels, labels, strict=True)})
        values.update(stack_values(survey.columns, sampled))
        if has_shape:
            values["shape"] = np.array(packed.shapes[run], np.int32)
        if packed.indexes is not None:
            values[SEEK_INDEX.name] = packed.indexes[run]
        records: Sequence[Buffer] = packed.records[run]
        if packed.links is not None:
            values.update(
                zip((c.name for c in LINK_COLUMNS), map(list, zip(*packed.links[run], strict=True)), strict=True)
            )
            records = [b""] * len(records)
        checksums = np.array(packed.checksums[run], np.uint64)
        builder.append(records, values, split, checksums=checksums)
        first = last
    if len(entries) in firsts:
        builder.cut()


def list_store_columns(plan: Plan, encoder: Encoder) -> tuple[Column, ...]:
    """Returns all columns of a plan's store in their order.

    The order: image, shape, the survey's columns, key, checksums, seek index, links.
    """
    image, *shape = encoder.columns()
    index = (SEEK_INDEX,) if plan.index else ()
    links = LINK_COLUMNS if plan.options.link else ()
    return (image, *shape, *plan.survey.columns, KEY, CHECKSUM, ROW_CHECKSUM, *index, *links)


def describe_source_origin(plan: Plan) -> Origin:
    """Returns the manifest's entry about the origin of the records: kind, name and file counts of the source.

    Adds the dataset digest if the source is a store.
    """
    name = plan.source.path.resolve().name.encode("utf-8", "backslashreplace").decode("utf-8")
    store = plan.survey.store
    digest = store.dataset_digest if store else None
    ledger = plan.survey.ledger
    files = file_counts(ledger) if ledger.total else None
    return Origin(plan.source.kind, name, sum(ledger.passed_over.values()), digest, files)

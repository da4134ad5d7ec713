"""Records of a plan on their way into a builder: those of a whole conversion, or of one shard."""

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
from packstore.core.parallel import ordered_pieces
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.images.encode import Encoder
from packstore.packing.batches import (
    DECODE_BYTES,
    DECODE_RECORDS,
    PASS_BYTES,
    PASS_RECORDS,
    Linker,
    Packed,
    batches,
    pack,
)
from packstore.packing.plan import Plan, recorded_options
from packstore.packing.shard_rule import ShardCuts
from packstore.packing.values import AtRest, as_columns
from packstore.sources.base import Entry, Survey
from packstore.sources.ledger import file_counts
from packstore.stores import create_store
from packstore.stores.builder import StoreBuilder


@dataclass(slots=True)
class PackedShard:
    """What packing the entries of one shard gave.

    Attributes:
        manifest: Of the shard; None where all of its samples were skipped, so that the store has no such shard.
        skipped: Samples left out by policy.
        counted: How many records are to be counted under which names in the manifest's options.
        kept: Files that were kept as they are and should have been rewritten, by reason.
        oriented: Images with an EXIF orientation by which they are to be turned.
        palette: Of which classes how many images are PNG with a palette; class 0 without labels.
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
    """Packs one shard of a plan to ``path``: the very bytes that it has in the store of the whole plan.

    No other shard is needed for it, so the shards of a plan can be packed in any order and by any number of machines.

    Args:
        plan: Its normalisation is not to be computed any more.
        entries: Those of the shard, see :meth:`packstore.packing.shard_rule.ShardRule.shards`.
        path: Where the shard goes.
        progress: Called after each batch.
    """
    encoder, done = plan.encoder(), PackedShard()
    columns, workers = columns_of(plan, encoder), plan.options.workers or plan.source.workers()
    with create_store(path, format=plan.format, encoding=plan.encode.encoding, columns=columns) as builder:
        describe(builder, plan, encoder)
        for packed in packed_batches(plan, encoder, iter(entries), workers):
            append_packed(builder, packed, plan.survey)
            done.skipped += packed.skipped
            done.kept.update(packed.kept)
            done.oriented += len(packed.oriented)
            done.counted.update(how for _, how in packed.unified)
            done.palette.update(label_of(packed.seen[place]) for place in packed.palette)
            done.source_bytes += packed.source_bytes
            progress(Progress("pack", builder.records + len(done.skipped), None, done.source_bytes))
        if builder.records:
            done.manifest = builder.commit()
    return done


def label_of(entry: Entry) -> int:
    """The class by which images with a palette are counted: the first label; 0 without labels."""
    return entry.labels[0] if entry.labels else 0


def describe(builder: StoreBuilder, plan: Plan, encoder: Encoder) -> None:
    builder.describe(
        origin=origin_of(plan),
        normalization=plan.encode.normalization,
        options=recorded_options(plan),
        versions={"packstore": packstore.__version__} | encoder.versions(),
    )


def packed_batches(plan: Plan, encoder: Encoder, entries: Iterator[Entry], workers: int) -> Iterator[Packed]:
    limits = (PASS_RECORDS, PASS_BYTES) if encoder.passes_through else (DECODE_RECORDS, DECODE_BYTES)
    source, skip = plan.source, plan.options.on_error == "skip"
    at_rest = AtRest(plan.survey)
    linker = Linker(source, plan.links_from) if plan.options.link else None
    return ordered_pieces(
        lambda batch: pack(batch, source, encoder, at_rest, skip, plan.index, linker),
        batches(source.fetch(entries), *limits, source.nbytes),
        workers,
        size=lambda packed: packed.record_bytes,
    )


def _first_of_shards(packed: Packed, cuts: ShardCuts) -> set[int]:
    """Positions in ``packed.entries`` with which shards begin; the entry that begins one may have been skipped."""
    firsts, place = set(), 0
    for entry in packed.seen:
        if cuts.begins(entry):
            firsts.add(place)
        place += place < len(packed.entries) and packed.entries[place] is entry
    return firsts


def append_packed(builder: StoreBuilder, packed: Packed, survey: Survey, cuts: ShardCuts | None = None) -> None:
    entries = packed.entries
    has_shape = any(column.name == "shape" for column in builder.columns)
    firsts = _first_of_shards(packed, cuts) if cuts is not None else set()
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
        values.update(as_columns(survey.columns, sampled))
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


def columns_of(plan: Plan, encoder: Encoder) -> tuple[Column, ...]:
    image, *shape = encoder.columns()
    index = (SEEK_INDEX,) if plan.index else ()
    links = LINK_COLUMNS if plan.options.link else ()
    return (image, *shape, *plan.survey.columns, KEY, CHECKSUM, ROW_CHECKSUM, *index, *links)


def origin_of(plan: Plan) -> Origin:
    name = plan.source.path.resolve().name.encode("utf-8", "backslashreplace").decode("utf-8")
    store = plan.survey.store
    digest = store.dataset_digest if store else None
    ledger = plan.survey.ledger
    files = file_counts(ledger) if ledger.total else None
    return Origin(plan.source.kind, name, sum(ledger.passed_over.values()), digest, files)

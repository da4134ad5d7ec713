"""``Run``: packs the entries of a plan into a store, counts them, and resumes what an interrupted run has packed.

The protocol of resuming is in :mod:`packstore.stores.places.resuming`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

import packstore
from packstore.core.columns import CHECKSUM, KEY, LINK_COLUMNS, NUMPY_DTYPE, SEEK_INDEX
from packstore.core.errors import SampleError, SourceError, StoreError, printable
from packstore.core.manifest import Column, Manifest, Origin
from packstore.core.modes import is_reading_option
from packstore.core.parallel import ordered_map
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.core.proof import ROW_CHECKSUM
from packstore.images.reading import EXPECTED
from packstore.packing.batches import (
    DECODE_BYTES,
    DECODE_RECORDS,
    PASS_BYTES,
    PASS_RECORDS,
    PackedBatch,
    PackedSample,
    append_batch,
    group_entries,
    pack_batches,
)
from packstore.packing.encoding import make_encoder
from packstore.packing.plan import Plan, ShardCuts, options_to_record
from packstore.packing.values import count_stored_bytes
from packstore.sources.base import Entry
from packstore.sources.ledger import file_counts
from packstore.stores.build import StoreBuilder
from packstore.stores.places import place_of
from packstore.stores.places.receipts import ConversionIdentity, SourcePosition, Tally
from packstore.stores.places.resuming import InterruptedRun

if TYPE_CHECKING:
    from packstore.images.encode.arrays import DatasetStatistics

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Packed:
    """Outcome of a conversion whose store is published.

    Attributes:
        manifest: Manifest of the store.
        tally: Counts of its samples.
        resumed: Number of records that an interrupted run had packed.
        nbytes: Bytes of the store; None if it must be measured on disk.
        labels: Number of records by first label, as text; None if it must be read from the store.
        other_size: See :attr:`FrameAligner.other_size`.
    """

    manifest: Manifest
    tally: Tally
    resumed: int
    nbytes: int | None = None
    labels: Counter[str] | None = None
    other_size: str = ""


class Run:
    """A run of a plan: packs all entries of the source, or those of one shard, into a store.

    Attributes:
        plan: The plan, its normalisation already computed.
        columns: All columns of the store: image, shape, the survey's columns, key, checksums, seek index, links.
        tally: Counts of the samples until now, including those that an interrupted run has counted.
        resumed: Number of records taken over from an interrupted run.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tally = Tally()
        self.resumed = 0
        image, *shape = plan.encoder.columns()
        index = (SEEK_INDEX,) if plan.index else ()
        links = LINK_COLUMNS if plan.options.link else ()
        self.columns: tuple[Column, ...] = (
            *(image, *shape, *plan.survey.columns, KEY, CHECKSUM, ROW_CHECKSUM, *index, *links),
        )
        self._digest = EntriesDigest()
        self._counted_upto = 0  # by an interrupted run

    @property
    def base(self) -> Manifest:
        """The manifest of the store, without records."""
        plan = self.plan
        name = plan.source.path.resolve().name.encode("utf-8", "backslashreplace").decode("utf-8")
        store, ledger = plan.survey.store, plan.survey.ledger
        return Manifest(
            plan.format,
            plan.encode.encoding,
            0,
            tuple(column.blank() for column in self.columns),
            Origin(
                plan.source.kind,
                name,
                sum(ledger.passed_over.values()),
                store.dataset_digest if store else None,
                file_counts(ledger) if ledger.total else None,
            ),
            normalization=plan.encode.normalization,
            options=options_to_record(plan),
            versions=plan.list_versions(),
        )

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Everything that determines the records, as JSON values by name. Imports the encoder's libraries, whose
        versions count."""
        plan, survey, options = self.plan, self.plan.survey, options_to_record(self.plan)
        normalization = plan.encode.normalization
        return {
            "source": plan.source.resume_key(),
            "kind of source": plan.source.kind,
            "samples of the source": dict(survey.splits),
            "content of the source": plan.source.stamp(),
            "bytes of the source": survey.size_bytes,
            "format": plan.format,
            "encoding": plan.encode.encoding,
            "options": {name: value for name, value in options.items() if not is_reading_option(name)},
            # The answer to a question changes no record that was packed before it was asked.
            **{
                f"{name}?": options.get(name)
                for name in dict.fromkeys([*EXPECTED, "pixels", *filter(is_reading_option, options)])
            },
            "normalization": asdict(normalization) if normalization else None,
            "check": plan.encode.check,
            "max pixels": plan.encode.max_pixels,
            "shard size": plan.options.shard_bytes,
            "shards": asdict(plan.shards) if plan.shards else None,
            "libraries": plan.encoder.versions(),
            "packstore": packstore.__version__,
            "columns": [asdict(column) for column in self.columns],
        }

    @property
    def conversion_identity(self) -> ConversionIdentity:
        """Identity by which a later run recognises this one. Threads do not count.

        The policy for bad samples counts only if the interrupted run skipped some at which this run would stop.
        """
        return ConversionIdentity(self.fingerprint, self._find_source_change)

    def pack(
        self,
        builder: StoreBuilder,
        entries: Iterable[Entry],
        workers: int,
        progress: ProgressCallback = no_progress,
        total: int | None = None,
        cuts: ShardCuts | None = None,
    ) -> None:
        """Packs entries into a builder, and counts them. Takes over the records of the builder's interrupted run.

        Args:
            builder: Gets the records, and a receipt every two seconds if it has an identity.
            entries: Entries of the source, in its order.
            workers: Number of threads.
            progress: Called after each batch.
            total: Number of entries, for progress; None if it is not known.
            cuts: Where shards begin; None for a store of one file.

        Raises:
            SampleError: A bad sample, unless ``on_error`` is ``skip``.
        """
        progress(Progress("pack", 0, total, 0))
        for packed in self._replay_and_pack(builder.interrupted_run, iter(entries), workers):
            append_batch(builder, packed, self.plan.survey, cuts)
            self.tally.add(packed.tally)
            if builder.resumable:
                self._digest.add(sample.entry for sample in packed.samples)
            builder.checkpoint(self.make_position)
            progress(Progress("pack", self.tally.entries, total, self.tally.source_bytes))

    def make_position(self) -> SourcePosition:
        """Returns the position from which a later run resumes."""
        return SourcePosition(self._digest.hexdigest(), self.tally, max(self.tally.entries, self._counted_upto))

    def _replay_and_pack(
        self, interrupted: InterruptedRun | None, entries: Iterator[Entry], workers: int
    ) -> Iterator[PackedBatch]:
        """Yields the records of an interrupted run as batches, then packs the remaining entries and yields their
        batches."""
        if interrupted is not None:
            before = interrupted.position
            self.tally = replace(before.tally, entries=0, source_bytes=0, skipped=[])
            self._counted_upto = before.counted_upto
            entries = yield from self._replay(interrupted, entries)
            # The interrupted run has counted these images, but their records are lost.
            again = islice(entries, max(0, self._counted_upto - self.tally.entries))
            for packed in pack_batches(self.plan, again, workers):
                packed.tally = Tally(packed.tally.entries, packed.tally.source_bytes, packed.tally.skipped)
                yield packed
        yield from pack_batches(self.plan, entries, workers)

    def _replay(self, run: InterruptedRun, entries: Iterator[Entry]) -> Generator[PackedBatch, None, Iterator[Entry]]:
        """Yields the verified records of an interrupted run, and returns the entries that remain to be packed."""
        survey, columns = self.plan.survey, self.columns
        varies = any(column.name == "shape" for column in columns)
        sampled = bool(survey.sampled) or survey.gives_keys
        images = [column.name for column in survey.columns if column.holds_images]
        skipped = {each.key: each for each in run.position.tally.skipped}
        packed = PackedBatch()

        def finish() -> PackedBatch:
            packed.tally.entries = len(packed.samples)
            if self.plan.index:
                packed.add_indexes(columns)
            return packed

        for entry in islice(entries, run.position.tally.entries):
            packed.tally.source_bytes += entry.size_bytes
            if entry.key in skipped:
                packed.tally.skipped.append(skipped[entry.key])
                packed.samples.append(PackedSample(entry, skipped=True))
            else:
                try:
                    data, checksum = run.read_image(self.resumed)
                    fields = run.read_fields(self.resumed) if varies or sampled else {}
                except StoreError as doubt:
                    # Usually a record of the last seconds: the killed run had noted it but not written it yet.
                    _log.info("going on from record %d: %s", self.resumed, printable(str(doubt)))
                    packed.tally.source_bytes -= entry.size_bytes
                    entries = chain([entry], entries)
                    break
                shape = tuple(fields["shape"].tolist()) if varies else None
                packed.record_bytes += len(data)
                if sampled:
                    packed.record_bytes += count_stored_bytes(fields)
                    packed.tally.source_bytes += count_stored_bytes({n: fields[n] for n in images if n in fields})
                packed.samples.append(PackedSample(entry, data, checksum, shape, fields if sampled else None))
                self.resumed += 1
            if packed.record_bytes >= PASS_BYTES or len(packed.samples) >= PASS_RECORDS:
                yield finish()
                packed = PackedBatch()
        if packed.samples:
            yield finish()
        return entries

    def _find_source_change(self, before: SourcePosition) -> str | None:
        """Returns the reason why an interrupted run cannot be resumed, or None."""
        plan, tally = self.plan, before.tally
        if tally.skipped and plan.options.on_error != "skip":
            return f"it skipped {len(tally.skipped)} bad samples"
        count, digest = 0, EntriesDigest()
        listed = islice(plan.source.entries(plan.options.split), tally.entries)
        for some in group_entries(listed, PASS_RECORDS, 1, lambda _: 0):
            count += len(some)
            digest.add(some)
            digest.hexdigest()  # frees the entries
        if (count, digest.hexdigest()) != (tally.entries, before.digest):
            return "files of the source have changed since"
        return None


class EntriesDigest:
    """Digest of entries, by which a later run sees if the source has changed.

    It is computed on demand: a run that ends before its first receipt needs none.
    """

    def __init__(self) -> None:
        self._digest = xxhash.xxh3_128()
        self._pending: list[Entry] = []

    def add(self, entries: Iterable[Entry]) -> None:
        """Keeps entries in memory until :meth:`hexdigest`."""
        self._pending += entries

    def hexdigest(self) -> str:
        """Returns the digest of key, split, labels, size and times of all entries until now. Frees the entries."""
        for key, split, labels, size, _, modified, changed in self._pending:
            self._digest.update(repr((key, split, labels, size, modified, changed)).encode("utf-8", "surrogatepass"))
        self._pending = []
        return self._digest.hexdigest()


def refuse_changed_source(plan: Plan, stamp: str, tally: Tally) -> None:
    """Raises :class:`SourceError` if the source has changed since ``stamp``, or if all of its samples were skipped."""
    expected = plan.survey.records
    if plan.survey.counted and tally.entries != expected:
        raise source_changed_error(plan, f"{expected} images at first, {tally.entries} in the end")
    if plan.source.stamp() != stamp:
        raise source_changed_error(plan, "its stamp is another one")
    if tally.entries == len(tally.skipped):
        raise SourceError(
            f"{printable(str(plan.source.path))}: all {tally.entries} images were skipped, so there is nothing to pack"
        )


def source_changed_error(plan: Plan, how: str) -> SourceError:
    """Returns the error for a source that changed while it was packed. ``how`` says what changed."""
    fresh = "with --restart " if place_of(plan.destination).remote else ""
    return SourceError(
        f"{printable(str(plan.source.path))} changed while it was packed: {how}; run the conversion again "
        f"{fresh}when nothing writes to it"
    )


def pack_shard(plan: Plan, entries: Iterable[Entry], path: Path) -> tuple[Manifest | None, Tally]:
    """Packs one shard of a plan to ``path``. It has the same bytes as in the store of the whole plan.

    Writes nothing if all of its samples are skipped. Raises :class:`SampleError` at a bad sample, unless ``on_error``
    is ``skip``. The shards of a plan can be packed in any order and by any number of machines.

    Args:
        plan: The plan, its normalisation already computed.
        entries: Entries of the shard, see :meth:`packstore.packing.plan.ShardRule.split_entries`.
        path: Destination of the shard.

    Returns:
        The shard's manifest, or None without records; and counts of the samples.
    """
    run, manifest = Run(plan), None
    with StoreBuilder(path, run.base) as builder:
        run.pack(builder, entries, plan.options.workers or plan.source.workers())
        if builder.records:
            manifest = builder.commit()
    return manifest, run.tally


def with_statistics(plan: Plan, workers: int, progress: ProgressCallback) -> Plan:
    """Returns the plan with the mean and standard deviation of its images, if it asks for ``auto`` normalisation.

    Else returns the plan unchanged and reads nothing.
    """
    if not plan.auto_normalize:
        return plan
    normalization = _compute_statistics(plan, workers, progress).normalization()
    return replace(plan, encode=replace(plan.encode, normalization=normalization))


def _compute_statistics(plan: Plan, workers: int, progress: ProgressCallback) -> DatasetStatistics:
    """Computes mean and standard deviation over the training split, or over all records if there is none."""
    from packstore.images.encode.arrays import DatasetStatistics  # which loads fractions

    names = list(plan.survey.splits)
    split = next((name for name in names if name.lower().startswith("train")), None)
    total = plan.survey.splits[split] if split else plan.survey.records
    mode = plan.encode.reading.pixels
    # Images are measured as they will be stored, resized and cropped.
    pixels = make_encoder(replace(plan.encode, encoding=mode.dtype, normalization=None), plan.survey, plan.shape)
    source, skip = plan.source, plan.options.on_error == "skip"

    def measure(batch: list[Entry]) -> tuple[int, int, DatasetStatistics]:
        statistics = DatasetStatistics(mode)
        for entry in batch:
            try:
                record, shape, *_ = pixels(entry.key, source.image(entry))
            except SampleError:
                if not skip:
                    raise
                continue  # it is counted and named when the conversion itself meets it
            values = np.frombuffer(record, NUMPY_DTYPE[mode.dtype])
            if shape is not None and mode.dtype == "float32":  # kept with the channels first
                height, width, channels = shape
                values = values.reshape(channels, height, width).transpose(1, 2, 0)
            statistics.update(values.reshape(shape or pixels.columns()[0].shape))
        return len(batch), sum(map(source.nbytes, batch)), statistics

    statistics = DatasetStatistics(mode)
    done = done_bytes = 0
    entries = source.fetch(source.entries(split or plan.options.split))
    pieces = group_entries(entries, DECODE_RECORDS, DECODE_BYTES, source.nbytes)
    for count, nbytes, part in ordered_map(measure, pieces, workers):
        statistics.merge(part)
        done, done_bytes = done + count, done_bytes + nbytes
        progress(Progress("statistics", done, total, done_bytes))
    return statistics

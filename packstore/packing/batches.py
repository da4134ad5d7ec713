"""Packs samples into records, batch by batch in threads, and hands them to a store builder in order."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

from packstore.core.columns import LINK_COLUMNS, SEEK_INDEX, Buffer, Column, ImageData, Link
from packstore.core.errors import CorruptRecordError, SampleError, SourceError, UsageError, printable
from packstore.core.files import FileState, Location
from packstore.core.manifest import Skipped
from packstore.core.parallel import ordered_flat_map
from packstore.images.engine import make_indexes
from packstore.packing.encoding import EXIF_ORIENTED
from packstore.packing.plan import Plan, ShardCuts
from packstore.packing.values import FileChecks, ValueConverter, count_stored_bytes, stack_values
from packstore.sources.base import Entry, Sample, Source, Survey
from packstore.stores.build import StoreBuilder
from packstore.stores.linked import LinkedFiles, is_url_link, make_relative_link, read_file_state, short_reason
from packstore.stores.places.receipts import Tally

# A batch is what one thread works on at a time. Files that pass through are cheap each, so a batch holds many; decoded
# images are large (a 1 MB JPEG has 10 MB and more of pixels), so a batch holds few. How large they come out shows only
# when they are decoded (50 KB of PNG can have 100 MB of pixels), so a worker hands over what it has at each
# _PIECE_BYTES, and ordered_flat_map bounds what is in flight.
PASS_RECORDS, PASS_BYTES = 256, 4 << 20
DECODE_RECORDS, DECODE_BYTES = 16, 1 << 20
LINK_BYTES = 16 << 20  # of records that are only linked: nothing keeps them in memory
_PIECE_BYTES = 4 << 20
_PNG, _PALETTE = b"\x89PNG\r\n\x1a\n", 3  # its colour type is byte 25


@dataclass(slots=True)
class PackedSample:
    """A sample that was read, and its record.

    Attributes:
        entry: Its entry, without ``ref`` if that may hold the sample itself.
        record: Bytes of the record; empty bytes if it is only linked.
        checksum: XXH3-64 of the record.
        shape: Shape of its pixels, if they are known.
        values: Stored values of the sample, ``key`` among them; None if the source yields only images.
        link: Location of the record; None if the store is not linked.
        skipped: The sample is bad and was left out: it has no record.
    """

    entry: Entry
    record: Buffer = b""
    checksum: int = 0
    shape: tuple[int, ...] | None = None
    values: Mapping[str, Any] | None = None
    link: Link | None = None
    skipped: bool = False


@dataclass(slots=True)
class PackedBatch:
    """Consecutive samples that were read and packed: a batch, or a part of it.

    Attributes:
        samples: The samples in order, including the skipped ones.
        tally: Counts of them.
        record_bytes: Bytes of their records and values, without records that are only linked.
        indexes: Seek index of each record; None if the store has none.
    """

    samples: list[PackedSample] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    record_bytes: int = 0
    indexes: list[bytes] | None = None

    def add_indexes(self, columns: Sequence[Column]) -> None:
        """Computes the seek index of each record for a store with these columns."""
        self.indexes = make_indexes([each.record for each in self.samples if not each.skipped], columns)


class BatchPacker:
    """Reads and encodes the samples of a plan. Thread-safe."""

    def __init__(self, plan: Plan) -> None:
        self._source, self._encoder = plan.source, plan.encoder
        self._read = plan.source.read
        self._skips, self._indexes = plan.options.on_error == "skip", plan.index
        checks = FileChecks(plan.source, plan.survey, plan.encode, plan.options)
        self._convert = ValueConverter(plan.source, plan.survey, checks, plan.aligner)
        self._linker = Linker(plan.source, plan.relative_link_folder) if plan.options.link else None

    def pack(self, entries: list[Entry]) -> Iterator[PackedBatch]:
        """Reads and encodes ``entries``; yields their records in parts of about 4 MiB.

        Leaves bad samples out if the plan says so, and lists them in the tally.

        Raises:
            SampleError, CorruptRecordError: A sample is bad.
            SourceError: A linked file changed while it was read.
            UsageError: A sample cannot be linked: it is no plain range of a file's bytes. Or an image file beside the
                main image would lose something that no option allows.
        """
        remaining = zip(entries, self._source.read_together(entries), strict=True)
        while True:
            batch = PackedBatch()
            states: dict[str, FileState] = {}
            for entry, together in remaining:
                batch.tally.source_bytes += entry.size_bytes
                batch.samples.append(self._pack_sample(entry, together, batch, states))
                if batch.record_bytes >= _PIECE_BYTES:
                    break
            if not batch.samples:
                return
            batch.tally.entries = len(batch.samples)
            if self._linker is not None:
                self._linker.check_files(states)
            if self._indexes:
                batch.add_indexes(self._encoder.columns())
                for sample in batch.samples if self._linker is not None else ():
                    sample.record = b""
            yield batch

    def _pack_sample(
        self, entry: Entry, together: ImageData | Sample | None, batch: PackedBatch, states: dict[str, FileState]
    ) -> PackedSample:
        """Reads and encodes one sample, and adds it to the counts of ``batch``."""
        convert, linker, tally = self._convert, self._linker, batch.tally
        listed, number, values = entry, None, None
        try:
            place = None if linker is None else linker.locate(entry, states)
            # ``together`` is the content, if it was read with others.
            content = self._read(entry) if together is None else together
            if isinstance(content, Sample):
                number = content.number
                entry = entry._replace(ref=None)  # it may contain the sample: frees its memory
                key = entry.key if content.key is None else content.key
                tally.source_bytes += convert.count_further_bytes(content)
                content = convert.align(key, content)
                values, image = convert(key, content, listed), content.image
            else:
                key, image = entry.key, content
            record, shape, kept, turned, unified = self._encoder(key, image)
            if convert.masks and isinstance(content, Sample):
                sizes = self._encoder.possible_sizes(image, shape)
                convert.check_masks(key, content, sizes, self._encoder.options.max_pixels, listed)
        except (SampleError, CorruptRecordError) as error:
            reason = error.reason if isinstance(error, SampleError) else str(error)
            reason = reason if number is None else f"sample {number}: {reason}"
            if self._skips:
                tally.skipped.append(Skipped(entry.key, reason))
                return PackedSample(entry._replace(ref=None), skipped=True)
            if isinstance(error, SampleError) and number is not None:
                raise SampleError(error.key, reason) from error
            raise
        link = None
        if linker is not None and place is not None:
            link = linker.make_link(entry.key, place, record, states)
        checksum = xxh3_64_intdigest(record)
        if link is not None and not self._indexes:
            record = b""  # it is only linked: reusing its memory is faster than allocating new memory
        batch.record_bytes += len(record)
        if values is not None and isinstance(content, Sample):
            batch.record_bytes += count_stored_bytes(values)
            tally.counted.update(content.unified)
        if kept is not None:
            tally.kept[kept] += 1
        if type(image) is bytes and image.startswith(_PNG) and image[25] == _PALETTE:
            tally.palette[str(first_label(entry))] += 1
        if turned:
            tally.counted[EXIF_ORIENTED] += 1
        if unified:
            tally.counted.update(unified)
        return PackedSample(entry, record, checksum, shape, values, link)


def first_label(entry: Entry) -> int:
    """Returns the class number of an entry: its first label, or 0 without labels."""
    return entry.labels[0] if entry.labels else 0


def pack_batches(plan: Plan, entries: Iterator[Entry], workers: int) -> Iterator[PackedBatch]:
    """Reads and encodes entries with ``workers`` threads; yields the packed batches in the entries' order.

    Raises the errors of :meth:`BatchPacker.pack`.
    """
    source = plan.source
    limits = (PASS_RECORDS, PASS_BYTES) if plan.encoder.passes_through else (DECODE_RECORDS, DECODE_BYTES)
    # Entries of sources that prepare them may hold their images.
    if plan.options.link and not plan.index and type(source).fetch is Source.fetch:
        limits = (PASS_RECORDS, LINK_BYTES)
    return ordered_flat_map(
        BatchPacker(plan).pack,
        group_entries(source.fetch(entries), *limits, source.nbytes),
        workers,
        size=lambda packed: packed.record_bytes,
    )


def group_entries(
    entries: Iterable[Entry], max_records: int, max_bytes: int, nbytes: Callable[[Entry], int]
) -> Iterator[list[Entry]]:
    """Yields lists of consecutive entries. A list ends after ``max_records`` entries, or as soon as it has
    ``max_bytes`` bytes by ``nbytes``."""
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        batch.append(entry)
        size += nbytes(entry)
        if len(batch) >= max_records or size >= max_bytes:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def append_batch(builder: StoreBuilder, packed: PackedBatch, survey: Survey, cuts: ShardCuts | None = None) -> None:
    """Appends a packed batch to a builder, split by split. Begins new shards at ``cuts``, and advances ``cuts``."""
    indexes = iter(packed.indexes or ())
    run: list[PackedSample] = []
    split = None
    for sample in packed.samples:
        begins = cuts is not None and cuts.begins_shard(sample.entry)
        if begins or sample.entry.split != split:
            _append_run(builder, run, survey, indexes)
            run, split = [], sample.entry.split
        if begins:
            builder.cut()  # if this sample was skipped, the next record begins the shard
        if not sample.skipped:
            run.append(sample)
    _append_run(builder, run, survey, indexes)


def _append_run(builder: StoreBuilder, run: Sequence[PackedSample], survey: Survey, indexes: Iterator[bytes]) -> None:
    """Appends packed samples, all of one split, to a builder."""
    if not run:
        return
    columns = {column.name for column in builder.columns}
    sampled = [each.values for each in run if each.values is not None]
    keys = [each["key"] for each in sampled] if survey.gives_keys and sampled else [each.entry.key for each in run]
    values: dict[str, Any] = {"key": keys}
    if survey.labels:
        labels = zip(*(each.entry.labels for each in run), strict=True)
        values |= {c.name: np.array(v, np.int64) for c, v in zip(survey.labels, labels, strict=True)}
    values |= stack_values(survey.columns, sampled)
    if "shape" in columns:
        values["shape"] = np.array([each.shape for each in run], np.int32)
    if SEEK_INDEX.name in columns:
        # ``indexes`` yields one for each sample, in order.
        values[SEEK_INDEX.name] = [next(indexes) for _ in run]
    links = [each.link for each in run if each.link is not None]
    if links:
        values |= zip((c.name for c in LINK_COLUMNS), map(list, zip(*links, strict=True)), strict=True)
    checksums = np.array([each.checksum for each in run], np.uint64)
    builder.append([each.record for each in run], values, run[0].entry.split, checksums=checksums)


_KNOWN_PATHS = 1 << 10


class Linker:
    """Computes links to records, and checks that their files did not change while they were read.

    Refuses samples that are no plain range of a file's bytes.
    """

    def __init__(self, source: Source, folder: Path | None) -> None:
        """``folder`` is the base of relative links; None for absolute links."""
        self._source = source
        self._files = LinkedFiles()

        @lru_cache(_KNOWN_PATHS)  # an archive's path is asked for often
        def stored_path(path: str) -> str:
            return path if folder is None else make_relative_link(path, folder)

        self._stored_path = stored_path

    def locate(self, entry: Entry, states: dict[str, FileState]) -> Location:
        """Locates a sample before it is read, and notes the state of its file in ``states``.

        Raises :class:`UsageError` if the sample is no range of a file's bytes. Raises :class:`SampleError` if the file
        is gone.
        """
        place = self._source.locate(entry)
        if place is None:
            raise self._make_unlinkable_error(entry.key)
        if place.path not in states:
            try:
                states[place.path] = read_file_state(place.path) if place.state is None else place.state
            except (OSError, ValueError) as error:
                raise SampleError(entry.key, f"cannot be linked: {short_reason(error)}") from None
        return place

    def make_link(self, key: str, place: Location, record: Buffer, states: Mapping[str, FileState]) -> Link:
        """Returns the link to a record that has been read, in the form in which stores keep it.

        :meth:`locate` may know only a longer range of the file; then searches that range for the record. Raises
        :class:`UsageError` if the record is not there, and :class:`SampleError` if the file cannot be read.
        """
        path, offset, _, within = place
        if within is not None:
            try:
                file = self._files.open(path).data.obj
            except (OSError, ValueError) as error:
                raise SampleError(key, f"cannot be linked: {error}") from None
            offset = file.find(record, offset, offset + within) if isinstance(file, mmap.mmap) else -1
            if offset < 0:
                raise self._make_unlinkable_error(key)
        nbytes, modified = states[path]
        return Link(self._stored_path(path), offset, len(record), nbytes, modified)

    def _make_unlinkable_error(self, key: str) -> UsageError:
        """Makes the error for a sample that is no plain range of a file's bytes."""
        return UsageError(
            f"{printable(key)} cannot be linked: in this source ({self._source.kind}) it is no plain range of bytes of "
            "a file, as in compressed archives and shards; pack without --link"
        )

    def check_files(self, states: Mapping[str, FileState]) -> None:
        """Raises :class:`SourceError` if a file changed or vanished since its state was noted.

        Skips files at URLs: the source itself checks them when it has been read.
        """
        for path, state in states.items():
            if is_url_link(path):
                continue
            try:
                same = read_file_state(path) == state
            except OSError:
                same = False
            if not same:
                raise SourceError(f"{printable(path)} changed while it was read; link it when nothing writes to it")

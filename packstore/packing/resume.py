"""Resumes an interrupted conversion: recognises the same conversion, and returns the records that it has packed.

The protocol is in :mod:`packstore.stores.builder.journal`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

import xxhash

import packstore
from packstore.core.errors import StoreError, printable
from packstore.core.manifest import Column, Skipped
from packstore.core.modes import is_reading_option
from packstore.images.encode import Encoder
from packstore.images.reading import EXPECTED
from packstore.images.seek_index import make_indexes
from packstore.packing.batches import PASS_BYTES, PASS_RECORDS, PackedBatch
from packstore.packing.plan import Plan
from packstore.packing.recorded_options import options_to_record
from packstore.packing.values import count_stored_bytes
from packstore.sources.base import Entry
from packstore.stores.builder import StoreBuilder
from packstore.stores.builder.journal import ConversionIdentity, SourcePosition

_log = logging.getLogger(__name__)


def conversion_identity(plan: Plan, encoder: Encoder, columns: Iterable[Column]) -> ConversionIdentity:
    """Returns the identity by which an interrupted run of the same conversion is recognised. Threads do not count.

    The policy for bad samples counts only if the interrupted run skipped some at which this run would stop.
    """
    return ConversionIdentity(conversion_fingerprint(plan, encoder, columns), partial(_source_change_message, plan))


def conversion_fingerprint(plan: Plan, encoder: Encoder, columns: Iterable[Column]) -> dict[str, Any]:
    """Collects everything that determines the records of a conversion, as JSON values by name.

    Imports the encoder's libraries, whose versions count.
    """
    survey, options = plan.survey, options_to_record(plan)
    normalization = plan.encode.normalization
    return {
        "source": plan.source.identity(),
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
        "normalization": dataclasses.asdict(normalization) if normalization else None,
        "check": plan.encode.check,
        "max pixels": plan.encode.max_pixels,
        "shard size": plan.options.shard_bytes,
        "shards": dataclasses.asdict(plan.shards) if plan.shards else None,
        "libraries": encoder.versions(),
        "packstore": packstore.__version__,
        "columns": [dataclasses.asdict(column) for column in columns],
    }


class PositionTracker:
    """Tracks how far a source has been read: counts and digests the entries, lists the skipped ones.

    The digest is computed on demand: a conversion that ends before its first receipt needs none.

    Attributes:
        oriented: Number of images whose EXIF orientation asks for a rotation or flip.
        unified: Number of images of other modes converted to the store's without loss, by kind of conversion.
        palette: Number of PNG files with a palette, by class. Without labels all count under class 0.
    """

    def __init__(self, before: SourcePosition | None = None) -> None:
        """``before`` is the position of an interrupted run whose records are replayed. Takes over its counts, and does
        not count the replayed entries again."""
        self.consumed = 0
        self.skipped: list[Skipped] = []
        self._counted_upto = before.counted_upto if before is not None else 0
        self.oriented = before.oriented if before is not None else 0
        self.unified = Counter(dict(before.unified if before is not None else ()))
        self.palette = Counter(dict(before.palette if before is not None else ()))
        self._digest = xxhash.xxh3_128()
        self._pending: list[Entry] = []

    def add_entries(
        self,
        seen: list[Entry],
        skipped: list[Skipped] | None = None,
        oriented: Sequence[int] = (),
        palette: Sequence[int] = (),
        unified: Sequence[tuple[int, str]] = (),
    ) -> None:
        """Counts entries that were read, and keeps them in memory until :meth:`digest_entries`. Collects the skipped
        samples.

        Does not count an image in ``oriented``, ``palette`` or ``unified`` again if an interrupted run has counted it.

        Args:
            seen: The entries, skipped ones included.
            skipped: The samples that were skipped, with the reasons.
            oriented: Positions in ``seen`` of images whose EXIF orientation asks for a rotation or flip.
            palette: Positions in ``seen`` of images with a palette, counted by their class.
            unified: Positions in ``seen`` of images that were converted to the dataset's mode, and how.
        """
        first = self._counted_upto - self.consumed
        self.oriented += sum(place >= first for place in oriented)
        self.unified.update(how for place, how in unified if place >= first)
        for place in palette:
            if place >= first:
                self.palette[seen[place].labels[0] if seen[place].labels else 0] += 1
        self.consumed += len(seen)
        self._pending += seen
        self.skipped += skipped or ()

    def make_position(self) -> SourcePosition:
        """Returns the position from which a later run resumes. Digests and frees the entries."""
        upto = max(self.consumed, self._counted_upto)
        palette, unified = tuple(sorted(self.palette.items())), tuple(sorted(self.unified.items()))
        skipped = tuple(self.skipped)
        return SourcePosition(self.consumed, self.digest_entries(), skipped, upto, self.oriented, palette, unified)

    def digest_entries(self) -> str:
        """Returns the digest of key, split, labels, size and times of all entries until now. Frees the entries."""
        for key, split, labels, size, _, modified, changed in self._pending:
            self._digest.update(repr((key, split, labels, size, modified, changed)).encode("utf-8", "surrogatepass"))
        self._pending = []
        return self._digest.hexdigest()


class ResumedRecords:
    """Iterates over the records of an interrupted run, as packed batches.

    Stops at the first record that cannot be verified. Yields nothing if there is no such run. Then ``rest`` yields the
    entries that remain to be packed. Can be iterated only once.

    Attributes:
        records: Number of records that the iteration has yielded.
        rest: Entries that remain to be packed; valid after the iteration.
        position: Position of the interrupted run in the source; None if there is no such run.
    """

    def __init__(self, plan: Plan, builder: StoreBuilder) -> None:
        self.records = 0
        self.rest: Iterator[Entry] = plan.source.entries(plan.options.split)
        self._run = builder.interrupted_run
        self.position = self._run.position if self._run is not None else None
        self._varies = any(column.name == "shape" for column in builder.columns)
        self._sampled = bool(plan.survey.sampled) or plan.survey.gives_keys
        self._has_index = plan.index
        self._columns = builder.columns
        self._images = [column.name for column in plan.survey.columns if column.holds_images]

    def __iter__(self) -> Iterator[PackedBatch]:
        """Yields the records up to the first one that cannot be verified, and logs why it stops there. Advances
        :attr:`rest`."""
        if self._run is None:
            return
        run, entries = self._run, self.rest
        skipped = {s.key: s for s in run.position.skipped}
        packed = _empty_batch()
        for entry in islice(entries, run.position.consumed):
            nbytes = further = 0
            if entry.key in skipped:
                packed.skipped.append(skipped[entry.key])
            else:
                try:
                    data, checksum = run.read_image(self.records)
                    fields = run.read_fields(self.records) if self._varies or self._sampled else {}
                except StoreError as doubt:
                    # Usually a record of the last seconds: the killed run had noted it but not written it yet.
                    _log.info("going on from record %d: %s", self.records, printable(str(doubt)))
                    self.rest = chain([entry], entries)
                    break
                packed.entries.append(entry)
                packed.records.append(data)
                packed.checksums.append(checksum)
                packed.shapes.append(tuple(fields["shape"].tolist()) if self._varies else None)
                nbytes = len(data)
                if self._sampled:
                    packed.values.append(fields)
                    nbytes += count_stored_bytes(fields)
                    further = count_stored_bytes({name: fields[name] for name in self._images if name in fields})
                self.records += 1
            packed.seen.append(entry)
            packed = packed._replace(
                source_bytes=packed.source_bytes + entry.size_bytes + further,
                record_bytes=packed.record_bytes + nbytes,
            )
            if packed.record_bytes >= PASS_BYTES or len(packed.seen) >= PASS_RECORDS:
                yield self._add_indexes(packed)
                packed = _empty_batch()
        if packed.seen:
            yield self._add_indexes(packed)

    def _add_indexes(self, packed: PackedBatch) -> PackedBatch:
        """Returns the batch with seek indexes if the store has them. Computes the indexes from the files."""
        return packed._replace(indexes=make_indexes(packed.records, self._columns)) if self._has_index else packed


def _empty_batch() -> PackedBatch:
    """Returns a batch with empty lists, to be filled."""
    return PackedBatch([], [], [], [], [], [], [], 0, 0)


def _source_change_message(plan: Plan, before: SourcePosition) -> str | None:
    """Returns the reason why an interrupted run cannot be resumed, or None.

    There are two: the run skipped samples at which this run would stop, or the source has changed. Lists the source
    again up to the run's position, and compares the digest of the entries.
    """
    if before.skipped and plan.options.on_error != "skip":
        return f"it skipped {len(before.skipped)} bad samples"
    now = PositionTracker()
    for entry in islice(plan.source.entries(plan.options.split), before.consumed):
        now.add_entries([entry])
        if now.consumed % PASS_RECORDS == 0:
            now.digest_entries()
    if (now.consumed, now.digest_entries()) != (before.consumed, before.digest):
        return "files of the source have changed since"
    return None

"""Going on from an interrupted conversion: what makes two the same, and the records that need no packing.

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
from packstore.images.encode import Encoder
from packstore.images.reading import EXPECTED
from packstore.images.seek_index import make_indexes
from packstore.packing.batches import PASS_BYTES, PASS_RECORDS, Packed
from packstore.packing.plan import Plan, recorded_options
from packstore.packing.values import nbytes_at_rest
from packstore.sources.base import Entry
from packstore.stores.builder import StoreBuilder
from packstore.stores.builder.journal import Identity, SourcePosition

_log = logging.getLogger(__name__)


def identity_of(plan: Plan, encoder: Encoder, columns: Iterable[Column]) -> Identity:
    """What makes the records of a conversion what they are. Threads, or what happens to bad samples, do not."""
    return Identity(fingerprint_of(plan, encoder, columns), partial(_source_change, plan))


def fingerprint_of(plan: Plan, encoder: Encoder, columns: Iterable[Column]) -> dict[str, Any]:
    """What the records of a conversion follow from, as JSON values by name. Loads the libraries that make them."""
    survey, options = plan.survey, recorded_options(plan)
    normalization = plan.encode.normalization
    return {
        "source": plan.source.identity(),
        "kind of source": plan.source.kind,
        "samples of the source": dict(survey.splits),
        "content of the source": plan.source.stamp(),
        "bytes of the source": survey.size_bytes,
        "format": plan.format,
        "encoding": plan.encode.encoding,
        "options": {name: value for name, value in options.items() if name not in EXPECTED},
        # The answer to a question changes no record that was packed before it was asked.
        **{f"{name}?": options.get(name) for name in EXPECTED},
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
    """How far a source was read: counts and digests the entries that were seen, and lists those that were skipped.

    The digest is computed when it is asked for: a conversion that ends before its first receipt needs none.

    Attributes:
        oriented: How many images have an EXIF orientation by which they are to be turned.
        unified: How many images of other modes lost nothing by the store's, by how.
        palette: Of which classes how many are PNG with a palette; class 0 without labels.
    """

    def __init__(self, before: SourcePosition | None = None) -> None:
        """``before`` is what an interrupted run, whose records come again, has counted already."""
        self.consumed = 0
        self.skipped: list[Skipped] = []
        self._counted_upto = before.counted_upto if before is not None else 0
        self.oriented = before.oriented if before is not None else 0
        self.unified = Counter(dict(before.unified if before is not None else ()))
        self.palette = Counter(dict(before.palette if before is not None else ()))
        self._digest = xxhash.xxh3_128()
        self._pending: list[Entry] = []

    def add(
        self,
        seen: list[Entry],
        skipped: list[Skipped] | None = None,
        oriented: Sequence[int] = (),
        palette: Sequence[int] = (),
        unified: Sequence[tuple[int, str]] = (),
    ) -> None:
        """Entries that were read; those that were skipped, and positions of those with an EXIF orientation, of PNG with
        a palette, and of images of other modes."""
        first = self._counted_upto - self.consumed
        self.oriented += sum(place >= first for place in oriented)
        self.unified.update(how for place, how in unified if place >= first)
        for place in palette:
            if place >= first:
                self.palette[seen[place].labels[0] if seen[place].labels else 0] += 1
        self.consumed += len(seen)
        self._pending += seen
        self.skipped += skipped or ()

    def position(self) -> SourcePosition:
        """For a receipt."""
        upto = max(self.consumed, self._counted_upto)
        palette, unified = tuple(sorted(self.palette.items())), tuple(sorted(self.unified.items()))
        skipped = tuple(self.skipped)
        return SourcePosition(self.consumed, self.digest(), skipped, upto, self.oriented, palette, unified)

    def digest(self) -> str:
        """A digest of all entries: key, split, labels, size and times of modification and of change of each."""
        for key, split, labels, size, _, modified, changed in self._pending:
            self._digest.update(repr((key, split, labels, size, modified, changed)).encode("utf-8", "surrogatepass"))
        self._pending = []
        return self._digest.hexdigest()


class ResumedRecords:
    """The records of an interrupted run as if they had just been packed, and the entries that are left.

    Attributes:
        records: How many records the iteration has yielded.
        rest: The entries to be packed, after the iteration.
        position: How far the interrupted run had read the source; None where there is none.
    """

    def __init__(self, plan: Plan, builder: StoreBuilder) -> None:
        self.records = 0
        self.rest: Iterator[Entry] = plan.source.entries(plan.options.split)
        self._run = builder.interrupted
        self.position = self._run.position if self._run is not None else None
        self._varies = any(column.name == "shape" for column in builder.columns)
        self._sampled = bool(plan.survey.sampled) or plan.survey.gives_keys
        self._has_index = plan.index

    def __iter__(self) -> Iterator[Packed]:
        """Yields the records up to the first one that is not proven."""
        if self._run is None:
            return
        run, entries = self._run, self.rest
        skipped = {s.key: s for s in run.position.skipped}
        packed = _empty()
        for entry in islice(entries, run.position.consumed):
            nbytes = 0
            if entry.key in skipped:
                packed.skipped.append(skipped[entry.key])
            else:
                try:
                    data, checksum = run.image(self.records)
                    fields = run.fields(self.records) if self._varies or self._sampled else {}
                except StoreError as doubt:
                    # Usually one of the last seconds: the killed run had noted it and not yet written it.
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
                    nbytes += nbytes_at_rest(fields)
                self.records += 1
            packed.seen.append(entry)
            packed = packed._replace(
                source_bytes=packed.source_bytes + entry.size_bytes, record_bytes=packed.record_bytes + nbytes
            )
            if packed.record_bytes >= PASS_BYTES or len(packed.seen) >= PASS_RECORDS:
                yield self._indexed(packed)
                packed = _empty()
        if packed.seen:
            yield self._indexed(packed)

    def _indexed(self, packed: Packed) -> Packed:
        """Makes seek indexes again, for a store that has them: they follow from the files."""
        return packed._replace(indexes=make_indexes(packed.records)) if self._has_index else packed


def _empty() -> Packed:
    return Packed([], [], [], [], [], [], [], 0, 0)


def _source_change(plan: Plan, before: SourcePosition) -> str | None:
    """Why what an interrupted run has made does not fit the source as it is now, or None."""
    if before.skipped and plan.options.on_error != "skip":
        return f"it skipped {len(before.skipped)} bad samples"
    now = PositionTracker()
    for entry in islice(plan.source.entries(plan.options.split), before.consumed):
        now.add([entry])
        if now.consumed % PASS_RECORDS == 0:
            now.digest()
    if (now.consumed, now.digest()) != (before.consumed, before.digest):
        return "files of the source have changed since"
    return None

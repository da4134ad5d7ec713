"""``verify --against``: compares a store with its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from packstore.checking.independent import ROWS, count_independently
from packstore.checking.options import VerifyOptions
from packstore.checking.reports import Difference, try_key
from packstore.checking.source_records import SourceRecords, reading_source
from packstore.checking.store_check import COMPARED_RECORDS, Batch, ValueGetter, open_files
from packstore.core.columns import NUMPY_DTYPE, Buffer
from packstore.core.errors import PackstoreError, StoreError, printable
from packstore.sources.base import Entry, Sample, Source
from packstore.sources.ledger import Role
from packstore.stores import Reader
from packstore.stores.keys import KeyIndex
from packstore.stores.places import place_of

_CAPPED = 256
"""Most suffixes that a ledger counts."""


class SourceComparison(SourceRecords):
    """Compares the records of an open store with the entries of a source, and their order, columns, classes, and
    lists and counts of files.

    Finds an entry's record by the hash of its key. A missing record is therefore a single difference, and the records
    after it still match. Leaves out samples that packing skipped. Memory is 17 bytes a record.
    """

    def __init__(self, source: Source, reader: Reader, options: VerifyOptions) -> None:
        super().__init__(source, reader.manifest, options)
        self.reader = reader
        self.splits = {s.name: s for s in self.manifest.splits}
        self.labels = {c.name for c in self.survey.columns if self.manifest.has_column(c.name)}
        self._seen = np.zeros(len(reader), np.bool_)
        self._in_order = True
        self._counts_agree = False

    def compare_summaries(self) -> Iterator[Difference]:
        """Yields differences that show without reading records: in lists of files, counts of files and rows, columns,
        classes.

        Raises :class:`SourceError` if the source's files cannot be counted.
        """
        yield from self._compare_ledgers()
        yield from self._compare_counts()
        yield from self._compare_columns()

    def batch_records(self) -> Iterator[Batch]:
        """Yields batches of the source's entries with their records, in the source's order.

        A batch also has the entries without a record. The last batches have the records without an entry. Notes for
        :meth:`compare_coverage` which records had an entry, and if their order is the source's.
        """
        # Records are found by key, so one that is missing does not shift those behind it.
        index = KeyIndex(self._hash_keys())
        previous = -1
        for entries in self._batch_entries():
            located = [(index.find(entry.key), entry) for entry in entries]
            records = [record for record, _ in located if record is not None]
            for record in records:
                self._in_order = self._in_order and record > previous
                previous = record
            self._seen[records] = True
            # Two entries with one key have the same record, which is read once.
            yield Batch([*dict.fromkeys(records)], located)
        missing = np.flatnonzero(~self._seen).tolist()
        for start in range(0, len(missing), COMPARED_RECORDS):
            yield Batch(missing[start : start + COMPARED_RECORDS])

    def compare_batch(self, batch: Batch, images: Mapping[int, Buffer], value: ValueGetter) -> Iterator[Difference]:
        """Compares a batch's records with their entries; yields the differences in labels, splits, values and images.

        An entry without a record is a difference, too. Skips records that are not in ``images``. Reads the source's
        samples and encodes their images. Thread-safe.

        Args:
            batch: One of :meth:`batch_records`.
            images: The images of its undamaged records.
            value: Returns the value of a column and a record.
        """
        for record, entry in batch.entries:
            if record is None:
                yield Difference(f"the source has {printable(entry.key)}, the store does not")
            elif record in images:
                for what in self._compare_record(record, entry, images[record], value):
                    yield Difference(what, record, entry.key)

    def compare_coverage(self) -> Iterator[Difference]:
        """Yields the records that the source lacks, and one difference if the order differs.

        Call it after :meth:`batch_records` has ended.
        """
        for record in np.flatnonzero(~self._seen).tolist():
            yield Difference("the store has this record, the source does not", record, try_key(self.reader, record))
        if not self._in_order:
            yield Difference("the records are in another order than in the source")

    def _compare_ledgers(self) -> Iterator[Difference]:
        """Yields a difference if the source's files differ from the manifest's in number or name."""
        then, now = self.manifest.origin.files, self.survey.ledger
        # Without a list of files on both sides, or for another kind of source, there is nothing to compare.
        if then is None or not now.total or self.manifest.origin.kind != self.source.kind:
            return
        # Only compares the files to pack or read.
        roles = (Role.PACKED, Role.ANNOTATION, Role.EVIDENCE)
        same = (then.packed, then.annotation, then.evidence) == tuple(map(now.count, roles))
        # If the source has another name (an archive of the folder, or a folder in it), paths begin differently.
        renamed = self.manifest.origin.name != self.source.path.resolve().name
        if not same or (then.used != now.used and not renamed):
            read = now.count(Role.ANNOTATION) + now.count(Role.EVIDENCE)
            yield Difference(
                f"the source has other files than when it was packed: {now.count(Role.PACKED):,} to pack and {read:,} "
                f"to read, then {then.packed:,} and {then.annotation + then.evidence:,}"
            )

    def _compare_counts(self) -> Iterator[Difference]:
        """Counts the source's files with other programs; yields the differences from packstore's own list."""
        path, ledger = self.source.path, self.survey.ledger
        # A single file says nothing about listing. A full ledger counts its rarest suffixes together.
        if place_of(path).remote or ledger.total < 2 or ("" in ledger.suffixes and len(ledger.suffixes) >= _CAPPED):
            return
        counts = count_independently(path)
        rows = counts.get(ROWS)
        files = {suffix: count for suffix, count in counts.items() if not suffix.startswith(ROWS)}
        self._counts_agree = True
        for suffix in sorted(files.keys() | ledger.suffixes.keys()):
            count, known = files.get(suffix, 0), ledger.suffixes.get(suffix, 0)
            if count != known:
                self._counts_agree = False
                what = f"{suffix} files" if suffix else "files without a suffix"
                yield Difference(f"the source holds {count:,} {printable(what)}, of which packstore has seen {known:,}")
        # A row of a table is only sure to be a sample if nothing of the source was left out.
        whole = self.source.kind == "parquet" and self.split is None and not ledger.left
        if whole and rows not in (None, self.survey.records):
            self._counts_agree = False
            yield Difference(f"the tables have {rows:,} rows, of which packstore has seen {self.survey.records:,}")

    @property
    def ledger_summary(self) -> str | None:
        """Text with the numbers of files in the source and of files left out. None for a source without files.

        Says if other files are left out than at packing. After :meth:`compare_summaries`, also says if an independent
        count agrees.
        """
        then, now = self.manifest.origin.files, self.survey.ledger
        if not now.total:
            return None
        left = now.count(Role.LEFT)
        summary = f"{now.total:,} files in the source, {left:,} of them left out"
        changed = then is not None and self.split is None and then.others != now.others
        if self._counts_agree:
            summary += "; an independent count agrees"
        if then is not None and changed:
            others = "others" if then.left == left else f"{then.left:,}"
            summary += f" (when it was packed, {others} were left out)"
        return summary

    def has_same_shards(self) -> bool:
        """Returns whether the source is a store with the same splits and the same shards.

        Compares the shards' SHA-256 in the two manifests and opens no shard. False if the store was packed from one
        split.
        """
        other, own = self.survey.store, self.manifest
        if other is None or self.split is not None or other.shards is None or own.shards is None:
            return False
        # Equal digests prove equal records, so no shard has to be opened.
        digests = own.shards.table["digest"], other.shards.table["digest"]
        return np.array_equal(*digests) and own.splits == other.splits

    def _compare_columns(self) -> Iterator[Difference]:
        """Yields missing columns, and columns whose classes differ from those of the source."""
        for column in self.survey.columns:
            if not self.manifest.has_column(column.name):
                yield Difference(f"the source has a column {column.name!r}, the store does not")
            elif self.manifest.column(column.name).classes != column.classes:
                yield Difference(f"the classes of {column.name!r} differ from the source's")
        if self.manifest.has_column("label") and not self.survey.columns:
            yield Difference(
                "the store has labels, the source has none: say what they were packed from with --labels CSV"
            )

    def _hash_keys(self) -> NDArray[np.uint64]:
        """Returns the hash of each record's key, or 0 if it cannot be read, which other checks report."""
        hashes = np.zeros(len(self.reader), np.uint64)
        self._seen[:] = True
        for file in open_files(self.reader):
            # Records of shards that do not open stay marked as seen: nothing reads them.
            self._seen[file.start : file.start + len(file.reader)] = False
            with suppress(StoreError):
                keys = file.reader.ragged_column("key")
                for i in range(len(file.reader)):
                    with suppress(StoreError):
                        hashes[file.start + i] = xxh3_64_intdigest(keys[i])
        return hashes

    def _batch_entries(self) -> Iterator[list[Entry]]:
        """Yields the source's entries in batches, without those that packing skipped."""
        with reading_source(self.source):
            entries = self.source.fetch(self.list_entries())
            while batch := list(islice(entries, COMPARED_RECORDS)):
                yield batch

    def _compare_record(self, record: int, entry: Entry, stored: Buffer, value_of: ValueGetter) -> Iterator[str]:
        """Yields a text for each difference of a record from its entry: labels, split, other values, image."""
        try:
            for column, value in zip(self.survey.labels, entry.labels, strict=True):
                # Columns that the store lacks were reported once, for the whole store.
                own = int(value_of(column.name, record)) if column.name in self.labels else value
                if own != value:
                    yield f"{column.name} is {own}, in the source {value}"
        except StoreError as error:
            yield f"cannot be compared: {error}"
            return
        split = self.splits.get(entry.split)
        if (self.splits or entry.split) and (split is None or not split.start <= record < split.stop):
            yield f"not in split {printable(entry.split)!r}, where the source has it"
        try:
            content = self.source.read(entry)
        except PackstoreError as error:
            yield f"cannot be compared, since the source's sample cannot be read: {error}"
            return
        try:
            yield from self._compare_values(record, self.convert_sample(entry.key, content), value_of)
            image = content.image if isinstance(content, Sample) else content
            # Fixed shapes are in the manifest, others in this column.
            shape = value_of("shape", record) if self.manifest.has_column("shape") else None
            difference = self.encoder.compare(entry.key, image, stored, shape)
        except PackstoreError as error:
            difference = f"cannot be compared: {error}"
        if difference is not None:
            yield difference

    def _compare_values(self, record: int, values: Mapping[str, Any], value_of: ValueGetter) -> Iterator[str]:
        """Yields a text for each column of the store whose value differs from ``values``."""
        for name, value in values.items():
            column = self.manifest.column(name) if name in self.labels else None
            if column is None:
                continue
            own = value_of(name, record)
            wanted = value if column.kind == "ragged" else np.asarray(value, NUMPY_DTYPE[column.dtype]).tobytes()
            if (own if column.kind == "ragged" else own.tobytes()) != wanted:
                yield f"its {name} differs from the source's"

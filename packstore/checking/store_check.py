"""Checks an open store: its structure, the digests of its columns, the two checksums of every record.

The manifest's digest proves the manifest: a store with a damaged one does not open. The manifest proves each column by
a digest, and two columns prove each record: ``checksum`` its image, ``row_checksum`` its other fields (see
:mod:`packstore.core.checksums`). If one of these two columns is damaged, it is computed again from the records: if the
result has the column's digest, the records are undamaged.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from packstore.core.checksums import (
    ROW_CHECKSUM,
    column_digest,
    records_digest,
    row_checksums,
    row_columns,
    value_hashes,
)
from packstore.core.columns import NUMPY_DTYPE, ColumnData, Ragged
from packstore.core.errors import PackstoreError, StoreError, UnreachableError
from packstore.core.manifest import Column
from packstore.core.parallel import ordered_map
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.packing.keys import digest_keys
from packstore.stores.base import Problem, Reader
from packstore.stores.remote.reader import RemoteReader
from packstore.stores.sharded import ShardedReader

_BATCH_RECORDS, _BATCH_BYTES = 1024, 8 << 20
_ROWS, _ROW_BYTES = 4096, 64 << 20
_Explained = Generator[Problem, None, set[str]]
"""Yields problems; returns the columns whose damage these explain."""


class Mismatch(NamedTuple):
    """A record that does not match its stored checksum.

    Attributes:
        found: The record's actual checksum; None if the record cannot be read.
        expected: The stored checksum.
        why: Why the record cannot be read, else empty.
    """

    found: int | None
    expected: int
    why: str = ""


class OpenFile(NamedTuple):
    """An open file of a store: the store itself, or one shard.

    Attributes:
        start: Number of its first record in the store.
        name: Name of the shard, or None.
        reader: Reader of this file alone; its records count from 0.
    """

    start: int
    name: str | None
    reader: Reader


class StoreCheck:
    """One check of one open store: :meth:`run` yields every problem; afterwards the attributes have details.

    Attributes:
        checks: Checks that were made, in order, in words.
        checked_bytes: Bytes of images whose checksums were computed.
        images: Records whose image is damaged or cannot be read.
        rows: Records whose other fields are damaged.
        damaged: Columns that do not match their digest, or cannot be read, in some file.
        unproven: Damaged columns whose damaged records are unknown, since no checksum tells.
        key_digests: Digests of the keys that were read, by the first record of each file; 16 bytes a record.
    """

    def __init__(
        self, reader: Reader, *, quick: bool = False, workers: int = 1, progress: ProgressCallback = no_progress
    ) -> None:
        """
        Args:
            reader: The store.
            quick: Read no images and no large columns.
            workers: Threads.
            progress: Called after each batch of records.
        """
        self._reader = reader
        self._quick = quick
        self._workers = workers
        self._progress = progress
        self._named: set[int] = set()  # records reported already: one problem a record is enough
        self.checks: list[str] = []
        self.checked_bytes = 0
        self.images: set[int] = set()
        self.rows: set[int] = set()
        self.damaged: set[str] = set()
        self.unproven: set[str] = set()
        self.key_digests: dict[int, NDArray[np.uint64]] = {}

    def run(self) -> Iterator[Problem]:
        """Yields the problems, at most one a record, and fills the attributes."""
        records = len(self._reader)
        rows = self._reader.manifest.has_column(ROW_CHECKSUM.name)
        self.checks += ["structure and manifest", "digests of the columns"]
        for problem in self._reader.check_structure(quick=self._quick, progress=self._progress):
            key = problem.key
            if problem.record is not None and key is None:
                key = try_key(self._reader, problem.record)
            yield self._mark_reported(replace(problem, key=key))
        self._progress(Progress("verify", 0, records, 0))
        reached = 0
        remote = isinstance(self._reader, RemoteReader)
        for file in () if remote and self._quick else open_files(self._reader):
            if file is None:
                continue  # check_structure has reported why
            yield from self._check_file(file)
            reached += len(file.reader)
        count = f"{reached:,} records" if reached == records else f"{reached:,} of {records:,} records"
        if self._quick and remote:
            self.checks[1:] = ["sizes of the objects"]
            self.checks.append("quick: no shard was read, so damage in shards is not noticed")
        elif self._quick:
            large = [c.name for c in self._reader.manifest.columns[1:] if c.one_by_one]
            self.checks.append(f"checksums of the labels and keys of {count}" if rows and not large else "sizes")
            what = ", ".join(f"no {name}" for name in ("image", *large))
            self.checks.append(f"quick: {what} was read, so damage in them is not noticed")
        else:
            self.checks.append(f"checksums of {count}" + (", their labels and keys" if rows else ""))

    def _mark_reported(self, problem: Problem) -> Problem:
        if problem.record is not None:
            self._named.add(problem.record)
        return problem

    def _check_file(self, file: OpenFile) -> Iterator[Problem]:
        """Yields the problems of one file: columns, rows, images, the digest of its records."""
        columns: dict[str, ColumnData] = {}
        unsound: dict[str, str] = {}  # columns that do not match their digest, each with its actual one
        described = [c for c in file.reader.manifest.columns[1:] if not (self._quick and c.one_by_one)]
        for column in described:
            try:
                data = file.reader.column(column.name)
            except (PackstoreError, KeyError) as error:
                self.unproven.add(column.name)
                yield Problem(f"column {column.name!r} cannot be read: {error}", shard=file.name)
                continue
            if len(data) != len(file.reader):
                self.unproven.add(column.name)
                yield Problem(f"column {column.name!r} has {len(data)} values of {len(file.reader)}", shard=file.name)
                continue
            columns[column.name] = data
            if column.name == "key" and isinstance(data, Ragged):
                with suppress(StoreError):  # keys that cannot be read are reported with their rows
                    self.key_digests[file.start] = digest_keys(data, len(data))
            try:
                digest = column_digest(data)
            except StoreError as error:  # one value cannot be read; it is reported with its row
                digest = f"not computable ({error})"
            if digest != column.digest:
                unsound[column.name] = digest
        self.damaged |= unsound.keys() | {c.name for c in described} - columns.keys()
        explained = yield from self._check_rows(file, columns, {*unsound})
        if not self._quick and "checksum" in columns:
            explained |= yield from self._check_images(file, columns["checksum"], "checksum" in unsound)
        for name in sorted(unsound.keys() - explained):
            self.unproven.add(name)
            expected = file.reader.manifest.column(name).digest
            what = f"column {name!r} is damaged: its SHA-256 is {unsound[name]}, expected {expected}"
            yield Problem(what, shard=file.name)
        if not unsound and len(columns) == len(file.reader.manifest.columns) - 1:
            yield from self._check_records_digest(file, columns)

    def _check_records_digest(self, file: OpenFile, columns: dict[str, ColumnData]) -> Iterator[Problem]:
        """Yields a problem if undamaged columns do not have the records digest in their manifest."""
        manifest, count = file.reader.manifest, len(file.reader)
        checksums, rows = columns["checksum"], columns.get(ROW_CHECKSUM.name)
        if rows is None:
            sums = compute_row_checksums(manifest.columns, columns, 0, count)
            rows = np.fromiter((found or 0 for found, _ in sums.values()), np.uint64, count)
        assert isinstance(checksums, np.ndarray)
        assert isinstance(rows, np.ndarray)
        digest = records_digest(checksums, rows)
        if digest != manifest.records_digest:
            what = f"the digest of the records is {digest}, expected {manifest.records_digest}"
            yield Problem(what, shard=file.name)

    def _check_rows(self, file: OpenFile, columns: dict[str, ColumnData], unsound: set[str]) -> _Explained:
        """Yields a problem for each record whose fields do not match their row checksum."""
        manifest = file.reader.manifest
        fields = [c.name for c in row_columns(manifest.columns)]
        if ROW_CHECKSUM.name not in columns or not columns.keys() >= set(fields):
            return set()
        stored = columns[ROW_CHECKSUM.name]
        assert isinstance(stored, np.ndarray)
        bad: dict[int, Mismatch] = {}
        width = sum(column.record_nbytes for column in row_columns(manifest.columns) if column.kind == "fixed")
        step = max(1, min(_ROWS, _ROW_BYTES // max(1, width)))
        for start in range(0, len(file.reader), step):
            stop = min(start + step, len(file.reader))
            for i, (found, why) in compute_row_checksums(manifest.columns, columns, start, stop).items():
                if found != int(stored[i]):
                    bad[i] = Mismatch(found, int(stored[i]), why)
        if not bad:
            return set()
        if ROW_CHECKSUM.name in unsound and _are_checksums_damaged(stored, bad, manifest.column(ROW_CHECKSUM.name)):
            for i, mismatch in bad.items():
                yield from self._report_record(file, i, _describe_bad_checksum("row checksum", mismatch))
            return {ROW_CHECKSUM.name}
        suspects = sorted(unsound.intersection(fields)) or fields
        label = " or ".join(suspects) + (" or row checksum" if ROW_CHECKSUM.name in unsound else "")
        for i, mismatch in bad.items():
            self.rows.add(file.start + i)
            yield from self._report_record(
                file, i, f"its {label} is damaged: {_describe_mismatch(mismatch, 'row checksum')}"
            )
        return unsound.intersection((*fields, ROW_CHECKSUM.name))

    def _check_images(self, file: OpenFile, stored: ColumnData, unsound: bool) -> _Explained:
        """Yields a problem for each record whose image does not match its checksum."""
        assert isinstance(stored, np.ndarray)
        reader, total = file.reader, len(self._reader)

        def check(batch: range) -> tuple[range, int, dict[int, Mismatch]]:
            nbytes, bad = 0, {}
            for i in batch:
                expected = int(stored[i])
                try:
                    data = reader.view(i)
                except (PackstoreError, IndexError) as error:
                    bad[i] = Mismatch(None, expected, f"cannot be read: {error}")
                    continue
                nbytes += memoryview(data).nbytes
                found = xxh3_64_intdigest(data)
                if found != expected:
                    bad[i] = Mismatch(found, expected)
            return batch, nbytes, bad

        all_bad: dict[int, Mismatch] = {}
        for batch, nbytes, bad in ordered_map(check, record_batches(reader), self._workers):
            self.checked_bytes += nbytes
            all_bad |= bad
            self._progress(Progress("verify", file.start + batch.stop, total, self.checked_bytes))
        if not all_bad:
            return set()
        if unsound and _are_checksums_damaged(stored, all_bad, reader.manifest.column("checksum")):
            for i, mismatch in all_bad.items():
                yield from self._report_record(file, i, _describe_bad_checksum("checksum", mismatch))
            return {"checksum"}
        for i, mismatch in all_bad.items():
            self.images.add(file.start + i)
            what = _describe_mismatch(mismatch, "checksum")
            yield from self._report_record(
                file, i, f"its stored checksum or its image is damaged: {what}" if unsound else what
            )
        return {"checksum"} if unsound else set()

    def _report_record(self, file: OpenFile, i: int, what: str) -> Iterator[Problem]:
        """Yields a problem of a record, unless it was reported already."""
        record = file.start + i
        if record not in self._named:
            yield self._mark_reported(Problem(what, record, try_key(file.reader, i), file.name))


def open_files(reader: Reader) -> Iterator[OpenFile | None]:
    """Yields the files of a store, in order; None for a shard that does not open."""
    if not isinstance(reader, ShardedReader):
        yield OpenFile(0, None, reader)
        return
    start = 0
    for number, shard in enumerate(reader.manifest.shards or ()):
        try:
            yield OpenFile(start, shard.name, reader.shard(number))
        except UnreachableError:  # the shard may be intact
            raise
        except StoreError:
            yield None
        start += shard.records


def try_key(reader: Reader, record: int) -> str | None:
    """Returns the key of a record for a report; None if it is damaged itself."""
    try:
        return reader.key(record)
    except (PackstoreError, IndexError, KeyError):
        return None


def compute_row_checksums(
    columns: tuple[Column, ...], data: dict[str, ColumnData], start: int, stop: int
) -> dict[int, tuple[int | None, str]]:
    """Computes the row checksums of records ``start`` to ``stop - 1`` from their present fields.

    Args:
        columns: Columns of the store.
        data: The columns of a row, by name.
        start: The first record.
        stop: One after the last record.

    Returns:
        For each record its checksum and an empty string; or None and the reason, if a field cannot be read.
    """
    count = stop - start
    unreadable: dict[int, str] = {}
    values: dict[str, NDArray[Any]] = {}
    for column in row_columns(columns):
        whole = data[column.name]
        if isinstance(whole, np.ndarray):
            values[column.name] = whole[start:stop]
            continue
        items: dict[int, Any] = {}
        for i in range(start, stop):
            try:
                items[i] = whole[i]
            except StoreError as error:
                unreadable[i] = str(error)
        if column.kind == "ragged":
            values[column.name] = value_hashes((items.get(i, b"") for i in range(start, stop)), count)
        else:
            nothing = next(iter(items.values()), np.zeros(0, NUMPY_DTYPE[column.dtype]))
            values[column.name] = np.stack([items.get(i, nothing) for i in range(start, stop)])
    sums = row_checksums(columns, values, count).tolist()
    return {
        i: (None, unreadable[i]) if i in unreadable else (found, "")
        for i, found in zip(range(start, stop), sums, strict=True)
    }


def record_batches(reader: Reader) -> Iterator[range]:
    """Yields ranges of records: equal counts, sized by the mean bytes of a record."""
    total = len(reader)
    step = max(1, min(_BATCH_RECORDS, _BATCH_BYTES // reader.manifest.mean_nbytes))
    return (range(start, min(start + step, total)) for start in range(0, total, step))


def _are_checksums_damaged(stored: NDArray[Any], bad: dict[int, Mismatch], column: Column) -> bool:
    """Returns whether the column of checksums is damaged, and not the records.

    That is so if it matches its digest once the bad records' actual checksums are put in.
    """
    if any(mismatch.found is None for mismatch in bad.values()):
        return False
    corrected = np.array(stored)
    for i, mismatch in bad.items():
        corrected[i] = mismatch.found
    return column_digest(corrected) == column.digest


def _describe_bad_checksum(name: str, mismatch: Mismatch) -> str:
    return f"its stored {name} is damaged: {mismatch.expected:016x}, should be {mismatch.found or 0:016x}"


def _describe_mismatch(mismatch: Mismatch, name: str) -> str:
    return mismatch.why or f"{name} {mismatch.found or 0:016x}, expected {mismatch.expected:016x}"

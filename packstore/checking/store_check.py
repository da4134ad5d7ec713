"""Checks whether an open store is whole: its structure, the digests of its columns, the two checksums of every record.

The manifest proves itself by its digest: a store with a damaged one does not open. It proves each column by a digest,
and two columns prove each record: ``checksum`` its image, ``row_checksum`` its other fields (see
:mod:`packstore.core.checksums`). If one of these two columns is itself damaged, it is computed again from the records:
if the result has the column's digest, the records are undamaged.
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
from packstore.packing.keys import key_digests
from packstore.stores.base import Problem, Reader
from packstore.stores.remote.reader import RemoteReader
from packstore.stores.sharded import ShardedReader

_BATCH_RECORDS, _BATCH_BYTES = 1024, 8 << 20
_ROWS, _ROW_BYTES = 4096, 64 << 20
_Told = Generator[Problem, None, set[str]]
"""Yields problems, and returns the columns whose damage they explain."""


class Mismatch(NamedTuple):
    """A record whose checksum is not the stored one.

    Attributes:
        found: The record's checksum; None if the record cannot be read.
        expected: The checksum in the store.
        why: Why it cannot be read, else empty.
    """

    found: int | None
    expected: int
    why: str = ""


class OpenFile(NamedTuple):
    """A file of a store: the store itself, or one shard that opens.

    Attributes:
        start: Number of its first record in the store.
        name: The shard's name, or None.
        reader: For this file alone; its records count from 0.
    """

    start: int
    name: str | None
    reader: Reader


class StoreCheck:
    """One check of one open store: :meth:`run` yields every problem, then the attributes say more.

    Attributes:
        checks: What was checked, in order, in words.
        checked_bytes: Bytes of images whose checksums were computed.
        images: Records whose image is damaged or cannot be read.
        rows: Records whose other fields are damaged.
        damaged: Columns that do not have their digest, or cannot be read, in some file.
        unproven: Those of them whose damaged records no checksum names.
        key_digests: Of the keys that were read, by the first record of each file; 16 bytes a record.
    """

    def __init__(
        self, reader: Reader, *, quick: bool = False, workers: int = 1, progress: ProgressCallback = no_progress
    ) -> None:
        """
        Args:
            reader: The store.
            quick: Read no images, and of the rest only what is small.
            workers: Threads.
            progress: Called after each batch of records.
        """
        self._reader = reader
        self._quick = quick
        self._workers = workers
        self._progress = progress
        self._named: set[int] = set()  # records reported already: one problem each is enough
        self.checks: list[str] = []
        self.checked_bytes = 0
        self.images: set[int] = set()
        self.rows: set[int] = set()
        self.damaged: set[str] = set()
        self.unproven: set[str] = set()
        self.key_digests: dict[int, NDArray[np.uint64]] = {}

    def run(self) -> Iterator[Problem]:
        """Yields the problems, at most one a record."""
        records = len(self._reader)
        rows = self._reader.manifest.has_column(ROW_CHECKSUM.name)
        self.checks += ["structure and manifest", "digests of the columns"]
        for problem in self._reader.check_structure(quick=self._quick, progress=self._progress):
            key = problem.key
            if problem.record is not None and key is None:
                key = key_of(self._reader, problem.record)
            yield self._note(replace(problem, key=key))
        self._progress(Progress("verify", 0, records, 0))
        reached = 0
        remote = isinstance(self._reader, RemoteReader)
        for file in () if remote and self._quick else open_files(self._reader):
            if file is None:
                continue  # check_structure has said why
            yield from self._part(file)
            reached += len(file.reader)
        count = f"{reached:,} records" if reached == records else f"{reached:,} of {records:,} records"
        if self._quick and remote:
            self.checks[1:] = ["sizes of the objects"]
            self.checks.append("quick: no shard was read, so a damaged one was not noticed")
        elif self._quick:
            large = [c.name for c in self._reader.manifest.columns[1:] if c.one_by_one]
            self.checks.append(f"checksums of the labels and keys of {count}" if rows and not large else "sizes")
            what = ", ".join(f"no {name}" for name in ("image", *large))
            self.checks.append(f"quick: {what} was read, so a damaged one was not noticed")
        else:
            self.checks.append(f"checksums of {count}" + (", their labels and keys" if rows else ""))

    def _note(self, problem: Problem) -> Problem:
        if problem.record is not None:
            self._named.add(problem.record)
        return problem

    def _part(self, file: OpenFile) -> Iterator[Problem]:
        columns: dict[str, ColumnData] = {}
        unsound: dict[str, str] = {}  # with the digest that each has
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
                with suppress(StoreError):  # of keys that cannot be read, which their rows name
                    self.key_digests[file.start] = key_digests(data, len(data))
            try:
                digest = column_digest(data)
            except StoreError as error:  # of a value that lies by itself; its row names it
                digest = f"not to be had ({error})"
            if digest != column.digest:
                unsound[column.name] = digest
        self.damaged |= unsound.keys() | {c.name for c in described} - columns.keys()
        explained = yield from self._rows(file, columns, {*unsound})
        if not self._quick and "checksum" in columns:
            explained |= yield from self._images(file, columns["checksum"], "checksum" in unsound)
        for name in sorted(unsound.keys() - explained):
            self.unproven.add(name)
            expected = file.reader.manifest.column(name).digest
            what = f"column {name!r} is damaged: its SHA-256 is {unsound[name]}, expected {expected}"
            yield Problem(what, shard=file.name)
        if not unsound and len(columns) == len(file.reader.manifest.columns) - 1:
            yield from self._records_digest(file, columns)

    def _records_digest(self, file: OpenFile, columns: dict[str, ColumnData]) -> Iterator[Problem]:
        """The digest of the records, in the manifest that says so of columns with the right digests."""
        manifest, count = file.reader.manifest, len(file.reader)
        checksums, rows = columns["checksum"], columns.get(ROW_CHECKSUM.name)
        if rows is None:
            sums = row_checksums_of(manifest.columns, columns, 0, count)
            rows = np.fromiter((found or 0 for found, _ in sums.values()), np.uint64, count)
        assert isinstance(checksums, np.ndarray)
        assert isinstance(rows, np.ndarray)
        digest = records_digest(checksums, rows)
        if digest != manifest.records_digest:
            what = f"the digest of the records is {digest}, expected {manifest.records_digest}"
            yield Problem(what, shard=file.name)

    def _rows(self, file: OpenFile, columns: dict[str, ColumnData], unsound: set[str]) -> _Told:
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
            for i, (found, why) in row_checksums_of(manifest.columns, columns, start, stop).items():
                if found != int(stored[i]):
                    bad[i] = Mismatch(found, int(stored[i]), why)
        if not bad:
            return set()
        if ROW_CHECKSUM.name in unsound and _checksums_damaged(stored, bad, manifest.column(ROW_CHECKSUM.name)):
            for i, mismatch in bad.items():
                yield from self._name(file, i, _stored("row checksum", mismatch))
            return {ROW_CHECKSUM.name}
        suspects = sorted(unsound.intersection(fields)) or fields
        label = " or ".join(suspects) + (" or row checksum" if ROW_CHECKSUM.name in unsound else "")
        for i, mismatch in bad.items():
            self.rows.add(file.start + i)
            yield from self._name(file, i, f"its {label} is damaged: {_describe(mismatch, 'row checksum')}")
        return unsound.intersection((*fields, ROW_CHECKSUM.name))

    def _images(self, file: OpenFile, stored: ColumnData, unsound: bool) -> _Told:
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
        for batch, nbytes, bad in ordered_map(check, batches(reader), self._workers):
            self.checked_bytes += nbytes
            all_bad |= bad
            self._progress(Progress("verify", file.start + batch.stop, total, self.checked_bytes))
        if not all_bad:
            return set()
        if unsound and _checksums_damaged(stored, all_bad, reader.manifest.column("checksum")):
            for i, mismatch in all_bad.items():
                yield from self._name(file, i, _stored("checksum", mismatch))
            return {"checksum"}
        for i, mismatch in all_bad.items():
            self.images.add(file.start + i)
            what = _describe(mismatch, "checksum")
            yield from self._name(file, i, f"its stored checksum or its image is damaged: {what}" if unsound else what)
        return {"checksum"} if unsound else set()

    def _name(self, file: OpenFile, i: int, what: str) -> Iterator[Problem]:
        record = file.start + i
        if record not in self._named:
            yield self._note(Problem(what, record, key_of(file.reader, i), file.name))


def open_files(reader: Reader) -> Iterator[OpenFile | None]:
    """The files of a store, in order; None for a shard that does not open."""
    if not isinstance(reader, ShardedReader):
        yield OpenFile(0, None, reader)
        return
    start = 0
    for number, shard in enumerate(reader.manifest.shards or ()):
        try:
            yield OpenFile(start, shard.name, reader.shard(number))
        except UnreachableError:  # which says nothing about the shard
            raise
        except StoreError:
            yield None
        start += shard.records


def key_of(reader: Reader, record: int) -> str | None:
    """The key of a record for a report, which may be damaged itself."""
    try:
        return reader.key(record)
    except (PackstoreError, IndexError, KeyError):
        return None


def row_checksums_of(
    columns: tuple[Column, ...], data: dict[str, ColumnData], start: int, stop: int
) -> dict[int, tuple[int | None, str]]:
    """The row checksums of records ``start`` to ``stop - 1``, as their fields are now.

    Args:
        columns: Of the store.
        data: Those of which a row consists, by name.
        start: The first record.
        stop: One after the last.

    Returns:
        For each record its checksum and an empty string; or None and the reason, when a field of it cannot be read.
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


def batches(reader: Reader) -> Iterator[range]:
    """Ranges of records of about the same number of bytes."""
    total = len(reader)
    step = max(1, min(_BATCH_RECORDS, _BATCH_BYTES // reader.manifest.mean_nbytes))
    return (range(start, min(start + step, total)) for start in range(0, total, step))


def _checksums_damaged(stored: NDArray[Any], bad: dict[int, Mismatch], column: Column) -> bool:
    """Whether the column of checksums is what is damaged, and not the records: with the checksums that the bad records
    have now, it has its digest."""
    if any(mismatch.found is None for mismatch in bad.values()):
        return False
    corrected = np.array(stored)
    for i, mismatch in bad.items():
        corrected[i] = mismatch.found
    return column_digest(corrected) == column.digest


def _stored(name: str, mismatch: Mismatch) -> str:
    return f"its stored {name} is damaged: {mismatch.expected:016x}, should be {mismatch.found or 0:016x}"


def _describe(mismatch: Mismatch, name: str) -> str:
    return mismatch.why or f"{name} {mismatch.found or 0:016x}, expected {mismatch.expected:016x}"

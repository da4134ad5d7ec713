"""Checks an open store: its structure, the digests of its columns, the two checksums of every record.

A digest in the manifest proves the manifest itself: a store with a damaged manifest does not open. The manifest proves
each column by a digest. Two columns prove each record: ``checksum`` its image, ``row_checksum`` its other fields (see
:mod:`packstore.core.checksums`). If one of these two columns is damaged, it is computed again from the records. If the
result has the column's digest, the records are undamaged.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.checksums import (
    ROW_CHECKSUM,
    column_digest,
    image_checksum,
    records_digest,
    row_columns,
)
from packstore.core.column import Column
from packstore.core.columns import Buffer, ColumnData, Ragged
from packstore.core.errors import PackstoreError, StoreError, UnreachableError, printable
from packstore.core.parallel import ordered_map
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.core.proof import Comparison, compare_rows, compute_rows
from packstore.stores.base import Problem, Reader
from packstore.stores.keys import digest_keys
from packstore.stores.linked import LinkError
from packstore.stores.places.work import Owner, find_writer, list_needless_files
from packstore.stores.remote.reader import RemoteReader
from packstore.stores.sharded import ShardedReader

_BATCH_RECORDS, _BATCH_BYTES = 1024, 8 << 20
_ROWS, _ROW_BYTES = 4096, 64 << 20
_Explained = Generator[Problem, None, set[str]]
"""Yields problems; returns the columns whose damage these explain."""


class StoreFile(NamedTuple):
    """An open file of a store: the store itself, or one shard.

    Attributes:
        start: Number of its first record in the store.
        name: Name of the shard, or None.
        reader: Reader of this file alone; its records count from 0.
    """

    start: int
    name: str | None
    reader: Reader


class Batch(NamedTuple):
    """Records to read at once.

    Attributes:
        records: Their numbers.
        entries: Entries of a source to compare with them, see :mod:`packstore.checking.against`.
    """

    records: Sequence[int]
    entries: Sequence[Any] = ()


@dataclass(frozen=True)
class ImageChecks:
    """Further checks of the images that :class:`StoreCheck` reads. The store is read only once for all checks.

    Attributes:
        check: Called in worker threads with a batch and its undamaged images, by record; yields the problems.
        batch_records: Most records of a batch.
        batches: Returns all records in the order of reading; None for the store's order.
    """

    check: Callable[[Batch, Mapping[int, Buffer]], Iterator[Problem]]
    batch_records: int
    batches: Callable[[], Iterator[Batch]] | None = None


class _ColumnResults(NamedTuple):
    """Result of checking the columns of one file.

    Attributes:
        start: Number of the file's first record in the store.
        checksums: The stored checksums of images; None if they cannot be read.
        unsound: Columns that do not match their digest, each with its actual digest.
        explained: Damaged columns whose damaged records are reported. They need no problem of their own.
    """

    start: int
    checksums: NDArray[Any] | None
    unsound: dict[str, str]
    explained: set[str]


class StoreCheck:
    """One check of one open store. :meth:`find_problems` yields every problem, at most one a record.

    Afterwards the attributes have details.

    Attributes:
        checks: A text for each check that was made, in order.
        checked_bytes: Bytes of images whose checksums were computed.
        images: Records whose image is damaged or cannot be read.
        rows: Records whose other fields are damaged.
        damaged: Columns that do not match their digest, or cannot be read, in some file.
        unproven: Damaged columns of which no checksum tells the damaged records.
        writer: The process that writes to the store now, or replaces it. None if there is none.
        key_digests: Digests of the keys that were read, by the first record of each file; 16 bytes a record.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        quick: bool = False,
        workers: int = 1,
        progress: ProgressCallback = no_progress,
        image_checks: ImageChecks | None = None,
    ) -> None:
        """
        Args:
            reader: The store.
            quick: Read no images and no large columns.
            workers: Threads.
            progress: Called after each batch of records.
            image_checks: Further checks of each image.
        """
        self._reader = reader
        self._quick = quick
        self._workers = workers
        self._progress = progress
        self._image_checks = image_checks
        self._named: set[int] = set()  # records reported already: one problem a record is enough
        self._read = 0  # records whose images were read
        self.checks: list[str] = []
        self.checked_bytes = 0
        self.images: set[int] = set()
        self.rows: set[int] = set()
        self.damaged: set[str] = set()
        self.unproven: set[str] = set()
        self.writer: Owner | None = None
        self.key_digests: dict[int, NDArray[np.uint64]] = {}

    def find_problems(self) -> Iterator[Problem]:
        """Checks the store and fills the attributes; yields the problems, at most one a record. Reports progress.

        A quick check reads no image, and at a URL opens no shard. Raises :class:`UnreachableError` if a shard cannot be
        fetched.
        """
        records = len(self._reader)
        rows = self._reader.manifest.has_column(ROW_CHECKSUM.name)
        self.checks += ["structure and manifest", "digests of the columns"]
        for problem in self._reader.check_structure(quick=self._quick, progress=self._progress):
            key = problem.key
            if problem.record is not None and key is None:
                key = try_key(self._reader, problem.record)
            yield self._mark_reported(replace(problem, key=key))
        remote = isinstance(self._reader, RemoteReader)
        if not remote:
            yield from self._check_surplus_files()
        self._progress(Progress("verify", 0, records, 0))
        reached = 0
        batches = None if self._image_checks is None else self._image_checks.batches
        kept: list[tuple[int, str | None, _ColumnResults]] = []
        for number, file in enumerate(open_files(self._reader) if not (remote and self._quick) else ()):
            if file is None:
                continue  # check_structure has reported why
            reached += len(file.reader)
            columns = yield from self._check_columns(file)
            if batches is not None:
                kept.append((number, file.name, columns))
            elif not self._quick:  # file by file, so that a shard at a URL is fetched once
                bad = yield from self._check_images(file.reader, self._batch_file(file), [columns])
                yield from self._report_images(file, columns, bad[0])
            else:
                yield from self._report_images(file, columns, {})
        if batches is not None:
            bad = yield from self._check_images(self._reader, batches(), [columns for *_, columns in kept])
            for (number, name, columns), some in zip(kept, bad, strict=True):
                if some or columns.unsound:
                    file = StoreFile(columns.start, name, self._reader.part(number))
                    yield from self._report_images(file, columns, some)
        count = f"{reached:,} records" if reached == records else f"{reached:,} of {records:,} records"
        if self._quick and remote:
            self.checks[1:] = ["sizes of the objects"]
            self.checks.append("no shard was read (--quick): damage in shards is not found")
        elif self._quick:
            large = [c.name for c in self._reader.manifest.columns[1:] if c.one_by_one]
            self.checks.append(f"checksums of the labels and keys of {count}" if rows and not large else "sizes")
            what = ", ".join(f"no {name}" for name in ("image", *large))
            self.checks.append(f"{what} was read (--quick): damage in them is not found")
        else:
            self.checks.append(f"checksums of {count}" + (", their labels and keys" if rows else ""))

    def _check_surplus_files(self) -> Iterator[Problem]:
        """Yields a problem for the files that a killed append left, and one for each foreign file in the store.

        Fills :attr:`writer`. The files of an append that is running are no problem.
        """
        path = self._reader.path
        surplus = self._reader.list_surplus_files() if isinstance(self._reader, ShardedReader) else []
        added = set(list_needless_files(path))  # after surplus, since an append notes its files before it adds them
        self.writer = find_writer(path)
        if self.writer is None and (left := list_needless_files(path)):  # asked again: the append may have just ended
            yield Problem(
                f"an interrupted append left {len(left):,} files in the store ({left[0]} …): give its command again, "
                "or run packstore clean"
            )
        for name in surplus:
            if name not in added and os.path.lexists(path / name):
                yield Problem(f"{printable(name)!r} does not belong to the store")

    def _mark_reported(self, problem: Problem) -> Problem:
        """Adds the problem's record to the reported ones; returns the problem."""
        if problem.record is not None:
            self._named.add(problem.record)
        return problem

    def _check_columns(self, file: StoreFile) -> Generator[Problem, None, _ColumnResults]:
        """Checks columns, rows (all fields but the image) and the records digest of one file.

        Yields the problems. Returns the results that the check of the images needs. Fills :attr:`key_digests`,
        :attr:`damaged` and :attr:`unproven`. A quick check leaves out large columns.
        """
        columns: dict[str, ColumnData] = {}
        unsound: dict[str, str] = {}
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
        if not unsound and len(columns) == len(file.reader.manifest.columns) - 1:
            yield from self._check_records_digest(file, columns)
        # Copied, so that no file stays open for them.
        checksums = np.array(columns["checksum"]) if "checksum" in columns else None
        return _ColumnResults(file.start, checksums, unsound, explained)

    def _check_records_digest(self, file: StoreFile, columns: dict[str, ColumnData]) -> Iterator[Problem]:
        """Yields a problem if the columns of a file do not have the records digest in its manifest. All columns must be
        undamaged."""
        manifest = file.reader.manifest
        checksums, rows = columns["checksum"], columns.get(ROW_CHECKSUM.name)
        if rows is None:
            rows, _ = compute_rows(manifest.columns, columns, 0, len(file.reader))
        assert isinstance(checksums, np.ndarray)
        assert isinstance(rows, np.ndarray)
        digest = records_digest(checksums, rows)
        if digest != manifest.records_digest:
            what = f"the digest of the records is {digest}, expected {manifest.records_digest}"
            yield Problem(what, shard=file.name)

    def _check_rows(self, file: StoreFile, columns: dict[str, ColumnData], unsound: set[str]) -> _Explained:
        """Compares each record's fields with its row checksum; yields a problem for each mismatch.

        A problem says if the fields or the row checksum itself are damaged. Adds records with damaged fields to
        :attr:`rows`. Returns the damaged columns that the problems explain. Checks nothing without row checksums, or if
        a column cannot be read.
        """
        manifest = file.reader.manifest
        fields = [c.name for c in row_columns(manifest.columns)]
        if ROW_CHECKSUM.name not in columns or not columns.keys() >= set(fields):
            return set()
        stored = columns[ROW_CHECKSUM.name]
        assert isinstance(stored, np.ndarray)
        bad: dict[int, Comparison] = {}
        width = sum(column.record_nbytes for column in row_columns(manifest.columns) if column.kind == "fixed")
        step = max(1, min(_ROWS, _ROW_BYTES // max(1, width)))
        for start in range(0, len(file.reader), step):
            bad |= compare_rows(manifest.columns, columns, stored[start : start + step], start)
        if not bad:
            return set()
        if ROW_CHECKSUM.name in unsound and are_checksums_damaged(stored, bad, manifest.column(ROW_CHECKSUM.name)):
            for i, mismatch in bad.items():
                yield from self._report_record(file, i, describe_damaged_checksum("row checksum", mismatch))
            return {ROW_CHECKSUM.name}
        suspects = sorted(unsound.intersection(fields)) or fields
        label = " or ".join(suspects) + (" or row checksum" if ROW_CHECKSUM.name in unsound else "")
        for i, mismatch in bad.items():
            self.rows.add(file.start + i)
            yield from self._report_record(
                file, i, f"its {label} is damaged: {describe_mismatch(mismatch, 'row checksum')}"
            )
        return unsound.intersection((*fields, ROW_CHECKSUM.name))

    def _batch_file(self, file: StoreFile) -> Iterator[Batch]:
        """Yields the records of one file in batches, with their numbers in the store."""
        checks = self._image_checks
        for batch in record_batches(file.reader, _BATCH_RECORDS if checks is None else checks.batch_records):
            yield Batch(range(file.start + batch.start, file.start + batch.stop))

    def _check_images(
        self, reader: Reader, batches: Iterable[Batch], files: Sequence[_ColumnResults]
    ) -> Generator[Problem, None, list[dict[int, Comparison]]]:
        """Reads each image once, in threads; yields the problems that the further checks find. Reports progress.

        Returns for each of ``files`` the records that do not match their checksum or cannot be read, numbered from its
        first record. ``reader`` reads the whole store, or only the file if ``files`` has one. If an image has no
        readable checksum and there are no further checks, does not read it.
        """
        checks, total = self._image_checks, len(self._reader)
        starts = [columns.start for columns in files]
        first = 0 if reader is self._reader else starts[0]

        def check(batch: Batch) -> tuple[int, int, dict[int, Comparison], list[Problem]]:
            nbytes, bad, sound = 0, {}, {}
            for record in batch.records:
                columns = files[bisect_right(starts, record) - 1]
                expected = None if columns.checksums is None else int(columns.checksums[record - columns.start])
                if expected is None and checks is None:
                    continue
                try:
                    data = reader.view(record - first)
                except (PackstoreError, IndexError) as error:
                    why = error.reason if isinstance(error, LinkError) else f"cannot be read: {error}"
                    bad[record] = Comparison(None, expected or 0, why)
                    continue
                nbytes += memoryview(data).nbytes
                found = image_checksum(data)
                if expected is not None and found != expected:
                    bad[record] = Comparison(found, expected)
                elif checks is not None:
                    sound[record] = data
            return len(batch.records), nbytes, bad, [] if checks is None else [*checks.check(batch, sound)]

        bad_of: list[dict[int, Comparison]] = [{} for _ in files]
        for count, nbytes, bad, problems in ordered_map(check, batches, self._workers):
            self._read += count
            self.checked_bytes += nbytes
            for record, mismatch in bad.items():
                place = bisect_right(starts, record) - 1
                bad_of[place][record - starts[place]] = mismatch
            for problem in problems:
                if problem.record not in self._named:
                    yield self._mark_reported(problem)
            self._progress(Progress("verify", self._read, total, self.checked_bytes))
        return bad_of

    def _report_images(self, file: StoreFile, columns: _ColumnResults, bad: dict[int, Comparison]) -> Iterator[Problem]:
        """Yields a problem for each of the file's mismatched records ``bad``. Adds records with a damaged image to
        :attr:`images`.

        Then yields a problem for each damaged column of which no problem names a record. Adds such a column to
        :attr:`unproven`.
        """
        unsound = "checksum" in columns.unsound
        explained = columns.explained | ({"checksum"} if bad else set())
        checksums_damaged = (
            unsound
            and columns.checksums is not None
            and are_checksums_damaged(columns.checksums, bad, file.reader.manifest.column("checksum"))
        )
        for i, mismatch in bad.items():
            if checksums_damaged:
                what = describe_damaged_checksum("checksum", mismatch)
            else:
                self.images.add(file.start + i)
                what = describe_mismatch(mismatch, "checksum")
                what = f"its stored checksum or its image is damaged: {what}" if unsound else what
            yield from self._report_record(file, i, what)
        for name in sorted(columns.unsound.keys() - explained):
            self.unproven.add(name)
            expected = file.reader.manifest.column(name).digest
            what = f"column {name!r} is damaged: its SHA-256 is {columns.unsound[name]}, expected {expected}"
            yield Problem(what, shard=file.name)

    def _report_record(self, file: StoreFile, i: int, what: str) -> Iterator[Problem]:
        """Yields the problem ``what`` of a record, or nothing if the record was reported already."""
        record = file.start + i
        if record not in self._named:
            yield self._mark_reported(Problem(what, record, try_key(file.reader, i), file.name))


def open_files(reader: Reader) -> Iterator[StoreFile | None]:
    """Yields the files of a store, in order; None for a shard that does not open.

    Raises :class:`UnreachableError` if a shard cannot be fetched: it may be undamaged.
    """
    if not isinstance(reader, ShardedReader):
        yield StoreFile(0, None, reader)
        return
    start = 0
    for number, shard in enumerate(reader.manifest.shards or ()):
        try:
            yield StoreFile(start, shard.name, reader.shard(number))
        except UnreachableError:  # the shard may be intact
            raise
        except StoreError:
            yield None
        start += shard.records


def try_key(reader: Reader, record: int) -> str | None:
    """Returns the key of a record, or None if the key cannot be read."""
    try:
        return reader.key(record)
    except (PackstoreError, IndexError, KeyError):
        return None


def record_batches(reader: Reader, most: int = _BATCH_RECORDS) -> Iterator[range]:
    """Yields ranges of records with about 8 MiB each, and at most ``most`` records. All but the last have the same
    length."""
    total = len(reader)
    step = max(1, min(most, _BATCH_BYTES // reader.manifest.mean_nbytes))
    return (range(start, min(start + step, total)) for start in range(0, total, step))


def are_checksums_damaged(stored: NDArray[Any], bad: dict[int, Comparison], column: Column) -> bool:
    """Returns whether the stored column of checksums is damaged, and not the records ``bad`` that differ from it.

    Puts the actual checksums of these records into the column: if the column then matches its digest, it was damaged.
    Returns False if one of the records cannot be read.
    """
    if any(comparison.found is None for comparison in bad.values()):
        return False
    corrected = np.array(stored)
    for i, comparison in bad.items():
        corrected[i] = comparison.found
    return column_digest(corrected) == column.digest


def describe_damaged_checksum(name: str, comparison: Comparison) -> str:
    """Returns the text of a problem: the stored checksum ``name`` is damaged, the record is not."""
    return f"its stored {name} is damaged: {comparison.expected:016x}, should be {comparison.found or 0:016x}"


def describe_mismatch(comparison: Comparison, name: str) -> str:
    """Returns the text of a problem: a record's checksum ``name``, and the expected one.

    If the record cannot be read, returns the reason instead.
    """
    return comparison.why or f"{name} {comparison.found or 0:016x}, expected {comparison.expected:016x}"

"""Checks an open store: its structure, the digests of its columns, the two checksums of every record.

A digest in the manifest proves the manifest itself: a store with a damaged manifest does not open. The manifest proves
each column by a digest. Two columns prove each record: ``checksum`` its image, ``row_checksum`` its other fields (see
:mod:`packstore.core.proof`). If one of these two columns is damaged, it is computed again from the records. If the
result has the column's digest, the records are undamaged.

Two words, throughout the room: *damaged* is what differs from its checksum or digest, or cannot be read. *Unproven* is
what no checksum tells about.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.checking.reports import CheckReport, try_key
from packstore.core.columns import Buffer, Column, ColumnData, Ragged
from packstore.core.errors import DecodeError, PackstoreError, StoreError, UnreachableError, printable
from packstore.core.manifest import Manifest
from packstore.core.parallel import ordered_map
from packstore.core.progress import Progress, ProgressCallback, no_progress
from packstore.core.proof import (
    ROW_CHECKSUM,
    Comparison,
    column_digest,
    compare_rows,
    compute_rows,
    image_checksum,
    records_digest,
    row_columns,
)
from packstore.stores import Problem, Reader
from packstore.stores.keys import digest_keys
from packstore.stores.linked import LinkError
from packstore.stores.places import Place, place_of
from packstore.stores.places.work import list_needless_files
from packstore.stores.staged_columns import BATCH_BYTES, BATCH_RECORDS

if TYPE_CHECKING:
    from packstore.images.decoders import Decoder

COMPARED_RECORDS = 16
"""Most records of a batch that is decoded or compared with a source."""
ValueGetter = Callable[[str, int], Any]
"""Returns the value of a column for a record."""
_ROWS, _ROW_BYTES = 4096, 64 << 20


class StoreFile(NamedTuple):
    """A file of a store: the store itself, or one shard.

    Attributes:
        store: Reader of the store.
        number: Its number among the store's files.
        start: Number of its first record in the store.
        name: Name of the shard, or None.
    """

    store: Reader
    number: int
    start: int
    name: str | None

    @property
    def reader(self) -> Reader:
        """Reader of this file alone, opened if need be; its records count from 0."""
        return self.store if self.name is None else self.store.part(self.number)


class Batch(NamedTuple):
    """Records to read at once.

    Attributes:
        records: Their numbers.
        entries: Entries of a source to compare with them, see :mod:`packstore.checking.against`.
    """

    records: Sequence[int]
    entries: Sequence[Any] = ()


class _CheckedColumns(NamedTuple):
    """Result of checking the columns of one file.

    Attributes:
        file: The file.
        checksums: The stored checksums of images; None if they cannot be read.
        damaged: Columns that do not match their digest, each with its actual digest.
        explained: Damaged columns whose damaged records are reported. They need no problem of their own.
    """

    file: StoreFile
    checksums: NDArray[Any] | None
    damaged: dict[str, str]
    explained: set[str]


@dataclass
class StoreCheck:
    """One check of one open store.

    Attributes:
        reader: The store.
        quick: Read no images and no large columns.
        workers: Threads.
        progress: Called after each batch of records.
        check_images: Makes further checks of images: called in worker threads with a batch and its undamaged images, by
            record; yields the problems. The store is read only once for all checks.
        batches: Returns all records in the order of reading. None for the store's order, file by file.
        report: The report to add to.
    """

    reader: Reader
    _: KW_ONLY
    quick: bool = False
    workers: int = 1
    progress: ProgressCallback = no_progress
    check_images: Callable[[Batch, Mapping[int, Buffer]], Iterator[Problem]] | None = None
    batches: Callable[[], Iterator[Batch]] | None = None
    report: CheckReport = field(default_factory=CheckReport)
    _read: int = 0  # records whose images were read

    def run(self) -> CheckReport:
        """Checks the store and returns the report. Reports progress.

        A quick check reads no image, and at a URL opens no shard. Raises :class:`UnreachableError` if a shard cannot be
        fetched.
        """
        reader, report = self.reader, self.report
        for problem in reader.check_structure(quick=self.quick, progress=self.progress):
            known = problem.record is None or problem.key is not None
            report.add(problem if known else replace(problem, key=try_key(reader, problem.record or 0)))
        place = place_of(reader.path)
        if not place.remote:
            self._check_surplus_files(place)
        self.progress(Progress("verify", 0, len(reader), 0))
        reached = 0
        batches = self.batches
        checked: list[_CheckedColumns] = []
        for file in () if place.remote and self.quick else open_files(reader):
            reached += len(file.reader)
            columns = self._check_columns(file)
            if batches is not None:
                checked.append(columns)
            elif self.quick:
                self._report_images(columns, {})
            else:  # file by file, so that a shard at a URL is fetched once
                own = record_batches(file.reader, BATCH_RECORDS if self.check_images is None else COMPARED_RECORDS)
                numbered = (Batch(range(file.start + some.start, file.start + some.stop)) for some in own)
                self._report_images(columns, *self._check_images(file.reader, numbered, [columns]))
        if batches is not None:
            for columns, some in zip(checked, self._check_images(reader, batches(), checked), strict=True):
                # Otherwise nothing is to report, and a shard need not be opened again.
                if some or columns.damaged:
                    self._report_images(columns, some)
        report.checks += self._list_checks(reached, place.remote)
        return report

    def _list_checks(self, reached: int, remote: bool) -> list[str]:
        """Lists the checks that were made as text; ``reached`` counts the records in files that open."""
        manifest, records = self.reader.manifest, len(self.reader)
        rows = manifest.has_column(ROW_CHECKSUM.name)
        if self.quick and remote:
            note = "no shard was read (--quick): damage in shards is not found"
            return ["structure and manifest", "sizes of the objects", note]
        checks = ["structure and manifest", "digests of the columns"]
        count = f"{reached:,} records" if reached == records else f"{reached:,} of {records:,} records"
        if not self.quick:
            return [*checks, f"checksums of {count}" + (", their labels and keys" if rows else "")]
        large = [c.name for c in manifest.columns[1:] if c.one_by_one]
        what = ", ".join(f"no {name}" for name in ("image", *large))
        checks.append(f"checksums of the labels and keys of {count}" if rows and not large else "sizes")
        return [*checks, f"{what} was read (--quick): damage in them is not found"]

    def _check_surplus_files(self, place: Place) -> None:
        """Adds problems for foreign files and those of a killed append, and notes a running writer."""
        path = place.path
        surplus = self.reader.table.list_surplus_files()
        added = set(list_needless_files(path))  # after surplus, since an append notes its files before it adds them
        self.report.writer = place.find_writer()
        # Listed again: the append may have just ended.
        if self.report.writer is None and (left := list_needless_files(path)):
            what = (
                f"an interrupted append left {len(left):,} files in the store ({left[0]} …): give its command again, "
            )
            self.report.add(Problem(f"{what}or run packstore clean"))
        for name in surplus:
            if name not in added and os.path.lexists(path / name):
                self.report.add(Problem(f"{printable(name)!r} does not belong to the store"))

    def _check_columns(self, file: StoreFile) -> _CheckedColumns:
        """Checks columns, rows and records digest of one file; returns what the check of the images needs."""
        report = self.report
        columns: dict[str, ColumnData] = {}
        damaged: dict[str, str] = {}
        described = [c for c in file.reader.manifest.columns[1:] if not (self.quick and c.one_by_one)]
        for column in described:
            try:
                data = file.reader.column(column.name)
            except (PackstoreError, KeyError) as error:
                report.add(Problem(f"column {column.name!r} cannot be read: {error}", shard=file.name))
                continue
            if len(data) != len(file.reader):
                what = f"column {column.name!r} has {len(data)} values of {len(file.reader)}"
                report.add(Problem(what, shard=file.name))
                continue
            columns[column.name] = data
            if column.name == "key" and isinstance(data, Ragged):
                with suppress(StoreError):  # keys that cannot be read are reported with their rows
                    report.key_digests[file.start] = digest_keys(data, len(data))
            try:
                digest = column_digest(data)
            except StoreError as error:  # one value cannot be read; it is reported with its row
                digest = f"not computable ({error})"
            if digest != column.digest:
                damaged[column.name] = digest
        unreadable = {c.name for c in described} - columns.keys()
        report.unproven |= unreadable
        report.columns |= damaged.keys() | unreadable
        explained = self._check_rows(file, columns, {*damaged})
        if not damaged and len(columns) == len(file.reader.manifest.columns) - 1:
            self._check_records_digest(file, columns)
        # Copied, so that no file stays open for them.
        checksums = np.array(columns["checksum"]) if "checksum" in columns else None
        return _CheckedColumns(file, checksums, damaged, explained)

    def _check_records_digest(self, file: StoreFile, columns: Mapping[str, ColumnData]) -> None:
        """Adds a problem if undamaged columns of a file do not have the records digest in its manifest."""
        manifest = file.reader.manifest
        rows: Any = columns.get(ROW_CHECKSUM.name)
        if rows is None:
            rows, _ = compute_rows(manifest.columns, columns, 0, len(file.reader))
        digest = records_digest(np.asarray(columns["checksum"]), rows)
        if digest != manifest.records_digest:
            what = f"the digest of the records is {digest}, expected {manifest.records_digest}"
            self.report.add(Problem(what, shard=file.name))

    def _check_rows(self, file: StoreFile, columns: Mapping[str, ColumnData], damaged: set[str]) -> set[str]:
        """Reports records that differ from their row checksums, and returns the damaged columns this explains."""
        manifest = file.reader.manifest
        covered = row_columns(manifest.columns)
        fields = [column.name for column in covered]
        if not columns.keys() >= {ROW_CHECKSUM.name, *fields}:
            return set()
        stored = np.asarray(columns[ROW_CHECKSUM.name])
        differing: dict[int, Comparison] = {}
        width = sum(column.record_nbytes for column in covered if column.kind == "fixed")
        step = max(1, min(_ROWS, _ROW_BYTES // max(1, width)))
        for start in range(0, len(file.reader), step):
            differing |= compare_rows(manifest.columns, columns, stored[start : start + step], start)
        if not differing:
            return set()
        column = manifest.column(ROW_CHECKSUM.name)
        proven = column.name in damaged and _proves_records(stored, differing, column)
        label = " or ".join(sorted(damaged.intersection(fields)) or fields)
        label += " or row checksum" if column.name in damaged else ""
        self._report_records(
            file, "row checksum", differing, None if proven else self.report.rows, f"its {label} is damaged: "
        )
        return {column.name} if proven else damaged.intersection((*fields, column.name))

    def _check_images(
        self, reader: Reader, batches: Iterable[Batch], files: Sequence[_CheckedColumns]
    ) -> list[dict[int, Comparison]]:
        """Reads each image once, in threads, and returns the images of each file that differ from their checksums, by
        number within the file."""
        # Problems that the further check finds go to the report.
        check_further, report = self.check_images, self.report
        starts = [columns.file.start for columns in files]
        first = 0 if reader is self.reader else starts[0]

        def check(batch: Batch) -> tuple[int, int, dict[int, Comparison], list[Problem]]:
            nbytes, differing, undamaged = 0, {}, {}
            for record in batch.records:
                columns = files[bisect_right(starts, record) - 1]
                expected = None if columns.checksums is None else int(columns.checksums[record - columns.file.start])
                if expected is None and check_further is None:
                    continue  # nothing proves the image
                try:
                    data = reader.view(record - first)
                except (PackstoreError, IndexError) as error:
                    # A broken link says itself what is wrong with its file.
                    why = error.why if isinstance(error, LinkError) else f"cannot be read: {error}"
                    differing[record] = Comparison(None, expected or 0, why)
                    continue
                nbytes += memoryview(data).nbytes
                found = image_checksum(data)
                if expected is not None and found != expected:
                    differing[record] = Comparison(found, expected)
                elif check_further is not None:
                    undamaged[record] = data
            problems = [] if check_further is None else [*check_further(batch, undamaged)]
            return len(batch.records), nbytes, differing, problems

        by_file: list[dict[int, Comparison]] = [{} for _ in files]
        for count, nbytes, differing, problems in ordered_map(check, batches, self.workers):
            self._read += count
            report.checked_bytes += nbytes
            for record, comparison in differing.items():
                place = bisect_right(starts, record) - 1
                by_file[place][record - starts[place]] = comparison
            for problem in problems:
                report.add(problem)
            self.progress(Progress("verify", self._read, len(self.reader), report.checked_bytes))
        return by_file

    def _report_images(self, columns: _CheckedColumns, differing: Mapping[int, Comparison]) -> None:
        """Adds a problem for each image that differs, and for each damaged column that no problem explains."""
        file = columns.file
        described = file.reader.manifest.column
        damaged, stored = "checksum" in columns.damaged, columns.checksums
        proven = damaged and stored is not None and _proves_records(stored, differing, described("checksum"))
        damage = "its stored checksum or its image is damaged: " if damaged else ""
        self._report_records(file, "checksum", differing, None if proven else self.report.images, damage)
        for name in sorted(columns.damaged.keys() - columns.explained - ({"checksum"} if differing else set())):
            self.report.unproven.add(name)
            expected = described(name).digest
            what = f"column {name!r} is damaged: its SHA-256 is {columns.damaged[name]}, expected {expected}"
            self.report.add(Problem(what, shard=file.name))

    def _report_records(
        self, file: StoreFile, noun: str, differing: Mapping[int, Comparison], damaged: set[int] | None, damage: str
    ) -> None:
        """Adds a problem for each record of a file whose checksum, called ``noun``, differs."""
        for i, (found, expected, why) in differing.items():
            # The stored checksums are damaged, not the records.
            if damaged is None:
                what = f"its stored {noun} is damaged: {expected:016x}, should be {found or 0:016x}"
            else:
                damaged.add(file.start + i)
                what = damage + (why or f"{noun} {found or 0:016x}, expected {expected:016x}")
            self.report.add(Problem(what, file.start + i, try_key(file.reader, i), file.name))


def open_files(reader: Reader) -> Iterator[StoreFile]:
    """Yields the files of a store that open, in order. :meth:`Reader.check_structure` reports the others.

    Raises :class:`UnreachableError` if a shard cannot be fetched: it may be undamaged.
    """
    if reader.manifest.shards is None:
        yield StoreFile(reader, 0, 0, None)
        return
    start = 0
    for number, shard in enumerate(reader.manifest.shards or ()):
        try:
            reader.part(number)
        except UnreachableError:  # the shard may be undamaged
            raise
        except StoreError:  # check_structure reports it
            pass
        else:
            yield StoreFile(reader, number, start, shard.name)
        start += shard.records


def make_decoder(manifest: Manifest, column: Column, max_pixels: int, name: str = "auto") -> Decoder:
    """Makes the decoder called ``name`` for a column's image files, which decodes them to the column's mode."""
    from packstore.images.decoders import get_decoder
    from packstore.images.reading import Reading

    return get_decoder(name, max_pixels=max_pixels, reading=Reading.of_column(column, manifest.options))


def decode_files(
    reader: Reader, column: Column, decoder: Decoder, record: int, value: ValueGetter
) -> Iterator[tuple[str, Buffer, NDArray[Any] | DecodeError]]:
    """Yields name, bytes and pixels of each image file of a record in a column beside the main image.

    If a file does not decode, its error takes the place of its pixels.
    """
    if column.nullable and not reader.has_value(column.name, record):
        return
    files = [*column.traits.files(column, value(column.name, record))]
    for number, (data, image) in enumerate(zip(files, decoder.decode_each(files), strict=True)):
        yield f"image {number} of {column.name!r}" if column.form == "files" else repr(column.name), data, image


def record_batches(reader: Reader, most: int = BATCH_RECORDS) -> Iterator[range]:
    """Yields ranges of records with about 8 MiB each, and at most ``most`` records. All but the last have the same
    length."""
    total = len(reader)
    step = max(1, min(most, BATCH_BYTES // reader.manifest.mean_nbytes))
    return (range(start, min(start + step, total)) for start in range(0, total, step))


def _proves_records(stored: NDArray[Any], differing: Mapping[int, Comparison], column: Column) -> bool:
    """Tells if the stored column of checksums is damaged, rather than the records that differ from it."""
    if any(comparison.found is None for comparison in differing.values()):
        return False
    corrected = np.array(stored)  # has the digest if the records are undamaged
    for i, comparison in differing.items():
        corrected[i] = comparison.found
    return column_digest(corrected) == column.digest

"""``verify``: proves that a store is undamaged, and that its content equals its source."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from packstore.checking import VerifyOptions
from packstore.checking.reports import MOST_LISTED, CheckReport, VerifyReport, try_key
from packstore.checking.store_check import Batch, StoreCheck, ValueGetter, decode_files, make_decoder
from packstore.core.columns import SEEK_INDEX, Buffer, Column, find_file_columns
from packstore.core.errors import DecodeError, StoreError, UsageError, printable
from packstore.core.options import argument, progress_option, takes
from packstore.core.parallel import default_workers
from packstore.core.progress import ProgressCallback, progress_callback
from packstore.core.urls import check_paths, find_bridge, location
from packstore.stores import Problem, Reader, open_store
from packstore.stores.keys import list_double_keys
from packstore.stores.opening import read_manifest
from packstore.stores.places import place_of

if TYPE_CHECKING:
    from packstore.checking.against import SourceComparison
    from packstore.images.decoders import Decoder

_TRIES = 3
"""Most times that a store is checked which other processes replace meanwhile."""


@dataclass(frozen=True)
class VerifyArguments(VerifyOptions):
    """Arguments of :func:`packstore.verify`."""

    path: str | os.PathLike[str] = field(
        metadata=argument(
            "The store, or its URL: each object is read once, in bounded memory, and each shard through the cache."
        )
    )
    _: KW_ONLY
    progress: bool | ProgressCallback = progress_option()


@takes(VerifyArguments)
def verify(arguments: VerifyArguments) -> VerifyReport:
    """Checks a store: structure, manifest, counts, file and column digests, the checksums of every record.

    ``decode=True`` also checks that every image decodes. ``against=SOURCE`` also compares the store with the source.
    Keys, labels and splits must be equal. Images are compared in one of three ways:
    - byte for byte, if the records are the source's files;
    - pixel for pixel, for lossless encodings;
    - within the tolerance stated in :func:`packstore.images.encode.Encoder.compare`, for other encodings.

    ``image_key``, ``label_key``, ``layout``, ``ignore``, ``splits`` and ``columns`` that are not given are those with
    which the store was packed. If another process replaces the store meanwhile, or appends to it, checks the new one.

    Returns:
        The report; damage is in it, not raised.

    Raises:
        StoreError: ``path`` does not open as a store. A :class:`MissingStoreError` if it does not exist; an
            :class:`~packstore.core.errors.UnreachableError` if a shard cannot be fetched now.
        UsageError: Nothing is at ``against``; checked before the store is read. Or an option is wrong.
        SourceError: The source to compare with cannot be read.
    """
    check_paths(arguments.labels)
    against = None if arguments.against is None else location(arguments.against)
    # Checked now, not after the whole store has been read.
    if against is not None and find_bridge(against) is None and place_of(against).is_empty():
        raise UsageError(f"{printable(str(against))}: no such file or directory")
    with progress_callback(arguments.progress) as progress:
        # A store that is replaced meanwhile looks damaged: the new one is checked instead.
        for left in reversed(range(_TRIES)):
            with open_store(arguments.path) as reader:
                try:
                    report = _Verification(reader, arguments, against, progress).verify_store()
                except StoreError:
                    if not left or not _was_replaced(reader):
                        raise
                else:
                    if report.ok or not left or not _was_replaced(reader):
                        break
        return report


def _was_replaced(reader: Reader) -> bool:
    """Returns whether another store is now at the path of an open one."""
    try:
        return not place_of(reader.path).remote and read_manifest(reader.path).digest != reader.manifest.digest
    except StoreError:
        return False


@dataclass
class _Verification:
    """One run of ``verify``. With ``decode``, creating it loads the decoders."""

    reader: Reader
    options: VerifyOptions
    against: Path | None
    progress: ProgressCallback
    report: CheckReport = field(default_factory=CheckReport)
    comparison: SourceComparison | None = None
    decoders: list[tuple[Column, Decoder]] = field(default_factory=list)
    index_fault: str | None = None  # why seek indexes are not compared

    def __post_init__(self) -> None:
        if self.options.decode:
            from packstore.images.engine import engine_problem

            self.index_fault = engine_problem()
            manifest = self.reader.manifest
            main = [manifest.image] if manifest.holds_files else []
            limits = self.options.max_pixels, self.options.decoder
            columns = [*main, *find_file_columns(manifest.columns)]
            self.decoders = [(column, make_decoder(manifest, column, *limits)) for column in columns]
        self.compares_indexes = (
            self.options.decode and self.reader.manifest.has_column(SEEK_INDEX.name) and self.index_fault is None
        )

    def verify_store(self) -> VerifyReport:
        """Opens the source if there is one, makes all checks, and returns the report."""
        with ExitStack() as stack:
            if self.against is not None:
                from packstore.checking.against import SourceComparison

                opened = self.options.open_packed(self.against, self.reader.manifest, self.progress)
                source = stack.enter_context(closing(opened))
                self.comparison = SourceComparison(source, self.reader, self.options)
            return self.run_checks()

    def run_checks(self) -> VerifyReport:
        """Makes all checks, and compares the store with the source if one is open; reads each image once."""
        options, comparison, report = self.options, self.comparison, self.report
        batches = None if comparison is None or comparison.has_same_shards() else comparison.batch_records
        for difference in () if comparison is None else comparison.compare_summaries():
            report.add(difference)
        StoreCheck(
            self.reader,
            quick=options.quick,
            workers=options.workers or default_workers(),
            progress=self.progress,
            check_images=self.check_images if self.decoders or batches else None,
            batches=batches,
            report=report,
        ).run()
        doubles = self.report_double_keys()
        if comparison is not None and batches is not None:
            for difference in comparison.compare_coverage():
                report.add(difference)
        return VerifyReport(
            self.reader.path,
            self.reader.manifest,
            tuple(self.list_checks()),
            report.problems.count + report.differences.count,
            tuple([*report.problems.kept, *report.differences.kept][:MOST_LISTED]),
            report.checked_bytes,
            options.quick,
            report.differences.count,
            doubles,
            None if report.writer is None else str(report.writer),
        )

    def list_checks(self) -> Iterator[str]:
        """Yields a text for each check that was made, and for one that could not be made."""
        yield from self.report.checks
        if self.report.key_digests:
            yield "double keys"
        if self.options.decode:
            yield "every image decoded" if self.decoders else "pixels are stored as they are: nothing to decode"
            if self.compares_indexes:
                yield "every seek index computed again and compared"
            elif self.reader.manifest.has_column(SEEK_INDEX.name):
                yield f"seek indexes not compared, because the engine does not load: {self.index_fault}"
        if self.comparison is not None and self.options.against is not None:
            yield f"compared with {printable(os.fsdecode(self.options.against))}"
            if (summary := self.comparison.ledger_summary) is not None:
                yield summary

    def report_double_keys(self) -> int:
        """Adds a problem for each record with the key of an earlier record; returns their number."""
        double = list_double_keys(self.report.key_digests)
        for record, first in double:
            # Reading millions of keys is too slow for problems that are only counted.
            key = try_key(self.reader, record) if len(self.report.problems.kept) < MOST_LISTED else None
            self.report.add(Problem(f"record {first} has the same key", record, key), always=True)
        return len(double)

    def check_images(self, batch: Batch, images: Mapping[int, Buffer]) -> Iterator[Problem]:
        """Yields problems of a batch's records: undecodable images, wrong seek indexes, differences from the source."""
        value = cache(self.reader.value)  # each value of a batch is read once, too
        faults: list[tuple[int, str]] = []
        for column, decoder in self.decoders:
            faults += self._find_undecodable(column, decoder, images, value)
        if self.compares_indexes:
            faults += self._find_wrong_indexes(images, value)
        for record, what in sorted(faults):
            yield Problem(what, record, try_key(self.reader, record))
        if self.comparison is not None:
            yield from self.comparison.compare_batch(batch, images, value)

    def _find_undecodable(
        self, column: Column, decoder: Decoder, images: Mapping[int, Buffer], value: ValueGetter
    ) -> Iterator[tuple[int, str]]:
        """Yields number and problem of each record of ``images`` with an undecodable image in ``column``."""
        if column.name == "image":
            for record, image in zip(images, decoder.decode_each([*images.values()]), strict=True):
                if isinstance(image, DecodeError):
                    yield record, f"does not decode: {image}"
            return
        for record in images:
            try:
                for what, _, image in decode_files(self.reader, column, decoder, record, value):
                    if isinstance(image, DecodeError):
                        yield record, f"{what} does not decode: {image}"
            except StoreError as error:
                yield record, f"does not decode: {error}"

    def _find_wrong_indexes(self, images: Mapping[int, Buffer], value: ValueGetter) -> Iterator[tuple[int, str]]:
        """Yields number and problem of each record whose seek index is not that of its image file."""
        from packstore.images.engine import make_indexes

        columns = self.reader.manifest.columns
        for record, index in zip(images, make_indexes([*images.values()], columns), strict=False):
            try:
                stored = bytes(value(SEEK_INDEX.name, record))
            except StoreError as error:
                yield record, f"its seek index cannot be read: {error}"
                continue
            # Gray stores of earlier versions have indexes as others have.
            if stored != index and [stored] != make_indexes([images[record]], ()):
                yield record, "its seek index does not fit its file; packstore repair computes it again"

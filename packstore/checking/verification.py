"""``verify``: proves that a store is undamaged, and that its content equals its source."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packstore.checking.against import BATCH_RECORDS, Comparison, Difference, ValueGetter
from packstore.checking.options import VerifyOptions
from packstore.checking.store_check import Batch, ImageChecks, StoreCheck, try_key
from packstore.core.column import SEEK_INDEX, Column, find_file_columns
from packstore.core.errors import DecodeError, StoreError, UsageError, printable
from packstore.core.files import check_paths, refuse_empty
from packstore.core.manifest import Manifest
from packstore.core.options import argument, progress_option, takes
from packstore.core.parallel import default_workers
from packstore.core.progress import ProgressCallback, progress_callback
from packstore.core.urls import find_bridge, location
from packstore.images.decoders import Buffer, Decoder, get_decoder
from packstore.images.engine import engine_problem
from packstore.images.reading import Reading
from packstore.images.seek_index import make_indexes
from packstore.stores import open_store
from packstore.stores.base import Problem, Reader
from packstore.stores.keys import find_duplicates
from packstore.stores.opening import read_manifest
from packstore.stores.places import place_of

_TRIES = 3
"""Most times that a store is checked which other processes replace meanwhile."""
_MAX_PROBLEMS = 10_000
"""Most problems whose text is kept; further ones are only counted."""


@dataclass(frozen=True, slots=True, repr=False)
class VerifyReport:
    """Report of a verification.

    Attributes:
        path: The store.
        manifest: Its manifest.
        checks: A text for each check that was made, in order.
        problem_count: Number of problems, differences included; 0 means that the store is undamaged.
        differences: Number of problems that are differences from the source, and no damage.
        double_keys: Number of problems that are records with the key of an earlier record.
        writer: The process that writes to the store now, or replaces it, as text; None if there is none. The report is
            on the store as it was before.
        problems: The first 10,000 problems, differences from the source last.
        checked_bytes: Bytes of records whose checksums were computed.
        quick: Whether no image was read; ``ok`` then says nothing about images.
    """

    path: Path
    manifest: Manifest
    checks: tuple[str, ...]
    problem_count: int
    problems: tuple[Problem, ...]
    checked_bytes: int
    quick: bool = False
    differences: int = 0
    double_keys: int = 0
    writer: str | None = None

    @property
    def ok(self) -> bool:
        """True if no problem and no difference was found."""
        return self.problem_count == 0

    def __repr__(self) -> str:
        result = "undamaged" if self.ok else f"{self.problem_count:,} problems"
        quick = ", images not read" if self.quick else ""
        return f"<VerifyReport of {str(self.path)!r}: {self.manifest.records:,} records, {result}{quick}>"


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
    refuse_empty(arguments.against)
    check_paths(arguments.labels)
    against = None if arguments.against is None else location(arguments.against)
    # Checked now, not after the whole store has been read.
    if against is not None and find_bridge(against) is None and place_of(against).is_empty():
        raise UsageError(f"{printable(str(against))}: no such file or directory")
    with progress_callback(arguments.progress) as progress:
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
    """Returns whether another store is now at the path of an open one. False for a URL, whose objects stay."""
    try:
        return not place_of(reader.path).remote and read_manifest(reader.path).digest != reader.manifest.digest
    except StoreError:
        return False


class _Verification:
    """One run of ``verify``: collects problems from all checks. With ``decode``, creating it loads the decoder.

    A record that has a problem gets no difference from the source. Keeps the first 10,000 problems and the first 10,000
    differences.
    """

    def __init__(
        self, reader: Reader, options: VerifyOptions, against: Path | None, progress: ProgressCallback
    ) -> None:
        self.reader = reader
        self.options = options
        self.against = against
        self.progress = progress
        self.problems: list[Problem] = []
        self.differences: list[Problem] = []
        self.problem_count = self.difference_count = 0
        self.bad: set[int] = set()  # records reported already: one problem a record is enough
        self.comparison: Comparison | None = None
        has_indexes = reader.manifest.has_column(SEEK_INDEX.name)
        self.compares_indexes = has_indexes and options.decode and engine_problem() is None
        main = [reader.manifest.image] if reader.manifest.holds_files else []
        decoded = [*main, *find_file_columns(reader.manifest.columns)] if options.decode else []
        self.decoders = [(column, self.make_decoder(column)) for column in decoded]

    def verify_store(self) -> VerifyReport:
        """Opens the source if there is one, makes all checks, and returns the report."""
        with ExitStack() as stack:
            if self.against is not None:
                opened = self.options.open_packed(self.against, self.reader.manifest, self.progress)
                source = stack.enter_context(closing(opened))
                self.comparison = Comparison(self.reader, source, self.options.decoder, self.options.annotation_frame)
            return self.run_checks()

    def run_checks(self) -> VerifyReport:
        """Makes all checks, and compares the store with the source if one is open. Returns the report.

        Reads each image once.
        """
        options, comparison = self.options, self.comparison
        batches = None if comparison is None or comparison.has_same_shards() else comparison.batch_records
        further = ImageChecks(self.check_images, BATCH_RECORDS, batches) if self.decoders or batches else None
        check = StoreCheck(
            self.reader,
            quick=options.quick,
            workers=options.workers or default_workers(),
            progress=self.progress,
            image_checks=further,
        )
        for problem in chain(() if comparison is None else comparison.compare_summaries(), check.find_problems()):
            self.collect_problem(problem)
        doubles = self.report_double_keys(check.key_digests)
        if comparison is not None and batches is not None:
            for problem in comparison.compare_coverage():
                self.collect_problem(problem)
        return VerifyReport(
            self.reader.path,
            self.reader.manifest,
            tuple(self.describe_checks(check)),
            self.problem_count + self.difference_count,
            tuple([*self.problems, *self.differences][:_MAX_PROBLEMS]),
            check.checked_bytes,
            options.quick,
            self.difference_count,
            doubles,
            None if check.writer is None else str(check.writer),
        )

    def describe_checks(self, check: StoreCheck) -> Iterator[str]:
        """Yields a text for each check that was made. Says why seek indexes were not compared, and how many files the
        source has."""
        manifest, options = self.reader.manifest, self.options
        yield from check.checks
        if check.key_digests:
            yield "double keys"
        if options.decode:
            yield "every image decoded" if self.decoders else "pixels are stored as they are: nothing to decode"
            if manifest.has_column(SEEK_INDEX.name):
                why = engine_problem()
                yield (
                    "every seek index computed again and compared"
                    if why is None
                    else f"seek indexes not compared, because the engine does not load: {why}"
                )
        if self.comparison is not None and options.against is not None:
            yield f"compared with {printable(os.fsdecode(options.against))}"
            if (summary := self.comparison.ledger_summary) is not None:
                yield summary

    def report_double_keys(self, digests: dict[int, NDArray[np.uint64]]) -> int:
        """Adds a problem for each record with the key of an earlier record; returns their number."""
        if not digests:
            return 0
        numbers = np.concatenate([np.arange(start, start + len(some)) for start, some in digests.items()])
        again, firsts = find_duplicates(np.concatenate([*digests.values()]))
        for record, first in zip(numbers[again].tolist(), numbers[firsts].tolist(), strict=True):
            key = try_key(self.reader, record) if len(self.problems) < _MAX_PROBLEMS else None
            self.collect_problem(Problem(f"record {first} has the same key", record, key))
        return len(again)

    def collect_problem(self, problem: Problem) -> None:
        """Counts a problem, and keeps the first 10,000.

        Ignores a difference of a record that has a problem or difference already.
        """
        if isinstance(problem, Difference):
            if problem.record in self.bad:
                return
            self.difference_count += 1
            kept = self.differences
        else:
            self.problem_count += 1
            kept = self.problems
        if len(kept) < _MAX_PROBLEMS:
            kept.append(problem)
        if problem.record is not None:
            self.bad.add(problem.record)

    def make_decoder(self, column: Column) -> Decoder:
        """Makes the decoder for a column's image files, which decodes them to the column's mode."""
        reading = Reading.of_column(column, self.reader.manifest.options)
        return get_decoder(self.options.decoder, max_pixels=self.options.max_pixels, reading=reading)

    def check_images(self, batch: Batch, images: Mapping[int, Buffer]) -> Iterator[Problem]:
        """Yields problems of a batch's records: images that do not decode, wrong seek indexes, differences from the
        source.

        Thread-safe.
        """
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
        """Yields number and problem of each record with an undecodable or unreadable image in ``column``.

        ``images`` has the records to check, with their main images. Skips missing values.
        """
        if column.name == "image":
            for record, image in zip(images, decoder.decode_each([*images.values()]), strict=True):
                if isinstance(image, DecodeError):
                    yield record, f"does not decode: {image}"
            return
        for record in images:
            try:
                if column.nullable and not self.reader.has_value(column.name, record):
                    continue
                files = column.traits.files(column, value(column.name, record))
            except StoreError as error:
                yield record, f"does not decode: {error}"
                continue
            for number, image in enumerate(decoder.decode_each(list(files))):
                if isinstance(image, DecodeError):
                    which = f"image {number} of {column.name!r}" if column.form == "files" else f"{column.name!r}"
                    yield record, f"{which} does not decode: {image}"

    def _find_wrong_indexes(self, images: Mapping[int, Buffer], value: ValueGetter) -> Iterator[tuple[int, str]]:
        """Yields number and problem of each record whose seek index is unreadable or not that of its image file.

        Accepts the indexes of gray stores from earlier versions.

        Args:
            images: Image files of the records to check, by number.
            value: Returns the value of a column for a record.
        """
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

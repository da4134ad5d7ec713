"""``verify``: proof that a store is whole, and that it holds what its source holds."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from packstore.against import Comparison
from packstore.decoders import Decoder, get_decoder
from packstore.errors import DecodeError, PackstoreError, StoreError, printable
from packstore.manifest import ENCODED, Manifest, fixed_digest, ragged_digest
from packstore.parallel import default_workers, ordered_map
from packstore.plan import with_overrides
from packstore.progress import Progress, ProgressCallback, no_progress
from packstore.sources import open_source
from packstore.stores import open_store
from packstore.stores.base import Problem, Ragged, Reader

_BATCH_RECORDS, _BATCH_BYTES = 1024, 8 << 20
_DECODED_BATCH = 16
_MAX_PROBLEMS = 10_000
"""Problems that are kept with their text; beyond, they are only counted."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What verification found.

    Attributes:
        path: The store.
        manifest: Its manifest.
        checks: What was checked, in order, in words.
        problem_count: How many problems there are; 0 means that the store is whole.
        problems: The first 10,000 of them.
        checked_bytes: Bytes of records whose checksums were computed.
    """

    path: Path
    manifest: Manifest
    checks: tuple[str, ...]
    problem_count: int
    problems: tuple[Problem, ...]
    checked_bytes: int

    @property
    def ok(self) -> bool:
        return self.problem_count == 0


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """How thoroughly to verify.

    Attributes:
        decode: Also decode every image in full.
        against: A source (or another store) to compare with, or None.
        source_kind: Kind of that source instead of recognising it.
        labels: Labels file of that source, as it was given to ``convert``.
        workers: Threads; None for one a core.
        decoder: Name of the decoder.
    """

    decode: bool = False
    against: str | os.PathLike[str] | None = None
    source_kind: str | None = None
    labels: Path | None = None
    workers: int | None = None
    decoder: str = "auto"


def verify(
    path: str | os.PathLike[str],
    options: VerifyOptions | None = None,
    *,
    progress: ProgressCallback = no_progress,
    **overrides: Any,
) -> VerifyReport:
    """Checks a store: structure, manifest, counts, file and column digests, every record's checksum.

    With ``decode=True`` also that every image decodes, and with ``against=SOURCE`` that the store holds what the
    source holds: keys, labels and splits always; images byte for byte where the records are the source's bytes,
    pixel for pixel for lossless encodings, otherwise within the tolerance stated in :func:`packstore.encode.compare`.

    Args:
        path: The store.
        options: How thoroughly; defaults where None.
        progress: Called after each batch of records.
        **overrides: Fields of :class:`VerifyOptions` that replace those of ``options``.

    Returns:
        The report; damage is in it, not raised.

    Raises:
        StoreError: ``path`` does not open as a store at all.
        SourceError: The source to compare with cannot be read.
    """
    chosen = with_overrides(options or VerifyOptions(), overrides)
    with open_store(path) as reader:
        return _Verification(reader, chosen, progress).run()


class _Verification:
    def __init__(self, reader: Reader, options: VerifyOptions, progress: ProgressCallback) -> None:
        self.reader = reader
        self.options = options
        self.progress = progress
        self.workers = options.workers or default_workers()
        self.problems: list[Problem] = []
        self.problem_count = 0
        self.checked_bytes = 0
        self.bad: set[int] = set()  # records reported already: one problem each is enough

    def run(self) -> VerifyReport:
        manifest = self.reader.manifest
        checks = ["structure and manifest"]
        for problem in self.reader.check_structure(progress=self.progress):
            self.report(problem)
        checks.append("digests of the columns")
        sound = self.columns()
        if "checksum" in sound:
            checks.append(f"checksums of {len(self.reader):,} records")
            self.records(self.reader.fixed("checksum"))
        if self.options.decode:
            encoded = manifest.encoding in ENCODED
            checks.append("every image decoded" if encoded else "pixels are stored as they are: nothing to decode")
            if encoded:
                self.decode(get_decoder(self.options.decoder))
        if self.options.against is not None:
            checks.append(f"compared with {printable(os.fsdecode(self.options.against))}")
            self.against(Path(self.options.against))
        return VerifyReport(
            Path(self.reader.path),
            manifest,
            tuple(checks),
            self.problem_count,
            tuple(self.problems),
            self.checked_bytes,
        )

    def report(self, problem: Problem) -> None:
        self.problem_count += 1
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(problem)
        if problem.record is not None:
            self.bad.add(problem.record)

    def damaged(self, record: int, what: str) -> None:
        if record not in self.bad:
            self.report(Problem(what, record, self.key(record)))

    def key(self, record: int) -> str | None:
        """The key of a record for a report, which may be damaged itself."""
        try:
            return self.reader.key(record)
        except (PackstoreError, IndexError, OSError):
            return None

    def columns(self) -> set[str]:
        """Checks every column's digest; returns the names of the columns that could be read at all."""
        readable = set()
        for column in self.reader.manifest.columns:
            if column.name == "image":
                continue
            try:
                data = self.reader.column(column.name)
            except (PackstoreError, KeyError) as error:
                self.report(Problem(f"column {column.name!r} cannot be read: {error}"))
                continue
            if len(data) == len(self.reader):
                readable.add(column.name)
            found = column_digest(data)
            if found != column.digest:
                self.report(
                    Problem(f"column {column.name!r} is damaged: its SHA-256 is {found}, expected {column.digest}")
                )
        return readable

    def records(self, checksums: NDArray[Any]) -> None:
        reader, total = self.reader, len(self.reader)

        def check(batch: range) -> tuple[range, int, list[tuple[int, str]]]:
            nbytes, problems = 0, []
            for record in batch:
                try:
                    data = reader.view(record)
                except (PackstoreError, IndexError) as error:
                    problems.append((record, f"cannot be read: {error}"))
                    continue
                nbytes += memoryview(data).nbytes
                found, expected = xxhash.xxh3_64_intdigest(data), int(checksums[record])
                if found != expected:
                    problems.append((record, f"checksum {found:016x}, expected {expected:016x}"))
            return batch, nbytes, problems

        self.progress(Progress("verify", 0, total, 0))
        for batch, nbytes, problems in ordered_map(check, self.batches(), self.workers):
            self.checked_bytes += nbytes
            for record, what in problems:
                self.damaged(record, what)
            self.progress(Progress("verify", batch.stop, total, self.checked_bytes))

    def batches(self) -> Iterator[range]:
        """Ranges of records of about the same number of bytes."""
        total = len(self.reader)
        mean = max(1, self.reader.manifest.image.nbytes // max(1, total))
        step = max(1, min(_BATCH_RECORDS, _BATCH_BYTES // mean))
        return (range(start, min(start + step, total)) for start in range(0, total, step))

    def decode(self, decoder: Decoder) -> None:
        reader, total = self.reader, len(self.reader)

        def check(batch: range) -> tuple[range, int, list[tuple[int, str]]]:
            nbytes, problems = 0, []
            for record in batch:
                try:
                    data = reader.view(record)
                    nbytes += memoryview(data).nbytes
                    decoder.decode(data)
                except (DecodeError, StoreError) as error:
                    problems.append((record, f"does not decode: {error}"))
            return batch, nbytes, problems

        starts = range(0, total, _DECODED_BATCH)
        ranges = (range(start, min(start + _DECODED_BATCH, total)) for start in starts)
        done_bytes = 0
        self.progress(Progress("decode", 0, total, 0))
        for batch, nbytes, problems in ordered_map(check, ranges, self.workers):
            done_bytes += nbytes
            for record, what in problems:
                self.damaged(record, what)
            self.progress(Progress("decode", batch.stop, total, done_bytes))

    def against(self, path: Path) -> None:
        with closing(open_source(path, kind=self.options.source_kind, labels=self.options.labels)) as source:
            comparison = Comparison(self.reader, source, self.options.decoder)
            for problem in comparison.run(self.workers, self.progress):
                if problem.record is None or problem.record not in self.bad:
                    self.report(problem)


def column_digest(data: NDArray[Any] | Ragged) -> str:
    """The digest of a column's values as its manifest has it."""
    if isinstance(data, Ragged):
        offsets = np.ascontiguousarray(data.offsets, "<i8")
        return ragged_digest(hashlib.sha256(offsets.data).digest(), hashlib.sha256(data.data.data).digest())
    return fixed_digest(np.ascontiguousarray(data).data)

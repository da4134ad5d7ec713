"""What checks, repairs, salvages and audits report."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import PackstoreError
from packstore.core.findings import FORMAT, VERSION, list_kinds
from packstore.core.manifest import Manifest
from packstore.core.plainjson import to_plain
from packstore.stores import Problem, Reader
from packstore.stores.places.work import Owner

MOST_LISTED = 10_000
"""Most problems that a report lists; further ones are only counted."""
_MOST_RECORDS = 1000
"""Most records that an audit's report lists for a finding."""


class Difference(Problem):
    """Problem that is a difference from the source and not damage."""

    __slots__ = ()


@dataclass
class ProblemList:
    """Problems: the first 10,000, and the number of all.

    Attributes:
        kept: The first ones.
        count: Number of all.
    """

    kept: list[Problem] = field(default_factory=list)
    count: int = 0

    def add(self, problem: Problem) -> None:
        """Counts a problem, and keeps it if it is one of the first."""
        self.count += 1
        if len(self.kept) < MOST_LISTED:
            self.kept.append(problem)


@dataclass
class CheckReport:
    """Result of a check of a store: at most one problem a record, except for duplicate keys.

    Attributes:
        problems: Damage.
        differences: Differences from the source.
        checks: A text for each check that was made, in order.
        checked_bytes: Bytes of images whose checksums were computed.
        images: Records whose image is damaged.
        rows: Records whose other fields are damaged.
        columns: Columns that are damaged in some file.
        unproven: Damaged columns of which no checksum tells the damaged records.
        writer: The process that writes to the store now, or replaces it. None if there is none.
        key_digests: Digests of the keys that were read, by the first record of each file; 16 bytes a record.
        notify: Called with each problem that is added; None for none.
    """

    notify: Callable[[Problem], None] | None = None
    problems: ProblemList = field(default_factory=ProblemList)
    differences: ProblemList = field(default_factory=ProblemList)
    checks: list[str] = field(default_factory=list)
    checked_bytes: int = 0
    images: set[int] = field(default_factory=set)
    rows: set[int] = field(default_factory=set)
    columns: set[str] = field(default_factory=set)
    unproven: set[str] = field(default_factory=set)
    writer: Owner | None = None
    key_digests: dict[int, NDArray[np.uint64]] = field(default_factory=dict)
    _reported: set[int] = field(default_factory=set)

    def add(self, problem: Problem, always: bool = False) -> None:
        """Adds a problem, unless its record has one already and not ``always``."""
        if problem.record is not None:
            if problem.record in self._reported and not always:
                return
            self._reported.add(problem.record)
        (self.differences if isinstance(problem, Difference) else self.problems).add(problem)
        if self.notify is not None:
            self.notify(problem)


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


class ShardCounts(NamedTuple):
    """Counts of shards that a repair at a URL replaced or lost.

    Attributes:
        replaced: Number of shards that were replaced in place.
        lost: Number of shards that could not be replaced.
        lost_records: Number of their records.
    """

    replaced: int
    lost: int
    lost_records: int


@dataclass(frozen=True, slots=True, repr=False)
class RepairReport:
    """Report of a repair.

    Attributes:
        damaged: The damaged store.
        destination: The new store. None if none was written: nothing was damaged, or some records are lost. At a URL,
            the damaged store itself, if all its shards are undamaged now.
        problem_count: Number of problems that ``verify`` finds in the damaged store. At a URL, number of damaged
            shards.
        copied: Number of records that are unchanged. At a URL, number of records in undamaged shards.
        replaced: Records with values from the source, and which values. At a URL also whole shards, without a record.
        lost: Records that could not be replaced, and why. At a URL, shards.
        identical: Whether the new store's manifest has the digest that the damaged one's has.
        shards: Numbers of shards, at a URL; else None.
    """

    damaged: Path
    destination: Path | None
    problem_count: int
    copied: int
    replaced: tuple[Problem, ...]
    lost: tuple[Problem, ...]
    identical: bool
    shards: ShardCounts | None = None

    def __repr__(self) -> str:
        if self.shards is not None:
            counts = f"{self.shards.replaced:,} shards replaced, {self.shards.lost:,} lost"
            return f"<RepairReport of {str(self.damaged)!r}: {counts}>"
        written = "nothing written" if self.destination is None else f"written to {str(self.destination)!r}"
        return (
            f"<RepairReport of {str(self.damaged)!r}: {self.copied:,} copied, {len(self.replaced):,} replaced, "
            f"{len(self.lost):,} lost, {written}>"
        )


@dataclass(frozen=True, slots=True, repr=False)
class SalvageReport:
    """Report of a salvage.

    Attributes:
        damaged: The damaged store.
        destination: The new store, or None if no record could be saved.
        manifest: Its manifest.
        notes: Faults of the store as a whole, and how they were handled.
        recovered: Number of saved records.
        unproven: The first 10,000 saved records that nothing proves.
        unproven_count: Number of all such records.
        missing: The first 10,000 records that were not saved, and why.
        missing_count: Number of all such records, without those of lost files whose number is unknown.
        complete: Whether every record was saved and proven, and nothing is known to be lost.
    """

    damaged: Path
    destination: Path | None
    manifest: Manifest | None
    notes: tuple[str, ...]
    recovered: int
    unproven: tuple[Problem, ...]
    unproven_count: int
    missing: tuple[Problem, ...]
    missing_count: int
    complete: bool

    def __repr__(self) -> str:
        written = "nothing written" if self.destination is None else f"written to {str(self.destination)!r}"
        return (
            f"<SalvageReport of {str(self.damaged)!r}: {self.recovered:,} recovered, {self.missing_count:,} missing, "
            f"{written}>"
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to inspect.

    Attributes:
        kind: One of :func:`packstore.core.findings.list_kinds`.
        what: The finding, on one line.
        records: Numbers of its first 1,000 records; empty for a finding about a class.
        keys: Their keys; None for a key that cannot be read.
    """

    kind: str
    what: str
    records: tuple[int, ...] = ()
    keys: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class AuditReport:
    """Report of an audit.

    Attributes:
        path: The store.
        dataset_digest: Its dataset digest. ``select --drop`` refuses a store with another digest.
        records: Number of its records.
        pixels: Whether images were decoded.
        checks: A text for each check that was made.
        counts: Number of findings, by kind; without kinds that were not found.
        findings: The first 10,000 of each kind.
        drop: By kind, the numbers of all records that ``packstore select --drop`` removes, ascending.
    """

    path: Path
    dataset_digest: str
    records: int
    pixels: bool
    checks: tuple[str, ...]
    counts: Mapping[str, int]
    findings: tuple[Finding, ...]
    drop: Mapping[str, NDArray[np.int64]]

    def of(self, kind: str) -> list[Finding]:
        """Returns the kept findings of a kind, at most 10,000."""
        return [finding for finding in self.findings if finding.kind == kind]

    def to_json(self) -> str:
        """Returns the report as JSON, which ``packstore select --drop`` and ``packstore view`` read."""
        drop = {kind: records.tolist() for kind, records in self.drop.items()}
        return json.dumps({FORMAT: VERSION, **to_plain(self), "path": str(self.path), "drop": drop})

    def __repr__(self) -> str:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in self.counts.items())
        return f"<AuditReport of {str(self.path)!r}: {self.records:,} records, {counts or 'nothing found'}>"


class FindingCollector:
    """Collects findings and makes the report.

    Of each kind it keeps 10,000 findings with their first 1,000 records. It counts all findings, and keeps the numbers
    of all records to drop.
    """

    def __init__(self) -> None:
        self._kept: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
        self._counts: dict[str, int] = {}
        self._drop: dict[str, array[int]] = {}

    def add(self, kind: str, what: str, records: Iterable[int] = (), drop: Iterable[int] | None = None) -> None:
        """Adds a finding with its text and its first 1,000 records; after 10,000 of a kind, only counts.

        ``drop`` has the records that ``select --drop`` removes for this finding, and is always kept. None means all of
        ``records``.
        """
        numbers = [*records]
        self._counts[kind] = self._counts.get(kind, 0) + 1
        kept = self._kept.setdefault(kind, [])
        if len(kept) < MOST_LISTED:
            kept.append((what, tuple(numbers[:_MOST_RECORDS])))
        self._drop.setdefault(kind, array("q")).extend(numbers if drop is None else drop)

    def make_report(self, reader: Reader, pixels: bool, checks: Iterable[str]) -> AuditReport:
        """Returns the report of all findings, in the order of :func:`list_kinds`. Reads the keys from ``reader``."""
        kinds = sorted(self._counts, key=[*list_kinds()].index)
        findings = [
            Finding(kind, what, records, tuple(try_key(reader, record) for record in records))
            for kind in kinds
            for what, records in self._kept[kind]
        ]
        drop = {kind: np.unique(np.frombuffer(self._drop[kind], np.int64)) for kind in kinds if self._drop[kind]}
        counts = {kind: self._counts[kind] for kind in kinds}
        digest = reader.manifest.dataset_digest
        return AuditReport(reader.path, digest, len(reader), pixels, tuple(checks), counts, tuple(findings), drop)


def try_key(reader: Reader, record: int) -> str | None:
    """Returns the key of a record, or None if the key cannot be read."""
    try:
        return reader.key(record)
    except (PackstoreError, IndexError, KeyError):
        return None

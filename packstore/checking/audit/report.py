"""The report of an audit: findings by kind, and the records that ``select --drop`` removes for each kind."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.checking.store_check import try_key
from packstore.core.findings import FORMAT, VERSION, list_kinds
from packstore.stores.base import Reader

_MOST_FINDINGS = 10_000
_MOST_RECORDS = 1000


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
        plain: dict[str, Any] = {
            FORMAT: VERSION,
            "path": str(self.path),
            "dataset_digest": self.dataset_digest,
            "records": self.records,
            "pixels": self.pixels,
            "checks": self.checks,
            "counts": self.counts,
            "findings": [asdict(finding) for finding in self.findings],
            "drop": {kind: records.tolist() for kind, records in self.drop.items()},
        }
        return json.dumps(plain)

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
        """Adds a finding with its text and its first 1,000 records. After 10,000 of a kind, only counts.

        ``drop`` has the records that ``select --drop`` removes for this finding, and is always kept. None means all of
        ``records``.
        """
        numbers = [*records]
        self._counts[kind] = self._counts.get(kind, 0) + 1
        kept = self._kept.setdefault(kind, [])
        if len(kept) < _MOST_FINDINGS:
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

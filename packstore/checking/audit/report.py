"""What an audit found: findings by kind, and the records that each kind would take out."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import PackstoreError
from packstore.core.findings import FORMAT, KINDS, VERSION
from packstore.stores.base import Reader

_MOST_FINDINGS = 10_000
_MOST_RECORDS = 1000


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to look at.

    Attributes:
        kind: One of :data:`packstore.core.findings.KINDS`.
        what: What was found, on one line.
        records: Numbers of the records that it is about, at most 1,000; none for a class.
        keys: Their keys; None where one cannot be read.
    """

    kind: str
    what: str
    records: tuple[int, ...] = ()
    keys: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class AuditReport:
    """What an audit found.

    Attributes:
        path: The store.
        dataset_digest: Of the store, so that findings are never taken for those of another.
        records: How many it has.
        pixels: Whether images were decoded.
        checks: What was looked at, in words.
        counts: How many findings of each kind there are, for kinds that were found.
        findings: The first 10,000 of each kind.
        drop: By kind, the records that ``packstore select --drop`` takes out, ascending; all of them.
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
        """The findings of a kind."""
        return [finding for finding in self.findings if finding.kind == kind]

    def to_json(self) -> str:
        """The report as JSON, which ``packstore select --drop`` and ``packstore view`` read."""
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
        found = ", ".join(f"{count:,} {kind}" for kind, count in self.counts.items())
        return f"<AuditReport of {str(self.path)!r}: {self.records:,} records, {found or 'nothing found'}>"


class Collector:
    """Gathers findings in bounded memory: of each kind the first 10,000, and 8 bytes a record to drop."""

    def __init__(self) -> None:
        self._kept: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
        self._counts: dict[str, int] = {}
        self._drop: dict[str, array[int]] = {}

    def add(self, kind: str, what: str, records: Iterable[int] = (), drop: Iterable[int] | None = None) -> None:
        """Notes a finding; ``drop`` are the records that it takes out, None for all that it is about."""
        numbers = [*records]
        self._counts[kind] = self._counts.get(kind, 0) + 1
        kept = self._kept.setdefault(kind, [])
        if len(kept) < _MOST_FINDINGS:
            kept.append((what, tuple(numbers[:_MOST_RECORDS])))
        self._drop.setdefault(kind, array("q")).extend(numbers if drop is None else drop)

    def report(self, reader: Reader, pixels: bool, checks: Iterable[str]) -> AuditReport:
        """All that was gathered; ``reader`` gives the keys."""
        kinds = [kind for kind in KINDS if kind in self._counts]
        findings = [
            Finding(kind, what, records, tuple(_key(reader, record) for record in records))
            for kind in kinds
            for what, records in self._kept[kind]
        ]
        drop = {kind: np.unique(np.frombuffer(self._drop[kind], np.int64)) for kind in kinds if self._drop[kind]}
        counts = {kind: self._counts[kind] for kind in kinds}
        digest = reader.manifest.dataset_digest
        return AuditReport(reader.path, digest, len(reader), pixels, tuple(checks), counts, tuple(findings), drop)


def _key(reader: Reader, record: int) -> str | None:
    try:
        return reader.key(record)
    except (PackstoreError, IndexError, KeyError):
        return None

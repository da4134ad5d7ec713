"""What ``packstore audit`` and ``packstore verify`` found, out of their JSON: which records it is about."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.checking.store_check import StoreCheck
from packstore.core.errors import UsageError, printable
from packstore.core.manifest import Manifest
from packstore.core.parallel import default_workers
from packstore.core.progress import Progress
from packstore.stores.base import Reader

DAMAGE = "damaged"
"""The mark of records that are damaged; one of :data:`packstore.core.findings.KINDS`."""

MOST_MARKED = 10_000
"""Records that are marked as damaged while the page is open."""

_MOST_BYTES = 1 << 30
_KEPT_TEXTS = 5
_NAMED = 3
"""Other records of a finding that are named at each."""


@dataclass
class Findings:
    """Marks of records.

    Attributes:
        records: By mark, the records that have it, ascending.
        texts: By record, what was found there, in words, and the other records it is about; a few a record.
        notes: By mark, what is wrong with no record in particular; each once, in the order it was found.
    """

    records: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    texts: dict[int, list[tuple[str, list[int]]]] = field(default_factory=dict)
    notes: dict[str, dict[str, None]] = field(default_factory=dict)

    def add(self, mark: str, record: int, text: str) -> None:
        """Marks one more record."""
        known = self.records.get(mark, np.zeros(0, np.int64))
        if not _has(known, record):
            self.records = {**self.records, mark: np.union1d(known, [record])}
        self.say(record, text)

    def note(self, mark: str, text: str) -> None:
        """Keeps what is wrong with no record in particular."""
        said = self.notes.setdefault(mark, {})
        if len(said) < MOST_MARKED:
            said[text] = None

    def say(self, record: int, text: str, others: Sequence[int] = ()) -> None:
        """Keeps what was found in a record, and ``others`` that it is about."""
        said = self.texts.setdefault(record, [])
        if len(said) < _KEPT_TEXTS and (text, [*others]) not in said:
            said.append((text, [*others]))

    def of(self, record: int) -> list[str]:
        """The marks of a record."""
        return [mark for mark, records in self.records.items() if _has(records, record)]


def verify(reader: Reader, findings: Findings, report: Callable[[int], None]) -> int:
    """Compares everything with its checksums, as ``packstore verify`` does, and marks what is damaged.

    Returns how many problems there are; the first 10,000 are marked. ``report`` is told how many records are done."""

    def told(progress: Progress) -> None:
        report(progress.done if progress.stage == "verify" else 0)

    count = 0
    for problem in StoreCheck(reader, workers=default_workers(), progress=told).run():
        count += 1
        if count > MOST_MARKED:
            continue
        shard = f"{problem.shard}: " if problem.shard else ""
        if problem.record is None:
            findings.note(DAMAGE, shard + problem.what)
        else:
            findings.add(DAMAGE, problem.record, shard + problem.what)
    return count


def read_findings(audit: Path | None, verified: Path | None, manifest: Manifest) -> Findings:
    """The findings in these files.

    Args:
        audit: What ``packstore audit --json FILE`` wrote.
        verified: What ``packstore verify --json`` printed.
        manifest: Of the store that they are to be about.

    Raises:
        UsageError: A file is none of these, or about another store.
    """
    findings = Findings()
    said: list[tuple[str, str, list[int]]] = []
    if audit is not None:
        said += _of_audit(_load(audit, "audit", manifest))
    if verified is not None:
        said += _of_verify(_load(verified, "verify", manifest))
    marked: dict[str, set[int]] = {}
    for mark, text, numbers in said:
        records = [n for n in numbers if n < manifest.records]
        if not records:
            findings.note(mark, text)
            continue
        marked.setdefault(mark, set()).update(records)
        for record in records:
            findings.say(record, text, [other for other in records[: _NAMED + 1] if other != record][:_NAMED])
    findings.records = {mark: np.array(sorted(records), np.int64) for mark, records in marked.items()}
    return findings


def _load(path: Path, command: str, manifest: Manifest) -> Mapping[str, Any]:
    shown = printable(str(path))
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{shown} is larger than any report: {path.stat().st_size} bytes")
        report = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{shown} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{shown} is not JSON: {error}; packstore {command} --json makes a report") from None
    needed = "findings" if command == "audit" else "problems"
    if not isinstance(report, dict) or not isinstance(report.get(needed), list):
        raise UsageError(f"{shown} is no report of packstore {command} --json: it has no list of {needed}")
    digest = report.get("dataset_digest")
    if digest is not None and digest != manifest.dataset_digest:
        raise UsageError(f"{shown} is about another store: its dataset_digest is {str(digest)[:12]}…")
    return report


def _of_audit(report: Mapping[str, Any]) -> Iterator[tuple[str, str, list[int]]]:
    """Mark, words and records of each finding."""
    for finding in report["findings"]:
        if isinstance(finding, dict) and isinstance(finding.get("kind"), str):
            records = _numbers(finding.get("records"))
            what = finding.get("what")
            yield finding["kind"], str(what if what else finding["kind"])[:500], records


def _of_verify(report: Mapping[str, Any]) -> Iterator[tuple[str, str, list[int]]]:
    for problem in report["problems"]:
        if isinstance(problem, dict):
            shard = f"{problem['shard']}: " if problem.get("shard") else ""
            yield DAMAGE, f"{shard}{problem.get('what', '')}"[:500], _numbers([problem.get("record")])


def _numbers(values: Any) -> list[int]:
    """The record numbers in a list, whose entries may also be objects with a ``record``."""
    found = []
    for value in values if isinstance(values, list) else ():
        number = value.get("record") if isinstance(value, dict) else value
        if type(number) is int and 0 <= number < 1 << 40:
            found.append(number)
    return found


def _has(records: NDArray[np.int64], record: int) -> bool:
    at = int(np.searchsorted(records, record))
    return at < len(records) and int(records[at]) == record

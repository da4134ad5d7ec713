"""Findings of ``packstore audit`` and ``packstore verify`` by record, read from their JSON or found by the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.checking.reports import CheckReport
from packstore.checking.store_check import StoreCheck
from packstore.core.errors import UsageError, printable
from packstore.core.findings import read_report
from packstore.core.manifest import Manifest
from packstore.core.parallel import default_workers
from packstore.core.progress import Progress
from packstore.stores import Problem, Reader

DAMAGE = "damaged"
"""The mark of damaged records; one of :func:`packstore.core.findings.list_kinds`."""

MOST_MARKED = 10_000
"""Most records that are marked as damaged while the page is open."""

_MOST_BYTES = 1 << 30
_KEPT_TEXTS = 5
_NAMED = 3
"""Most other records of a finding that each record lists."""


@dataclass
class Findings:
    """Findings about records: marks and texts. Keeps the first five texts of a record, and the first 10,000 notes of
    each mark.

    Attributes:
        records: Marked records by mark (the kind of finding), ascending.
        texts: Texts of findings by record. Each has the numbers of other records that it concerns.
        notes: Texts of findings about no particular record, by mark, in the order found. No text occurs twice.
    """

    records: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    texts: dict[int, list[tuple[str, list[int]]]] = field(default_factory=dict)
    notes: dict[str, dict[str, None]] = field(default_factory=dict)

    def add(self, mark: str, record: int, text: str) -> None:
        """Marks a record. Adds the text of the finding if the record has fewer than five texts."""
        known = self.records.get(mark, np.zeros(0, np.int64))
        if not _contains_sorted(known, record):
            self.records = {**self.records, mark: np.union1d(known, [record])}
        self.add_text(record, text)

    def add_note(self, mark: str, text: str) -> None:
        """Adds the text of a finding about no particular record. Ignores it if the mark has 10,000 notes."""
        texts = self.notes.setdefault(mark, {})
        if len(texts) < MOST_MARKED:
            texts[text] = None

    def add_text(self, record: int, text: str, others: Sequence[int] = ()) -> None:
        """Adds the text of a finding to a record, with the ``others`` that it concerns. Does not mark the record.

        Ignores a text that the record has, and any beyond five.
        """
        texts = self.texts.setdefault(record, [])
        if len(texts) < _KEPT_TEXTS and (text, [*others]) not in texts:
            texts.append((text, [*others]))

    def marks_of(self, record: int) -> list[str]:
        """Returns the marks of a record."""
        return [mark for mark, records in self.records.items() if _contains_sorted(records, record)]


def verify_and_mark(reader: Reader, findings: Findings, report: Callable[[int], None]) -> int:
    """Verifies all checksums like ``packstore verify``. Marks damaged records. Returns the number of problems.

    Damage of no particular record becomes a note. Only the first 10,000 problems become marks or notes. Calls
    ``report`` with the number of records done.
    """

    def forward(progress: Progress) -> None:
        """Reports the progress of the stage ``verify``, and 0 in other stages."""
        report(progress.done if progress.stage == "verify" else 0)

    def mark(problem: Problem) -> None:
        """Marks the problem's record, or adds a note."""
        shard = f"{problem.shard}: " if problem.shard else ""
        if checked.problems.count > MOST_MARKED:
            return
        if problem.record is None:
            findings.add_note(DAMAGE, shard + problem.what)
        else:
            findings.add(DAMAGE, problem.record, shard + problem.what)

    checked = CheckReport(notify=mark)
    StoreCheck(reader, workers=default_workers(), progress=forward, report=checked).run()
    return checked.problems.count


def read_findings(audit: Path | None, verified: Path | None, manifest: Manifest) -> Findings:
    """Reads findings from report files. Keeps the first five texts of a record, each with at most three other records.

    Ignores record numbers that the store does not have. A finding without any record of the store becomes a note.

    Args:
        audit: Report of ``packstore audit --json FILE``; None for none.
        verified: Report of ``packstore verify --json``; None for none.
        manifest: Manifest of the store that the reports are about. A report without a dataset digest is not compared.

    Raises:
        UsageError: A file cannot be read, is not such a report, or is about another store.
    """
    findings = Findings()
    entries: list[tuple[str, str, list[int]]] = []
    if audit is not None:
        entries += _parse_audit(_load_report(audit, "audit", manifest))
    if verified is not None:
        entries += _parse_verify(_load_report(verified, "verify", manifest))
    marked: dict[str, set[int]] = {}
    for mark, text, numbers in entries:
        records = [n for n in numbers if n < manifest.records]
        if not records:
            findings.add_note(mark, text)
            continue
        marked.setdefault(mark, set()).update(records)
        for record in records:
            findings.add_text(record, text, [other for other in records[: _NAMED + 1] if other != record][:_NAMED])
    findings.records = {mark: np.array(sorted(records), np.int64) for mark, records in marked.items()}
    return findings


def _load_report(path: Path, command: str, manifest: Manifest) -> Mapping[str, Any]:
    """Reads a report file of ``packstore`` ``command`` about this store."""
    shown = printable(str(path))
    report = read_report(path, command, _MOST_BYTES)
    needed = "findings" if command == "audit" else "problems"
    if not isinstance(report, dict) or not isinstance(report.get(needed), list):
        raise UsageError(f"{shown} is not a report of packstore {command} --json: it has no list of {needed}")
    digest = report.get("dataset_digest")
    # Accepts a report without a digest.
    if digest is not None and digest != manifest.dataset_digest:
        raise UsageError(f"{shown} is about another store: its dataset_digest is {str(digest)[:12]}…")
    return report


def _parse_audit(report: Mapping[str, Any]) -> Iterator[tuple[str, str, list[int]]]:
    """Yields mark, text and records of each finding, and skips malformed entries."""
    for finding in report["findings"]:
        if isinstance(finding, dict) and isinstance(finding.get("kind"), str):
            records = _parse_record_numbers(finding.get("records"))
            what = finding.get("what")
            yield finding["kind"], str(what if what else finding["kind"])[:500], records


def _parse_verify(report: Mapping[str, Any]) -> Iterator[tuple[str, str, list[int]]]:
    """Yields mark, text and records of each problem, and skips malformed entries."""
    for problem in report["problems"]:
        if isinstance(problem, dict):
            shard = f"{problem['shard']}: " if problem.get("shard") else ""
            yield DAMAGE, f"{shard}{problem.get('what', '')}"[:500], _parse_record_numbers([problem.get("record")])


def _parse_record_numbers(values: Any) -> list[int]:
    """Returns the record numbers in a list of numbers, or of objects with a ``record``."""
    numbers = []
    for value in values if isinstance(values, list) else ():
        number = value.get("record") if isinstance(value, dict) else value
        if type(number) is int and 0 <= number < 1 << 40:  # leaves out anything else
            numbers.append(number)
    return numbers


def _contains_sorted(records: NDArray[np.int64], record: int) -> bool:
    """Tells if a record is among ascending ``records``."""
    at = int(np.searchsorted(records, record))
    return at < len(records) and int(records[at]) == record

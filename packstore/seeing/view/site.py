"""State of the page's server: the store, findings of ``packstore audit`` and ``packstore verify`` by record, threads,
background jobs and caches.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request

from packstore.checking.reports import CheckReport
from packstore.checking.store_check import StoreCheck
from packstore.core.errors import PackstoreError, UsageError, printable
from packstore.core.findings import read_report
from packstore.core.manifest import Manifest
from packstore.core.parallel import default_workers
from packstore.core.progress import Progress
from packstore.images.reading import Window
from packstore.seeing.facts import ImageHeaders, Report, choose_sample, is_damage, read_headers
from packstore.seeing.view.images import BrowserImages
from packstore.seeing.view.query import Query, Selection, parse_number, select_records
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


_KEPT = 6
"""Most results that are kept; a selection of 1e7 records takes 80 MB."""
_THREADS = 2


class StoppedError(Exception):
    """Error that stops a job, since the page is being closed."""


class Job:
    """A job that waits, runs or has finished.

    Attributes:
        what: Description of the work.
        total: Number of records to process.
        done: Number of records processed.
        future: Future of its result.
        delivered: The result was delivered. After that, a failed job can be started again.
    """

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done = what, total, 0
        self.future: Future[Any] = Future()
        self.delivered = False

    @property
    def progress(self) -> dict[str, Any]:
        """Description and progress for the page: ``what``, ``done`` and ``total``."""
        return {"what": self.what, "done": self.done, "total": self.total}


class Jobs:
    """Runs jobs in two threads. A job runs once for all requests with the same key. Keeps the latest six results."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, "packstore-view")
        self._jobs: OrderedDict[Hashable, Job] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = False

    def start(self, key: Hashable, what: str, total: int, work: Callable[[Report], Any]) -> Job:
        """Returns the job with this key. Starts it if there is none, or if it failed and its error was delivered.

        Forgets finished jobs beyond six, the least recently requested first.
        """
        with self._lock:
            job = self._jobs.get(key)
            if job is None or (job.delivered and job.future.exception() is not None):
                job = self._jobs[key] = Job(what, total)
                self._pool.submit(self._run_job, job, work)
            self._jobs.move_to_end(key)
            finished = [name for name, other in self._jobs.items() if other.future.done() and other is not job]
            for name in finished[: max(0, len(self._jobs) - _KEPT)]:
                del self._jobs[name]
            return job

    def close(self) -> None:
        """Stops running jobs and waits for them. Jobs that have not begun never finish."""
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run_job(self, job: Job, work: Callable[[Report], Any]) -> None:
        """Runs a job's work in the pool, and sets the job's future to the result or error."""

        def report(done: int) -> None:
            """Notes the number of records done. Raises :class:`StoppedError` if the page is being closed."""
            if self._closed:
                raise StoppedError
            job.done = done

        try:
            result = work(report)
        except BaseException as error:
            job.future.set_exception(error)  # raised in the waiting request
        else:
            job.done = job.total
            job.future.set_result(result)


_MOST_FETCHED = 1 << 30
"""Most bytes of shards that a query over all records fetches unless the user has allowed more."""
_SOON_SECONDS = 0.25
"""A response waits so long for a background job before it reports progress instead."""
_T = TypeVar("_T")


class NotThereError(UsageError):
    """Error for an address whose record or column does not exist."""


class Site:
    """State of the page's server: a store and all that the handlers need.

    :meth:`find_selection` refuses queries that would fetch more than 1 GiB, unless the user has allowed fetching. Other
    methods do not refuse.

    Attributes:
        reader: The store.
        findings: Marks and texts of records.
        images: Makes and caches thumbnails.
        jobs: Background jobs.
    """

    def __init__(self, reader: Reader, findings: Findings, window: Window | None = None) -> None:
        """``window``: see :class:`~packstore.seeing.view.images.BrowserImages`."""
        self.reader, self.findings = reader, findings
        self.images = BrowserImages(reader, window)
        self.jobs = Jobs()
        self._decoding = ThreadPoolExecutor(default_workers(), "packstore-images")
        self._turn = asyncio.Semaphore(default_workers())
        self._sample_loader: Any = None
        self.fetches_all = False
        """The user has allowed to fetch all shards."""

    @property
    def absent_bytes(self) -> int:
        """Bytes of the shards that are not on this machine."""
        shards = self.reader.manifest.shards
        if shards is None:
            return 0
        here = self.reader.table.are_local(range(len(shards)))
        return int(shards.table["nbytes"][~here].sum())

    def allow_fetching(self, request: Request) -> None:
        """Allows fetching all shards from now on, if the request says ``all=1``."""
        self.fetches_all = self.fetches_all or request.query_params.get("all") == "1"

    def refuse_large_fetch(self) -> None:
        """Raises :class:`UsageError` if shards of more than 1 GiB are absent, unless the user has allowed fetching."""
        absent = 0 if self.fetches_all else self.absent_bytes
        if absent > _MOST_FETCHED:
            raise UsageError(
                f"this needs all shards, and {absent / 1e9:,.1f} GB of them are not on this machine; 'Look at all of "
                "them' in the overview fetches them"
            )

    def close(self) -> None:
        """Stops jobs and threads, and closes the store."""
        self.jobs.close()
        self._decoding.shutdown(wait=True, cancel_futures=True)
        self.reader.close()

    def parse_record(self, request: Request) -> int:
        """Parses the record number in the address. Raises :class:`NotThereError` if the store has no such record, and
        :class:`UsageError` for another text."""
        number = parse_number("record", request.path_params["record"])
        if number >= len(self.reader):
            raise NotThereError(f"there is no record {number}: the store has {len(self.reader):,}")
        return number

    async def run_unless_disconnected(self, request: Request, work: Callable[[], _T]) -> _T | None:
        """Runs ``work`` in a thread. If the client disconnects before its turn, returns None and runs nothing."""
        async with self._turn:
            if await request.is_disconnected():
                return None
            return await asyncio.get_running_loop().run_in_executor(self._decoding, work)

    async def run_in_thread(self, work: Callable[[], _T]) -> _T:
        """Runs ``work`` in a thread and returns its result. Runs as many at a time as there are cores. Raises errors of
        ``work``."""
        async with self._turn:
            return await asyncio.get_running_loop().run_in_executor(self._decoding, work)

    async def wait_briefly(self, job: Job) -> Any:
        """Waits up to a quarter of a second for a job. Returns its result, or None if it is not finished. Raises the
        job's error.

        Marks a finished job as delivered.
        """
        waiting = asyncio.wrap_future(job.future)
        # Retrieves the exception, which asyncio would log if nobody waits for the job any more.
        waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([waiting], timeout=_SOON_SECONDS)
        if not waiting.done():
            return None
        job.delivered = True
        return waiting.result()

    def start_reading_headers(self, everything: bool) -> Job:
        """Returns the job that reads headers, and starts it if needed. It reads the headers of all images if
        ``everything``, else of :func:`choose_sample`."""
        count = len(self.reader)
        sample = None if everything else choose_sample(self.reader, self.fetches_all)
        name = "headers" if sample is None else ("sample", len(sample), int(sample.sum()))
        total = count if sample is None else len(sample)
        return self.jobs.start(
            name, "reading the headers of images", total, lambda report: read_headers(self.reader, sample, report)
        )

    async def find_selection(self, query: Query) -> Selection | Job:
        """Returns the records of a query, or the job that has to finish first.

        Raises :class:`UsageError` if the query would fetch too much, see :meth:`refuse_large_fetch`. Raises errors like
        :func:`select_records`.
        """
        headers: ImageHeaders | None = None
        if query.needs_all:
            self.refuse_large_fetch()
        if query.needs_headers:
            job = self.start_reading_headers(True)
            headers = await self.wait_briefly(job)
            if headers is None:
                return job
        marks = self.findings.records
        size = len(marks.get(query.mark, ())) if query.mark is not None else 0
        job = self.jobs.start(
            (query, size),
            "sorting keys" if query.sort == "key" else "choosing records",
            len(self.reader),
            lambda report: select_records(self.reader, query, headers, marks, report),
        )
        selection: Selection | None = await self.wait_briefly(job)
        return job if selection is None else selection

    def get_sample_loader(self) -> Any:
        """Returns the :class:`SampleLoader` of the store. The first call imports torch."""
        if self._sample_loader is None:
            from packstore.seeing.loaded import SampleLoader

            self._sample_loader = SampleLoader(self.reader)
        return self._sample_loader

    def note_damage(self, record: int, error: PackstoreError | IndexError) -> None:
        """Marks a record as damaged if ``error`` means damage. Every :class:`IndexError` means damage.

        Does nothing for other errors. Marks at most 10,000 records.
        """
        if isinstance(error, PackstoreError) and not is_damage(error):
            return
        if len(self.findings.records.get(DAMAGE, ())) < MOST_MARKED:
            self.findings.add(DAMAGE, record, str(error))

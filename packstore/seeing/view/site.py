"""The store behind the page: what is asked of it, in which threads, and what is kept of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.requests import Request

from packstore.core.errors import PackstoreError, UsageError
from packstore.core.parallel import default_workers
from packstore.seeing.nearby import is_damage
from packstore.seeing.view.facts import Headers, read_headers, sample_of
from packstore.seeing.view.findings import DAMAGE, MOST_MARKED, Findings
from packstore.seeing.view.images import Images
from packstore.seeing.view.jobs import Job, Jobs
from packstore.seeing.view.query import Query, whole
from packstore.seeing.view.selection import Selection, select
from packstore.stores.base import Reader

_MOST_FETCHED = 1 << 30
"""Bytes of shards that are fetched for a question that needs all records."""
_SOON_SECONDS = 0.25
"""How long an answer waits for work in the background before it says how far that is."""
_T = TypeVar("_T")


class NotThereError(UsageError):
    """There is no such record or column."""


class Site:
    """A store, and everything that the page asks of it."""

    def __init__(self, reader: Reader, findings: Findings) -> None:
        self.reader, self.findings = reader, findings
        self.images = Images(reader)
        self.jobs = Jobs()
        self._decoding = ThreadPoolExecutor(default_workers(), "packstore-images")
        self._turn = asyncio.Semaphore(default_workers())
        self._as_loaded: Any = None
        self.fetches_all = False
        """Somebody has asked for all that is not on this machine."""

    @property
    def absent_bytes(self) -> int:
        """Bytes of the shards that would have to be fetched for all records."""
        shards = self.reader.manifest.shards
        if shards is None:
            return 0
        here = self.reader.at_hand(range(len(shards)))
        return int(shards.table["nbytes"][~here].sum())

    def allow_fetching(self, request: Request) -> None:
        """Notes it where a request asks for all records, wherever they lie."""
        self.fetches_all = self.fetches_all or request.query_params.get("all") == "1"

    def refuse_much(self) -> None:
        """Raises :class:`UsageError` where a lot would have to be fetched that nobody has asked for."""
        absent = 0 if self.fetches_all else self.absent_bytes
        if absent > _MOST_FETCHED:
            raise UsageError(
                f"this needs all shards, and {absent / 1e9:,.1f} GB of them are not on this machine; 'Look at all of "
                "them' in the overview fetches them"
            )

    def close(self) -> None:
        """Stops what is under way, and closes the store."""
        self.jobs.close()
        self._decoding.shutdown(wait=True, cancel_futures=True)
        self.reader.close()

    def record(self, request: Request) -> int:
        """The number of a record in the address. Raises :class:`NotThereError` where the store has no such record."""
        number = whole("record", request.path_params["record"])
        if number >= len(self.reader):
            raise NotThereError(f"there is no record {number}: the store has {len(self.reader):,}")
        return number

    async def in_turn(self, request: Request, work: Callable[[], _T]) -> _T | None:
        """As :meth:`in_thread`; None where nobody waits for it any more when its turn comes."""
        async with self._turn:
            if await request.is_disconnected():
                return None
            return await asyncio.get_running_loop().run_in_executor(self._decoding, work)

    async def in_thread(self, work: Callable[[], _T]) -> _T:
        """Runs what reads or decodes one image, as many at a time as there are cores."""
        async with self._turn:
            return await asyncio.get_running_loop().run_in_executor(self._decoding, work)

    async def in_time(self, job: Job) -> Any:
        """The result of a job, or None where it takes longer than a moment. Raises what the job raised."""
        waiting = asyncio.wrap_future(job.future)
        waiting.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be left to see it
        await asyncio.wait([waiting], timeout=_SOON_SECONDS)
        if not waiting.done():
            return None
        job.told = True
        return waiting.result()

    def headers(self, everything: bool) -> Job:
        """The work of reading headers: of all images, or of a sample where there are many or not all are here."""
        count = len(self.reader)
        sample = None if everything else sample_of(self.reader, self.fetches_all)
        name = "headers" if sample is None else ("sample", len(sample), int(sample.sum()))
        total = count if sample is None else len(sample)
        return self.jobs.start(
            name, "reading the headers of images", total, lambda report: read_headers(self.reader, sample, report)
        )

    async def selection(self, query: Query) -> Selection | Job:
        """The records that ``query`` means, or the work that has to be done first."""
        headers: Headers | None = None
        if query.needs_all:
            self.refuse_much()
        if query.needs_headers:
            job = self.headers(True)
            headers = await self.in_time(job)
            if headers is None:
                return job
        marks = self.findings.records
        size = len(marks.get(query.mark, ())) if query.mark is not None else 0
        job = self.jobs.start(
            (query, size),
            "sorting keys" if query.sort == "key" else "choosing records",
            len(self.reader),
            lambda report: select(self.reader, query, headers, marks, report),
        )
        found: Selection | None = await self.in_time(job)
        return job if found is None else found

    def as_loaded(self) -> Any:
        """What gives records as the loader does; the first call imports torch."""
        if self._as_loaded is None:
            from packstore.seeing.view.loaded import AsLoaded

            self._as_loaded = AsLoaded(self.reader)
        return self._as_loaded

    def note_damage(self, record: int, error: PackstoreError | IndexError) -> None:
        """Marks a record that was found to be damaged when it was shown."""
        if isinstance(error, PackstoreError) and not is_damage(error):
            return
        if len(self.findings.records.get(DAMAGE, ())) < MOST_MARKED:
            self.findings.add(DAMAGE, record, str(error))

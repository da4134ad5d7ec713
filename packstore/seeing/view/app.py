"""The server behind the page: addresses and what each answers. It only reads the store."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from packstore.core.errors import CorruptRecordError, DecodeError, PackstoreError, UsageError, printable
from packstore.core.findings import KINDS
from packstore.core.parallel import default_workers
from packstore.core.registry import FORMATS
from packstore.seeing.view.facts import Headers, class_column, read_headers, sample_of
from packstore.seeing.view.findings import DAMAGE, MOST_MARKED, Findings, verify
from packstore.seeing.view.guard import Guard
from packstore.seeing.view.images import SIDES, File, Images, key_of
from packstore.seeing.view.jobs import Job, Jobs
from packstore.seeing.view.masks import color_mask, read_mask, values_in
from packstore.seeing.view.overview import count_classes, summarize
from packstore.seeing.view.query import MEASURES, NO_CLASS, SORTS, Query, whole
from packstore.seeing.view.record import describe_record
from packstore.seeing.view.selection import Selection, select
from packstore.stores.base import Reader

PAGE = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/grid.js": ("grid.js", "text/javascript; charset=utf-8"),
    "/record.js": ("record.js", "text/javascript; charset=utf-8"),
    "/overview.js": ("overview.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""The page's own files, by address."""

_MOST_ROWS = 500
_LONGEST_KEY = 300
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
        """The work of reading headers: of all images, or of a sample where there are many."""
        count = len(self.reader)
        sample = None if everything else sample_of(count)
        name = "headers" if sample is None else "sample"
        total = count if sample is None else len(sample)
        return self.jobs.start(
            name, "reading the headers of images", total, lambda report: read_headers(self.reader, sample, report)
        )

    async def selection(self, query: Query) -> Selection | Job:
        """The records that ``query`` means, or the work that has to be done first."""
        headers: Headers | None = None
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

    def note_damage(self, record: int, error: PackstoreError) -> None:
        """Marks a record that was found to be damaged when it was shown."""
        if len(self.findings.records.get(DAMAGE, ())) < MOST_MARKED:
            self.findings.add(DAMAGE, record, str(error))


def make_app(site: Site, token: str) -> Guard:
    """The application; ``token`` is what a browser has to show."""
    routes = [
        Route("/api/store", _answering(site, _store)),
        Route("/api/rows", _answering(site, _rows)),
        Route("/api/place/{record}", _answering(site, _place)),
        Route("/api/classes", _answering(site, _classes)),
        Route("/api/verify", _answering(site, _verify)),
        Route("/api/sizes", _answering(site, _sizes)),
        Route("/api/record/{record}", _answering(site, _record)),
        Route("/api/mask/{record}/{column}", _answering(site, _mask_values)),
        Route("/api/loaded/{record}", _answering(site, _loaded)),
        Route("/thumbnail/{side}/{record}", _answering(site, _thumbnail)),
        Route("/image/{record}/{column}", _answering(site, _image)),
        Route("/mask/{record}/{column}", _answering(site, _mask)),
        Route("/loaded/{record}", _answering(site, _loaded_image)),
        Route("/loaded/{record}/{column}", _answering(site, _loaded_mask)),
        Route("/file/{record}", _answering(site, _file)),
        *(Route(address, _page_file(*file)) for address, file in PAGE.items()),
    ]
    return Guard(Starlette(routes=routes), token)


Endpoint = Callable[[Site, Request], Awaitable[Response]]


def _answering(site: Site, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    """``endpoint`` with packstore's errors as answers: 404 no such thing, 400 wrong question, 422 damaged."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(site, request)
        except PackstoreError as error:
            missing = isinstance(error, NotThereError)
            status = 404 if missing else 400 if isinstance(error, UsageError) else 422
            return _json({"error": str(error)}, status)

    return answer


def _page_file(name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    content = (resources.files(__package__) / "page" / name).read_bytes()

    async def answer(_: Request) -> Response:
        return Response(content, media_type=media_type)

    return answer


def _sent(file: File, kept_seconds: int = 3600) -> Response:
    """An image, which the browser keeps a while: its address names the store's digest."""
    return Response(file.data, media_type=file.type, headers={"cache-control": f"private, max-age={kept_seconds}"})


def _json(content: Any, status: int = 200) -> Response:
    """Values as JSON in ASCII: a key may hold bytes that are not UTF-8, as surrogates."""
    return Response(json.dumps(content, allow_nan=False), status, media_type="application/json")


def _pending(job: Job) -> Response:
    return _json({"pending": job.progress}, 202)


async def _store(site: Site, _: Request) -> Response:
    """What the page shows without having looked at any record."""
    manifest = site.reader.manifest
    column = class_column(manifest)
    image = manifest.image
    return _json(
        {
            "name": printable(site.reader.path.name),
            "path": printable(str(site.reader.path)),
            "records": len(site.reader),
            "format": FORMATS[manifest.format].title,
            "encoding": manifest.encoding,
            "shards": None if manifest.shards is None else len(manifest.shards),
            "digest": manifest.digest[:16],
            "origin": f"{manifest.origin.name} ({manifest.origin.kind})",
            "image": {"shape": list(image.shape), "layout": image.layout, "nbytes": image.nbytes},
            "splits": [{"name": s.name, "start": s.start, "stop": s.stop} for s in manifest.splits],
            "classes": None if column is None else {"column": column.name, "names": column.classes},
            "columns": [
                {"name": c.name, "type": c.type, "classes": c.classes if c is not column else None}
                for c in manifest.columns
            ],
            "sides": SIDES,
            "sorts": SORTS,
            "measures": MEASURES,
            "marks": {mark: len(records) for mark, records in site.findings.records.items()},
            "kinds": {mark: KINDS.get(mark, mark) for mark in site.findings.records},
            "notes": site.findings.notes[:100],
            "skipped": len(manifest.skipped),
        }
    )


async def _rows(site: Site, request: Request) -> Response:
    """Records at places ``start`` to ``stop - 1`` of a selection."""
    given = request.query_params
    start, stop = whole("start", given.get("start", "0")), whole("stop", given.get("stop", "0"))
    query = Query.parse(given)
    chosen = await site.selection(query)
    if isinstance(chosen, Job):
        return _pending(chosen)
    records = chosen.page(start, min(stop, start + _MOST_ROWS))
    rows = await site.in_thread(lambda: [_row(site, record) for record in records])
    return _json({"count": len(chosen), "start": start, "rows": rows, "command": _command(site.reader, query)})


def _row(site: Site, record: int) -> dict[str, Any]:
    """What a tile shows beside its image."""
    reader = site.reader
    row: dict[str, Any] = {"record": record}
    try:
        row["key"] = printable(reader.key(record))[:_LONGEST_KEY]
        column = class_column(reader.manifest)
        if column is not None:
            value = reader.item(column.name, record)
            several = sorted({int(n) for n in value}) if column.kind == "ragged" and value is not None else value
            row["class"] = several[:5] if isinstance(several, list) else several
    except (PackstoreError, IndexError) as error:
        row["error"] = str(error)
        site.note_damage(record, error if isinstance(error, PackstoreError) else UsageError(str(error)))
    marks = site.findings.of(record)
    return row | ({"marks": marks} if marks else {})


async def _place(site: Site, request: Request) -> Response:
    """Where a record stands in a selection."""
    record = site.record(request)
    chosen = await site.selection(Query.parse(request.query_params))
    if isinstance(chosen, Job):
        return _pending(chosen)
    return _json({"place": chosen.place(record), "count": len(chosen)})


async def _classes(site: Site, _: Request) -> Response:
    job = site.jobs.start(
        "classes", "counting classes", len(site.reader), lambda report: count_classes(site.reader, report)
    )
    found = await site.in_time(job)
    return _pending(job) if found is None else _json(found)


async def _verify(site: Site, _: Request) -> Response:
    """Compares all records with their checksums; what is damaged is marked from then on."""
    job = site.jobs.start(
        "verify", "comparing checksums", len(site.reader), lambda report: verify(site.reader, site.findings, report)
    )
    count = await site.in_time(job)
    return _pending(job) if count is None else _json({"problems": count})


async def _sizes(site: Site, request: Request) -> Response:
    """Histograms of a split; ``all=1`` looks at every image, where otherwise a sample is taken."""
    query = Query.parse(request.query_params)
    try:
        split = site.reader.split(query.split)
    except KeyError as error:
        raise NotThereError(str(error.args[0])) from None
    job = site.headers(request.query_params.get("all") == "1")
    found: Headers | None = await site.in_time(job)
    return _pending(job) if found is None else _json(summarize(found, split.start, split.stop))


async def _thumbnail(site: Site, request: Request) -> Response:
    record, side = site.record(request), whole("side", request.path_params["side"])
    if side not in SIDES:
        raise UsageError(f"side should be one of {', '.join(map(str, SIDES))}, got {side}")
    try:
        # Who has scrolled on no longer waits for what has gone by.
        made = await site.in_turn(request, lambda: site.images.thumbnail(record, side))
        return Response(status_code=204) if made is None else _sent(made)
    except (CorruptRecordError, DecodeError) as error:
        site.note_damage(record, error)
        raise


async def _image(site: Site, request: Request) -> Response:
    record, column = site.record(request), _column(site, request, ("image",))
    return _sent(await site.in_thread(lambda: site.images.whole(record, column)))


async def _mask(site: Site, request: Request) -> Response:
    record, column = site.record(request), _column(site, request, ("mask",))
    return _sent(await site.in_thread(lambda: color_mask(read_mask(site.reader, column, record))))


async def _mask_values(site: Site, request: Request) -> Response:
    record, column = site.record(request), _column(site, request, ("mask",))
    values = await site.in_thread(lambda: read_mask(site.reader, column, record))
    height, width = values.shape
    return _json({"width": width, "height": height, "values": values_in(values)})


def _column(site: Site, request: Request, types: tuple[str, ...]) -> Any:
    name = request.path_params["column"]
    found = [c for c in site.reader.manifest.columns if c.name == name and c.type in types]
    if not found:
        raise NotThereError(f"there is no column {name[:80]!r} of type {' or '.join(types)}")
    return found[0]


async def _record(site: Site, request: Request) -> Response:
    record = site.record(request)
    found = await site.in_thread(lambda: describe_record(site.reader, site.images, record))
    found["findings"] = site.findings.texts.get(record, [])
    found["marks"] = site.findings.of(record)
    found["python"] = _python(site.reader, record)
    found["command"] = f"packstore select {_path(site.reader)} -o one.lmdb --where {_quoted_key(site.reader, record)}"
    return _json(found)


def _asked(site: Site, request: Request) -> Any:
    from packstore.seeing.view.loaded import Asked

    given = request.query_params
    seed, epoch = whole("seed", given.get("seed") or "0"), whole("epoch", given.get("epoch") or "0")
    return Asked(site.record(request), given.get("augment", ""), seed, epoch)


async def _loaded(site: Site, request: Request) -> Response:
    return _json(await site.in_thread(lambda: site.as_loaded().describe(_asked(site, request))))


async def _loaded_image(site: Site, request: Request) -> Response:
    return _sent(await site.in_thread(lambda: site.as_loaded().picture(_asked(site, request))))


async def _loaded_mask(site: Site, request: Request) -> Response:
    column = _column(site, request, ("mask",))
    return _sent(await site.in_thread(lambda: site.as_loaded().mask(_asked(site, request), column.name)))


async def _file(site: Site, request: Request) -> Response:
    """The image at rest, to be saved; its name is the record's number, since keys come from strangers."""
    record = site.record(request)
    data, suffix = await site.in_thread(lambda: site.images.file(record))
    name = f'attachment; filename="record-{record}.{suffix}"'
    return Response(data, media_type="application/octet-stream", headers={"content-disposition": name})


def _command(reader: Reader, query: Query) -> str | None:
    """The command that makes a store of a selection; None where no condition of ``packstore select`` says it."""
    if query.ranges or query.kind is not None or query.mark is not None:
        return None
    column = class_column(reader.manifest)
    conditions = [] if query.split is None else [f"split == {json.dumps(query.split)}"]
    if query.label is not None:
        if column is None or column.kind == "ragged" or query.label == NO_CLASS:
            return None
        names = column.classes
        known = names is not None and query.label < len(names)
        conditions.append(f"{column.name} == {json.dumps(names[query.label]) if names and known else query.label}")
    if query.text:
        if any(c in query.text for c in '*?"\\'):
            return None
        conditions.append(f'key like "*{query.text}*"')
    where = f" --where {shlex.quote(' and '.join(conditions))}" if conditions else ""
    return f"packstore select {_path(reader)} -o part.lmdb{where}"


def _python(reader: Reader, record: int) -> str:
    """How one gets a record in Python."""
    split = next((s for s in reader.manifest.splits if s.start <= record < s.stop), None)
    named, item = ("", record) if split is None else (f", split={split.name!r}", record - split.start)
    return (
        f"import packstore\n\ndataset = packstore.PackedDataset({str(reader.path)!r}{named})\n"
        f"item = dataset[{item}]\npicture = dataset.show({item})\n"
    )


def _path(reader: Reader) -> str:
    return shlex.quote(printable(str(Path(reader.path))))


def _quoted_key(reader: Reader, record: int) -> str:
    escaped = key_of(reader, record).replace("\\", "\\\\").replace('"', '\\"')
    return shlex.quote(f'key == "{escaped}"')

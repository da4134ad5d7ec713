"""The server behind the page: addresses and what each answers. It only reads the store."""

from __future__ import annotations

import json
import shlex
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from packstore.core.errors import DecodeError, PackstoreError, StoreError, UsageError, printable
from packstore.core.findings import KINDS
from packstore.core.registry import FORMATS
from packstore.seeing.nearby import is_damage
from packstore.seeing.view.facts import Headers, class_column
from packstore.seeing.view.findings import verify
from packstore.seeing.view.guard import Guard
from packstore.seeing.view.images import SIDES, File, key_of
from packstore.seeing.view.jobs import Job
from packstore.seeing.view.masks import color_mask, read_mask, values_in
from packstore.seeing.view.overview import count_classes, summarize
from packstore.seeing.view.query import MEASURES, NO_CLASS, SORTS, Query, whole
from packstore.seeing.view.record import describe_record, shown_columns
from packstore.seeing.view.site import NotThereError, Site
from packstore.stores.base import Reader

PAGE = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/folded.js": ("folded.js", "text/javascript; charset=utf-8"),
    "/menu.js": ("menu.js", "text/javascript; charset=utf-8"),
    "/grid.js": ("grid.js", "text/javascript; charset=utf-8"),
    "/record.js": ("record.js", "text/javascript; charset=utf-8"),
    "/overview.js": ("overview.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""The page's own files, by address."""

_MOST_ROWS = 500
_LONGEST_KEY = 300
_MOST_NOTES = 1000
"""Findings about no record, of one kind, that are sent."""


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
    """``endpoint`` with packstore's errors as answers: 404 no such thing, 400 wrong question, 422 damaged, 503
    not to be fetched now."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(site, request)
        except PackstoreError as error:
            missing = isinstance(error, NotThereError)
            status = 404 if missing else 400 if isinstance(error, UsageError) else 422 if is_damage(error) else 503
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
            "kinds": {mark: KINDS.get(mark, "") for mark in [*site.findings.records, *site.findings.notes]},
            "notes": {
                mark: {"count": len(said), "texts": [*said][:_MOST_NOTES]} for mark, said in site.findings.notes.items()
            },
            "skipped": len(manifest.skipped),
            "absent_bytes": site.absent_bytes,
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
    rows = await site.in_thread(lambda: _rows_of(site, records))
    return _json({"count": len(chosen), "start": start, "rows": rows, "command": _command(site.reader, query)})


def _rows_of(site: Site, records: list[int]) -> list[dict[str, Any]]:
    """What tiles show. Nothing is fetched for it: the thumbnails of those that are seen do that."""
    parts = (np.searchsorted(site.reader.part_starts, records, "right") - 1).tolist()
    numbers = sorted({*parts})
    here = dict(zip(numbers, site.reader.at_hand(numbers).tolist(), strict=True))
    return [_row(site, record, here[part]) for record, part in zip(records, parts, strict=True)]


def _row(site: Site, record: int, here: bool) -> dict[str, Any]:
    """What a tile shows beside its image."""
    reader = site.reader
    row: dict[str, Any] = {"record": record}
    try:
        if not here:
            return row | {"absent": True, "marks": site.findings.of(record)}
        row["key"] = printable(reader.key(record))[:_LONGEST_KEY]
        column = class_column(reader.manifest)
        if column is not None:
            value = reader.item(column.name, record)
            several = sorted({int(n) for n in value}) if column.kind == "ragged" and value is not None else value
            row["class"] = several[:5] if isinstance(several, list) else several
    except (PackstoreError, IndexError) as error:
        row["error"] = str(error)
        site.note_damage(record, error)
    marks = site.findings.of(record)
    return row | ({"marks": marks} if marks else {})


async def _place(site: Site, request: Request) -> Response:
    """Where a record stands in a selection."""
    record = site.record(request)
    chosen = await site.selection(Query.parse(request.query_params))
    if isinstance(chosen, Job):
        return _pending(chosen)
    return _json({"place": chosen.place(record), "count": len(chosen)})


async def _classes(site: Site, request: Request) -> Response:
    site.allow_fetching(request)
    reader, fetch = site.reader, site.fetches_all
    parts = range(len(reader.part_starts))
    name = ("classes", "all" if fetch else int(reader.at_hand(parts).sum()))
    job = site.jobs.start(name, "counting classes", len(reader), lambda report: count_classes(reader, report, fetch))
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
    site.allow_fetching(request)
    job = site.headers(request.query_params.get("all") == "1")
    found: Headers | None = await site.in_time(job)
    return (
        _pending(job)
        if found is None
        else _json(
            summarize(found, site.reader.manifest, split.start, split.stop) | {"absent_bytes": site.absent_bytes}
        )
    )


async def _thumbnail(site: Site, request: Request) -> Response:
    record, side = site.record(request), whole("side", request.path_params["side"])
    drawn = request.query_params.get("drawn") == "1"
    if side not in SIDES:
        raise UsageError(f"side should be one of {', '.join(map(str, SIDES))}, got {side}")
    try:
        # Who has scrolled on no longer waits for what has gone by.
        made = await site.in_turn(request, lambda: site.images.thumbnail(record, side, drawn))
        return Response(status_code=204) if made is None else _sent(made)
    except (StoreError, DecodeError) as error:
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
    found["findings"] = [{"text": text, "also": others} for text, others in site.findings.texts.get(record, [])]
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
    """How one gets a record in Python, with all that the page shows of it."""
    columns = tuple(column.name for column in shown_columns(reader.manifest))
    split = next((s for s in reader.manifest.splits if s.start <= record < s.stop), None)
    named, item = ("", record) if split is None else (f", split={split.name!r}", record - split.start)
    return (
        f"import packstore\n\ndataset = packstore.PackedDataset({str(reader.path)!r}{named}, columns={columns!r})\n"
        f"item = dataset[{item}]\npicture = dataset.show({item})\n"
    )


def _path(reader: Reader) -> str:
    return shlex.quote(printable(str(reader.path)))


def _quoted_key(reader: Reader, record: int) -> str:
    escaped = key_of(reader, record).replace("\\", "\\\\").replace('"', '\\"')
    return shlex.quote(f'key == "{escaped}"')

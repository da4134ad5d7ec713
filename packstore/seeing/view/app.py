"""The server of the page: its addresses and their handlers. It only reads the store."""

from __future__ import annotations

import json
import shlex
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import resources
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from packstore.core.columns import Column
from packstore.core.errors import DecodeError, PackstoreError, StoreError, UsageError, printable
from packstore.core.findings import list_kinds
from packstore.core.registry import FORMATS
from packstore.seeing.facts import find_class_column, is_damage, locate_in_split, shown_columns
from packstore.seeing.view.images import SIDES, WebFile, color_mask, encode_png, list_values, printable_key, read_mask
from packstore.seeing.view.query import MEASURES, NO_CLASS, SORTS, Query, count_classes, parse_number, summarize_images
from packstore.seeing.view.record import describe_loaded, describe_record
from packstore.seeing.view.server import Guard
from packstore.seeing.view.site import Job, NotThereError, Site, verify_and_mark
from packstore.stores import Reader

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
"""Most notes of one kind (findings about no particular record) that are sent."""


def make_app(site: Site, token: str) -> Guard:
    """Creates the ASGI application of the page's files and of the API. Reads the files at once.

    A :class:`Guard` refuses browsers that do not send ``token``.
    """
    endpoints = {
        "/api/store": _get_store,
        "/api/rows": _get_rows,
        "/api/place/{record}": _get_position,
        "/api/classes": _get_class_counts,
        "/api/verify": _verify_store,
        "/api/sizes": _get_histograms,
        "/api/record/{record}": _get_record,
        "/api/mask/{record}/{column}": _get_mask_values,
        "/api/loaded/{record}": _get_loaded_record,
        "/thumbnail/{side}/{record}": _get_thumbnail,
        "/image/{record}/{column}": _get_full_image,
        "/mask/{record}/{column}": _get_mask_picture,
        "/loaded/{record}": _get_loaded_image,
        "/loaded/{record}/{column}": _get_loaded_mask,
        "/file/{record}": _download_file,
    }
    routes = [Route(address, _handle_errors(site, endpoint)) for address, endpoint in endpoints.items()]
    routes += [Route(address, _make_page_handler(*file)) for address, file in PAGE.items()]
    return Guard(Starlette(routes=routes), token)


Endpoint = Callable[[Site, Request], Awaitable[Response]]


def _handle_errors(site: Site, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    """Wraps ``endpoint`` so that errors of packstore become responses with the error as JSON."""

    async def answer(request: Request) -> Response:
        """Answers with the endpoint's response, or with the error as JSON."""
        try:
            return await endpoint(site, request)
        except PackstoreError as error:
            missing = isinstance(error, NotThereError)
            # Not found, wrong request, damaged data, data that cannot be fetched now.
            status = 404 if missing else 400 if isinstance(error, UsageError) else 422 if is_damage(error) else 503
            return _json_response({"error": str(error)}, status)

    return answer


def _make_page_handler(name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    """Reads one of the page's own files, and makes the handler that answers with the file."""
    content = (resources.files(__package__) / "page" / name).read_bytes()

    async def answer(_: Request) -> Response:
        return Response(content, media_type=media_type)

    return answer


def _image_response(file: WebFile) -> Response:
    """Creates a response with an image, which the browser may cache for an hour."""
    # Safe to cache: the address contains the store's digest.
    return Response(file.data, media_type=file.type, headers={"cache-control": "private, max-age=3600"})


def _json_response(content: Any, status: int = 200) -> Response:
    """Creates a response of JSON in ASCII: keys may contain surrogates for bytes that are not UTF-8."""
    return Response(json.dumps(content, allow_nan=False), status, media_type="application/json")


def _progress_response(job: Job) -> Response:
    """Creates the response 202 with the progress of a job that is not finished."""
    return _json_response({"pending": job.progress}, 202)


async def _job_response(site: Site, job: Job, describe: Callable[[Any], Any]) -> Response:
    """Creates the response with what ``describe`` makes of a job's result, or with the job's progress."""
    result = await site.wait_briefly(job)
    return _progress_response(job) if result is None else _json_response(describe(result))


async def _get_store(site: Site, _: Request) -> Response:
    """Answers with facts about the store, its columns and its findings, without reading a record."""
    manifest = site.reader.manifest
    column = find_class_column(manifest)
    image, kinds = manifest.image, list_kinds()
    return _json_response(
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
                {
                    "name": c.name,
                    "type": c.type,
                    "classes": c.classes if c is not column else None,
                    "drawn": c.traits.drawn_as,
                }
                for c in manifest.columns
            ],
            "sides": SIDES,
            "sorts": SORTS,
            "measures": MEASURES,
            "marks": {mark: len(records) for mark, records in site.findings.records.items()},
            "kinds": {mark: kinds.get(mark, "") for mark in [*site.findings.records, *site.findings.notes]},
            "notes": {
                mark: {"count": len(texts), "texts": [*texts][:_MOST_NOTES]}
                for mark, texts in site.findings.notes.items()
            },
            "skipped": len(manifest.skipped),
            "absent_bytes": site.absent_bytes,
        }
    )


async def _get_rows(site: Site, request: Request) -> Response:
    """Answers with up to 500 records of a selection, its length and its command, or with progress."""
    given = request.query_params
    start, stop = parse_number("start", given.get("start", "0")), parse_number("stop", given.get("stop", "0"))
    query = Query.parse(given)
    chosen = await site.find_selection(query)
    if isinstance(chosen, Job):
        return _progress_response(chosen)
    records = chosen.slice_records(start, min(stop, start + _MOST_ROWS))
    rows = await site.run_in_thread(lambda: _describe_rows(site, records))
    return _json_response(
        {"count": len(chosen), "start": start, "rows": rows, "command": _select_command(site.reader, query)}
    )


def _describe_rows(site: Site, records: list[int]) -> list[dict[str, Any]]:
    """Describes records for their tiles with :func:`_describe_row`, without fetching shards."""
    parts = site.reader.table.find(records).tolist()
    numbers = sorted({*parts})
    here = dict(zip(numbers, site.reader.table.are_local(numbers).tolist(), strict=True))
    return [_describe_row(site, record, here[part]) for record, part in zip(records, parts, strict=True)]


def _describe_row(site: Site, record: int, here: bool) -> dict[str, Any]:
    """Describes a record for its tile; ``here`` tells if its shard is on this machine."""
    reader = site.reader
    row: dict[str, Any] = {"record": record}
    try:
        # Reading the key or class would fetch the shard.
        if not here:
            return row | {"absent": True, "marks": site.findings.marks_of(record)}
        row["key"] = printable(reader.key(record))[:_LONGEST_KEY]
        column = find_class_column(reader.manifest)
        if column is not None:
            value = reader.item(column.name, record)
            several = sorted({int(n) for n in value}) if column.kind == "ragged" and value is not None else value
            row["class"] = several[:5] if isinstance(several, list) else several  # the lowest numbers of a list
    except (PackstoreError, IndexError) as error:
        row["error"] = str(error)
        site.note_damage(record, error)  # a damaged record gets a mark
    marks = site.findings.marks_of(record)
    return row | ({"marks": marks} if marks else {})


async def _get_position(site: Site, request: Request) -> Response:
    """Answers with a record's position in a selection and the selection's length, or with progress."""
    record = site.parse_record(request)
    chosen = await site.find_selection(Query.parse(request.query_params))
    if isinstance(chosen, Job):
        return _progress_response(chosen)
    # The position is null for a record that the selection lacks.
    return _json_response({"place": chosen.position(record), "count": len(chosen)})


async def _get_class_counts(site: Site, request: Request) -> Response:
    """Answers with the numbers of records by class and split, or with progress."""
    site.allow_fetching(request)  # ``all=1`` allows fetching, now and later
    reader, fetch = site.reader, site.fetches_all
    parts = range(len(reader.table.starts))
    # Unless fetching is allowed, counts only the shards on this machine.
    name = ("classes", "all" if fetch else int(reader.table.are_local(parts).sum()))
    job = site.jobs.start(name, "counting classes", len(reader), lambda report: count_classes(reader, report, fetch))
    return await _job_response(site, job, lambda counts: counts)


async def _verify_store(site: Site, _: Request) -> Response:
    """Verifies all records, marks damaged ones, and answers with the number of problems, or with progress."""
    reader, findings = site.reader, site.findings
    work = partial(verify_and_mark, reader, findings)  # fetches all shards
    job = site.jobs.start("verify", "comparing checksums", len(reader), work)
    return await _job_response(site, job, lambda count: {"problems": count})


async def _get_histograms(site: Site, request: Request) -> Response:
    """Answers with the histograms of a split, or with progress."""
    query = Query.parse(request.query_params)
    try:
        split = site.reader.split(query.split)
    except KeyError as error:
        raise NotThereError(str(error.args[0])) from None
    site.allow_fetching(request)  # ``all=1`` allows fetching, now and later
    # Reads a sample of the images, or every image with ``all=1``.
    job = site.start_reading_headers(request.query_params.get("all") == "1")

    def describe(headers: Any) -> dict[str, Any]:
        summary = summarize_images(headers, site.reader.manifest, split.start, split.stop)
        return summary | {"absent_bytes": site.absent_bytes}

    return await _job_response(site, job, describe)


async def _get_thumbnail(site: Site, request: Request) -> Response:
    """Answers with a thumbnail, and marks the record if it is damaged."""
    record, side = site.parse_record(request), parse_number("side", request.path_params["side"])
    drawn = request.query_params.get("drawn") == "1"
    if side not in SIDES:
        raise UsageError(f"side should be one of {', '.join(map(str, SIDES))}, got {side}")
    try:
        # A browser that has scrolled on no longer waits for earlier thumbnails.
        made = await site.run_unless_disconnected(request, lambda: site.images.get_thumbnail(record, side, drawn))
        return Response(status_code=204) if made is None else _image_response(made)
    except (StoreError, DecodeError) as error:
        site.note_damage(record, error)
        raise


async def _get_full_image(site: Site, request: Request) -> Response:
    """Answers with an image in full size; ``n`` in the address chooses one of a list."""
    record, column = site.parse_record(request), _find_column(site, request)
    number = parse_number("n", request.query_params.get("n") or "0")
    return _image_response(await site.run_in_thread(lambda: site.images.get_full_image(record, column, number)))


async def _get_mask_picture(site: Site, request: Request) -> Response:
    """Answers with a mask as a picture with a colour for each value."""
    record, column = site.parse_record(request), _find_column(site, request, masks=True)
    return _image_response(await site.run_in_thread(lambda: color_mask(read_mask(site.reader, column, record))))


async def _get_mask_values(site: Site, request: Request) -> Response:
    """Answers with the size of a mask, and the smallest 256 values that occur in it."""
    record, column = site.parse_record(request), _find_column(site, request, masks=True)
    values = await site.run_in_thread(lambda: read_mask(site.reader, column, record))
    height, width = values.shape
    return _json_response({"width": width, "height": height, "values": list_values(values)})


def _find_column(site: Site, request: Request, *, masks: bool = False) -> Column:
    """Returns the column of images, or of ``masks``, named in the address."""
    name = request.path_params["column"]
    for column in site.reader.manifest.columns:
        if column.name == name and (column.holds_masks if masks else column.holds_images):
            return column
    raise NotThereError(f"there is no column {name[:80]!r} of type {'mask' if masks else 'image or images'}")


async def _get_record(site: Site, request: Request) -> Response:
    """Answers with a record's description, findings and marks, and code and a command that read it."""
    record = site.parse_record(request)
    description = await site.run_in_thread(lambda: describe_record(site.reader, site.images, record))
    description["findings"] = [{"text": text, "also": others} for text, others in site.findings.texts.get(record, [])]
    description["marks"] = site.findings.marks_of(record)
    description["python"] = _python_code(site.reader, record)
    description["command"] = (
        f"packstore select {_quote_path(site.reader)} -o one.lmdb --where {_quote_key(site.reader, record)}"
    )
    return _json_response(description)


def _load_record(site: Site, request: Request) -> Any:
    """Loads the record in the address as the loader returns it."""
    from packstore.seeing.loaded import LoadRequest  # imports torch

    given = request.query_params
    seed, epoch = parse_number("seed", given.get("seed") or "0"), parse_number("epoch", given.get("epoch") or "0")
    wanted = LoadRequest(site.parse_record(request), given.get("augment", ""), seed, epoch)
    return site.get_sample_loader().load(wanted)


async def _get_loaded_record(site: Site, request: Request) -> Response:
    """Answers with the description of a record as the loader returns it."""
    manifest = site.reader.manifest
    return _json_response(await site.run_in_thread(lambda: describe_loaded(manifest, _load_record(site, request))))


async def _get_loaded_image(site: Site, request: Request) -> Response:
    """Answers with the image of a record as the loader returns it."""
    return _image_response(await site.run_in_thread(lambda: encode_png(_load_record(site, request).image)))


async def _get_loaded_mask(site: Site, request: Request) -> Response:
    """Answers with a mask as the loader returns it, as a picture with a colour for each value."""
    name = _find_column(site, request, masks=True).name

    def draw() -> WebFile:
        value = _load_record(site, request).values.get(name)
        if value is None:
            raise UsageError(f"no mask {name[:80]!r} in this record")
        return color_mask(np.asarray(value))

    return _image_response(await site.run_in_thread(draw))


async def _download_file(site: Site, request: Request) -> Response:
    """Answers with the stored image as a download."""
    record = site.parse_record(request)
    data, suffix = await site.run_in_thread(lambda: site.images.read_file(record))
    # Named by the record's number: a key may be an unsafe name.
    name = f'attachment; filename="record-{record}.{suffix}"'
    return Response(data, media_type="application/octet-stream", headers={"content-disposition": name})


def _select_command(reader: Reader, query: Query) -> str | None:
    """Returns the ``packstore select`` command for a selection, or None if no conditions can express it."""
    if query.ranges or query.kind is not None or query.mark is not None:
        return None
    column = find_class_column(reader.manifest)
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
    # Leaves out the order of the selection.
    where = f" --where {shlex.quote(' and '.join(conditions))}" if conditions else ""
    return f"packstore select {_quote_path(reader)} -o part.lmdb{where}"


def _python_code(reader: Reader, record: int) -> str:
    """Returns Python code that loads a record with all columns that the page shows, and draws it."""
    columns = tuple(column.name for column in shown_columns(reader.manifest))
    split, item = locate_in_split(reader.manifest, record)
    named = "" if split is None else f", split={split!r}"
    return (
        f"import packstore\n\ndataset = packstore.PackedDataset({str(reader.path)!r}{named}, columns={columns!r})\n"
        f"item = dataset[{item}]\npicture = dataset.show({item})\n"
    )


def _quote_path(reader: Reader) -> str:
    """Returns the store's path, made printable and quoted for a shell."""
    return shlex.quote(printable(str(reader.path)))


def _quote_key(reader: Reader, record: int) -> str:
    """Returns a condition of ``packstore select`` that selects a record by its key, quoted for a shell."""
    escaped = printable_key(reader, record).replace("\\", "\\\\").replace('"', '\\"')
    return shlex.quote(f'key == "{escaped}"')

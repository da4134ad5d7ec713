"""``packstore info`` of a store; :mod:`.source_info` has that of a source."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packstore.cli.common import (
    LocalPath,
    StorePath,
    describe_conversions,
    describe_normalization,
    echo_rows,
    format_source_options,
    human_bytes,
    packing_command,
    pluralize,
    progress_bar,
)
from packstore.cli.options import Command, OptionsOf, cache_options
from packstore.cli.source_info import describe_column, user_columns
from packstore.core.errors import AmbiguousSourceError, MissingStoreError, SourceError, StoreError, printable
from packstore.core.registry import FORMATS

if TYPE_CHECKING:
    from packstore.core.manifest import Manifest
    from packstore.stores.base import Reader
    from packstore.training.cost import Cost

_LISTED = 10
_COUNTED_SHARDS = 100


@click.command(cls=Command, short_help="Show the content of a store or a source.")
@click.argument("path", type=StorePath())
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--counts", is_flag=True, help="Count the records of each class even if that opens many shards.")
@click.option(
    "--plot", type=LocalPath(), metavar="FILE",
    help="For a store: draw classes, sizes and bytes into FILE, a .png, .svg or .pdf.",
)  # fmt: skip
@click.option("--cost", is_flag=True, help="For a store: the requests and bytes of reading it from a URL.")
@click.option(
    "--nodes",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="With --cost: number of machines, each with a cache.",
)
@click.option(
    "--batch-size", type=click.IntRange(1), default=256, show_default=True, metavar="N",
    help="With --cost: batch size of each machine.",
)  # fmt: skip
@OptionsOf("packstore.packing.source_arguments:SourceArguments", without=("max_pixels",))
@cache_options
def info(
    path: Path, as_json: bool, counts: bool, plot: Path | None, cost: bool, nodes: int, batch_size: int, **options: Any
) -> None:  # fmt: skip
    """Show the content of the store at PATH: format, encoding, splits, classes, shapes, sizes, origin.

    If PATH is a source, show how it is recognised and what convert would pack. Nothing is written.

    Counting the records of each class opens all shards. So they are counted only if the store is on this
    machine and has at most 100 shards, or with --counts.

    \b
    Examples:
      packstore info imagenet.lmdb
      packstore info imagenet.lmdb --json | jq .splits
      packstore info imagenet.lmdb --plot imagenet.png
      packstore info imagenet/                 a source
      packstore info s3://bucket/imagenet.lmdb
      packstore info s3://bucket/imagenet      a source
      packstore info s3://bucket/imagenet.lmdb --cost --nodes 8
    """
    from packstore.core.urls import UrlPath, find_bridge
    from packstore.objects import RemoteError
    from packstore.stores.opening import open_reader

    if plot is not None:
        from packstore.seeing.charts import check_chart

        check_chart(plot)
    if any(value not in (None, ()) for value in options.values()) or find_bridge(path) is not None:
        _refuse_chart(plot)
        _print_source(path, as_json, options)
        return
    try:
        reader = open_reader(path)
    except StoreError as error:
        missing = isinstance(error, MissingStoreError)
        if missing is not isinstance(path, UrlPath) and isinstance(error, (MissingStoreError, RemoteError)):
            raise
        _refuse_chart(plot)
        if missing and _is_unfinished(path):
            raise StoreError(
                f"{printable(str(path))}: a conversion is running, or was interrupted; the same command resumes it"
            ) from None
        try:
            _print_source(path, as_json, options)
        except StoreError:  # not a source either: report the store's error
            raise error from None
        return
    with reader:
        if as_json:
            more = {"cost": [asdict(each) for each in _estimate_costs(reader, nodes, batch_size)]} if cost else {}
            click.echo(json.dumps(store_to_json(reader, counts) | more, indent=2))
        elif cost:
            click.echo(describe_cost(reader, nodes, batch_size))
        else:
            echo_rows(describe_store(reader, counts))
        if plot is not None:
            from packstore.seeing.store_chart import plot_store

            plot_store(reader, plot)


def _is_unfinished(path: Path) -> bool:
    """Tells if the plan of a conversion still exists at a URL: the conversion is unfinished. False if objects cannot be
    listed."""
    from packstore.objects import open_objects

    objects = open_objects(path)
    return objects.can_list and any(each.name.endswith("/plan.json") for each in objects.list("_work/convert-"))


def _estimate_costs(reader: Reader, nodes: int, batch_size: int) -> list[Cost]:
    """Estimates the requests and bytes of reading a store from a URL, with this machine's cache budget."""
    from packstore.cache import default_cache
    from packstore.training.cost import compute_costs

    return compute_costs(reader.manifest, reader.disk_bytes(), default_cache().budget, nodes, batch_size)


def describe_cost(reader: Reader, nodes: int, batch_size: int) -> str:
    """Formats the requests and bytes of reading a store from a URL as a table."""
    from packstore.cache import default_cache

    each = f"a cache of {human_bytes(default_cache().budget)}"
    rows = [(c.what, f"{c.requests:,}", human_bytes(c.nbytes)) for c in _estimate_costs(reader, nodes, batch_size)]
    rows = [(f"on {nodes:,} nodes, each with {each}" if nodes > 1 else f"with {each}", "requests", "bytes"), *rows]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join(f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows)


def _refuse_chart(plot: Path | None) -> None:
    """Raises :class:`click.UsageError` if a chart is asked for: a source has none."""
    if plot is not None:
        raise click.UsageError("--plot needs a store, and this is a source: pack it first (packstore convert)")


@contextmanager
def _questions_as_json(path: Path, as_json: bool) -> Iterator[None]:
    """Prints a question that the block raises as JSON, too, if that is asked for."""
    from packstore.cli.source_info import questions_to_json

    try:
        yield
    except AmbiguousSourceError as error:
        if as_json:
            click.echo(json.dumps({"path": str(path), **questions_to_json([error])}, indent=2))
        raise


def _print_source(path: Path, as_json: bool, options: dict[str, Any]) -> None:
    """Opens and surveys a source, looks at the headers of some images, and prints its description or JSON.

    Raises :class:`AmbiguousSourceError` if files that seem to annotate its images would be left out; its notes have all
    further questions of a conversion. Raises :class:`SourceError` if it is no source, or if no image can be packed.
    """
    from packstore.cli.source_info import describe_source, find_questions, source_to_json
    from packstore.packing.header_survey import survey_headers
    from packstore.packing.modes import resolve_reading
    from packstore.packing.options import ConvertOptions
    from packstore.sources import add_source_to_questions, ask_about_left, open_source

    given = {"kind" if name == "source_kind" else name: value for name, value in options.items()}
    with (
        _questions_as_json(path, as_json),
        progress_bar(as_json) as progress,
        closing(open_source(path, **given, progress=progress)) as source,
    ):
        with add_source_to_questions(source.path, source.options, given.get("kind")):
            survey = source.survey(None, progress)
        wanted = ConvertOptions(**{name: value for name, value in options.items() if value not in (None, ())})
        headers = survey_headers(source, survey, resolve_reading(source, survey, wanted))
        questions = find_questions(source, survey, wanted, headers)
        try:
            with add_source_to_questions(source.path, source.options, given.get("kind")):
                ask_about_left(source, survey)
        except AmbiguousSourceError as error:
            for question in questions:
                error.add_note(f"a further question: {question}")
            raise
        if as_json:
            text = json.dumps(source_to_json(source, survey, questions, headers), indent=2)
        else:
            command = packing_command(path, format_source_options(options))
            text = describe_source(source, survey, command, questions, headers)
    if as_json:
        click.echo(text)
    else:
        echo_rows(text)
    if survey.counted and (not survey.records or 0 < headers.looked_at == len(headers.bad)):
        why = "".join(f": {printable(key)}: {printable(reason)}" for key, reason in headers.bad[:1])
        raise SourceError(f"{printable(str(path))}: 0 images can be packed{why}")


def store_to_json(reader: Reader, counted: bool = False) -> dict[str, Any]:
    """Converts manifest, size on disk and class counts to JSON values.

    Counts classes if ``counted``, or if the store is local and has at most 100 shards. ``class_counts`` is:

    - None if classes are not counted.
    - None for lists of classes.
    - Empty without class names.
    """
    manifest = reader.manifest
    plain: dict[str, Any] = json.loads(manifest.to_json())
    counts = (
        _count_classes(reader) if (counted or _can_open_all_shards(reader)) and not _has_label_lists(manifest) else None
    )
    return {
        "path": str(reader.path),
        "dataset_digest": manifest.dataset_digest,
        "disk_bytes": reader.disk_bytes(),
        "class_counts": counts,
        **plain,
    }


def describe_store(reader: Reader, counted: bool = False) -> str:
    """Formats a store as rows of a name and a text. Reads file sizes.

    Counts classes if ``counted``, or if the store is local and has at most 100 shards.
    """
    from packstore.packing.frames import OTHER_SIZE
    from packstore.packing.report import describe_other_sizes, read_conversion_counts

    m = reader.manifest
    disk = reader.disk_bytes()
    shape = f", {' x '.join(map(str, m.image.shape))} ({m.image.layout})" if m.image.shape else ""
    rows = [
        ("path", printable(str(reader.path))),
        ("format", f"{FORMATS[m.format].title} (layout version {m.format_version})"),
        ("records", f"{len(reader):,}"),
        ("encoding", f"{m.encoding}{shape}"),
        *([("mode", str(m.image.pixels))] if m.image.mode is not None else []),
    ]
    if oriented := m.options.get("exif_oriented"):
        rows.append(("", f"{oriented:,} of them have an EXIF orientation, {_describe_orientation(m)}"))
        if unknown := [c.name for c in m.columns if c.traits.moves and c.frame is None]:
            rows.append(("", f"in which frame {', '.join(unknown)} count was not recorded (stored or upright image)"))
    rows += [("", text) for text in describe_conversions(read_conversion_counts(m))]
    rows += [("note", text) for text in describe_other_sizes(m)]
    if m.normalization:
        rows.append(("normalised", describe_normalization(m.normalization)))
    for split in m.splits:
        rows.append(("split", f"{printable(split.name)}: {pluralize(len(split), 'record')} from {split.start:,}"))
    if m.classes is not None:
        shown = ", ".join(printable(c) for c in m.classes[:_LISTED])
        rows.append(("classes", f"{len(m.classes):,}: {shown}{', …' if len(m.classes) > _LISTED else ''}"))
        if _has_label_lists(m):
            rows.append(("per class", "not counted: records have lists of classes"))
        elif counted or _can_open_all_shards(reader):
            rows.append(("per class", _format_range(list(_count_classes(reader).values()))))
        else:
            rows.append(("per class", "not counted, since that opens all shards (--counts counts)"))
    each = disk / max(1, len(reader))
    rows.append(("on disk" if reader.nbytes is None else "size", f"{human_bytes(disk)}, {human_bytes(each)} a record"))
    padding = FORMATS[m.format].padding
    if padding and m.records and disk > 1.2 * sum(c.nbytes for c in m.columns):
        rows.append(("", f"{padding}; HDF5 and .pth do not"))
    for c in user_columns(m.columns):
        kind = _image_type(m) if c.name == "image" else describe_column(c)
        own = [(name, m.options.get(f"{c.name}.{name}")) for name in ("depth", "alpha", "frames")]
        kind += "".join(f", {name} {printable(str(value))}" for name, value in own if value is not None)
        kind += f", of the {c.frame} image" if c.frame is not None else ""
        mean = human_bytes(c.nbytes / max(1, m.records))
        rows.append((f"column {c.name}", f"{kind}; {human_bytes(c.nbytes)}, {mean} a record"))
    if m.is_linked and reader.nbytes is None:
        rows.append(("links", describe_linked_files(reader)))
    if m.shards:
        largest = int(m.shards.table["nbytes"].max())
        rows.append(("shards", f"{len(m.shards)}, the largest {human_bytes(largest)}"))
    rows.append(("origin", printable(f"{m.origin.name} ({m.origin.kind})")))
    told = ("exif_oriented", OTHER_SIZE, *read_conversion_counts(m))  # above
    given = {k: v for k, v in m.options.items() if v is not None and v is not False and k not in told}
    shown = ", ".join(k if v is True else f"{k} {v}" for k, v in sorted(given.items())).replace("_", " ")
    rows.append(("options", printable(shown) or "none"))
    rows.append(("written by", printable(", ".join(f"{k} {v}" for k, v in sorted(m.versions.items()))) or "unknown"))
    if (files := m.origin.files) is not None:
        roles = (files.packed, "packed"), (files.annotation + files.evidence, "read"), (files.left, "left out")
        rows.append(("files", ", ".join(f"{count:,} {what}" for count, what in roles if count)))
    if m.skipped:
        rows.append(("skipped", f"{pluralize(len(m.skipped), 'sample')}:"))
        rows += [("", f"{printable(s.key)}: {printable(s.reason)}") for s in m.skipped[:_LISTED]]
        if len(m.skipped) > _LISTED:
            rows.append(("", f"… and {len(m.skipped) - _LISTED:,} more (--json lists them)"))
    rows.append(("digest", m.dataset_digest))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}".rstrip() for name, text in rows)


def describe_linked_files(reader: Reader) -> str:
    """Returns a phrase on the files that a linked store points to: their number and common folder, or the one file."""
    from packstore.stores.linked import link_folder, list_linked_files

    places = list_linked_files(reader, link_folder(reader.path))
    if len(places) == 1:
        return f"1 file, {printable(next(iter(places)))}"
    common = os.path.commonprefix([*places])  # noqa: RUF071 - cut at a slash below; of URLs, too
    folder = printable(common[: common.rfind("/") + 1])
    return f"{len(places):,} files {f'below {folder}' if folder else 'in several places'}"


def _image_type(manifest: Manifest) -> str:
    """Returns ``image files``; for a store of pixels, the dtype and ``pixels``."""
    return f"{manifest.image.dtype} pixels" if manifest.image.layout else "image files"


def _describe_orientation(manifest: Manifest) -> str:
    """Returns a phrase: the EXIF orientation was applied, is applied at loading, or is not applied."""
    from packstore.images.encode.options import readers_transpose

    if not manifest.options.get("exif_transpose"):
        return "which is not applied"
    return "applied when they are loaded" if readers_transpose(manifest) else "which was applied"


def _can_open_all_shards(reader: Reader) -> bool:
    """Tells if the store is local and has at most 100 shards."""
    shards = reader.manifest.shards
    return reader.nbytes is None and (shards is None or len(shards) <= _COUNTED_SHARDS)


def _has_label_lists(manifest: Manifest) -> bool:
    """Tells if the column ``label`` is ragged: lists of classes, or other values without one class a record."""
    return manifest.has_column("label") and manifest.column("label").kind == "ragged"


def _count_classes(reader: Reader) -> dict[str, int]:
    """Counts records by class name. Opens all shards. Leaves out numbers that are no class. Empty without class
    names."""
    import numpy as np

    classes = reader.manifest.classes
    if classes is None:
        return {}
    counts = np.zeros(len(classes), np.int64)
    for part in reader.parts():
        labels = part.fixed_column("label")
        # Labels of a damaged store can be out of range: verify reports them, so they are left out here.
        counts += np.bincount(labels[(labels >= 0) & (labels < len(classes))], minlength=len(classes))
    return {name: int(count) for name, count in zip(classes, counts, strict=True)}


def _format_range(counts: list[int]) -> str:
    """Formats the least and the most of some counts, such as ``12 to 40``. If both are equal: ``12``; without counts:
    ``0``."""
    low, high = min(counts, default=0), max(counts, default=0)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"

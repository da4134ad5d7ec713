"""``packstore info`` of a store, and of a source before anything is packed."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packstore.cli.common import (
    StorePath,
    format_source_options,
    packing_command,
    progress_bar,
    shell_quote,
    suggest_commands,
)
from packstore.cli.options import Command, OptionsOf, cache_options, everything_option, plot_option
from packstore.cli.rows import (
    LISTED,
    Rows,
    format_classes,
    format_conversions,
    format_ledger,
    format_normalization,
    human_bytes,
    if_any,
    ledger_values,
    pluralize,
)
from packstore.core.errors import (
    AmbiguousSourceError,
    MissingStoreError,
    PackstoreError,
    SourceError,
    StoreError,
    join_names,
    printable,
)
from packstore.core.modes import parse_mode
from packstore.core.registry import FORMATS, SOURCES
from packstore.core.urls import find_bridge

if TYPE_CHECKING:
    from packstore.core.columns import Column
    from packstore.core.errors import Answer, UsageError
    from packstore.core.manifest import Manifest
    from packstore.packing import ConvertOptions
    from packstore.packing.header_survey import HeaderSurvey
    from packstore.sources import Source, Survey
    from packstore.stores import Reader


_COUNTED_SHARDS = 100
_KEYS = 3
_LOOKED_AT = 8
INTERNAL_MEANINGS = {
    "checksum": "of each image",
    "row_checksum": "of each record's other values",
    "seek_index": "where crops of each JPEG file begin to decode",
}


@click.command(cls=Command, short_help="Show the content of a store or a source.")
@click.argument("path", type=StorePath())
@everything_option
@click.option("--counts", is_flag=True, help="Count the records of each class even if that opens many shards.")
@plot_option("For a store: draw classes, sizes and bytes into FILE, a .png, .svg or .pdf.")
@click.option("--cost", is_flag=True, help="For a store: the requests and bytes of reading it from a URL.")
@click.option(
    "--nodes", type=click.IntRange(1), default=1, metavar="N",
    help="With --cost: number of machines, each with a cache.",
)  # fmt: skip
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
    from packstore.core.urls import find_bridge
    from packstore.objects import RemoteError
    from packstore.stores.opening import open_reader
    from packstore.stores.places import place_of

    if any(value not in (None, ()) for value in options.values()) or find_bridge(path) is not None:
        _refuse_chart(plot)
        _print_source(path, as_json, options)
        return
    try:
        reader = open_reader(path)
    except StoreError as error:
        missing = isinstance(error, MissingStoreError)
        if missing is not place_of(path).remote and isinstance(error, (MissingStoreError, RemoteError)):
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
        rows = store_rows(reader, counts) if as_json or not cost else Rows()
        if cost:
            _add_costs(rows, reader, nodes, batch_size)
        rows.echo(as_json)
        if plot is not None:
            from packstore.seeing.charts import plot_store

            plot_store(reader, plot)


def _is_unfinished(path: Path) -> bool:
    """Tells if the plan of an unfinished conversion exists at a URL; False if objects cannot be listed."""
    from packstore.objects import open_objects

    objects = open_objects(path)
    return objects.can_list and any(each.name.endswith("/plan.json") for each in objects.list("_work/convert-"))


def _add_costs(rows: Rows, reader: Reader, nodes: int, batch_size: int) -> None:
    """Adds a table of what reading a store from a URL costs, with this machine's cache budget."""
    from packstore.cache import default_cache
    from packstore.training.cost import compute_costs

    budget = default_cache().budget
    costs = compute_costs(reader.manifest, reader.disk_bytes(), budget, nodes, batch_size)
    each = f"a cache of {human_bytes(budget)}"
    head = f"on {nodes:,} nodes, each with {each}" if nodes > 1 else f"with {each}"
    table = [(head, "requests", "bytes"), *((c.what, f"{c.requests:,}", human_bytes(c.nbytes)) for c in costs)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = (f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}" for a, b, c in table)
    rows.add_lines(*lines, cost=[asdict(cost) for cost in costs])


def _refuse_chart(plot: Path | None) -> None:
    """Raises :class:`click.UsageError` if a chart is asked for: a source has none."""
    if plot is not None:
        raise click.UsageError("--plot needs a store, and this is a source: pack it first (packstore convert)")


@contextmanager
def _questions_as_json(path: Path, as_json: bool) -> Iterator[None]:
    """Prints a question that the block raises as JSON too if ``as_json``."""

    try:
        yield
    except AmbiguousSourceError as error:
        if as_json:
            click.echo(json.dumps({"path": str(path), **question_values([error])}, indent=2))
        raise


def _print_source(path: Path, as_json: bool, options: dict[str, Any]) -> None:
    """Opens and surveys a source, looks at the headers of some images, and prints its description or JSON."""
    from packstore.packing import ConvertOptions
    from packstore.packing.encoding import resolve_reading
    from packstore.packing.header_survey import survey_headers
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
        command = packing_command(path, format_source_options(options))
        rows = source_rows(source, survey, command, questions, headers)
    rows.echo(as_json)
    if survey.counted and (not survey.records or 0 < headers.looked_at == len(headers.bad)):
        why = "".join(f": {printable(key)}: {printable(reason)}" for key, reason in headers.bad[:1])
        raise SourceError(f"{printable(str(path))}: 0 images can be packed{why}")


def store_rows(reader: Reader, counted: bool = False) -> Rows:
    """Makes the rows of a store; the JSON also has its manifest. Reads file sizes.

    Counts classes if ``counted``, or if the store is local and has at most 100 shards.
    """
    m, rows, path, disk = reader.manifest, Rows(), str(reader.path), reader.disk_bytes()
    rows.add("path", printable(path), path=path)
    rows.add("format", f"{FORMATS[m.format].title} (layout version {m.format_version})")
    rows.add("records", f"{len(reader):,}")
    shape = f", {' x '.join(map(str, m.image.shape))} ({m.image.layout})" if m.image.shape else ""
    rows.add("encoding", f"{m.encoding}{shape}")
    rows.add("mode", *([str(m.image.pixels)] if m.image.mode is not None else []))
    _add_counts_of_packing(rows, m)
    if m.normalization:
        rows.add("normalised", format_normalization(m.normalization))
    for split in m.splits:
        rows.add("split", f"{printable(split.name)}: {pluralize(len(split), 'record')} from {split.start:,}")
    _add_classes(rows, reader, counted)
    each = f"{human_bytes(disk / max(1, len(reader)))} a record"
    rows.add("on disk" if reader.nbytes is None else "size", f"{human_bytes(disk)}, {each}", disk_bytes=disk)
    padding = FORMATS[m.format].padding
    if padding and m.records and disk > 1.2 * sum(c.nbytes for c in m.columns):
        rows.add("", f"{padding}; HDF5 and .pth do not")
    for c in user_columns(m.columns):
        # A store of pixels has a layout.
        image = f"{m.image.dtype} pixels" if m.image.layout else "image files"
        kind = image if c.name == "image" else format_column(c)
        own = [(name, m.options.get(f"{c.name}.{name}")) for name in ("depth", "alpha", "frames")]
        kind += "".join(f", {name} {printable(str(value))}" for name, value in own if value is not None)
        kind += f", of the {c.frame} image" if c.frame is not None else ""
        mean = human_bytes(c.nbytes / max(1, m.records))
        rows.add(f"column {c.name}", f"{kind}; {human_bytes(c.nbytes)}, {mean} a record")
    if m.is_linked and reader.nbytes is None:
        rows.add("links", format_linked_files(reader))
    if m.shards:
        largest = int(m.shards.table["nbytes"].max())
        rows.add("shards", f"{len(m.shards)}, the largest {human_bytes(largest)}")
    _add_origin(rows, m)
    rows.add("digest", m.dataset_digest, dataset_digest=m.dataset_digest)
    rows.values |= json.loads(m.to_json())
    return rows


def _add_counts_of_packing(rows: Rows, m: Manifest) -> None:
    """Adds rows on EXIF orientations, conversions without loss, and annotations that state another size."""
    from packstore.packing.conversion import describe_other_sizes, read_conversion_counts

    if oriented := m.options.get("exif_oriented"):
        rows.add("", f"{oriented:,} of them have an EXIF orientation, {_describe_orientation(m)}")
        if unknown := [c.name for c in m.columns if c.traits.moves and c.frame is None]:
            rows.add("", f"in which frame {', '.join(unknown)} count was not recorded (stored or upright image)")
    rows.add("", *format_conversions(read_conversion_counts(m)))
    rows.add("note", *describe_other_sizes(m))


def _add_classes(rows: Rows, reader: Reader, counted: bool) -> None:
    """Adds a row with the classes, and one with the least and the most records of a class."""
    m = reader.manifest
    # The column is ragged for lists of classes, and for other values without one class a record.
    lists = m.has_column("label") and m.column("label").kind == "ragged"
    local = reader.nbytes is None and (m.shards is None or len(m.shards) <= _COUNTED_SHARDS)
    counts = _count_classes(reader) if (counted or local) and not lists else None
    rows.add("classes", class_counts=counts)  # None in the JSON: not counted
    if m.classes is None:
        return
    rows.add("classes", f"{len(m.classes):,}: {join_names(m.classes)}")
    if lists:
        rows.add("per class", "not counted: records have lists of classes")
    elif counts is None:
        rows.add("per class", "not counted, since that opens all shards (--counts counts)")
    else:
        low, high = min(counts.values(), default=0), max(counts.values(), default=0)
        rows.add("per class", f"{low:,}" if low == high else f"{low:,} to {high:,}")


def _add_origin(rows: Rows, m: Manifest) -> None:
    """Adds rows on the source, the options and versions of packing, and skipped samples."""
    from packstore.packing.conversion import read_conversion_counts
    from packstore.packing.frames import OTHER_SIZE

    rows.add("origin", printable(f"{m.origin.name} ({m.origin.kind})"))
    told = ("exif_oriented", OTHER_SIZE, *read_conversion_counts(m))  # in other rows
    given = {k: v for k, v in m.options.items() if v is not None and v is not False and k not in told}
    shown = ", ".join(k if v is True else f"{k} {v}" for k, v in sorted(given.items())).replace("_", " ")
    rows.add("options", printable(shown) or "none")
    rows.add("written by", printable(", ".join(f"{k} {v}" for k, v in sorted(m.versions.items()))) or "unknown")
    if (files := m.origin.files) is not None:
        roles = (files.packed, "packed"), (files.annotation + files.evidence, "read"), (files.left, "left out")
        rows.add("files", ", ".join(f"{count:,} {what}" for count, what in roles if count))
    rows.add("skipped", *if_any(len(m.skipped), "sample", ":"))
    rows.add_some("", [f"{printable(s.key)}: {printable(s.reason)}" for s in m.skipped], len(m.skipped), LISTED)


def format_linked_files(reader: Reader) -> str:
    """Returns a phrase on the files that a linked store points to: their number and common folder, or the one file."""
    from packstore.stores.linked import link_folder, list_linked_files

    places = list_linked_files(reader.parts(), link_folder(reader.path))
    if len(places) == 1:
        return f"1 file, {printable(next(iter(places)))}"
    common = os.path.commonprefix([*places])  # noqa: RUF071 - cut at a slash below; of URLs, too
    folder = printable(common[: common.rfind("/") + 1])
    return f"{len(places):,} files {f'below {folder}' if folder else 'in several places'}"


def _describe_orientation(manifest: Manifest) -> str:
    """Returns a phrase on when the EXIF orientation is applied."""
    from packstore.images.orientation import readers_transpose

    if not manifest.options.get("exif_transpose"):
        return "which is not applied"
    return "applied when they are loaded" if readers_transpose(manifest) else "which was applied"


def _count_classes(reader: Reader) -> dict[str, int]:
    """Opens all shards and counts records by class name."""
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


def find_questions(source: Source, survey: Survey, options: ConvertOptions, headers: HeaderSurvey) -> list[UsageError]:
    """Returns all questions that a conversion with ``options`` would ask one after another, but for that of
    :func:`packstore.sources.ask_about_left`."""
    from packstore.packing.header_survey import find_pixel_question, find_sample_question, find_unreadable_question
    from packstore.sources import add_source_to_questions, ask_about_classes

    questions: list[UsageError | None] = []
    try:
        with add_source_to_questions(source.path, source.options):
            ask_about_classes(source, survey)
    except AmbiguousSourceError as error:
        questions.append(error)
    questions.append(find_sample_question(source, survey, options, headers))
    pixels = find_pixel_question(source, survey, options, headers)
    questions.append(pixels or find_unreadable_question(source, options, headers))
    return [question for question in questions if question is not None]


def question_values(questions: Sequence[UsageError]) -> dict[str, Any]:
    """Converts questions and their answers to JSON values. ``command`` is the line that packs with an answer."""
    listed = []
    for question in questions:
        answers = _list_answers(question)
        commands = suggest_commands(question, ()) if isinstance(question, AmbiguousSourceError) else []
        lines = [
            {"options": each.options, "note": each.note, "command": command}
            for each, command in zip_longest(answers, commands)
        ]
        listed.append({"question": str(question), "answers": lines})
    return {"question": listed[0]["question"] if listed else None, "questions": listed}


def source_rows(
    source: Source,
    survey: Survey,
    command: str,
    questions: Sequence[UsageError] = (),
    headers: HeaderSurvey | None = None,
) -> Rows:
    """Makes the rows of a source. Reads up to eight samples.

    If samples can only be counted by reading all of them, the JSON has None for ``records`` and the counts of splits.

    Args:
        source: The source.
        survey: Its survey.
        command: Packs the source: the last row. If a conversion would ask ``questions``, the last rows are each
            question, and this command with each answer.
        questions: What a conversion would ask.
        headers: What the headers of some images say. None if no header was read.
    """
    rows, path, bridge = Rows(), str(source.path), find_bridge(source.path)
    kind = f"read by {bridge[0]}" if bridge is not None else str(SOURCES[source.kind].help)
    rows.add("path", printable(path), path=path)
    rows.add("source", f"{printable(kind)} ({source.kind})", kind=source.kind, help=kind)
    rows.add("known by", *([printable(source.evidence)] if source.evidence else []), evidence=source.evidence)
    counted, nbytes = survey.counted, survey.image_bytes
    size = f"{survey.records:,}, {human_bytes(nbytes)} of images" if counted else "not known before all are read"
    rows.add("samples", size, records=survey.records if counted else None, image_bytes=nbytes)
    rows.add("split", splits={name: count if counted else None for name, count in survey.splits.items()})
    for name, count in survey.splits.items():
        if name:
            rows.add("split", f"{printable(name)}: {pluralize(count, 'sample')}" if counted else name)
    shape = f" of shape {' x '.join(map(str, survey.shape))}" if survey.shape else ""
    files = survey.encoding in ("original", "jpeg")
    image = f"image files, packed byte for byte{shape}" if files else f"{survey.encoding}{shape}"
    rows.add("column image", image, encoding=survey.encoding, shape=survey.shape)
    modes = count_modes(source, survey)
    rows.add("modes", mode=survey.mode, modes_of_some=dict(modes))
    if modes:
        some = ", ".join(f"{mode} in {count}" for mode, count in modes.items())
        rows.add("modes", f"{some} (by the headers of {pluralize(modes.total(), 'file')})")
    elif not files and survey.mode is not None:
        rows.add("mode", str(parse_mode(survey.mode)))
    _add_headers(rows, headers, survey)
    columns = user_columns(survey.columns)
    named = ("name", "type", "kind", "dtype", "shape", "classes", "nullable", "parallel")
    rows.add("", columns=[{name: getattr(column, name) for name in named} for column in columns])
    for column in columns:
        rows.add(f"column {column.name}", format_column(column))
    if not any(column.traits.has_classes for column in survey.columns):
        rows.add("labels", "none")
    keys = sample_keys(source, survey)
    rows.add("key", *map(printable, keys[:1]), sample_keys=keys)
    rows.add("", *map(printable, keys[1:]))
    ledger = format_ledger(survey.ledger)
    rows.add("files", *ledger[:1], ledger=ledger_values(survey.ledger))
    rows.add("", *ledger[1:])
    rows.add("note", *survey.notes)
    rows.values |= question_values(questions)
    if not questions:
        rows.add("pack it", command)
    for question in questions:
        rows.add("question", str(question))
        for number, answer in enumerate(_list_answers(question)):
            rows.add("" if number else "pack it", " ".join([command, *map(shell_quote, answer.options)]))
            rows.add("", *([f"  # {printable(answer.note)}"] if answer.note else []))
    return rows


def _add_headers(rows: Rows, headers: HeaderSurvey | None, survey: Survey) -> None:
    """Adds rows on conversions, EXIF orientations and unreadable files that the headers of some images show."""
    rows.values["sampled_headers"] = headers and {
        "images": headers.looked_at,
        "unreadable": dict(headers.bad),
        "lossy": dict(headers.losses),
        "converted": dict(headers.unified),
        "exif_oriented": headers.oriented,
    }
    if headers is None or not headers.looked_at:
        return
    sample = "" if headers.looked_at >= survey.records else f" in a sample of {headers.looked_at:,}"
    lines = [f"{text}{sample}" for text in format_conversions(headers.unified)]
    if headers.oriented:
        turned = pluralize(headers.oriented, "image")
        lines.append(f"{turned} with an EXIF orientation{sample}, which --exif-transpose applies")
    if headers.bad:
        key, reason = headers.bad[0]
        count = pluralize(len(headers.bad), "image")
        lines.append(f"{count} that cannot be read{sample}: {printable(key)}: {printable(reason)}")
    rows.add("pixels", *lines[:1])
    rows.add("", *lines[1:])


def _list_answers(question: UsageError) -> Sequence[Answer]:
    """Returns the answers to a question; empty if it has none."""
    return question.answers if isinstance(question, AmbiguousSourceError) else ()


def count_modes(source: Source, survey: Survey) -> Counter[str]:
    """Reads up to eight image files and counts them by mode. Files of several frames count as ``RGB of 3 frames``.

    Skips bad files. Empty for arrays, if the samples are not counted, and if reading would consume them.
    """
    from packstore.images.image_files import describe_image
    from packstore.images.sniff import HeaderError, sniff

    counts = Counter[str]()
    if survey.encoding != "original" or not (survey.counted and survey.resumable):
        return counts
    for entry in source.pick_entries(None, survey.records, _LOOKED_AT):
        with suppress(PackstoreError, HeaderError):
            data = bytes(source.image(entry))
            described = describe_image(memoryview(data), sniff(data))
            if described is not None:
                more = f" of {described.frames} frames" if described.frames > 1 else ""
                counts[f"{described.mode.name}{more}"] += 1
    return counts


def sample_keys(source: Source, survey: Survey) -> list[str]:
    """Returns the keys of up to three samples: the first of each split, and then the next of the first split.

    Returns no keys if listing would consume the samples.
    """
    if not survey.resumable:
        return []
    splits: Sequence[str | None] = [name for name in survey.splits if name][:_KEYS]
    listed = [(entry.key for entry in source.entries(split)) for split in splits or [None]]
    firsts = [key for keys in listed for key in islice(keys, 1)]
    return [*islice(chain(firsts, *listed), _KEYS)]


def user_columns(columns: Sequence[Column]) -> list[Column]:
    """Returns the columns that a user declared. Leaves out columns of links, and companions: lengths, shapes and
    validity of other columns."""
    from packstore.core.columns import LINK_COLUMNS, without_companions

    hidden = {column.name for column in LINK_COLUMNS}
    return [column for column in without_companions(columns) if column.name not in hidden]


def format_column(column: Column) -> str:
    """Describes type and meaning of a column, such as ``boxes: left, top, right, bottom in pixels``."""
    if column.name in ("key", "shape"):
        return {"key": "text", "shape": "height and width of each image"}[column.name]
    if column.name in INTERNAL_MEANINGS:
        return f"{column.dtype}, {INTERNAL_MEANINGS[column.name]}"
    named_classes = column.classes is not None
    meaning = f"classes {format_classes(column.classes or ())}" if named_classes else column.traits.describe(column)
    parallel = f", one for each row of {column.parallel}" if column.parallel else ""
    if column.mode is not None:
        meaning = f"{meaning}, mode {column.pixels}"
    named = meaning if meaning.lower() == column.type else f"{column.type}: {meaning}"
    return f"{named}{parallel}{'; may be missing' if column.nullable else ''}"

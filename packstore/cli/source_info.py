"""``packstore info`` of a source, before anything is packed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING, Any

from packstore.cli.common import shell_quote, suggest_commands
from packstore.cli.rows import (
    Rows,
    format_classes,
    format_conversions,
    format_ledger,
    human_bytes,
    ledger_values,
    pluralize,
)
from packstore.core.errors import AmbiguousSourceError, PackstoreError, printable
from packstore.core.modes import parse_mode
from packstore.core.registry import SOURCES
from packstore.core.urls import find_bridge

if TYPE_CHECKING:
    from packstore.core.column import Column
    from packstore.core.errors import Answer, UsageError
    from packstore.packing.header_survey import HeaderSurvey
    from packstore.packing.options import ConvertOptions
    from packstore.sources import Source, Survey

_KEYS = 3
_LOOKED_AT = 8
INTERNAL_MEANINGS = {
    "checksum": "of each image",
    "row_checksum": "of each record's other values",
    "seek_index": "where crops of each JPEG file begin to decode",
}


def find_questions(source: Source, survey: Survey, options: ConvertOptions, headers: HeaderSurvey) -> list[UsageError]:
    """Returns all questions that a conversion with ``options`` would ask one after another, but for that of
    :func:`packstore.sources.ask_about_left`."""
    from packstore.packing.header_survey import (
        find_pixel_question,
        find_sample_question,
        find_unreadable_question,
    )
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
    from packstore.core.column import LINK_COLUMNS, without_companions

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

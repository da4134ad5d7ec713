"""``packstore info`` of a source, before anything is packed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, islice, zip_longest
from typing import TYPE_CHECKING, Any

from packstore.cli.common import (
    describe_conversions,
    describe_ledger,
    format_classes,
    human_bytes,
    pluralize,
    shell_quote,
    suggest_commands,
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
    from packstore.sources.ledger import Ledger

_KEYS = 3
_LOOKED_AT = 8
_INTERNAL_MEANINGS = {
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


def source_to_json(
    source: Source, survey: Survey, questions: Sequence[UsageError] = (), headers: HeaderSurvey | None = None
) -> dict[str, Any]:
    """Converts kind, splits, columns, files and three keys of a source to JSON values. Reads up to eight samples.

    ``questions``: what a conversion would ask. ``headers``: what the headers of some images say; None if no header was
    read.

    If samples can only be counted by reading all of them, ``records`` and the counts of ``splits`` are None.
    """
    counted = survey.counted
    return {
        "path": str(source.path),
        "kind": source.kind,
        "help": _describe_kind(source),
        "evidence": source.evidence,
        "records": survey.records if counted else None,
        "splits": {name: count if counted else None for name, count in survey.splits.items()},
        "image_bytes": survey.image_bytes,
        "encoding": survey.encoding,
        "shape": survey.shape,
        "mode": survey.mode,
        "modes_of_some": dict(count_modes(source, survey)),
        "columns": [
            {
                "name": column.name,
                "type": column.type,
                "kind": column.kind,
                "dtype": column.dtype,
                "shape": column.shape,
                "classes": column.classes,
                "nullable": column.nullable,
                "parallel": column.parallel,
            }
            for column in user_columns(survey.columns)
        ],
        "sample_keys": sample_keys(source, survey),
        "ledger": ledger_to_json(survey.ledger),
        **questions_to_json(questions),
        "sampled_headers": None
        if headers is None
        else {
            "images": headers.looked_at,
            "unreadable": dict(headers.bad),
            "lossy": dict(headers.losses),
            "converted": dict(headers.unified),
            "exif_oriented": headers.oriented,
        },
    }


def questions_to_json(questions: Sequence[UsageError]) -> dict[str, Any]:
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


def _list_answers(question: UsageError) -> Sequence[Answer]:
    """Returns the answers to a question; empty if it has none."""
    return question.answers if isinstance(question, AmbiguousSourceError) else ()


def ledger_to_json(ledger: Ledger) -> dict[str, Any]:
    """Converts a ledger (the roles of a source's files) to JSON values. Includes the names of all files that are not
    packed."""
    from packstore.sources.ledger import Role

    named = {role.value: list(ledger.names(role)) for role in Role if role is not Role.PACKED}
    return {
        "files": {role.value: ledger.count(role) for role in Role},
        "left": dict(ledger.left),
        "left_in_files": dict(ledger.members),
        "suffixes": dict(ledger.suffixes),
        "names": named,
    }


def describe_source(
    source: Source,
    survey: Survey,
    command: str,
    questions: Sequence[UsageError] = (),
    headers: HeaderSurvey | None = None,
) -> str:
    """Formats a source as rows of a name and a text. Reads up to eight samples.

    The last row is ``command``, which packs the source. If a conversion would ask ``questions``, the last rows are each
    question, and this command with each answer. ``headers`` adds rows on what the headers of some images say.
    """
    rows = [
        ("path", printable(str(source.path))),
        ("source", f"{printable(_describe_kind(source))} ({source.kind})"),
    ]
    if source.evidence:
        rows.append(("known by", printable(source.evidence)))
    size = f"{human_bytes(survey.image_bytes)} of images"
    rows.append(("samples", f"{survey.records:,}, {size}" if survey.counted else "not known before all are read"))
    for name, count in survey.splits.items():
        if name:
            rows.append(("split", f"{printable(name)}: {pluralize(count, 'sample')}" if survey.counted else name))
    shape = f" of shape {_format_shape(survey.shape)}" if survey.shape else ""
    files = survey.encoding in ("original", "jpeg")
    rows.append(("column image", f"image files, packed byte for byte{shape}" if files else f"{survey.encoding}{shape}"))
    if modes := count_modes(source, survey):
        some = ", ".join(f"{mode} in {count}" for mode, count in modes.items())
        rows.append(("modes", f"{some} (by the headers of {pluralize(modes.total(), 'file')})"))
    elif not files and survey.mode is not None:
        rows.append(("mode", str(parse_mode(survey.mode))))
    rows += _describe_headers(headers, survey)
    rows += [(f"column {column.name}", describe_column(column)) for column in user_columns(survey.columns)]
    if not any(column.traits.has_classes for column in survey.columns):
        rows.append(("labels", "none"))
    rows += [("key" if number == 0 else "", printable(key)) for number, key in enumerate(sample_keys(source, survey))]
    rows += [("files" if number == 0 else "", text) for number, text in enumerate(describe_ledger(survey.ledger))]
    rows += [("note", text) for text in survey.notes]
    if not questions:
        rows.append(("pack it", command))
    for question in questions:
        rows.append(("question", str(question)))
        for number, answer in enumerate(_list_answers(question)):
            rows.append(("" if number else "pack it", " ".join([command, *map(shell_quote, answer.options)])))
            rows += [("", f"  # {printable(answer.note)}")] if answer.note else []
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}".rstrip() for name, text in rows)


def _describe_headers(headers: HeaderSurvey | None, survey: Survey) -> list[tuple[str, str]]:
    """Returns rows on conversions, EXIF orientations and unreadable files that the headers of some images show."""
    if headers is None or not headers.looked_at:
        return []
    sample = "" if headers.looked_at >= survey.records else f" in a sample of {headers.looked_at:,}"
    lines = [f"{text}{sample}" for text in describe_conversions(headers.unified)]
    if headers.oriented:
        turned = pluralize(headers.oriented, "image")
        lines.append(f"{turned} with an EXIF orientation{sample}, which --exif-transpose applies")
    if headers.bad:
        key, reason = headers.bad[0]
        count = pluralize(len(headers.bad), "image")
        lines.append(f"{count} that cannot be read{sample}: {printable(key)}: {printable(reason)}")
    return [("pixels" if number == 0 else "", text) for number, text in enumerate(lines)]


def count_modes(source: Source, survey: Survey) -> Counter[str]:
    """Reads up to eight image files and counts them by mode. Files of several frames count as ``RGB of 3 frames``.

    Skips bad files. Empty for arrays, if the samples are not counted, and if reading would consume them.
    """
    from packstore.images.decoders import native
    from packstore.images.sniff import HeaderError, sniff

    counts = Counter[str]()
    if survey.encoding != "original" or not (survey.counted and survey.resumable):
        return counts
    for entry in source.pick_entries(None, survey.records, _LOOKED_AT):
        with suppress(PackstoreError, HeaderError):
            data = bytes(source.image(entry))
            described = native.describe_image(memoryview(data), sniff(data))
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
    from packstore.core.column import LINK_COLUMNS

    hidden = {companion.name for column in columns for companion in column.companions}
    hidden |= {column.name for column in LINK_COLUMNS}
    return [column for column in columns if column.name not in hidden]


def describe_column(column: Column) -> str:
    """Describes type and meaning of a column, such as ``boxes: left, top, right, bottom in pixels``."""
    if column.name in ("key", "shape"):
        return {"key": "text", "shape": "height and width of each image"}[column.name]
    if column.name in _INTERNAL_MEANINGS:
        return f"{column.dtype}, {_INTERNAL_MEANINGS[column.name]}"
    named_classes = column.classes is not None
    meaning = f"classes {format_classes(column.classes or ())}" if named_classes else column.traits.describe(column)
    parallel = f", one for each row of {column.parallel}" if column.parallel else ""
    if column.mode is not None:
        meaning = f"{meaning}, mode {column.pixels}"
    named = meaning if meaning.lower() == column.type else f"{column.type}: {meaning}"
    return f"{named}{parallel}{'; may be missing' if column.nullable else ''}"


def describe_targets(columns: Sequence[Column]) -> list[tuple[str, str]]:
    """Returns name and description of each column. Leaves out image, label, key and internal columns.

    If no column is left and there is no label, returns one row: ``labels``, ``none``.
    """
    beside = [c for c in user_columns(columns) if c.name not in ("image", "label", "key", *_INTERNAL_MEANINGS)]
    rows = [(c.name, describe_column(c)) for c in beside]
    return rows if rows or any(c.name == "label" for c in columns) else [("labels", "none")]


def _describe_kind(source: Source) -> str:
    """Returns the help text of the source's kind. For a bridge, names its library."""
    bridge = find_bridge(source.path)
    return f"read by {bridge[0]}" if bridge is not None else str(SOURCES[source.kind].help)


def _format_shape(shape: tuple[int, ...] | None) -> str:
    """Formats a shape as ``32 x 48 x 3``. None becomes an empty text."""
    return " x ".join(map(str, shape or ()))

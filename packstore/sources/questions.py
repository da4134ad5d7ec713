"""Questions about a source that is open, and about answers that lead to further questions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from packstore.core.errors import AmbiguousSourceError, Answer, PackstoreError, printable
from packstore.core.registry import SOURCES
from packstore.images.reading import CLIPS
from packstore.sources.archives import cache_archives, cache_folders
from packstore.sources.base import Certainty, Kind, Source, SourceOptions, Survey
from packstore.sources.ignoring import apply_ignore_rules, compile_ignore_rules
from packstore.sources.recognition import MODALITIES, PLAIN_KINDS, find_left_by_source, recognise
from packstore.sources.refusals import (
    add_kinds,
    incomplete_error,
)

_ASKED_IN_A_ROW = 2
_CLIP = re.compile(r"(clip|video|vid|sequence|seq|scene|shot|take|episode)s?[ _.-]*\d+", re.I)
"""Names of folders of frames."""


@contextmanager
def add_source_to_questions(place: Path, options: SourceOptions) -> Iterator[None]:
    """Completes an :class:`AmbiguousSourceError` that the block raises. Sets its source. Replaces answers that lead to
    further questions, see :func:`_resolve_answer`."""
    try:
        yield
    except AmbiguousSourceError as error:
        error.source = place
        answers = [answer for each in error.answers for answer in _resolve_answer(each, place, options)]
        error.answers = tuple(dict.fromkeys(answers))
        raise


def _resolve_answer(answer: Answer, place: Path, options: SourceOptions, depth: int = 0) -> Sequence[Answer]:
    """Tries an answer that ignores files or gives another path, and returns the answers to offer instead.

    - If the source is then recognised: the answer itself.
    - If the source is still ambiguous: the answers to both questions together. If the answer gives a path, and all
      answers to the next question give paths again: the answer itself.
    - If it leads to an error, or to a third question: none.

    Returns any other answer untried. If the user has named the kind, returns every answer untried.
    """
    patterns = answer.options[1::2] if {*answer.options[::2]} == {"--ignore"} else ()
    if options.named or (answer.options and not patterns) or len(answer.options) != 2 * len(patterns):
        return [answer]
    source = answer.source or place
    given = SourceOptions(ignore=(*options.ignore, *patterns))
    try:
        with apply_ignore_rules(source, compile_ignore_rules(given.ignore)), cache_folders(), cache_archives():
            recognise(source, given)
    except AmbiguousSourceError as error:
        if depth == _ASKED_IN_A_ROW:
            return []
        if answer.source is not None and all(each.source is not None for each in error.answers):
            return [answer]  # its own message says what its folders alone would lose
        further = (
            each if each.source else Answer((*answer.options, *each.options), answer.source) for each in error.answers
        )
        return [last for each in further for last in _resolve_answer(each, place, options, depth + 1)]
    except PackstoreError:
        return []
    return [answer]


def ask_about_left(source: Source, survey: Survey) -> None:
    """Raises :class:`AmbiguousSourceError` if a source leaves out files that seem to annotate its images. Does nothing
    if the user has named the kind, and for image folders, flat folders and stores."""
    if source.options.named or source.kind in PLAIN_KINDS or survey.store is not None:
        return
    annotations = find_left_by_source(source, survey)
    if annotations and len(survey.splits) == 1 and "" not in survey.splits:
        annotations = find_left_by_source(source, source.survey())  # those of other splits are no question
    if annotations:
        with add_source_to_questions(source.path, source.options):
            error = incomplete_error(source.path, SOURCES[source.kind], [each[:2] for each in annotations])
            raise add_kinds(error, _find_partial_kinds(source))


def ask_about_clips(source: Source, survey: Survey) -> None:
    """Raises :class:`AmbiguousSourceError` if an image folder has several classes, all with names of clips:
    ``clip_0001`` …. Does nothing if the user has named the kind or the frames."""
    if source.options.named or source.options.frames is not None or source.kind != PLAIN_KINDS[0]:
        return
    classes = next((column.classes for column in survey.columns if column.name == "label"), None) or ()
    if len(classes) > 1 and all(_CLIP.fullmatch(name) for name in classes):
        raise AmbiguousSourceError(
            f"{printable(str(source.path))}: its folders ({printable(classes[0])} …) seem to be clips, whose frames "
            "are not classes: --frames clips makes each a record, --source imagefolder a class",
            [Answer(("--frames", CLIPS)), Answer(("--source", source.kind))],
            source.path,
        )


def _find_partial_kinds(source: Source) -> list[Kind]:
    """Finds other kinds that match the path of a source partially. Tests ``modalities``, and the kinds before its own
    in the registry. Skips kinds that raise an error."""
    kinds: list[Kind] = []
    kind: Kind
    before = True
    for kind in SOURCES.values():
        before = before and kind.name != source.kind
        if not before and kind.name != MODALITIES:
            continue
        try:
            if kind.reads(source.path) and kind.recognise(source.path, source.options) is Certainty.PARTIAL:
                kinds.append(kind)
        except (PackstoreError, OSError):
            continue
    return kinds

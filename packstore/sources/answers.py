"""Tries the answers to a question before they are offered: opens and surveys the source with each of them.

No image is read. An answer is dropped if it fails, changes nothing, or makes classes of one image each or classes with
names of splits. The others get a note on what they make and what they leave out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from packstore.core.errors import AmbiguousSourceError, Answer, PackstoreError, SourceError, printable
from packstore.core.urls import UrlPath
from packstore.sources.annotations import NO_ANNOTATION
from packstore.sources.archives import cache_archives, open_tree
from packstore.sources.base import Source, SourceOptions, Survey
from packstore.sources.contents import list_contents, path_and_parents
from packstore.sources.ledger import Role, list_files, suffix_for_count
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.pairing import NO_SIDECARS
from packstore.sources.proposals import propose
from packstore.sources.questions import ask_about_classes, ask_about_left
from packstore.sources.splits import MEANINGS, find_split
from packstore.sources.tree import Tree

_MOST_FILES = 200_000
_ASKED_IN_A_ROW, _FEWEST_CLASSES, _SHOWN = 2, 5, 4
_RENAMED = {"source": "kind", "column": "columns"}
_LISTS = ("ignore", "columns", "splits", "pair", "sidecar", "masks")
_UNTRIED = ("annotation_frame",)
"""Options of answers that change nothing in a survey."""
_trying: ContextVar[bool] = ContextVar("an answer is tried", default=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of opening a source with the options of an answer.

    Attributes:
        survey: Its survey.
        kind: Its kind.
        left: Number of files left out, by what they are: ``image``, ``.txt file``.
        repeats_classes: A class folder contains folders with the names of other classes.
    """

    survey: Survey
    kind: str
    left: Counter[str]
    repeats_classes: bool = False

    @property
    def classes(self) -> Sequence[str]:
        """Names of the classes of the images; empty for none."""
        return next((c.classes for c in self.survey.columns if c.name == "label" and c.classes is not None), None) or ()

    @property
    def has_one_class(self) -> bool:
        """True for images of one class without splits."""
        return len(self.classes) == 1 and len(self.survey.splits) < 2

    @property
    def is_useful(self) -> bool:
        """False if nothing is packed, or if folders became classes that seem to be none."""
        names, records = self.classes, self.survey.records
        if self.survey.counted and not records:
            return False
        if self.kind != "imagefolder" or not self.survey.counted:
            return True
        words = [MEANINGS.get(find_split(name)) for name in names]
        splits = bool(names) and (all(words) or len({*words} - {None}) > 1)
        return not (splits or self.repeats_classes) and not (len(names) >= _FEWEST_CLASSES and 2 * len(names) > records)

    def describe(self) -> str:
        """Returns a note: ``40 samples in 2 classes (a, b), train 30, with mask; leaves out 40 .txt files``."""
        survey, names = self.survey, self.classes
        made = f"{survey.records:,} samples" if survey.counted else "samples that are not counted"
        if names:
            made += (
                f" in {len(names):,} classes ({_join([*map(printable, names)])})" if len(names) > 1 else " of one class"
            )
            if survey.counted and 2 * len(names) > survey.records:
                made += " of one or two images"
        if splits := [f"{name} {count:,}" for name, count in survey.splits.items() if name]:
            made += f", {_join(splits)}"
        hidden = {companion.name for column in survey.columns for companion in column.companions}
        others = [column.name for column in survey.columns if column.name not in (*hidden, "label")]
        made += f", with {_join(others)}" if others else "" if names else ", without labels"
        left = [f"{count:,} {what}{'s' * (count != 1)}" for what, count in self.left.most_common()]
        return f"{made}; leaves out {_join(left) or 'nothing'}"


def _join(texts: Sequence[str]) -> str:
    """Joins the first four texts."""
    return ", ".join(texts[:_SHOWN]) + (", …" if len(texts) > _SHOWN else "")


def is_trying() -> bool:
    """Tells if an answer is being tried in this context."""
    return _trying.get()


def try_answers(
    error: AmbiguousSourceError, place: Path, options: SourceOptions, kind: str | None, opener: Callable[..., Source]
) -> list[Answer]:
    """Returns the answers to offer for a question about ``place``, each with its note. ``opener`` is
    :func:`packstore.sources.open_source`.

    Answers that all have a note are returned as they are. Those that leave nothing out come first. If none of the
    question's own answers keeps all files, adds further ones; then those that leave out least come first. Returns them
    untried, with a note that says so, at a URL and for more than 200,000 files.
    """
    if error.answers and all(answer.note for answer in error.answers):
        return list(error.answers)
    files = None if isinstance(place, UrlPath) else _count_files(place)
    if files is None:
        why = "not tried: at a URL" if isinstance(place, UrlPath) else f"not tried: more than {_MOST_FILES:,} files"
        return [replace(answer, note=answer.note or why) for answer in error.answers]
    token = _trying.set(True)
    try:
        with cache_archives():
            trial = _Trial(place, files, partial(opener, **_to_keywords(options, kind)))
            tried = list(trial.run(error.answers, frozenset([str(error)])))
            if trial.tree is not None and kind is None and not any(o and not o.left for _, o in tried):
                lines = propose(place, trial.tree, options, not tried)
                more = trial.run(lines, frozenset([str(error)]), _ASKED_IN_A_ROW)
                further = [(answer, outcome) for answer, outcome in more if outcome and not outcome.has_one_class]
                if further:
                    tried = sorted([*tried, *further], key=_count_left)
            tried.sort(key=lambda pair: pair[1] is None or bool(pair[1].left))
    finally:
        _trying.reset(token)
    return list(dict.fromkeys(answer for answer, _ in tried))


class _Trial:
    """Opens and surveys a source with the options of answers."""

    def __init__(self, place: Path, files: Counter[str], open_source: partial[Source]) -> None:
        """``files``: what is there, by :func:`_count_files`. ``open_source`` has the user's own options."""
        self._place = place
        self.tree = _find_tree(place)  # the index of an archive is kept while its tree is open
        self._files = files
        self._open = open_source

    def run(
        self, answers: Iterable[Answer], asked: frozenset[str], depth: int = 0
    ) -> Iterator[tuple[Answer, Outcome | None]]:
        """Yields the answers that work, each with its note and outcome.

        If an answer leads to a question that was not ``asked``, yields the answers to both together, up to three in a
        row. If it is another path whose question offers paths again, yields the answer itself.
        """
        for answer in answers:
            names = [each.removeprefix("--").replace("-", "_") for each in answer.options[::2]]
            if any(name in _UNTRIED for name in names):
                yield answer, None
                continue
            try:
                outcome = self._survey(answer, names)
            except AmbiguousSourceError as error:
                if str(error) in asked or depth == _ASKED_IN_A_ROW:
                    continue
                if answer.source is not None and all(each.source is not None for each in error.answers):
                    yield replace(answer, note="asks which of its folders to pack"), None
                    continue
                further = [
                    each if each.source else Answer((*answer.options, *each.options), answer.source)
                    for each in error.answers
                ]
                yield from self.run(further, asked | {str(error)}, depth + 1)
            except (PackstoreError, OSError):
                continue
            else:
                if outcome.is_useful and not (depth and outcome.has_one_class):
                    yield replace(answer, note=outcome.describe()), outcome

    def _survey(self, answer: Answer, names: Sequence[str]) -> Outcome:
        """Surveys the source with an answer. Raises the errors of opening, and the questions of a conversion."""
        keywords, split = dict(self._open.keywords), None
        for name, value in zip(names, answer.options[1::2], strict=True):
            name = _RENAMED.get(name, name)
            if name in _LISTS:
                keywords[name] = (*keywords.get(name, ()), value)
            elif name == "on_error":
                keywords["skip_bad"] = value == "skip"
            elif name == "split":
                split = value
            else:
                keywords[name] = value
        place = answer.source or self._place
        with closing(self._open.func(place, **keywords)) as source:
            survey = source.survey(split)
            ask_about_left(source, survey)
            ask_about_classes(source, survey)
            left = _count(map(_name_of, survey.ledger.names(Role.LEFT)))
            if answer.source is not None:
                left += self._files - (_count_files(place) or Counter())
            outcome = Outcome(survey, source.kind, left)
            tree = getattr(source, "tree", None)
            if source.kind == "imagefolder" and isinstance(tree, Tree):
                own = [path for path in list_contents(tree).folders if _name_of(path) in {*outcome.classes}]
                repeats = any(parent in own for path in own for parent in path_and_parents(path.rpartition("/")[0]))
                outcome = replace(outcome, repeats_classes=repeats)
            return outcome


def _count_left(tried: tuple[Answer, Outcome | None]) -> tuple[int, bool]:
    """Returns the number of files that an answer leaves out, and if it is another path, to sort answers."""
    answer, outcome = tried
    return outcome.left.total() if outcome else 0, answer.source is not None


def _name_of(path: str) -> str:
    """Returns the last part of a path."""
    return path.rpartition("/")[2]


def _count(names: Iterable[str]) -> Counter[str]:
    """Counts files that matter by what they are: ``image``, ``.txt file``. Leaves out system files, programs, models
    and notes."""
    counts: Counter[str] = Counter()
    for name in names:
        suffix = suffix_for_count(name)
        if is_passed_over(name):
            continue
        if name.lower().endswith(IMAGE_SUFFIXES):
            counts["image"] += 1
        elif suffix not in (*NO_SIDECARS, ".pyc") and not NO_ANNOTATION.fullmatch(name.lower()):
            counts[f"{suffix} file"] += 1
    return counts


def _find_tree(place: Path) -> Tree | None:
    """Opens a folder or an archive. Returns None for any other file, also one of records that is compressed."""
    try:
        return open_tree(place)
    except SourceError:
        return None  # nothing in it can be left out


def _count_files(place: Path) -> Counter[str] | None:
    """Counts the files of a folder or archive as :func:`_count`. None if there are more than 200,000."""
    tree = _find_tree(place)
    counts: Counter[str] = Counter()
    total = 0
    for _, names in list_files(tree) if tree is not None else ():
        total += len(names)
        if total > _MOST_FILES:
            return None
        counts += _count(names)
    return counts


def _to_keywords(options: SourceOptions, kind: str | None) -> dict[str, Any]:
    """Returns options as keywords of :func:`packstore.sources.open_source`."""
    own = {each.name: getattr(options, each.name) for each in fields(options) if each.name != "named"}
    return {**own, "kind": kind}

"""Tries the answers to a question before they are offered: opens and surveys the source with each of them.

No image is read. An answer is dropped if it fails, changes nothing, or makes classes of one image each or classes with
names of splits. The others get a note on what they make and what they leave out. If none of a question's own answers
keeps all files, those of :func:`_propose_answers` are tried, too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import islice
from pathlib import Path

from packstore.core.columns import without_companions
from packstore.core.errors import AmbiguousSourceError, Answer, PackstoreError, SourceError, printable
from packstore.core.urls import UrlPath
from packstore.sources.annotations import NAMES_IMAGES, NO_ANNOTATION, find_image_companions, find_other_annotations
from packstore.sources.archives import open_tree
from packstore.sources.base import Source, SourceOptions, Survey
from packstore.sources.beside import join
from packstore.sources.contents import Contents, list_contents, path_and_parents
from packstore.sources.ignoring import ignore_paths
from packstore.sources.ledger import Role, list_files, suffix_for_count
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.pairing import NO_SIDECARS, find_companions
from packstore.sources.questions import PLAIN_KINDS, ask_about_classes, ask_about_left, name_splits, read_companions
from packstore.sources.sidecars import find_sidecar_type
from packstore.sources.splits import MEANINGS, SPLIT_ORDER, find_split
from packstore.sources.tree import Tree

_MOST_FILES = 200_000
_ASKED_IN_A_ROW, _FEWEST_CLASSES, _SHOWN = 2, 5, 4
_RENAMED = {"source": "kind", "column": "columns"}
_LISTS = ("ignore", "columns", "splits", "pair", "sidecar", "masks")
# Option of answers that changes nothing in a survey.
_UNTRIED = ("--annotation-frame",)
_TOPS, _TEXTS, _BYTES, _MOST_BYTES = 8, 16, 1 << 16, 1 << 24
# Name of the split of images beside a folder of their copies.
_OWN = "original"
_trying: ContextVar[bool] = ContextVar("an answer is tried", default=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of opening a source with the options of an answer.

    Attributes:
        survey: Its survey.
        kind: Its kind.
        left: Number of files left out, by what they are: ``image``, ``.txt file``.
        texts: Left texts of as many lines as there are samples.
        repeats_classes: A class folder contains folders with the names of other classes.
    """

    survey: Survey
    kind: str
    left: Counter[str]
    texts: Sequence[str] = ()
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
                f" in {len(names):,} classes ({_join_few([*map(printable, names)])})"
                if len(names) > 1
                else " of one class"
            )
            if survey.counted and 2 * len(names) > survey.records:
                made += " of one or two images"
        if splits := [f"{name} {count:,}" for name, count in survey.splits.items() if name]:
            made += f", {_join_few(splits)}"
        others = [column.name for column in without_companions(survey.columns) if column.name != "label"]
        made += f", with {_join_few(others)}" if others else "" if names else ", without labels"
        left = [f"{count:,} {what}{'s' * (count != 1)}" for what, count in self.left.most_common()]
        left += [f"{count:,} {what}" for what, count in survey.ledger.members.items() if what.startswith("rows ")]
        lines = f" (as many lines as samples: {_join_few([*map(printable, self.texts)])})" if self.texts else ""
        return f"{made}; leaves out {_join_few(left) or 'nothing'}{lines}"


def _join_few(texts: Sequence[str]) -> str:
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

    Answers that all have a note are returned as they are. If none of the question's own answers keeps all files, adds
    further ones. Those that leave out fewest files come first, an image folder without annotations last; of those that
    pack the same, only the shortest is kept. At a URL and for more than 200,000 files, returns them untried, with a
    note that says so.
    """
    if error.answers and all(answer.note for answer in error.answers):
        return list(error.answers)
    files = None if isinstance(place, UrlPath) else _count_files(place)
    if files is None:
        why = "not tried: at a URL" if isinstance(place, UrlPath) else f"not tried: more than {_MOST_FILES:,} files"
        return [replace(answer, note=answer.note or why) for answer in error.answers]
    own = {each.name: getattr(options, each.name) for each in fields(options) if each.name != "named"}
    asked = frozenset([str(error)])
    token = _trying.set(True)
    try:
        tree = _find_tree(place)  # the index of an archive is kept while its tree is open
        trial = _Trial(place, files, partial(opener, **own, kind=kind))
        tried = list(trial.run(error.answers, asked))
        if tree is not None and kind is None and not any(outcome and not outcome.left for _, outcome in tried):
            more = trial.run(_propose_answers(place, tree, options, not tried), asked, _ASKED_IN_A_ROW)
            tried += [(answer, outcome) for answer, outcome in more if outcome and not outcome.has_one_class]
        tried.sort(key=lambda pair: (pair[1] is None, pair[1].left.total() if pair[1] else 0))
        # Last, since it packs no annotations.
        if kind is None and any("--source" in answer.options and o and o.left["image"] for answer, o in tried):
            folders = trial.run([Answer(("--source", PLAIN_KINDS[0]))], asked)
            tried += [(answer, outcome) for answer, outcome in folders if outcome and len(outcome.classes) > 1]
    finally:
        _trying.reset(token)
    shortest: dict[object, Answer] = {}
    for answer, outcome in tried:
        pairs = zip(answer.options[::2], answer.options[1::2], strict=True)
        # Other options than these may change values, which a survey does not tell.
        others = tuple(each for each in pairs if each[0] not in ("--ignore", "--source") and each[1][:6] != "image=")
        key: object = answer
        if outcome is not None:
            survey = outcome.survey
            key = answer.source, others, outcome.kind, survey.ledger.used, repr((survey.splits, survey.columns))
        shortest[key] = min(shortest.get(key, answer), answer, key=lambda each: len("".join(each.options)))
    return [*shortest.values()]


@dataclass(frozen=True, slots=True)
class _Trial:
    """Opens and surveys a source with the options of answers.

    Attributes:
        place: Path of the source.
        files: What is there, by :func:`_count_files`.
        open: Opens a path with the user's own options.
    """

    place: Path
    files: Counter[str]
    open: partial[Source]

    def run(
        self, answers: Iterable[Answer], asked: frozenset[str], depth: int = 0
    ) -> Iterator[tuple[Answer, Outcome | None]]:
        """Yields the answers that work, each with its note and outcome.

        If an answer leads to a question that was not ``asked``, yields the answers to both together, up to three in a
        row. An answer with another path, whose own question offers paths again, is yielded as it is.
        """
        for answer in answers:
            if answer.options[:1] == _UNTRIED:
                yield answer, None
                continue
            try:
                outcome = self._survey(answer)
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

    def _survey(self, answer: Answer) -> Outcome:
        """Surveys the source with an answer."""
        keywords = dict(self.open.keywords)
        for option, value in zip(answer.options[::2], answer.options[1::2], strict=True):
            name = option.removeprefix("--").replace("-", "_")
            name = _RENAMED.get(name, name)
            if name == "columns" and value.partition("=")[0].endswith(".depth"):
                continue  # changes nothing in a survey
            keywords[name] = (*keywords.get(name, ()), value) if name in _LISTS else value
        split = keywords.pop("split", None)
        keywords["skip_bad"] |= keywords.pop("on_error", "") == "skip"
        place = answer.source or self.place
        with closing(self.open.func(place, **keywords)) as source:
            survey = source.survey(split)
            ask_about_left(source, survey)
            ask_about_classes(source, survey)
            left = _count_kinds(map(_last_part, survey.ledger.names(Role.LEFT)))
            if answer.source is not None:
                left += self.files - (_count_files(place) or Counter())
            tree = getattr(source, "tree", None)
            texts = _find_texts_of_lines(tree, survey) if isinstance(tree, Tree) else []
            outcome = Outcome(survey, source.kind, left, texts)
            if source.kind == "imagefolder" and isinstance(tree, Tree):
                own = [path for path in list_contents(tree).folders if _last_part(path) in {*outcome.classes}]
                repeats = any(parent in own for path in own for parent in path_and_parents(path.rpartition("/")[0]))
                outcome = replace(outcome, repeats_classes=repeats)
            return outcome


def _find_texts_of_lines(tree: Tree, survey: Survey) -> list[str]:
    """Finds the left-out texts that have a line for each sample, perhaps below a header."""
    texts = [path for path in survey.ledger.names(Role.LEFT) if suffix_for_count(path) in (".txt", ".csv", ".tsv")]
    lines = {path: tree.first_bytes(path, _MOST_BYTES).count(b"\n") for path in texts[:_TEXTS] if survey.records}
    return [path for path, count in lines.items() if abs(survey.records - count) < 2]


def _last_part(path: str) -> str:
    """Returns the last part of a path."""
    return path.rpartition("/")[2]


def _count_kinds(names: Iterable[str]) -> Counter[str]:
    """Counts files by what they are, ``image`` or ``.txt file``, without notes, programs, models and system files."""
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
    """Opens a folder or an archive; None for any other file."""
    try:
        return open_tree(place)
    except SourceError:
        return None  # nothing in it can be left out


def _count_files(place: Path) -> Counter[str] | None:
    """Counts the files of a folder or archive as :func:`_count_kinds`; None if there are too many."""
    tree = _find_tree(place)
    counts: Counter[str] = Counter()
    total = 0
    for _, names in list_files(tree) if tree is not None else ():
        total += len(names)
        if total > _MOST_FILES:
            return None
        counts += _count_kinds(names)
    return counts


def _propose_answers(place: Path, tree: Tree, options: SourceOptions, alone: bool) -> Iterator[Answer]:
    """Yields answers, those that keep most first; with ``alone``, also those that pack one of the folders alone."""
    contents = list_contents(tree)
    yield from _name_columns(tree)
    if not any(options.companions.values()):
        yield from read_companions(find_companions(tree))
        yield from _read_sidecars(tree, contents)
    plain = () if find_image_companions(tree) else PLAIN_KINDS
    if not options.splits:
        yield from _name_splits(contents, bool(plain) and not find_other_annotations(tree))
        yield from _separate_copies(contents)
    yield from _choose_folders(place, contents, alone)
    yield from (Answer(("--source", name)) for name in plain if alone)


def _name_columns(tree: Tree) -> Iterator[Answer]:
    """Yields the answers that name the column of images in a table."""
    from packstore.sources.table.reading import SUFFIXES, read_table

    for file in (each.file for each in find_other_annotations(tree) if each.phrase.endswith(NAMES_IMAGES)):
        with suppress(SourceError):
            rows = islice(read_table(tree, file, header=True), _TEXTS) if file and file.endswith(SUFFIXES) else ()
            cells = [cell for row in rows for cell in row.cells.items()]
            named = dict.fromkeys(name for name, value in cells if str(value).lower().endswith(IMAGE_SUFFIXES))
            yield from (Answer(("--column", f"image={name}")) for name in named)


def _read_sidecars(tree: Tree, contents: Contents) -> Iterator[Answer]:
    """Yields the answer that reads the files beside images that have their stems, by suffix."""
    options: list[str] = []
    files: dict[str, list[str]] = {}
    for folder in contents.folders.values():
        for suffix, names in folder.others.items():
            if suffix not in NO_SIDECARS and names.count_shared(folder.images):
                files.setdefault(suffix, []).extend(join(folder.path, name) for name in names.first[:_TEXTS])
    for suffix, some in files.items():
        type = find_sidecar_type(suffix, [tree.first_bytes(file, _BYTES) for file in some[:_TEXTS]], tree.encoding)
        options += ["--sidecar", f"{{s}}{suffix}={type}"] if type is not None else []
    if options:
        yield Answer(tuple(options))


def _name_splits(contents: Contents, flat: bool) -> Iterator[Answer]:
    """Yields the answers that take words of splits from the names of the top folders, with the classes in them."""
    tops = {path.split("/")[0] for path, each in contents.folders.items() if path and each.images.count}
    splits = {name: find_split(name) for name in sorted(tops)}
    if splits and all(splits.values()) and len({*map(MEANINGS.get, splits.values())}) > 1:
        ordered = dict(sorted(splits.items(), key=lambda item: (SPLIT_ORDER.index(item[1]), item[0])))
        yield name_splits(ordered)
        # The images may also have no labels.
        if flat:
            yield name_splits(ordered, "--source", "flat")


def _separate_copies(contents: Contents) -> Iterator[Answer]:
    """Yields the answer that makes copies of the classes a split of their own."""
    images = [path for path, folder in contents.folders.items() if folder.images.count]
    base = os.path.commonpath(images) if images else ""
    classes = [path for path in images if path and path.rpartition("/")[0] == base]
    copies = {
        path: path.rpartition("/")[2]
        for path, folder in contents.folders.items()
        if path != base and sum(join(base, name) in images for name in folder.folders) > 1
    }
    if 1 < len(classes) <= _TOPS and copies and _OWN not in copies.values():
        yield name_splits({**dict.fromkeys(classes, _OWN), **copies})


def _choose_folders(place: Path, contents: Contents, alone: bool) -> Iterator[Answer]:
    """Yields the answers that leave out one of several top folders, and with ``alone`` those that pack it alone."""
    images = {path: folder.images.count for path, folder in contents.folders.items() if folder.images.count}
    base = os.path.commonpath(images) if images else ""
    counts: Counter[str] = Counter()
    for path, count in images.items():
        counts["/".join(path.split("/")[: len(base.split("/")) + bool(base)])] += count
    alike = Counter(path in images for path in counts)
    for path in filter(None, counts) if 1 < len(counts) <= _TOPS else ():
        # A small folder unlike the others is perhaps no class.
        if 2 * counts[path] < counts.total() and 2 * alike[path in images] <= len(counts):
            yield Answer(ignore_paths([path]))
        if alone and place.is_dir():
            yield Answer(source=place / path)
    if alone and base and place.is_dir():
        yield Answer(source=place / base)

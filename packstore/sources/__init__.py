"""Where samples come from: one file a kind of source, found by :func:`open_source`.

A kind is imported when it is asked whether a path is its own. May import ``core``, ``images`` and ``stores``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from packstore.core.errors import AmbiguousSourceError, Answer, PackstoreError, SourceError, UsageError, printable
from packstore.core.files import check_paths, refuse_empty
from packstore.core.manifest import Manifest
from packstore.core.progress import ProgressCallback, no_progress
from packstore.core.registry import SOURCES
from packstore.core.urls import find_bridge
from packstore.images.reading import ALL_FRAMES, CLIPS
from packstore.images.sniff import MAX_PIXELS
from packstore.sources.annotations import Finding, annotated_error, find_left, find_other_images
from packstore.sources.archives import kept_indexes, known_folders, open_tree
from packstore.sources.base import Certainty, Entry, Kind, Source, SourceOptions, Survey
from packstore.sources.bridges import open_bridge
from packstore.sources.clips import ClipsSource
from packstore.sources.column_options import check_columns
from packstore.sources.contents import list_contents
from packstore.sources.encodings import ROLE as ENCODING
from packstore.sources.encodings import find_encoding, use_encoding
from packstore.sources.frames import FramesSource
from packstore.sources.ignoring import apply_ignore_rules, check_patterns, compile_ignore_rules, escape_pattern
from packstore.sources.ledger import Role
from packstore.sources.nested import find_nested, find_non_classes, find_only_folder, find_split_like_folders
from packstore.sources.refusals import (
    add_first_answer,
    add_kinds,
    archive_without_images_error,
    incomplete_error,
    nested_error,
    no_classes_error,
    several_kinds_error,
    split_names_error,
    unrecognised_error,
)
from packstore.sources.remote import NeedsCopyError, RemotePath, cache_buckets, source_path
from packstore.sources.rows import TreeRowSource
from packstore.sources.tree import Tree
from packstore.sources.wrapped import GEO, GeoSource
from packstore.stores import is_store

__all__ = [
    "Certainty",
    "Entry",
    "Kind",
    "Source",
    "SourceOptions",
    "Survey",
    "ask_about_clips",
    "ask_about_left",
    "kind_of",
    "open_source",
]

_ASKED_IN_A_ROW = 2
_DESCRIBING, _MOST_BESIDE = (".yaml", ".yml", ".json", ".jsonl", ".csv", ".tsv", ".txt", ".data"), 256
"""Suffixes of files that may describe the folder that they lie in, and how many of one may lie there."""
_MODALITIES = "modalities"
"""A kind that is never certain, and one more answer where plain kinds are partial."""
_CLIP = re.compile(r"(clip|video|vid|sequence|seq|scene|shot|take|episode)s?[ _.-]*\d+", re.I)
"""Names of folders of frames."""
_PLAIN = ("imagefolder", "flat")
"""Kinds that are partial where something lies beside the images, which :mod:`.annotations` names."""


def open_source(
    path: str | os.PathLike[str],
    *,
    kind: str | None = None,
    labels: str | os.PathLike[str] | None = None,
    max_pixels: int = MAX_PIXELS,
    packed_as: Manifest | None = None,
    skip_bad: bool = False,
    image_key: str | None = None,
    label_key: str | None = None,
    layout: str | None = None,
    ignore: str | Sequence[str] = (),
    columns: str | Sequence[str] = (),
    frames: str | None = None,
    progress: ProgressCallback = no_progress,
) -> Source:
    """Opens the source at ``path``.

    Args:
        path: A file or directory; a bridge, see :mod:`packstore.sources.bridges`; or a URL: ``s3://bucket/imagenet``.
            At a URL folders of images and stores are read as they lie; anything else is fetched into the local cache
            first.
        kind: The name of its kind, one of :data:`packstore.core.registry.SOURCES`; None recognises it. A name decides
            where a folder is ambiguous: ``imagefolder`` takes all top folders as classes where some look like splits
            and others hold images as well.
        labels: A CSV file with the columns ``file,label`` and optionally ``split``, paths relative to ``path``; the
            source is then of a kind that takes one (``flat``).
        max_pixels: See :class:`SourceOptions`.
        packed_as: The manifest of a store that was packed from it: its kind of source decides where the path alone is
            ambiguous, and names of arrays are those that were given then.
        skip_bad: See :class:`SourceOptions`.
        image_key: See :class:`SourceOptions`.
        label_key: See :class:`SourceOptions`.
        layout: See :class:`SourceOptions`.
        ignore: Patterns of files and folders to be treated as not there: ``*.txt``, ``masks``, ``train/extra``. None
            means those that ``packed_as`` was packed with.
        columns: Meanings of the columns of a table: ``image=COL``, ``label=COL``, ``boxes=X1,Y1,X2,Y2`` …. None means
            those that ``packed_as`` was packed with. ``keep=geo`` adds a column ``geo`` of GeoTIFF tags;
            ``encoding=cp1252`` is the encoding of all texts that are not UTF-8.
        frames: ``all`` makes each frame of the image files a sample, ``clips`` each folder of numbered frames. None
            means as ``packed_as`` was packed.
        progress: Called when an object is fetched.

    Raises:
        AmbiguousSourceError: Something annotates the images that no kind reads, and ``kind`` is None.
        UsageError: An unknown kind, labels for a kind that has its own, or names of arrays for a kind that has none.
        SourceError: There is nothing at ``path``, or nothing of a known kind.
    """
    given = packed_as.options.get("frames") if frames is None and packed_as is not None else frames
    named = check_columns(columns) or _recorded(packed_as, "columns")
    others = tuple(each for each in named if each != GEO and not each.startswith(ENCODING))
    encoding = find_encoding(named)
    with use_encoding(encoding):
        opened = _open_files(
            path, kind, labels, max_pixels, packed_as, skip_bad, image_key, label_key, layout, ignore, others, progress
        )
    if encoding is not None:
        opened.options = replace(opened.options, columns=(*opened.options.columns, ENCODING + encoding))
    if GEO in named:
        opened = GeoSource(opened)
    if given == CLIPS:
        return ClipsSource(opened)
    return FramesSource(opened) if given == ALL_FRAMES else opened


def _open_files(
    path: str | os.PathLike[str],
    kind: str | None,
    labels: str | os.PathLike[str] | None,
    max_pixels: int,
    packed_as: Manifest | None,
    skip_bad: bool,
    image_key: str | None,
    label_key: str | None,
    layout: str | None,
    ignore: str | Sequence[str],
    columns: tuple[str, ...],
    progress: ProgressCallback,
) -> Source:
    """:func:`open_source` without ``frames``, and without what packstore itself keeps of image files."""
    refuse_empty(path)
    check_paths(labels)
    place = source_path(path)
    options = SourceOptions(
        labels=None if labels is None else Path(labels),
        max_pixels=max_pixels,
        named=kind is not None,
        skip_bad=skip_bad,
        image_key=image_key,
        label_key=label_key,
        layout=layout,
        ignore=check_patterns(ignore) or _recorded(packed_as, "ignore"),
        columns=columns,
    )
    named: Kind | None = None if kind is None else SOURCES[kind]
    if named is not None and not named.takes(options):
        raise _takes_not(named, options)
    if find_bridge(place) is not None:
        if named is not None or options != SourceOptions(max_pixels=max_pixels, skip_bad=skip_bad, layout=layout):
            raise UsageError(
                f"{printable(str(place))} is read by another library: leave source_kind, labels, image_key, label_key, "
                "ignore and columns out"
            )
        if packed_as is not None:
            options = replace(options, **_recorded_names(packed_as, options))
        return open_bridge(place, options)
    if named is None and options.labels is None and (described := _described_by(place, options)) is not None:
        place, options = described
    if isinstance(place, RemotePath) and (is_store(place) if named is None else named.name == "store"):
        store: Kind = SOURCES["store"]
        return store.open(place, options)
    try:
        return _opened(place, named, options, packed_as)
    except NeedsCopyError:
        from packstore.sources.copied import CopiedSource

        assert isinstance(place, RemotePath)
        with _asking_about(place, options):
            return CopiedSource(place, lambda copy: _opened(copy, named, options, packed_as), progress)


def _described_by(file: Path, options: SourceOptions) -> tuple[Path, SourceOptions] | None:
    """The folder that a file describes (``data.yaml``, ``captions.csv``, ``instances_train.json``), with options by
    which it is the only such file there; None for a file that describes none."""
    if isinstance(file, RemotePath) or file.suffix.lower() not in _DESCRIBING or not file.is_file():
        return None
    for folder in (file.parent, file.parent.parent):
        beside = [each for each in file.parent.iterdir() if each.suffix == file.suffix and each.name != file.name]
        if len(beside) > _MOST_BESIDE:
            return None
        hidden = (f"/{escape_pattern(each.relative_to(folder).as_posix())}" for each in sorted(beside))
        given = replace(options, ignore=(*options.ignore, *hidden))
        try:
            with apply_ignore_rules(folder, compile_ignore_rules(given.ignore)), known_folders(), kept_indexes():
                kind = _recognise(folder, given)
                with closing(kind.open(folder, replace(given, named=True))) as source:
                    tree = getattr(source, "tree", None)
                    names = source.describing_files() if isinstance(source, TreeRowSource) else ()
                    if tree is not None and file.relative_to(folder).as_posix() in set(names):
                        return folder, given
        except PackstoreError:
            continue
    return None


def _opened(place: Path, named: Kind | None, options: SourceOptions, packed_as: Manifest | None) -> Source:
    """Opens a source. Raises :class:`NeedsCopyError` for a URL if the kind can only read local copies."""
    try:
        place.stat()
    except PackstoreError:  # of which one is a ValueError, too
        raise
    except (OSError, ValueError) as error:
        raise SourceError(_unreachable(place, error)) from None
    if named is not None and not named.reads(place):
        raise NeedsCopyError(f"{printable(str(place))} is of kind {named.name}")
    with (
        apply_ignore_rules(place, compile_ignore_rules(options.ignore)),
        _asking_about(place, options),
        kept_indexes(),
        cache_buckets(),
    ):
        if named is None:
            try:
                with known_folders():
                    named = _recognise(place, options)
            except NeedsCopyError:
                raise
            except SourceError as error:
                known = packed_as is not None and packed_as.origin.kind in SOURCES
                answered = known and packed_as is not None and _recorded_names(packed_as, options)
                if packed_as is None or not known or not (isinstance(error, AmbiguousSourceError) or answered):
                    raise
                named, options = SOURCES[packed_as.origin.kind], replace(options, named=True)
        takes = named.takes_arrays or named.takes_boxes
        if packed_as is not None and packed_as.origin.kind == named.name and takes:
            options = replace(options, **_recorded_names(packed_as, options))
        return named.open(place, options)


@contextmanager
def _asking_about(place: Path, options: SourceOptions) -> Iterator[None]:
    """Tells questions that are raised meanwhile which source they are about. An answer that would be a question again
    gives way to the answers to that one."""
    try:
        yield
    except AmbiguousSourceError as error:
        error.source = place
        answers = [answer for each in error.answers for answer in _last_answers(each, place, options)]
        error.answers = tuple(dict.fromkeys(answers))
        raise


def _last_answers(answer: Answer, place: Path, options: SourceOptions, depth: int = 0) -> Sequence[Answer]:
    """The answer itself; or the answers to the question that it would raise, none if it is no answer."""
    patterns = answer.options[1::2] if {*answer.options[::2]} == {"--ignore"} else ()
    if options.named or (answer.options and not patterns) or len(answer.options) != 2 * len(patterns):
        return [answer]
    source = answer.source or place
    given = SourceOptions(ignore=(*options.ignore, *patterns))
    try:
        with apply_ignore_rules(source, compile_ignore_rules(given.ignore)), known_folders(), kept_indexes():
            _recognise(source, given)
    except AmbiguousSourceError as error:
        if depth == _ASKED_IN_A_ROW:
            return []
        if answer.source is not None and all(each.source is not None for each in error.answers):
            return [answer]  # it says itself what its folders alone would lose
        further = (
            each if each.source else Answer((*answer.options, *each.options), answer.source) for each in error.answers
        )
        return [last for each in further for last in _last_answers(each, place, options, depth + 1)]
    except PackstoreError:
        return []
    return [answer]


def ask_about_left(source: Source, survey: Survey) -> None:
    """Raises :class:`AmbiguousSourceError` if a source leaves something that seems to annotate its images."""
    if source.options.named or source.kind in _PLAIN or survey.store is not None:
        return
    found = _left_by(source, survey)
    if found:
        with _asking_about(source.path, source.options):
            error = incomplete_error(source.path, SOURCES[source.kind], [each[:2] for each in found])
            raise add_kinds(error, _partial_kinds(source))


def ask_about_clips(source: Source, survey: Survey) -> None:
    """Raises :class:`AmbiguousSourceError` if the classes of an image folder seem to be clips: ``clip_0001`` …."""
    if source.options.named or source.options.frames is not None or source.kind != _PLAIN[0]:
        return
    classes = next((column.classes for column in survey.columns if column.name == "label"), None) or ()
    if len(classes) > 1 and all(_CLIP.fullmatch(name) for name in classes):
        raise AmbiguousSourceError(
            f"{printable(str(source.path))}: its folders ({printable(classes[0])} …) seem to be clips, whose frames "
            "are no classes: --frames clips makes each a record, --source imagefolder a class",
            [Answer(("--frames", CLIPS)), Answer(("--source", source.kind))],
            source.path,
        )


def _left_by(source: Source, survey: Survey) -> list[Finding]:
    """What seems to annotate images among the files that a source leaves."""
    tree = getattr(source, "tree", None)
    if not source.asks_about_left or not isinstance(tree, Tree) or not survey.ledger.count(Role.LEFT):
        return []
    left = survey.ledger.names(Role.LEFT)
    rules = compile_ignore_rules(source.options.ignore)
    return find_left(tree, (path for path in left if not (rules.hides(path) or source.expects_left(path))))


def _partial_kinds(source: Source) -> list[Kind]:
    """The more specific kinds that a source could be as well, but for what they leave; and folders side by side."""
    found: list[Kind] = []
    kind: Kind
    before = True
    for kind in SOURCES.values():
        before = before and kind.name != source.kind
        if not before and kind.name != _MODALITIES:
            continue
        try:
            if kind.reads(source.path) and kind.recognise(source.path, source.options) is Certainty.PARTIAL:
                found.append(kind)
        except (PackstoreError, OSError):
            continue
    return found


def _would_leave(path: Path, kind: Kind, options: SourceOptions) -> list[Finding]:
    """What a kind would leave of a path that it is only partial for; nothing if it cannot even be surveyed."""
    try:
        with closing(kind.open(path, replace(options, named=True))) as source:
            survey = source.survey()
            tree, left = getattr(source, "tree", None), _left_by(source, survey)
            if left or not isinstance(tree, Tree):
                return left
            rules = compile_ignore_rules(options.ignore)
            others = (path for path in survey.ledger.names(Role.LEFT) if not rules.hides(path))
            return find_other_images(tree, others, lambda: (entry.key for entry in source.entries()))
    except PackstoreError:
        return []


def _recorded_names(packed_as: Manifest, options: SourceOptions) -> dict[str, Any]:
    """The names of arrays that a store was packed with, where no others are given."""
    if any(value is not None for value in options.array_names.values()):
        return {}
    recorded = {name: packed_as.options.get(name) for name in options.array_names}
    return {name: value for name, value in recorded.items() if isinstance(value, str)}


def _recorded(packed_as: Manifest | None, name: str) -> tuple[str, ...]:
    """The texts of an option (``ignore``, ``columns``) that a store was packed with."""
    recorded = None if packed_as is None else packed_as.options.get(name)
    try:
        found = json.loads(recorded) if isinstance(recorded, str) else ()
        return check_patterns(found) if name == "ignore" else check_columns(found)
    except ValueError:
        return ()


def _takes_not(kind: Kind, options: SourceOptions) -> UsageError:
    if options.labels is not None and not kind.takes_labels:
        return UsageError(
            f"a source of kind {kind.name} has its own labels; leave the labels file out, or use another kind"
        )
    if options.columns:
        return UsageError(f"a source of kind {kind.name} has no table: leave --column out, or use --source table")
    if options.says_boxes:
        having = ", ".join(each.name for each in SOURCES.values() if each.takes_boxes)
        return UsageError(f"a source of kind {kind.name} has no boxes of layout {options.layout}; such are {having}")
    return UsageError(
        f"a source of kind {kind.name} has no arrays to choose from; leave image_key, label_key and layout out, or "
        f"use another kind ({_kinds_of_arrays()})"
    )


def _kinds_of_arrays() -> str:
    return ", ".join(kind.name for kind in SOURCES.values() if kind.takes_arrays)


def kind_of(path: Path) -> Kind | None:
    """The kind that is certain of ``path``, annotated or not, without a store; None where it is no source."""
    kind: Kind
    for kind in SOURCES.values():
        try:
            if kind.name != "store" and kind.recognise(path, SourceOptions()) >= Certainty.PARTIAL:
                return kind
        except SourceError:
            return kind  # it is sure that the path is meant for it
    return None


def _recognise(path: Path, options: SourceOptions) -> Kind:
    """The kind of ``path``: the first that is certain, and specific kinds come first; else the first possible one.

    Raises :class:`AmbiguousSourceError` where kinds are partial, and what the first kind raises that is sure that the
    path is meant for it, unless a plug-in is certain: a plug-in may read what to a built-in kind is damaged, or has to
    be asked about."""
    found: dict[Certainty, list[Kind]] = {}
    refused: SourceError | None = None
    kind: Kind
    if isinstance(path, RemotePath) and path.is_file():
        raise path.one_object_error()
    for kind in SOURCES.values():  # plug-ins come last, and are not even looked for where a built-in kind is certain
        if not (kind.reads(path) and kind.takes(options)) or (refused is not None and kind.name in SOURCES.built_in):
            continue
        try:
            certainty = kind.recognise(path, options)
        except SourceError as error:
            refused = refused or error
            continue
        except PermissionError as error:
            raise SourceError(f"{printable(error.filename or str(path))} cannot be listed: {error.strerror}") from error
        except OSError as error:
            raise SourceError(_unreachable(path, error)) from error
        if certainty is Certainty.CERTAIN:
            if kind.name == "imagefolder":
                try:
                    _ask_about_classes(path)
                except AmbiguousSourceError as error:
                    side_by_side = [each for each in found.get(Certainty.PARTIAL, ()) if each.name == _MODALITIES]
                    raise add_first_answer(error, side_by_side[0]) if side_by_side else error from None
            return kind
        found.setdefault(certainty, []).append(kind)
    if refused is not None:
        raise refused
    if partial := found.get(Certainty.PARTIAL):
        formats = [kind for kind in partial if kind.name not in (*_PLAIN, _MODALITIES)]
        if len(formats) == 1 and (left := _would_leave(path, formats[0], options)):
            side_by_side = [kind for kind in partial if kind.name == _MODALITIES]
            raise add_kinds(incomplete_error(path, formats[0], [each[:2] for each in left]), side_by_side)
        if formats:
            raise several_kinds_error(path, formats)
        plain = next((kind for kind in partial if kind.name in _PLAIN), None)
        if partial[0].name == _MODALITIES:
            raise (
                several_kinds_error(path, partial[:1])
                if plain is None
                else add_first_answer(annotated_error(path, plain.name), partial[0])
            )
        within = find_nested(path, _specific)
        several_masks = [kind.name for _, kind in within].count("segmentation") > 1  # of classes
        if within and not several_masks:
            raise nested_error(path, within)
        raise annotated_error(path, partial[0].name)
    possible = found.get(Certainty.POSSIBLE, [])
    if possible and possible[0].name not in _PLAIN:
        return possible[0]
    if options.labels is None and (within := find_nested(path, _certain)):
        raise nested_error(path, within)
    if isinstance(path, RemotePath) and not (options.named or _holds_images(path)):
        raise NeedsCopyError(f"{printable(str(path))} holds no images and no store")
    if possible:
        if path.is_file() and (tree := open_tree(path)) is not None:
            raise archive_without_images_error(path, tree)
        return possible[0]
    if options.columns:
        raise SourceError(f"{printable(str(path))} has no table that names its images, of which --column could tell")
    if options.labels is None and any(options.array_names.values()):
        raise SourceError(
            f"{printable(str(path))} is of no kind that has arrays to choose from ({_kinds_of_arrays()}); leave "
            "image_key, label_key and layout out"
        )
    raise unrecognised_error(path)


def _certain(path: Path) -> Kind | None:
    """The first kind that is certain of a path, or sure that the path is meant for it."""
    kind: Kind
    for kind in map(SOURCES.__getitem__, SOURCES.built_in):
        if not kind.reads(path):
            continue
        try:
            certain = kind.recognise(path, SourceOptions()) is Certainty.CERTAIN
            if certain and (kind.name != "store" or is_store(path)):  # a model has the suffix of a store, .pt
                return kind
        except AmbiguousSourceError:
            return kind
    return None


def _specific(path: Path) -> Kind | None:
    found = _certain(path)
    return None if found is None or found.name in _PLAIN else found


def _ask_about_classes(path: Path) -> None:
    """Raises :class:`AmbiguousSourceError` for an image folder whose folders seem to be no classes: the only one a
    dataset of its own, or all of them splits."""
    inside = find_only_folder(path)
    kind = None if inside is None else _certain(inside)
    if inside is not None and kind is not None:
        raise nested_error(path, [(inside, kind)], "imagefolder")
    if splits := find_split_like_folders(path):
        raise split_names_error(path, splits, "imagefolder")
    tree = open_tree(path)
    found = None if tree is None else find_non_classes(list_contents(tree))
    if found is not None:
        raise no_classes_error(path, *found, "imagefolder")


def _holds_images(path: RemotePath) -> bool:
    tree = path.tree()
    return tree is not None and tree.holds_images("", ())


def _unreachable(path: Path, error: OSError | ValueError) -> str:
    name = printable(str(path))
    if isinstance(error, FileNotFoundError) and isinstance(path, RemotePath):
        return f"{name}: nothing is there: no store, no object of this name, and none below it"
    if isinstance(error, FileNotFoundError) and path.is_symlink():
        return f"{name} is a link to nowhere: {printable(str(path.readlink()))} does not exist"
    return f"{name}: {printable(str(error)) if isinstance(error, ValueError) else error.strerror or error}"

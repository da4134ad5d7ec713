"""Opens sources of samples: one file for each kind of source, found by :func:`open_source`.

A kind is imported when it first tests a path. May import ``core``, ``images`` and ``stores``."""

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
from packstore.sources.annotations import Finding, annotated_error, find_left_annotations, find_left_images
from packstore.sources.archives import cache_archives, cache_folders, open_tree
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
    "find_kind",
    "open_source",
]

_ASKED_IN_A_ROW = 2
_DESCRIBING, _MOST_BESIDE = (".yaml", ".yml", ".json", ".jsonl", ".csv", ".tsv", ".txt", ".data"), 256
_ALIKE = ((".json", ".jsonl"), (".csv", ".tsv"), (".yaml", ".yml"))
"""Suffixes of files of which one is meant if it is named."""
"""Suffixes of files that may describe their folder, and the maximum number of such files beside one."""
_MODALITIES = "modalities"
"""Kind that is never certain: a further answer when plain kinds match partially."""
_CLIP = re.compile(r"(clip|video|vid|sequence|seq|scene|shot|take|episode)s?[ _.-]*\d+", re.I)
"""Names of folders of frames."""
_PLAIN = ("imagefolder", "flat")
"""Kinds that match partially if there are annotations beside the images, see :mod:`.annotations`."""


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
            Folders of images and stores at a URL are read directly; other sources are first fetched into the local
            cache.
        kind: The name of its kind, one of :data:`packstore.core.registry.SOURCES`; None recognises it. A name decides
            if a folder is ambiguous: ``imagefolder`` takes all top folders as classes, even if some have names of
            splits and others contain images.
        labels: A CSV file with the columns ``file,label`` and optionally ``split``, paths relative to ``path``; only
            kinds that take such a file (``flat``) can open the source then.
        max_pixels: See :class:`SourceOptions`.
        packed_as: The manifest of a store that was packed from this source: its kind of source decides if the path
            alone is ambiguous, and its names of arrays are used.
        skip_bad: See :class:`SourceOptions`.
        image_key: See :class:`SourceOptions`.
        label_key: See :class:`SourceOptions`.
        layout: See :class:`SourceOptions`.
        ignore: Patterns of files and folders to treat as absent: ``*.txt``, ``masks``, ``train/extra``. An empty value
            means the patterns that ``packed_as`` was packed with.
        columns: Meanings of the columns of a table: ``image=COL``, ``label=COL``, ``boxes=X1,Y1,X2,Y2`` …. An empty
            value means the ones that ``packed_as`` was packed with. ``keep=geo`` adds a column ``geo`` of GeoTIFF tags;
            ``encoding=cp1252`` is the encoding of all texts that are not UTF-8.
        frames: ``all`` makes each frame of the image files a sample, ``clips`` each folder of numbered frames. None
            means as ``packed_as`` was packed.
        progress: Called when an object is fetched.

    Raises:
        AmbiguousSourceError: No kind reads all annotations of the images, or several kinds match, and ``kind`` is None.
        UsageError: An unknown kind, labels for a kind that has its own, or names of arrays for a kind that has none.
        SourceError: Nothing is at ``path``, or the path is of no known kind.
    """
    given = packed_as.options.get("frames") if frames is None and packed_as is not None else frames
    named = check_columns(columns) or _recorded_texts(packed_as, "columns")
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
    """Opens a source like :func:`open_source`, without the wrappers for frames, clips and GeoTIFF tags."""
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
        ignore=check_patterns(ignore) or _recorded_texts(packed_as, "ignore"),
        columns=columns,
    )
    named: Kind | None = None if kind is None else SOURCES[kind]
    if named is not None and not named.takes(options):
        raise _unused_options_error(named, options)
    if find_bridge(place) is not None:
        if named is not None or options != SourceOptions(max_pixels=max_pixels, skip_bad=skip_bad, layout=layout):
            raise UsageError(
                f"{printable(str(place))} is read by another library: leave source_kind, labels, image_key, label_key, "
                "ignore and columns out"
            )
        if packed_as is not None:
            options = replace(options, **_recorded_array_names(packed_as, options))
        return open_bridge(place, options)
    if named is None and options.labels is None and (described := _find_described_folder(place, options)) is not None:
        place, options = described
    if isinstance(place, RemotePath) and (is_store(place) if named is None else named.name == "store"):
        store: Kind = SOURCES["store"]
        return store.open(place, options)
    try:
        return _open_recognised(place, named, options, packed_as)
    except NeedsCopyError:
        from packstore.sources.copied import CopiedSource

        assert isinstance(place, RemotePath)
        with _add_source_to_questions(place, options):
            return CopiedSource(place, lambda copy: _open_recognised(copy, named, options, packed_as), progress)


def _find_described_folder(file: Path, options: SourceOptions) -> tuple[Path, SourceOptions] | None:
    """Finds the folder that a file describes (``data.yaml``, ``captions.csv``, ``instances_train.json``), and
    options that ignore other such files beside it; None if the file describes no folder."""
    if isinstance(file, RemotePath) or file.suffix.lower() not in _DESCRIBING or not file.is_file():
        return None
    alike = next((suffixes for suffixes in _ALIKE if file.suffix in suffixes), (file.suffix,))
    for folder in (file.parent, file.parent.parent):
        beside = [each for each in file.parent.iterdir() if each.suffix in alike and each.name != file.name]
        if len(beside) > _MOST_BESIDE:
            return None
        hidden = (f"/{escape_pattern(each.relative_to(folder).as_posix())}" for each in sorted(beside))
        given = replace(options, ignore=(*options.ignore, *hidden))
        try:
            with apply_ignore_rules(folder, compile_ignore_rules(given.ignore)), cache_folders(), cache_archives():
                kind = _recognise(folder, given)
                with closing(kind.open(folder, replace(given, named=True))) as source:
                    tree = getattr(source, "tree", None)
                    names = source.describing_files() if isinstance(source, TreeRowSource) else ()
                    if tree is not None and file.relative_to(folder).as_posix() in set(names):
                        return folder, given
        except PackstoreError:
            continue
    return None


def _open_recognised(place: Path, named: Kind | None, options: SourceOptions, packed_as: Manifest | None) -> Source:
    """Opens a path as the named kind, or as the recognised one. Raises :class:`NeedsCopyError` for a URL if the kind
    reads only local copies."""
    try:
        place.stat()
    except PackstoreError:  # a UsageError is a ValueError, too
        raise
    except (OSError, ValueError) as error:
        raise SourceError(_unreachable_message(place, error)) from None
    if named is not None and not named.reads(place):
        raise NeedsCopyError(f"{printable(str(place))} is of kind {named.name}")
    with (
        apply_ignore_rules(place, compile_ignore_rules(options.ignore)),
        _add_source_to_questions(place, options),
        cache_archives(),
        cache_buckets(),
    ):
        if named is None:
            try:
                with cache_folders():
                    named = _recognise(place, options)
            except NeedsCopyError:
                raise
            except SourceError as error:
                known = packed_as is not None and packed_as.origin.kind in SOURCES
                answered = known and packed_as is not None and _recorded_array_names(packed_as, options)
                if packed_as is None or not known or not (isinstance(error, AmbiguousSourceError) or answered):
                    raise
                named, options = SOURCES[packed_as.origin.kind], replace(options, named=True)
        takes = named.takes_arrays or named.takes_boxes
        if packed_as is not None and packed_as.origin.kind == named.name and takes:
            options = replace(options, **_recorded_array_names(packed_as, options))
        return named.open(place, options)


@contextmanager
def _add_source_to_questions(place: Path, options: SourceOptions) -> Iterator[None]:
    """Adds the source to each :class:`AmbiguousSourceError` that the block raises, and resolves its answers, see
    :func:`_resolve_answer`."""
    try:
        yield
    except AmbiguousSourceError as error:
        error.source = place
        answers = [answer for each in error.answers for answer in _resolve_answer(each, place, options)]
        error.answers = tuple(dict.fromkeys(answers))
        raise


def _resolve_answer(answer: Answer, place: Path, options: SourceOptions, depth: int = 0) -> Sequence[Answer]:
    """Returns the answer itself; if it leads to another question, the answers to that question instead; none if it
    leads to an error."""
    patterns = answer.options[1::2] if {*answer.options[::2]} == {"--ignore"} else ()
    if options.named or (answer.options and not patterns) or len(answer.options) != 2 * len(patterns):
        return [answer]
    source = answer.source or place
    given = SourceOptions(ignore=(*options.ignore, *patterns))
    try:
        with apply_ignore_rules(source, compile_ignore_rules(given.ignore)), cache_folders(), cache_archives():
            _recognise(source, given)
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
    """Raises :class:`AmbiguousSourceError` if a source leaves out files that seem to annotate its images."""
    if source.options.named or source.kind in _PLAIN or survey.store is not None:
        return
    found = _find_left_annotations(source, survey)
    if found:
        with _add_source_to_questions(source.path, source.options):
            error = incomplete_error(source.path, SOURCES[source.kind], [each[:2] for each in found])
            raise add_kinds(error, _find_partial_kinds(source))


def ask_about_clips(source: Source, survey: Survey) -> None:
    """Raises :class:`AmbiguousSourceError` if all classes of an image folder have names of clips: ``clip_0001`` …."""
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


def _find_left_annotations(source: Source, survey: Survey) -> list[Finding]:
    """Finds files that a source leaves out and that seem to annotate its images."""
    tree = getattr(source, "tree", None)
    if not source.asks_about_left or not isinstance(tree, Tree) or not survey.ledger.count(Role.LEFT):
        return []
    left = survey.ledger.names(Role.LEFT)
    rules = compile_ignore_rules(source.options.ignore)
    return find_left_annotations(tree, (path for path in left if not (rules.hides(path) or source.expects_left(path))))


def _find_partial_kinds(source: Source) -> list[Kind]:
    """Finds other kinds that match a source partially: more specific ones, and folders side by side."""
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


def _find_left_by_kind(path: Path, kind: Kind, options: SourceOptions) -> list[Finding]:
    """Opens a path as a kind that matches it partially, and finds the annotations or images that this kind would
    leave out; empty if the path cannot be surveyed."""
    try:
        with closing(kind.open(path, replace(options, named=True))) as source:
            survey = source.survey()
            tree, left = getattr(source, "tree", None), _find_left_annotations(source, survey)
            if left or not isinstance(tree, Tree):
                return left
            rules = compile_ignore_rules(options.ignore)
            others = (path for path in survey.ledger.names(Role.LEFT) if not rules.hides(path))
            return find_left_images(tree, others, lambda: (entry.key for entry in source.entries()))
    except PackstoreError:
        return []


def _recorded_array_names(packed_as: Manifest, options: SourceOptions) -> dict[str, Any]:
    """Returns the names of arrays that a store was packed with; empty if the options have others."""
    if any(value is not None for value in options.array_names.values()):
        return {}
    recorded = {name: packed_as.options.get(name) for name in options.array_names}
    return {name: value for name, value in recorded.items() if isinstance(value, str)}


def _recorded_texts(packed_as: Manifest | None, name: str) -> tuple[str, ...]:
    """Returns the texts of an option (``ignore``, ``columns``) that a store was packed with; empty if they are
    damaged."""
    recorded = None if packed_as is None else packed_as.options.get(name)
    try:
        found = json.loads(recorded) if isinstance(recorded, str) else ()
        return check_patterns(found) if name == "ignore" else check_columns(found)
    except ValueError:
        return ()


def _unused_options_error(kind: Kind, options: SourceOptions) -> UsageError:
    """Returns the error for options that a kind does not use."""
    if options.labels is not None and not kind.takes_labels:
        return UsageError(
            f"a source of kind {kind.name} has its own labels; leave the labels file out, or use another kind"
        )
    if options.columns:
        return UsageError(f"a source of kind {kind.name} has no table: leave --column out, or use --source table")
    if options.says_boxes:
        having = ", ".join(each.name for each in SOURCES.values() if each.takes_boxes)
        return UsageError(
            f"a source of kind {kind.name} has no boxes of layout {options.layout}; kinds with boxes: {having}"
        )
    return UsageError(
        f"a source of kind {kind.name} has no arrays to choose from; leave image_key, label_key and layout out, or "
        f"use another kind ({_list_array_kinds()})"
    )


def _list_array_kinds() -> str:
    """Joins the names of kinds that read named arrays, for messages."""
    return ", ".join(kind.name for kind in SOURCES.values() if kind.takes_arrays)


def find_kind(path: Path) -> Kind | None:
    """Returns the kind, other than ``store``, that a path is certainly or partially of; None if there is none."""
    kind: Kind
    for kind in SOURCES.values():
        try:
            if kind.name != "store" and kind.recognise(path, SourceOptions()) >= Certainty.PARTIAL:
                return kind
        except SourceError:
            return kind  # the path is certainly meant for it
    return None


def _recognise(path: Path, options: SourceOptions) -> Kind:
    """Returns the kind of ``path``: the first certain one (specific kinds come first), else the first possible
    one.

    Raises :class:`AmbiguousSourceError` if kinds match partially. Also raises the error of the first kind that the
    path is certainly meant for, unless a plug-in is certain: a plug-in may read files that a built-in kind takes for
    damaged or asks about."""
    found: dict[Certainty, list[Kind]] = {}
    refused: SourceError | None = None
    kind: Kind
    if isinstance(path, RemotePath) and path.is_file():
        raise path.one_object_error()
    for kind in SOURCES.values():  # plug-ins come last: they are not loaded if a built-in kind is certain
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
            raise SourceError(_unreachable_message(path, error)) from error
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
        if len(formats) == 1 and (left := _find_left_by_kind(path, formats[0], options)):
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
        within = find_nested(path, _find_specific_kind)
        several_masks = [kind.name for _, kind in within].count("segmentation") > 1  # of classes
        if within and not several_masks:
            raise nested_error(path, within)
        raise annotated_error(path, partial[0].name)
    possible = found.get(Certainty.POSSIBLE, [])
    if possible and possible[0].name not in _PLAIN:
        return possible[0]
    if options.labels is None and (within := find_nested(path, _find_certain_kind)):
        raise nested_error(path, within)
    if isinstance(path, RemotePath) and not (options.named or _holds_images(path)):
        raise NeedsCopyError(f"{printable(str(path))} holds no images and no store")
    if possible:
        if path.is_file() and (tree := open_tree(path)) is not None:
            raise archive_without_images_error(path, tree)
        return possible[0]
    if options.columns:
        raise SourceError(f"{printable(str(path))} has no table that names its images: leave --column out")
    if options.labels is None and any(options.array_names.values()):
        raise SourceError(
            f"{printable(str(path))} is of no kind that has arrays to choose from ({_list_array_kinds()}); leave "
            "image_key, label_key and layout out"
        )
    raise unrecognised_error(path)


def _find_certain_kind(path: Path) -> Kind | None:
    """Returns the first built-in kind that is certain of a path, or that the path is certainly meant for; else None."""
    kind: Kind
    for kind in map(SOURCES.__getitem__, SOURCES.built_in):
        if not kind.reads(path):
            continue
        try:
            certain = kind.recognise(path, SourceOptions()) is Certainty.CERTAIN
            if certain and (kind.name != "store" or is_store(path)):  # PyTorch models have a suffix of stores, too: .pt
                return kind
        except AmbiguousSourceError:
            return kind
    return None


def _find_specific_kind(path: Path) -> Kind | None:
    """Returns the certain kind of a path, other than image folders and flat folders; else None."""
    found = _find_certain_kind(path)
    return None if found is None or found.name in _PLAIN else found


def _ask_about_classes(path: Path) -> None:
    """Raises :class:`AmbiguousSourceError` if the folders of an image folder do not seem to be classes: a single
    folder that is a dataset itself, or splits, or folders with other names than classes have."""
    inside = find_only_folder(path)
    kind = None if inside is None else _find_certain_kind(inside)
    if inside is not None and kind is not None:
        raise nested_error(path, [(inside, kind)], "imagefolder")
    if splits := find_split_like_folders(path):
        raise split_names_error(path, splits, "imagefolder")
    tree = open_tree(path)
    found = None if tree is None else find_non_classes(list_contents(tree))
    if found is not None:
        raise no_classes_error(path, *found, "imagefolder")


def _holds_images(path: RemotePath) -> bool:
    """Tells if an image is anywhere below a URL."""
    tree = path.tree()
    return tree is not None and tree.holds_images("", ())


def _unreachable_message(path: Path, error: OSError | ValueError) -> str:
    """Returns the message about a path that does not exist or cannot be read."""
    name = printable(str(path))
    if isinstance(error, FileNotFoundError) and isinstance(path, RemotePath):
        return f"{name}: nothing is there: no store, no object of this name, and none below it"
    if isinstance(error, FileNotFoundError) and path.is_symlink():
        return f"{name} is a link to nowhere: {printable(str(path.readlink()))} does not exist"
    return f"{name}: {printable(str(error)) if isinstance(error, ValueError) else error.strerror or error}"

"""Recognises the kind of a source: asks all kinds, and the user if several match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from packstore.core.errors import AmbiguousSourceError, PackstoreError, SourceError, printable
from packstore.core.registry import SOURCES
from packstore.core.urls import UrlPath
from packstore.sources.annotations import (
    SuspectedAnnotation,
    find_all_annotations,
    find_left_annotations,
    find_left_images,
)
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, Source, SourceOptions, Survey
from packstore.sources.contents import list_contents
from packstore.sources.ignoring import compile_ignore_rules
from packstore.sources.ledger import Role
from packstore.sources.needs import PresentNames
from packstore.sources.nested import (
    find_first_archive,
    find_nested,
    find_non_classes,
    find_only_folder,
    find_split_like_folders,
)
from packstore.sources.refusals import (
    TABLES,
    NeedsCopyError,
    add_kinds,
    archive_without_images_error,
    few_annotations_error,
    incomplete_error,
    join_few,
    nested_error,
    no_classes_error,
    several_kinds_error,
    unrecognised_error,
)
from packstore.sources.splits import is_split
from packstore.sources.tree import Tree
from packstore.stores.opening import holds_store

COMPANIONS = "companions"
"""Kind of images with files that belong to them; a question if it is not certain what the files are."""
_CAPTION_FILES = "caption_files"
"""Kind that reads some files that belong to images, and leaves out others."""
PLAIN_KINDS = ("imagefolder", "flat")
"""Kinds that match partially if there are annotations beside the images, see :mod:`.annotations`."""


def find_left_by_source(source: Source, survey: Survey) -> list[SuspectedAnnotation]:
    """Finds the possible annotations among the files that a source leaves out. Finds none for published datasets, and
    for sources without a tree."""
    tree = getattr(source, "tree", None)
    if not source.asks_about_left or not isinstance(tree, Tree) or not survey.ledger.count(Role.LEFT):
        return []
    left = survey.ledger.names(Role.LEFT)
    rules = compile_ignore_rules(source.options.ignore)
    return find_left_annotations(tree, (path for path in left if not (rules.hides(path) or source.expects_left(path))))


def _find_left_by_kind(path: Path, kind: Kind, options: SourceOptions) -> list[SuspectedAnnotation]:
    """Opens a path as a kind that matches it partially, and surveys it. Returns the annotations that this kind would
    leave out; if there are none, the images. Returns none if the survey fails."""
    try:
        with closing(kind.open(path, replace(options, named=True))) as source:
            survey = source.survey()
            tree, left = getattr(source, "tree", None), find_left_by_source(source, survey)
            if left or not isinstance(tree, Tree):
                return left
            rules = compile_ignore_rules(options.ignore)
            others = (path for path in survey.ledger.names(Role.LEFT) if not rules.hides(path))
            return find_left_images(tree, others, lambda: (entry.key for entry in source.entries()))
    except PackstoreError:
        return []


def list_array_kinds() -> str:
    """Joins the names of kinds that read named arrays, for messages."""
    return ", ".join(kind.name for kind in SOURCES.values() if kind.takes_arrays)


def find_kind(path: Path) -> Kind | None:
    """Returns the first kind that recognises a path certainly or partially, or finds it damaged. Leaves ``store`` out.
    Returns None if there is none."""
    kind: Kind
    present = PresentNames(path)
    for kind in SOURCES.values(lambda name: name != "store" and present.may_be(name)):
        try:
            if kind.recognise(path, SourceOptions()) >= Certainty.PARTIAL:
                return kind
        except SourceError:
            return kind  # the path is certainly meant for it
    return None


def recognise(path: Path, options: SourceOptions, clips: bool = False) -> Kind:
    """Returns the kind of ``path``: the first certain one (specific kinds come first), else the first possible one.

    For a URL, asks only the kinds that read from object stores. Skips kinds that do not use all given options.

    ``clips``: the classes of an image folder may contain folders of equal names.

    Raises:
        AmbiguousSourceError: Kinds match partially, folders of an image folder do not seem to be classes, few images
            in folders have annotations, or the path contains datasets.
        SourceError: The path cannot be read, is damaged, or is of no kind. A file that a built-in kind finds damaged
            may be a plug-in's, so plug-ins are asked first.
        NeedsCopyError: Only local copies of a URL can be recognised.
    """
    by_certainty: dict[Certainty, list[Kind]] = {}
    refused: SourceError | None = None
    kind: Kind
    if isinstance(path, UrlPath) and path.is_file():
        raise NeedsCopyError(f"{printable(str(path))} is one object")
    present = PresentNames(path, [f"--{name}" for name, patterns in options.companions.items() if patterns])
    # Plug-ins come last: they are not loaded if a built-in kind is certain.
    for kind in SOURCES.values(present.may_be):
        if not (kind.reads(path) and kind.takes(options)) or (refused is not None and kind.name in SOURCES.built_in):
            continue
        try:
            certainty = _recognise_as(kind, path, options)
        except SourceError as error:
            refused = refused or error
            continue
        except PermissionError as error:
            raise SourceError(f"{printable(error.filename or str(path))} cannot be listed: {error.strerror}") from error
        except OSError as error:
            raise SourceError(unreachable_message(path, error)) from error
        if kind.name == COMPANIONS and by_certainty.get(Certainty.PARTIAL) and not any(options.companions.values()):
            certainty = min(certainty, Certainty.PARTIAL)  # another kind reads more of it
        if certainty is Certainty.CERTAIN:
            if kind.name in PLAIN_KINDS and _names_kind(by_certainty, COMPANIONS):
                from packstore.sources.annotation_questions import companions_error

                raise companions_error(path, kind.name)
            if kind.name == "imagefolder" and not options.splits:
                _refuse_unlikely_classes(path, clips)
            _refuse_few_annotations(path, kind)
            return kind
        by_certainty.setdefault(certainty, []).append(kind)
    if refused is not None:
        raise refused
    if partial := by_certainty.get(Certainty.PARTIAL):
        from packstore.sources.annotation_questions import companions_error, has_sidecars, unread_annotations_error

        formats = [kind for kind in partial if kind.name not in (*PLAIN_KINDS, COMPANIONS)]
        companions = _names_kind(by_certainty, COMPANIONS)
        plain = next((kind for kind in partial if kind.name in PLAIN_KINDS), None)
        plain_name = PLAIN_KINDS[0] if plain is None else plain.name
        if companions and [each.name for each in formats] == [_CAPTION_FILES] and has_sidecars(path):
            raise add_kinds(companions_error(path, plain_name), last=formats)
        if len(formats) == 1 and (left := _find_left_by_kind(path, formats[0], options)):
            raise incomplete_error(path, formats[0], [each[:2] for each in left])
        if formats:
            raise several_kinds_error(path, formats)
        within = find_nested(path, _find_specific_kind)
        if within and not (companions and all(kind.name == COMPANIONS for _, kind in within)):
            raise nested_error(path, within)
        if companions:
            raise companions_error(path, plain_name)
        raise unread_annotations_error(path, partial[0].name)
    store: Kind = SOURCES["store"]  # of a plug-in's format, whose file names no table has
    if store.takes(options) and store.reads(path) and store.recognise(path, options) is Certainty.CERTAIN:
        return store
    possible = by_certainty.get(Certainty.POSSIBLE, [])
    if possible and possible[0].name not in PLAIN_KINDS:
        return possible[0]
    if options.labels is None and (within := find_nested(path, _find_certain_kind)):
        raise nested_error(path, within)
    if isinstance(path, UrlPath) and not (options.named or _holds_images(path)):
        raise NeedsCopyError(f"{printable(str(path))} holds no images and no store")
    if possible:
        if (archive := find_first_archive(path)) is not None:  # with a problem of its own, so it is not in `within`
            raise nested_error(path, [(archive, recognise(archive, options, clips))])
        if path.is_file() and (tree := open_tree(path)) is not None:
            raise archive_without_images_error(path, tree)
        return possible[0]
    if options.columns and path.suffix.lower() not in TABLES:
        raise SourceError(f"{printable(str(path))} has no table that names its images: leave --column out")
    if options.labels is None and any(options.array_names.values()):
        raise SourceError(
            f"{printable(str(path))} is of no kind that has arrays to choose from ({list_array_kinds()}); leave "
            "image_key, label_key and layout out"
        )
    raise unrecognised_error(path)


def _recognise_as(kind: Kind, path: Path, options: SourceOptions) -> Certainty:
    """Asks a kind about a path. A plain kind is not certain of images with annotations that it does not read."""
    certainty = kind.recognise(path, options)
    if certainty is Certainty.CERTAIN and kind.name in PLAIN_KINDS and options.labels is None:
        tree = open_tree(path)
        return Certainty.PARTIAL if tree is not None and find_all_annotations(tree) else certainty
    return certainty


def _names_kind(by_certainty: Mapping[Certainty, Sequence[Kind]], name: str) -> Kind | None:
    """Returns the kind of a name if it matches partially, else None."""
    return next((kind for kind in by_certainty.get(Certainty.PARTIAL, ()) if kind.name == name), None)


def _find_certain_kind(path: Path) -> Kind | None:
    """Returns the first built-in kind that is certain of a path; None if no kind is.

    A kind that finds the path ambiguous counts as certain. Raises :class:`SourceError` for damaged files, and
    :class:`AmbiguousSourceError` for an archive whose names are in an unknown encoding.
    """
    kind: Kind
    if path.is_file():
        try:
            open_tree(path)
        except AmbiguousSourceError:  # it says nothing about the kind
            raise
        except SourceError:
            pass  # reported by the kinds
    for kind in map(SOURCES.__getitem__, filter(PresentNames(path).may_be, SOURCES.built_in)):
        if not kind.reads(path):
            continue
        try:
            certain = _recognise_as(kind, path, SourceOptions()) is Certainty.CERTAIN
            # PyTorch models have a suffix of stores, too: .pt
            if certain and (kind.name != "store" or holds_store(path)):
                return kind
        except AmbiguousSourceError:
            return kind
    return None


def _find_specific_kind(path: Path) -> Kind | None:
    """Returns the certain kind of a path, other than image folders and flat folders; else None."""
    kind = _find_certain_kind(path)
    return None if kind is None or kind.name in PLAIN_KINDS else kind


def _refuse_unlikely_classes(path: Path, clips: bool) -> None:
    """Raises :class:`AmbiguousSourceError` if the folders of an image folder do not seem to be classes.

    - The only folder is a dataset itself.
    - Folders have names like splits.
    - :func:`find_non_classes` finds another reason.
    """
    inside = find_only_folder(path)
    kind = None if inside is None else _find_certain_kind(inside)
    if inside is not None and kind is not None:
        raise nested_error(path, [(inside, kind)], "imagefolder")
    if splits := find_split_like_folders(path):
        why = f"holds folders that seem to be splits, and would be classes ({join_few(splits)})"
        raise no_classes_error(path, why, splits, True, "imagefolder")
    tree = open_tree(path)
    problem = None if tree is None else find_non_classes(list_contents(tree), clips)
    if problem is not None:
        raise no_classes_error(path, *problem, "imagefolder")


def _refuse_few_annotations(path: Path, kind: Kind) -> None:
    """Raises :class:`AmbiguousSourceError` if folders of images may be classes, and fewer than half of the images have
    a file of annotations of ``kind`` beside them."""
    tree = open_tree(path) if kind.sidecar_extensions else None
    if tree is None:
        return
    folders = [folder for folder in list_contents(tree).folders.values() if folder.images.count]
    if (
        any(not folder.path for folder in folders)
        or len({folder.name for folder in folders if not is_split(folder.name)}) < 2
    ):
        return
    suffixes = {f".{extension.rpartition('.')[2]}" for extension in kind.sidecar_extensions}
    count = sum(
        folder.images.count_shared(folder.others[suffix])
        for folder in folders
        for suffix in suffixes & folder.others.keys()
    )
    images = sum(folder.images.count for folder in folders)
    if 0 < 2 * count < images:
        raise few_annotations_error(path, kind, count, images)


def _holds_images(path: UrlPath) -> bool:
    """Tells if an image is anywhere below a URL. Raises :class:`NeedsCopyError` for the URL of one object."""
    tree = open_tree(path)
    return tree is not None and tree.holds_images("", ())


def unreachable_message(path: Path, error: OSError | ValueError) -> str:
    """Returns the message about a path that does not exist or cannot be read."""
    name = printable(str(path))
    if isinstance(error, FileNotFoundError) and isinstance(path, UrlPath):
        return f"{name}: nothing is there: no store, no object of this name, and none below it"
    if isinstance(error, FileNotFoundError) and path.is_symlink():
        return f"{name} is a link to nowhere: {printable(str(path.readlink()))} does not exist"
    return f"{name}: {printable(str(error)) if isinstance(error, ValueError) else error.strerror or error}"

"""Recognises the kind of a source: asks all kinds, and the user if several match."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from packstore.core.errors import AmbiguousSourceError, PackstoreError, SourceError, printable
from packstore.core.registry import SOURCES
from packstore.core.urls import UrlPath
from packstore.sources.annotations import SuspectedAnnotation, find_all_annotations, find_image_companions
from packstore.sources.archives import open_tree
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.companion_patterns import SIDECAR
from packstore.sources.contents import list_contents
from packstore.sources.needs import PresentNames
from packstore.sources.nested import (
    find_first_archive,
    find_nested,
    find_non_classes,
    find_only_folder,
    find_split_like_folders,
)
from packstore.sources.pairing import find_companions
from packstore.sources.questions import (
    COMPANIONS,
    PLAIN_KINDS,
    ask,
    ask_about_annotations,
    ask_about_companions,
    ask_about_folders,
    ask_about_kinds,
    ask_about_nested,
    find_left_by_source,
    join_few,
    short_help,
)
from packstore.sources.refusals import TABLES, NeedsCopyError, archive_without_images_error, unrecognised_error
from packstore.sources.splits import is_split
from packstore.stores.opening import holds_store

_CAPTION_FILES = "caption_files"
"""Kind that reads some files that belong to images, and leaves out others."""


def _find_left_by_kind(path: Path, kind: Kind, options: SourceOptions) -> list[SuspectedAnnotation]:
    """Opens a path as a kind that matches it partially, and surveys it. Returns the annotations that this kind would
    leave out; none if the survey fails."""
    try:
        with closing(kind.open(path, replace(options, named=True))) as source:
            return find_left_by_source(source, source.survey())
    except PackstoreError:
        return []


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
        except OSError as error:
            raise SourceError(f"{printable(str(error.filename or path))} cannot be listed: {error.strerror}") from error
        if kind.name == COMPANIONS and by_certainty.get(Certainty.PARTIAL) and not any(options.companions.values()):
            certainty = min(certainty, Certainty.PARTIAL)  # another kind reads more of it
        if certainty is Certainty.CERTAIN:
            names = [each.name for each in by_certainty.get(Certainty.PARTIAL, ())]
            if kind.name in PLAIN_KINDS and COMPANIONS in names:
                raise ask_about_companions(path, kind)
            if kind.name == "imagefolder" and not options.splits:
                _refuse_unlikely_classes(path, clips)
            _refuse_few_annotations(path, kind)
            return kind
        by_certainty.setdefault(certainty, []).append(kind)
    if refused is not None:
        raise refused
    if partial := by_certainty.get(Certainty.PARTIAL):
        raise _ask_about_partial(path, partial, options)
    store: Kind = SOURCES["store"]  # of a plug-in's format, whose file names no table has
    if store.takes(options) and store.reads(path) and store.recognise(path, options) is Certainty.CERTAIN:
        return store
    possible = by_certainty.get(Certainty.POSSIBLE, [])
    if possible and possible[0].name not in PLAIN_KINDS:
        return possible[0]
    if options.labels is None and (within := find_nested(path, _find_certain_kind)):
        raise ask_about_nested(path, within)
    if isinstance(path, UrlPath) and not (options.named or _holds_images(path)):
        raise NeedsCopyError(f"{printable(str(path))} holds no images and no store")
    if possible:
        if (archive := find_first_archive(path)) is not None:  # with a problem of its own, so it is not in `within`
            raise ask_about_nested(path, [(archive, recognise(archive, options, clips))])
        if path.is_file() and (tree := open_tree(path)) is not None:
            raise archive_without_images_error(path, tree)
        return possible[0]
    if options.given and not (options.columns and path.suffix.lower() in TABLES):
        raise SourceError(f"{printable(str(path))} is of no kind that uses {', '.join(options.given)}: leave it out")
    raise unrecognised_error(path)


def _ask_about_partial(path: Path, partial: Sequence[Kind], options: SourceOptions) -> AmbiguousSourceError:
    """Returns the question about a path that kinds match partially, and none certainly."""
    tree = open_tree(path)
    formats = [kind for kind in partial if kind.name not in (*PLAIN_KINDS, COMPANIONS)]
    plain = next((kind for kind in partial if kind.name in PLAIN_KINDS), SOURCES[PLAIN_KINDS[0]])
    companions = any(kind.name == COMPANIONS for kind in partial)
    has_texts = tree is not None and companions and any(each.option == SIDECAR for each in find_companions(tree))
    if has_texts and [kind.name for kind in formats] == [_CAPTION_FILES]:
        return ask_about_companions(path, plain, *formats)
    if len(formats) == 1 and (left := _find_left_by_kind(path, formats[0], options)):
        return ask_about_annotations(path, formats[0], left)
    if formats:
        return ask_about_kinds(path, formats)
    within = find_nested(path, _find_specific_kind)
    if within and not (companions and all(kind.name == COMPANIONS for _, kind in within)):
        return ask_about_nested(path, within)
    if companions:
        return ask_about_companions(path, plain)
    found = [] if tree is None else find_all_annotations(tree)
    return ask_about_annotations(path, plain, found, tree is not None and bool(find_image_companions(tree)))


def _recognise_as(kind: Kind, path: Path, options: SourceOptions) -> Certainty:
    """Asks a kind about a path. A plain kind is not certain of images with annotations that it does not read."""
    certainty = kind.recognise(path, options)
    if certainty is Certainty.CERTAIN and kind.name in PLAIN_KINDS and options.labels is None:
        tree = open_tree(path)
        return Certainty.PARTIAL if tree is not None and find_all_annotations(tree) else certainty
    return certainty


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
        raise ask_about_nested(path, [(inside, kind)], SOURCES["imagefolder"])
    if splits := find_split_like_folders(path):
        why = f"holds folders that seem to be splits, and would be classes ({join_few(splits)})"
        raise ask_about_folders(path, why, splits, True)
    tree = open_tree(path)
    problem = None if tree is None else find_non_classes(list_contents(tree), clips)
    if problem is not None:
        raise ask_about_folders(path, *problem)


def _refuse_few_annotations(path: Path, kind: Kind) -> None:
    """Raises :class:`AmbiguousSourceError` if folders of images may be classes, and fewer than half of the images have
    a file of annotations of ``kind`` beside them."""
    tree = open_tree(path) if kind.sidecar_extensions else None
    if tree is None:
        return
    folders = [folder for folder in list_contents(tree).folders.values() if folder.images.count]
    classes = {folder.name for folder in folders if not is_split(folder.name)}
    if len(classes) < 2 or any(not folder.path for folder in folders):
        return
    suffixes = {f".{extension.rpartition('.')[2]}" for extension in kind.sidecar_extensions}
    count = sum(
        folder.images.count_shared(folder.others[suffix])
        for folder in folders
        for suffix in suffixes & folder.others.keys()
    )
    images = sum(folder.images.count for folder in folders)
    if 0 < 2 * count < images:
        some = f"beside {count:,} of {images:,} images, and may be folders of classes"
        raise ask(path, f"has annotations ({short_help(kind)}) {some}", kind, SOURCES["imagefolder"])


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

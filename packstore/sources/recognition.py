"""Recognises the kind of a source: asks all kinds, and the user if several match.

Downloads are often a folder deeper, or in an archive: datasets nested in a folder are found, too.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
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
from packstore.sources.contents import Contents, list_contents, path_and_parents, stem_of
from packstore.sources.folder_names import Names
from packstore.sources.ignoring import is_ignored
from packstore.sources.listing import is_image_name, is_passed_over
from packstore.sources.needs import PresentNames
from packstore.sources.pairing import find_companions
from packstore.sources.questions import (
    COMPANIONS,
    PLAIN_KINDS,
    ask,
    ask_about_annotations,
    ask_about_companions,
    ask_about_folders,
    ask_about_nested,
    find_left_by_source,
    join_few,
    short_help,
)
from packstore.sources.refusals import TABLES, NeedsCopyError, archive_without_images_error, unrecognised_error
from packstore.sources.splits import SPLIT_ORDER, find_split, find_split_folders, is_split
from packstore.stores.opening import holds_store

# Kind that reads some files that belong to images, and leaves out others.
_CAPTION_FILES = "caption_files"
_TRIED, _DEPTH, _SHOWN, _SITTINGS = 16, 3, 4, 3
_MOST_LOOSE = 3
_COUNTED = re.compile(r"\d+")
_NO_CLASS = re.compile(
    r"images?(_\d+)?|imgs?(_\d+)?|jpegimages|photos?|pictures?|frames?|rgb|nir|swir|depths?|thermal|infrared|sketch(es)?|"
    r"masks?|labels?|annotations?|targets?|instances?|semantic(_rgb)?|segmentations?|gt(_.*)?|ground_?truth|"
    r"(\d\w\w_)?manual|before|after|pre|post|inputs?|outputs?|query|queries|gallery|multi-?query|"
    rf"(images|labels)(tr|ts|va)|(.*[_-])?({'|'.join(SPLIT_ORDER)})([_-]?(\d+|images?|imgs?|data|set|gt))*"
)
_ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2", ".tar.zst")
_OF_IMAGES = {"images", "image", "imgs", "img", "jpegimages"}
_LIKE_SPLIT = re.compile(
    rf"({'|'.join(SPLIT_ORDER)}|unlabell?ed)([_-]?(\d+|images?|imgs?|data|set|[ab]))*|folds?[_-]?\d+"
)


def _find_left_by_kind(path: Path, kind: Kind, options: SourceOptions) -> list[SuspectedAnnotation]:
    """Returns the annotations that a kind, which matches the path partially, would leave out."""
    try:
        with closing(kind.open(path, replace(options, named=True))) as source:
            return find_left_by_source(source, source.survey())
    except PackstoreError:
        return []  # it cannot be opened or surveyed


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
    if options.labels is None and (within := _find_nested(path, _find_certain_kind)):
        raise ask_about_nested(path, within)
    if isinstance(path, UrlPath) and not (options.named or _holds_images(path)):
        raise NeedsCopyError(f"{printable(str(path))} holds no images and no store")
    if possible:
        if (archive := _find_first_archive(path)) is not None:  # with a problem of its own, so it is not in `within`
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
        return ask(path, f"could be {' or '.join(map(short_help, formats))}", *formats)
    within = _find_nested(path, _find_specific_kind)
    if within and not (companions and all(kind.name == COMPANIONS for _, kind in within)):
        return ask_about_nested(path, within)
    if companions:
        return ask_about_companions(path, plain)
    found = [] if tree is None else find_all_annotations(tree)
    return ask_about_annotations(path, plain, found, tree is not None and bool(find_image_companions(tree)))


def _recognise_as(kind: Kind, path: Path, options: SourceOptions) -> Certainty:
    """Asks a kind about a path; plain kinds are not certain if there are annotations."""
    certainty = kind.recognise(path, options)
    if certainty is Certainty.CERTAIN and kind.name in PLAIN_KINDS and options.labels is None:
        tree = open_tree(path)
        return Certainty.PARTIAL if tree is not None and find_all_annotations(tree) else certainty
    return certainty


def _find_certain_kind(path: Path) -> Kind | None:
    """Returns the first built-in kind that is certain of a path; None if no kind is."""
    kind: Kind
    if path.is_file():
        try:
            open_tree(path)
        except AmbiguousSourceError:  # names in an unknown encoding say nothing about the kind
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
    """Raises :class:`AmbiguousSourceError` if the folders of an image folder do not seem to be classes."""
    inside = _find_only_folder(path)
    kind = None if inside is None else _find_certain_kind(inside)
    # The only folder is a dataset itself.
    if inside is not None and kind is not None:
        raise ask_about_nested(path, [(inside, kind)], SOURCES["imagefolder"])
    if splits := _find_split_like_folders(path):
        why = f"holds folders that seem to be splits, and would be classes ({join_few(splits)})"
        raise ask_about_folders(path, why, splits, True)
    tree = open_tree(path)
    problem = None if tree is None else _find_non_classes(list_contents(tree), clips)
    if problem is not None:
        raise ask_about_folders(path, *problem)


def _refuse_few_annotations(path: Path, kind: Kind) -> None:
    """Raises :class:`AmbiguousSourceError` if folders may be classes, and under half of their images have a ``kind``
    file.
    """
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
    """Tells if an image is anywhere below a URL."""
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


def _find_nested(path: Path, certain: Callable[[Path], Kind | None]) -> list[tuple[Path, Kind]]:
    """Finds datasets nested in a folder, with their kinds; ``certain`` returns the kind of a path, or None."""
    datasets = []
    tried: Counter[str] = Counter()
    for place in _list_visible(path):
        tried[place.suffix] += 1
        # A folder may have millions of files, so the first few of each suffix are tried.
        if tried[place.suffix] <= _TRIED:
            datasets += _find_only(place, certain, _DEPTH)
    return datasets


def _find_only(place: Path, certain: Callable[[Path], Kind | None], depth: int) -> list[tuple[Path, Kind]]:
    """Returns a path with its kind, else the only dataset among the paths in it, else ``[]``.

    Follows only chains of single paths further down, ``depth`` of them.
    """
    try:
        kind = certain(place)
    except PackstoreError:
        return []
    if kind is not None:
        return [(place, kind)]
    inside = _list_visible(place)
    further = inside if len(inside) == 1 else [each for each in inside if each.is_dir()]
    if not depth or len(further) > _SHOWN:
        return []
    # Only a chain of single paths is followed further down.
    below = depth - 1 if len(inside) == 1 else 0
    datasets = [dataset for each in further for dataset in _find_only(each, certain, below)]
    return datasets if len(datasets) == 1 else []


def _find_first_archive(path: Path) -> Path | None:
    """Returns the first archive in a folder that holds nothing but archives; None for any other path."""
    places = [] if isinstance(path, UrlPath) or not path.is_dir() else _list_visible(path)
    if not places or not all(place.is_file() and place.name.lower().endswith(_ARCHIVES) for place in places):
        return None
    return places[0] if open_tree(places[0]) is not None else None


def _find_only_folder(path: Path) -> Path | None:
    """Returns the only folder in a folder, if both only have folders in them; else None."""
    tree = open_tree(path) if path.is_dir() else None
    top = Names() if tree is None else tree.names("")
    folders = [name for name in top.folders if not is_passed_over(name)]
    if tree is None or len(folders) != 1 or is_split(folders[0]):
        return None
    inside = tree.names(folders[0])
    # Images directly in one of the two are a dataset of their own.
    bare = all(is_image_name(name) is not True for names in (top, inside) for name in names.files)
    return path / folders[0] if bare and not all(map(is_passed_over, inside.folders)) else None


def _find_split_like_folders(path: Path) -> list[str]:
    """Returns all folders in a folder or archive if their names resemble splits, such as ``train_A`` or ``fold_1``."""
    tree = open_tree(path)
    folders = [] if tree is None else tree.names("").folders
    names = [name for name in folders if not is_passed_over(name)]
    alike = all(_LIKE_SPLIT.fullmatch(name.lower()) for name in names)
    if not alike and names and all(map(find_split, names)):
        # Some differ by a split alone: ``a_train_x``, ``a_train_y`` and ``a_valid_x``.
        alike = len({name.lower().replace(find_split(name), "") for name in names}) < len(names)
    # If all are splits, nothing is unclear.
    if alike and len(find_split_folders(names)) < len(names):
        return names
    return []


def _find_non_classes(contents: Contents, clips: bool) -> tuple[str, list[str], bool] | None:
    """Returns why folders do not seem to be classes, which to use instead, and whether those may be splits; None for
    classes.
    """
    holding = {
        place for path, each in contents.folders.items() if each.images.count for place in path_and_parents(path)
    }
    tops = [name for name in contents.folders[""].folders if name in holding]
    found = find_split_folders(tops, lambda name: contents.folders[name].folders)
    splits = bool(tops) and len(found) == len(tops)
    bases = tops if splits else [""]
    classes = [f"{base}/{name}" if base else name for base in bases for name in contents.folders[base].folders]
    classes = [path for path in classes if path in holding]
    if splits and classes == [f"{base}/{base}" for base in bases]:
        classes = [f"{path}/{name}" for path in classes for name in contents.folders[path].folders]
    names = {path.rpartition("/")[2].lower() for path in classes}
    if not names:
        return None
    top = contents.folders[""].images
    loose = len(top.stems)
    if loose and len(names) > 1:
        # Copies of images in classes are left out without a question.
        loose -= top.count_shared(contents.hash_image_stems(each for each in contents.folders.values() if each.path))
    if loose > max(_MOST_LOOSE, (contents.image_count - top.count) // 4):
        return f"holds {loose:,} images beside its folders, which would be left out", classes, False
    # Names of splits, masks or kinds of images: ``query``, ``image_2``, ``depth``.
    if all(map(_NO_CLASS.fullmatch, names)) and not (splits and len(names) == 1):
        same = set.intersection(*(set(contents.folders[path].folders) for path in classes))
        may_be_splits = all(map(find_split, names)) or (any(map(find_split, names)) and bool(same))
        return "holds folders whose names are not those of classes", classes, not splits and may_be_splits
    if len(names) > 1 and names & _OF_IMAGES:
        return "holds a folder called images, and others that are then not classes", classes, False
    for path in classes:
        images = contents.folders[path].images
        stems = {stem_of(name).lower() for name in images.first} if 1 < images.count <= len(names) else set()
        # Such a folder has an icon of each class.
        if stems and images.count == len(stems) and stems < names and not any(map(_COUNTED.search, stems)):
            return f"holds a folder with an image of each of the others ({join_few([path])})", [path], False
    below = {path: [n for n in contents.folders[path].folders if f"{path}/{n}" in holding] for path in classes}
    repeating = _find_repeated_names(holding, classes)
    flat = [path for path in classes if contents.folders[path].images.count and not below[path]]

    def is_hollow(path: str) -> bool:
        """Tells if a folder has only folders of images, other than sittings of one class: ``left/1``, ``left/2``."""
        names = below[path]
        if contents.folders[path].images.count or (len(names) < 2 and path not in repeating):
            return False
        counted = len({_COUNTED.sub("#", name) for name in names}) == 1 and "0" not in names
        return path in repeating or not flat or not counted or len(names) > max(_SITTINGS, len(flat))

    hollow = [path for path in classes if is_hollow(path)]
    # Classes do not lie at two depths.
    if 0 < len(hollow) <= len(flat):
        return f"holds folders of images, and folders of such folders ({join_few(hollow)})", hollow, False
    # The upper folders are domains or cameras. Folders inside that are clips may be numbered alike in each class.
    if len(hollow) > 1 and len(hollow) == len(classes) and not found and not clips:
        shared = set.intersection(*({name.lower() for name in below[path]} for path in hollow))
        if len(shared) > 1 and 2 * len(shared) >= max(len(below[path]) for path in hollow):
            return (
                f"holds several folders with the same folders of images in each ({join_few(sorted(shared))})",
                hollow,
                True,
            )
    return None


def _find_repeated_names(folders: Iterable[str], classes: Collection[str]) -> set[str]:
    """Returns the folders of ``classes`` that contain, at any depth, two or more folders with names of classes."""
    names = {path.rpartition("/")[2].lower() for path in classes}
    inside: dict[str, set[str]] = {path: set() for path in classes}
    for path in folders:
        name = path.rpartition("/")[2].lower()
        for parent in path_and_parents(path) if name in names else ():
            if parent in inside and parent != path:
                inside[parent].add(name)
    return {path for path, found in inside.items() if len(found) > 1}


def _list_visible(path: Path) -> list[Path]:
    """Lists a folder, sorted, without hidden and ignored entries; empty if it cannot be listed."""
    try:
        names = [place.name for place in path.iterdir()] if isinstance(path, UrlPath) else os.listdir(path)
    except OSError:
        return []
    return [path / name for name in sorted(names) if not is_passed_over(name) and not is_ignored(path / name)]

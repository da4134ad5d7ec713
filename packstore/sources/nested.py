"""Finds data sets nested in a folder: downloads are often a folder deeper, or in an archive."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from packstore.core.errors import PackstoreError
from packstore.core.urls import UrlPath
from packstore.sources.archives import open_tree
from packstore.sources.base import Kind
from packstore.sources.contents import Contents, path_and_parents, stem_of
from packstore.sources.folder_names import Names
from packstore.sources.ignoring import is_ignored
from packstore.sources.listing import is_image_name, is_passed_over
from packstore.sources.questions import join_few
from packstore.sources.splits import SPLIT_ORDER, find_split, find_split_folders, is_split

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


def find_nested(path: Path, certain: Callable[[Path], Kind | None]) -> list[tuple[Path, Kind]]:
    """Finds datasets nested in a folder, with their kinds. ``certain`` returns the kind of a path, or None.

    Finds each path in the folder that has a kind. For any other path, looks three levels deeper for the only folder
    that has a kind. Tests only the first 16 paths of each suffix. Skips paths for which ``certain`` raises
    :class:`PackstoreError`.
    """
    datasets = []
    tried: Counter[str] = Counter()
    for place in _list_visible(path):
        tried[place.suffix] += 1
        if tried[place.suffix] <= _TRIED:
            datasets += _find_only(place, certain, _DEPTH)
    return datasets


def _find_only(place: Path, certain: Callable[[Path], Kind | None], depth: int) -> list[tuple[Path, Kind]]:
    """Returns a path with its kind. If it has none, returns the only dataset among the paths in it, at most four, which
    may be deeper while there is one path alone."""
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
    below = depth - 1 if len(inside) == 1 else 0
    datasets = [dataset for each in further for dataset in _find_only(each, certain, below)]
    return datasets if len(datasets) == 1 else []


def find_first_archive(path: Path) -> Path | None:
    """Returns the first archive in a folder that holds nothing but archives; None for any other path. Raises
    :class:`SourceError` if that archive cannot be read."""
    places = [] if isinstance(path, UrlPath) or not path.is_dir() else _list_visible(path)
    if not places or not all(place.is_file() and place.name.lower().endswith(_ARCHIVES) for place in places):
        return None
    return places[0] if open_tree(places[0]) is not None else None


def find_only_folder(path: Path) -> Path | None:
    """Returns the only folder in a folder. Returns None if there are others, or if it has the name of a split or
    contains no folders. Also returns None if images are directly in one of the two."""
    tree = open_tree(path) if path.is_dir() else None
    top = Names() if tree is None else tree.names("")
    folders = [name for name in top.folders if not is_passed_over(name)]
    if tree is None or len(folders) != 1 or is_split(folders[0]):
        return None
    inside = tree.names(folders[0])
    bare = all(is_image_name(name) is not True for names in (top, inside) for name in names.files)
    return path / folders[0] if bare and not all(map(is_passed_over, inside.folders)) else None


def find_split_like_folders(path: Path) -> list[str]:
    """Returns all folders in a folder or archive if their names are like those of splits, or some differ by a split
    alone: ``train_A``, ``test_B`` and ``fold_1``, or ``a_train_x``, ``a_train_y`` and ``a_valid_x``. Returns an
    empty list for other names, and if all are splits."""
    tree = open_tree(path)
    folders = [] if tree is None else tree.names("").folders
    names = [name for name in folders if not is_passed_over(name)]
    alike = all(_LIKE_SPLIT.fullmatch(name.lower()) for name in names)
    if not alike and names and all(map(find_split, names)):
        alike = len({name.lower().replace(find_split(name), "") for name in names}) < len(names)
    if alike and len(find_split_folders(names)) < len(names):
        return names
    return []


def find_non_classes(contents: Contents, clips: bool) -> tuple[str, list[str], bool] | None:
    """Returns the reason why folders of images do not seem to be classes. Also returns the folders to use instead, and
    whether these may be splits. Returns None if they seem to be classes.

    The reasons are:

    - More than a few images are beside them, with other names, and would be left out.
    - All have names of splits, masks or kinds of images (``query``, ``image_2``, ``depth``).
    - A folder is called ``images``, and there are others.
    - The images in one folder are called as other folders: an icon of each class.
    - Some contain images, and some contain only folders of images, or folders called as classes further down.
    - All contain only folders, with equal names in each (domains, cameras). With ``clips`` this is no reason: the
      folders inside are clips, and classes may number theirs alike.
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
    if all(map(_NO_CLASS.fullmatch, names)) and not (splits and len(names) == 1):
        same = set.intersection(*(set(contents.folders[path].folders) for path in classes))
        may_be_splits = all(map(find_split, names)) or (any(map(find_split, names)) and bool(same))
        return "holds folders whose names are not those of classes", classes, not splits and may_be_splits
    if len(names) > 1 and names & _OF_IMAGES:
        return "holds a folder called images, and others that are then not classes", classes, False
    for path in classes:
        images = contents.folders[path].images
        stems = {stem_of(name).lower() for name in images.first} if 1 < images.count <= len(names) else set()
        if stems and images.count == len(stems) and stems < names and not any(map(_COUNTED.search, stems)):
            return f"holds a folder with an image of each of the others ({join_few([path])})", [path], False
    below = {path: [n for n in contents.folders[path].folders if f"{path}/{n}" in holding] for path in classes}
    repeating = find_repeated_names(holding, classes)
    flat = [path for path in classes if contents.folders[path].images.count and not below[path]]

    def is_hollow(path: str) -> bool:
        """Tells if a folder has only folders of images, other than sittings of one class: ``left/1``, ``left/2``."""
        names = below[path]
        if contents.folders[path].images.count or (len(names) < 2 and path not in repeating):
            return False
        counted = len({_COUNTED.sub("#", name) for name in names}) == 1 and "0" not in names
        return path in repeating or not flat or not counted or len(names) > max(_SITTINGS, len(flat))

    hollow = [path for path in classes if is_hollow(path)]
    if 0 < len(hollow) <= len(flat):
        return f"holds folders of images, and folders of such folders ({join_few(hollow)})", hollow, False
    if len(hollow) > 1 and len(hollow) == len(classes) and not found and not clips:
        shared = set.intersection(*({name.lower() for name in below[path]} for path in hollow))
        if len(shared) > 1 and 2 * len(shared) >= max(len(below[path]) for path in hollow):
            return (
                f"holds several folders with the same folders of images in each ({join_few(sorted(shared))})",
                hollow,
                True,
            )
    return None


def find_repeated_names(folders: Iterable[str], classes: Collection[str]) -> set[str]:
    """Finds those of the folders of ``classes`` in which two folders or more, at any depth, are called as classes.
    ``folders`` are all folders."""
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

"""Finds the folder of each image of a list whose images are in several folders, or asks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

from packstore.core.errors import AmbiguousSourceError, Answer, printable
from packstore.sources.beside import join
from packstore.sources.ignoring import ignore_paths
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.rows import in_packing_order
from packstore.sources.splits import find_split_in_path, find_splits_of_folders
from packstore.sources.tree import Tree

_WORDS = re.compile(r"[/_. -]+")
# Words in the names of folders whose files may have names of images but are not images.
_NO_IMAGES = frozenset({"mask", "masks", "label", "labels", "annotations", "gt", "segmentation"})
_SHOWN = 4
# Usual folders of images.
_USUAL = (
    *("images", "image", "data", "img", "imgs", "JPEGImages", "Images", "obj_train_data", "upload", "media"),
    *("images/100k", ""),
)


def list_usual_folders(tree: Tree, file: str, splits: Collection[str]) -> list[str]:
    """Lists the usual folders of the images of a list, beside the file and one level above, also those named like
    ``splits``. These folders need not exist.
    """
    beside = file.rpartition("/")[0]
    bases = [*dict.fromkeys((beside, beside.rpartition("/")[0]))]
    pattern = re.compile(rf"({'|'.join(map(re.escape, splits))})([_-]?(\d+|images?|imgs?))?", re.I)
    known = (name for base in bases for place in ("", "images") for name in tree.names(join(base, place)).folders)
    names = dict.fromkeys((*splits, *(filter(pattern.fullmatch, known) if splits else ())))
    named = [place for name in names for place in (f"{name}/images", *(join(usual, name) for usual in _USUAL))]
    return [join(base, place).rstrip("/") for places in (named, _USUAL) for base in bases for place in places]


def find_image_places(
    tree: Tree, names: Sequence[str], lister: str, folder: str | None, splits: Collection[str] = ()
) -> list[str] | None:
    """Finds the folder of each image that a list names; None if no folder has any.

    Takes ``folder``, the likely one, if it has all images, else a group of folders that has all; else ``folder``, which
    may lack some. The other arguments are those of :func:`find_spread`. Raises :class:`AmbiguousSourceError` without a
    ``folder`` if several groups have all images.
    """
    likely = None if folder is None else [folder] * len(names)
    if likely and all(find_present(tree, [join(likely[0], name) for name in names])):
        return likely
    try:
        return find_spread(tree, names, lister, splits) or likely
    except AmbiguousSourceError:
        if likely is None:
            raise
        return likely


def find_present(tree: Tree, paths: Iterable[str]) -> list[bool]:
    """Tells for each of ``paths`` if it is a file. Lists each folder once."""
    parts = [path.rpartition("/") for path in paths]
    there = {folder: frozenset(tree.names(folder).files) for folder in {folder for folder, _, _ in parts}}
    return [name in there[folder] for folder, _, name in parts]


def find_spread(
    tree: Tree,
    names: Sequence[str],
    lister: str,
    splits: Collection[str] = (),
    *,
    stems: bool = False,
    within: Collection[str] | None = None,
) -> list[str] | None:
    """Finds the folder of each of ``names``, if a group of folders has each name exactly once.

    A group of folders is one of these, without folders with names of masks or labels:

    - one folder;
    - all folders in one folder;
    - all folders.

    Args:
        tree: The source.
        names: Distinct paths of images.
        lister: File that names them, for messages.
        splits: If any, folders with the name of another split are skipped.
        stems: The names have no suffixes.
        within: The only possible folders; None for all.

    Returns:
        Folders in the order of ``names``; None if no group of folders has them all.

    Raises:
        AmbiguousSourceError: Several groups have all names. Its answers leave out all but one.
    """
    hits = _list_names_by_folder(tree, names, splits, stems)
    hits = {folder: some for folder, some in hits.items() if within is None or folder in within}
    group = _choose_group(tree, lister, _group_folders(hits, names))
    folders = {name: folder for folder, some in group.items() for name in some}
    return [folders[name] for name in names] if folders else None


def find_scattered(tree: Tree, names: Iterable[str], lister: str) -> dict[str, str]:
    """Finds the folder of each of ``names`` as :func:`find_spread`, or of those that are in one folder alone. Leaves
    out names in no folder. Raises :class:`AmbiguousSourceError` if most are in several."""
    hits = _list_names_by_folder(tree, names, (), False)
    counts = Counter(name for some in hits.values() for name in some)
    groups = _group_folders(hits, [*counts])
    if not groups and 2 * sum(count > 1 for count in counts.values()) > len(counts):
        groups = [{folder: some} for folder, some in hits.items()]
    group = _choose_group(tree, lister, groups)
    pairs = [(name, folder) for folder, some in (group or hits).items() for name in some]
    return {name: folder for name, folder in pairs if group or counts[name] == 1}


def _choose_group(
    tree: Tree, lister: str, groups: Sequence[Mapping[str, Sequence[str]]]
) -> Mapping[str, Sequence[str]]:
    """Returns the only group of folders that has all images; empty for none."""
    if len(groups) < 2:
        return groups[0] if groups else {}
    every = {folder for group in groups for folder in group}
    answers = []
    for group in groups:
        others = sorted(every.difference(group))
        if all(other and not f"{folder}/".startswith(f"{other}/") for other in others for folder in group):
            answers.append(Answer(ignore_paths(others)))
    places = ", and in ".join(", ".join(printable(each) or "the top folder" for each in [*g][:_SHOWN]) for g in groups)
    raise AmbiguousSourceError(
        f"{tree.name()}: the images that {printable(lister)} names are in {places}: leave all but one out with "
        "--ignore",
        answers,
    )


def places_by_split(places: Iterable[str]) -> dict[str, list[str]]:
    """Groups folders by the split in their path, in packing order. Unless each path names one split, the only group is
    ``""``."""
    folders = sorted(set(places))
    splits = find_splits_of_folders(folders)
    groups: dict[str, list[str]] = {}
    for folder in folders:
        groups.setdefault(splits.get(folder, ""), []).append(folder)
    return {split: groups[split] for split in in_packing_order(groups)}


def _list_names_by_folder(
    tree: Tree, names: Iterable[str], splits: Collection[str], stems: bool
) -> dict[str, list[str]]:
    """Returns which of ``names`` exist in each folder; with ``stems``, they lack the suffixes of their images."""
    wanted: dict[str, list[str]] = {}
    for path in names:
        wanted.setdefault(path.rpartition("/")[0], []).append(path)
    by_folder: dict[str, list[str]] = {}
    for folder, listed in tree.folders(is_passed_over):
        there: frozenset[str] | None = None
        for within, paths in wanted.items():
            if within and folder != within and not folder.endswith(f"/{within}"):
                continue
            # Names may begin with folders.
            base = folder.removesuffix(within).rstrip("/")
            others = {*base.lower().split("/"), *_WORDS.split(base.rpartition("/")[2].lower())} & _NO_IMAGES
            # Masks and images of other splits have the same names.
            if others or (splits and find_split_in_path(base) not in ("", *splits)):
                continue
            if there is None:
                images = listed.ending(*IMAGE_SUFFIXES) if stems else ()
                there = frozenset(name.rpartition(".")[0] for name in images) if stems else frozenset(listed.files)
            if hits := [path for path in paths if path.rpartition("/")[2] in there]:
                by_folder.setdefault(base, []).extend(hits)
    return by_folder


def _group_folders(hits: Mapping[str, list[str]], names: Sequence[str]) -> list[dict[str, list[str]]]:
    """Returns the groups of folders, as in :func:`find_spread`, in which each of ``names`` occurs exactly once."""
    families = {folder: (("is", folder), ("in", folder.rpartition("/")[0]), ("in", "*")) for folder in sorted(hits)}
    groups: dict[frozenset[str], dict[str, list[str]]] = {}
    for family in dict.fromkeys(chain.from_iterable(families.values())):
        group = {folder: hits[folder] for folder, own in families.items() if family in own}
        together = [name for some in group.values() for name in some]
        if len(together) == len(names) == len(set(together)):
            groups.setdefault(frozenset(group), group)
    return [*groups.values()]

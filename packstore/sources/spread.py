"""Finds the folder of each image of a list whose images are in several folders, or asks."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from packstore.core.errors import AmbiguousSourceError, Answer, printable
from packstore.sources.beside import join
from packstore.sources.ignoring import ignore_paths
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.rows import in_packing_order
from packstore.sources.splits import find_split, find_split_in_path, find_splits_of_folders
from packstore.sources.tree import Tree

_WORDS = re.compile(r"[/_. -]+")
_NO_IMAGES = frozenset({"mask", "masks", "label", "labels", "annotations", "gt", "segmentation"})
"""Words in the names of folders whose files may have names of images but are not images."""
_SHOWN = 4


def find_image_places(
    tree: Tree, names: Sequence[str], lister: str, folder: str | None, splits: Collection[str] = ()
) -> str | list[str] | None:
    """Finds the images that a list names: returns their folder, or the folder of each. None if no folder has any.

    Takes ``folder``, the likely one, if it has all images, else a group of folders that has all; else ``folder``, which
    may lack some. The other arguments are those of :func:`find_spread`. Raises :class:`AmbiguousSourceError` without a
    ``folder`` if several groups have all images.
    """
    if folder is not None and _has_all_images(tree, folder, names):
        return folder
    try:
        return find_spread(tree, names, lister, splits) or folder
    except AmbiguousSourceError:
        if folder is None:
            raise
        return folder


def _has_all_images(tree: Tree, folder: str, names: Sequence[str]) -> bool:
    """Tells if ``folder`` has all images ``names``; False for no names."""
    there: dict[str, frozenset[str]] = {}
    for path in names:
        within, _, name = path.rpartition("/")
        place = join(folder, within) if within else folder
        if place not in there:
            there[place] = frozenset(tree.names(place).files)
        if name not in there[place]:
            return False
    return bool(names)


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
    - all folders whose names differ only in the split: ``train_images``, ``val_images``;
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
    groups = _group_folders(
        {folder: some for folder, some in hits.items() if within is None or folder in within}, names
    )
    if len(groups) > 1:
        every = {folder for group in groups for folder in group}
        answers = [(group, every.difference(group)) for group in groups]
        places = ", and in ".join(
            ", ".join(printable(each) or "the top folder" for each in [*g][:_SHOWN]) for g in groups
        )
        raise AmbiguousSourceError(
            f"{tree.name()}: the images that {printable(lister)} names are in {places}: leave all but one out with "
            "--ignore",
            [Answer(ignore_paths(sorted(others))) for group, others in answers if not _would_hide(others, group)],
        )
    if not groups:
        return None
    folders = {name: folder for folder, some in groups[0].items() for name in some}
    return [folders[name] for name in names]


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
    """Returns which of ``names`` exist in each folder, by folder. Names may begin with folders within that folder.

    Skips folders of masks, and of other splits than ``splits``. ``stems``: ``names`` lack the suffixes of their images.
    """
    wanted: dict[str, list[str]] = {}
    for path in names:
        wanted.setdefault(path.rpartition("/")[0], []).append(path)
    by_folder: dict[str, list[str]] = {}
    for folder, listed in tree.folders(is_passed_over):
        there: frozenset[str] | None = None
        for within, paths in wanted.items():
            if within and folder != within and not folder.endswith(f"/{within}"):
                continue
            base = folder.removesuffix(within).rstrip("/")
            others = {*base.lower().split("/"), *_WORDS.split(base.rpartition("/")[2].lower())} & _NO_IMAGES
            if others or (splits and find_split_in_path(base) not in ("", *splits)):
                continue
            if there is None:
                images = listed.ending(*IMAGE_SUFFIXES) if stems else ()
                there = frozenset(name.rpartition(".")[0] for name in images) if stems else frozenset(listed.files)
            if hits := [path for path in paths if path.rpartition("/")[2] in there]:
                by_folder.setdefault(base, []).extend(hits)
    return by_folder


def _group_folders(hits: Mapping[str, list[str]], names: Sequence[str]) -> list[dict[str, list[str]]]:
    """Returns the groups of folders in which each of ``names`` occurs exactly once. Groups are those of
    :func:`find_spread`; equal groups are returned once."""
    groups: dict[frozenset[str], dict[str, list[str]]] = {}
    for family in dict.fromkeys(family for folder in hits for family in _list_group_keys(folder)):
        group = {folder: some for folder, some in sorted(hits.items()) if family in _list_group_keys(folder)}
        together = [name for some in group.values() for name in some]
        if len(together) == len(names) and len(set(together)) == len(names):
            groups.setdefault(frozenset(group), group)
    return [*groups.values()]


def _list_group_keys(folder: str) -> Iterator[tuple[str, str]]:
    """Yields a key for each group of folders that contains a folder, see :func:`find_spread`. The key of folders that
    differ in the split is left out for a folder without a split."""
    yield "is", folder
    yield "in", folder.rpartition("/")[0]
    if find_split_in_path(folder):
        yield "splits", "/".join(_drop_split(part) for part in folder.split("/"))
    yield "in", "*"


def _drop_split(name: str) -> str:
    """Removes the word of the split from the name of a folder."""
    split = find_split(name)
    return name.lower().replace(split, "", 1) if split else name


def _would_hide(ignored: Iterable[str], group: Iterable[str]) -> bool:
    """Tells if ignoring some folders hides a folder of a group."""
    return any(not each or f"{folder}/".startswith(f"{each}/") for each in ignored for folder in group)

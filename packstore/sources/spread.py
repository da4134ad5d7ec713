"""Finds the folder of each image of a list whose images are in several folders, or asks."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from packstore.core.errors import AmbiguousSourceError, Answer, printable
from packstore.sources.base import SPLIT_ORDER
from packstore.sources.ignoring import ignore_paths
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.rows import in_packing_order
from packstore.sources.tree import Tree

_YEAR = re.compile(r"(19|20)\d\d$")
_WORDS = re.compile(r"[/_. -]+")
_SPLIT = re.compile("|".join(sorted(SPLIT_ORDER, key=len, reverse=True)))
_NO_IMAGES = frozenset({"mask", "masks", "label", "labels", "annotations", "gt", "segmentation"})
"""Words in the names of folders whose files may have names of images but are not images."""
_SHOWN = 4


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
    splits = [split_of_folder(folder) for folder in folders]
    groups: dict[str, list[str]] = {}
    for folder, split in zip(folders, splits, strict=True):
        groups.setdefault(split if all(splits) else "", []).append(folder)
    return {split: groups[split] for split in in_packing_order(groups)}


@lru_cache
def split_of_folder(folder: str) -> str:
    """Returns the only split in the words of a folder's path. Returns ``""`` for none or several. ``train2017`` is
    ``train``, and ``test-dev`` is ``test``."""
    splits = {word for each in _folder_words(folder) if (word := _YEAR.sub("", each)) in SPLIT_ORDER}
    splits -= {"dev"} if "test" in splits else set()  # test-dev
    return splits.pop() if len(splits) == 1 else ""


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
            others = {*base.lower().split("/"), *_folder_words(base.rpartition("/")[2])} & _NO_IMAGES
            if others or (splits and not {word for word in _folder_words(base) if word in SPLIT_ORDER} <= {*splits}):
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
    if split_of_folder(folder):
        yield "splits", _SPLIT.sub("", folder.lower())
    yield "in", "*"


def _folder_words(folder: str) -> list[str]:
    """Splits a path into words in lower case."""
    return _WORDS.split(folder.lower())


def _would_hide(ignored: Iterable[str], group: Iterable[str]) -> bool:
    """Tells if ignoring some folders hides a folder of a group."""
    return any(not each or f"{folder}/".startswith(f"{each}/") for each in ignored for folder in group)

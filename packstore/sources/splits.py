"""Distinguishes splits from classes, by names and contents of the top folders."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from packstore.core.errors import printable
from packstore.sources.base import SPLIT_ORDER
from packstore.sources.listing import Identity
from packstore.sources.tree import Tree

_NAMED = 5


@dataclass(frozen=True, slots=True)
class SplitFolders:
    """Top folders of an image folder with splits; each tuple is sorted.

    Attributes:
        splits: Folders that are splits.
        others: Other folders with images, which may be splits or classes.
        empty: Folders without images: annotations, tools, text.
    """

    splits: tuple[str, ...]
    others: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()

    def describe_others(self, root: str) -> str:
        """Returns the error text about :attr:`others`, with advice; ``root`` is the printable path of the folder."""
        one = self.splits[0].lower()
        return (
            f"{root} holds splits ({_join_names(self.splits)}) and beside them other folders with images "
            f"({_join_names(self.others)}): pack one split alone with --split {one}, take all of these folders as "
            "classes with --source imagefolder, or move the other folders out"
        )


def find_splits(tree: Tree, directories: Collection[str], above: tuple[Identity, ...]) -> SplitFolders | None:
    """Finds the splits among the top ``directories`` of ``tree``; None if all are classes.

    If all top folders have names of splits, they are splits. If there are others, one folder with the name of a split
    must contain folders of images. Without such a folder, all are classes: a class named ``train`` contains its images
    directly. ``above`` identifies the root of ``tree`` and the directories above it.
    """
    names = sorted(directories)
    splits = tuple(name for name in names if name.lower() in SPLIT_ORDER)
    unknown = [name for name in names if name not in splits]
    if not splits or (unknown and not any(_contains_classes(tree, name, above) for name in splits)):
        return None
    others = tuple(name for name in unknown if tree.holds_images(name, above))
    return SplitFolders(splits, others, tuple(name for name in unknown if name not in others))


def _contains_classes(tree: Tree, name: str, above: tuple[Identity, ...]) -> bool:
    """Tells if a top folder contains folders of images."""
    inside = tree.list(name)
    return any(
        tree.holds_images(f"{name}/{folder}", (*above, inside.identity)) for folder in sorted(inside.directories)
    )


def _join_names(names: Sequence[str]) -> str:
    """Joins the first five names for messages."""
    return ", ".join(map(printable, names[:_NAMED])) + (", …" if len(names) > _NAMED else "")

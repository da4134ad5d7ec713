"""Summarises the names of a whole tree in one pass, to recognise layouts and to make ledgers.

A folder's names become counts by suffix and hashes of stems, eight bytes a file, so that folders of any size can be
compared. Nothing depends on the order in which a file system lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.progress import set_within
from packstore.sources.folder_names import Names
from packstore.sources.listing import ARRAY, IMAGE_SUFFIXES, is_passed_over
from packstore.sources.tree import Tree

_FIRST, _COMPARED = 64, 16
_IMAGE_ENDINGS = frozenset(IMAGE_SUFFIXES)
_DIGITS = str.maketrans("123456789", "000000000")
_ZEROS = re.compile("0+")
_SECOND_NUMBER = re.compile(
    r"[A-Za-z]*0{1,2}[ _.+-].*0.*|.*0.*([ _.+-][A-Za-z]*0{1,2}[A-Za-z]?|[ _.+-]0+x0+|x0{1,2})[.]\w+"
)
# Endings of names that say nothing about the image: numbers, copies, versions.
_NO_WORD = re.compile(
    r"[\W_]+|\d+|copy|kopie|final|new|old|small|large|thumb(nail)?|\(\d+\)|v\d+|[a-z]?\d+[a-z]?|[a-z]|\d+x\d+", re.I
)
_CALLED_IMAGES = re.compile(r"images?|imgs?|jpegimages|photos?|pictures?|frames?")
_CLIP = re.compile(r"(clip|video|vid|sequence|seq|scene|shot|take|episode)s?[ _.-]*\d+", re.I)
# Maximum number of folders side by side that are compared without looking at a few of them first.
MOST_SIDE_BY_SIDE = 32
# Maximum number of suffixes per folder, since numbered ones (``.0001``) could fill the memory; further ones count as
# ``""``.
MOST_SUFFIXES = 64


@dataclass(frozen=True, slots=True)
class NameSet:
    """Names of the files of one kind in a folder.

    Attributes:
        count: Number of files.
        stems: int64 ``(M,)``: hashes of their stems, sorted and unique; valid in this process only.
        first: First names in alphabetical order, at most 64.
    """

    count: int
    stems: NDArray[np.int64]
    first: tuple[str, ...]

    @classmethod
    def of_names(cls, names: Sequence[str]) -> NameSet:
        """Makes an instance from names. Callers sort them; the order is not checked."""
        stems = [hash(name.rpartition(".")[0] or name) for name in names]
        return cls(len(names), _sort_unique(np.array(stems, np.int64)), tuple(names[:_FIRST]))

    @classmethod
    def of_suffix(cls, text: str, suffix: str, names: Sequence[str]) -> NameSet:
        """Makes an instance from names that all end in ``suffix``, faster than :meth:`of_names`; ``text`` is
        :attr:`Names.text`.
        """
        stems = text.replace(f"{suffix}\0", "\0")[1:-1].split("\0")
        return cls(len(names), _sort_unique(np.array([*map(hash, stems)], np.int64)), tuple(names[:_FIRST]))

    def count_shared(self, other: NameSet | NDArray[np.int64]) -> int:
        """Counts the stems that both sets have."""
        theirs = other.stems if isinstance(other, NameSet) else other
        return int(np.isin(self.stems, theirs, assume_unique=True, kind="sort").sum())


@dataclass(slots=True)
class FolderContents:
    """Visible files and folders in one folder, as counts and hashes.

    Attributes:
        path: Path in the tree, ``""`` for its root.
        images: Files with the suffix of an image.
        others: All other files, by suffix in lower case; beyond 64 suffixes under ``""``.
        folders: Names of the folders in it, sorted.
        is_uniform: Names of images differ by one number alone.
        hidden: First hidden files, at most 64; they count nowhere else.
    """

    path: str
    images: NameSet
    others: dict[str, NameSet] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    is_uniform: bool = True
    hidden: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Last part of the path, in lower case."""
        return self.path.rpartition("/")[2].lower()

    @property
    def other_names(self) -> Iterator[str]:
        """Names of the other files, suffix by suffix; at most 64 of each suffix."""
        for names in self.others.values():
            yield from names.first


@dataclass(frozen=True, slots=True)
class Contents:
    """Counts and hashes of the names in a tree.

    Attributes:
        folders: All its folders by path, breadth first, without hidden and system folders.
        cache: Results that follow from the tree, for :mod:`.pairing`.
    """

    folders: dict[str, FolderContents]
    cache: dict[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def of_tree(cls, tree: Tree) -> Contents:
        """Lists and summarises all folders of a tree."""
        return cls({path: summarize_folder(path, names) for path, names in tree.folders(is_passed_over)})

    @property
    def image_count(self) -> int:
        """Number of files with the suffix of an image."""
        return sum(folder.images.count for folder in self.folders.values())

    @property
    def may_have_companions(self) -> bool:
        """Tells if names of images and of other files may go together. That is so if a folder of images has names of
        other forms or suffixes, or there are few folders side by side, or folders in folders, or some folders share
        names.
        """
        folders = [each for each in self.folders.values() if each.images.count or each.others]
        if any(each.images.count and (each.others or not each.is_uniform) for each in folders):
            return True
        nested = any("/" in each.path for each in folders)
        if nested or len(folders) <= MOST_SIDE_BY_SIDE:
            return len(folders) > 1
        some = folders[:: max(1, len(folders) // _COMPARED)]
        return any(one.images.count_shared(other.images) > 1 for one, other in pairwise(some))

    def hash_image_stems(self, folders: Iterable[FolderContents] | None = None) -> NDArray[np.int64]:
        """Returns sorted unique hashes of the stems of all images, or of those in some folders."""
        parts = [folder.images.stems for folder in (self.folders.values() if folders is None else folders)]
        return _sort_unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)


def list_contents(tree: Tree) -> Contents:
    """Lists and summarises a tree. Within :func:`cache_contents`, lists trees of the same root only once."""
    known = _known.get()
    if known is None:
        return Contents.of_tree(tree)
    if tree.root not in known:
        known[tree.root] = Contents.of_tree(tree)
    return known[tree.root]


def accept_arrays(tree: Tree) -> Tree:
    """Returns a tree in which ``.npy`` files are images. If the tree has images, or no such files, returns the tree
    itself; else a copy."""
    # Beside images, such files contain masks, depth or features.
    if tree.has_arrays or tree.holds_images("", tree.above):
        return tree
    if not any(ARRAY in folder.others for folder in list_contents(tree).folders.values()):
        return tree
    array_tree = copy(tree)
    array_tree.has_arrays = True
    return array_tree


def find_lone_image_folder(tree: Tree) -> str | None:
    """Finds the only folder with images in a tree. Returns None unless it is at the top, and has a generic name
    (``images``)."""
    if not any(map(_CALLED_IMAGES.fullmatch, map(str.lower, tree.names("").folders))):
        return None
    holding = [path for path, each in list_contents(tree).folders.items() if each.images.count]
    return holding[0] if len(holding) == 1 and _CALLED_IMAGES.fullmatch(holding[0].lower()) else None


def cache_contents() -> AbstractContextManager[None]:
    """Caches the results of :func:`list_contents` within the block."""
    return set_within(_known, {})


_known: ContextVar[dict[str, Contents] | None] = ContextVar("known contents", default=None)


def _sort_unique(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sorts numbers and removes duplicates; many times faster than :func:`numpy.unique`, which hashes them."""
    if len(numbers) < 2:
        return numbers
    ordered = np.sort(numbers)
    is_first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered if is_first.all() else ordered[is_first]


def path_and_parents(path: str) -> Iterator[str]:
    """Yields a path and the folders above it, the nearest first, without the root."""
    while path:
        yield path
        path = path.rpartition("/")[0]


def stem_of(name: str) -> str:
    """Returns the name without its last suffix; a name whose only dot comes first stays."""
    return name.rpartition(".")[0] or name


def suffix_of(name: str) -> str:
    """Returns the last suffix in lower case with its dot, or ``""`` for none. A name whose only dot comes first has no
    suffix."""
    stem, dot, suffix = name.rpartition(".")
    return f".{suffix.lower()}" if stem and dot and suffix else ""


def is_clip_name(folder: str) -> bool:
    """Tells if a folder is called like a clip, whose frames are no class: ``clip_0001``."""
    return _CLIP.fullmatch(folder) is not None


@lru_cache(1 << 12)
def is_no_word(text: str) -> bool:
    """Tells if an ending of a name is a number, ``copy`` or the like."""
    return _NO_WORD.fullmatch(text) is not None


def summarize_folder(path: str, names: Names, hidden: bool = False) -> FolderContents:
    """Counts and hashes the names in a folder: images, and other files by suffix. Includes hidden and system names only
    if ``hidden``."""
    folders = tuple(name for name in names.folders if hidden or not is_passed_over(name))
    suffix = names.common_suffix
    plain = len(names.files) == names.text.count("\0") - 1 and "\0." not in names.text
    if plain and suffix.lower() in _IMAGE_ENDINGS:  # most folders; a system's files have other suffixes
        images = NameSet.of_suffix(names.text, suffix, names.files)
        return FolderContents(path, images, {}, folders, _differ_by_number(names.files))
    visible = names.files if hidden else [name for name in names.files if not is_passed_over(name)]
    image_names: list[str] = []
    others: dict[str, list[str]] = {}
    for name in visible:
        if name.lower().endswith(IMAGE_SUFFIXES):
            image_names.append(name)
        else:
            suffix = suffix_of(name)
            others.setdefault(suffix if suffix in others or len(others) < MOST_SUFFIXES else "", []).append(name)
    by_suffix = {suffix: NameSet.of_names(each) for suffix, each in others.items()}
    unseen = () if hidden else tuple(name for name in names.files if name[0] == ".")[:_FIRST]
    uniform = _differ_by_number(image_names)
    return FolderContents(path, NameSet.of_names(image_names), by_suffix, folders, uniform, unseen)


def _differ_by_number(images: Sequence[str]) -> bool:
    """Returns :attr:`FolderContents.is_uniform` for the names of images."""
    return _is_uniform(frozenset("\0".join(images).translate(_DIGITS).split("\0")))


@lru_cache(1 << 8)
def _is_uniform(shapes: frozenset[str]) -> bool:
    """Tells if names, with zeros for all digits, differ by one number alone."""
    uniform = len(shapes) == 1 or len({_ZEROS.sub("0", shape) for shape in shapes}) == 1
    return uniform and not any(map(_SECOND_NUMBER.fullmatch, shapes))

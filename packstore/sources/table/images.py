"""Images of a tree by name and stem, and which of them the values of a column name."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from packstore.core.errors import SourceError
from packstore.sources.beside import join
from packstore.sources.contents import stem_of
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.tree import Tree

_MOST_ALIKE = 64
_BLOCK = 4096


class ImageIndex:
    """All images of a tree by the hashes of their names and stems, alone and behind the names of one folder and of two:
    some 100 bytes an image."""

    def __init__(self, tree: Tree) -> None:
        self.folders: list[str] = []
        self._suffixes: list[str] = []
        names, stems, folders, suffixes = array("q"), array("q"), array("i"), array("h")
        tails = array("q"), array("q")
        longer = array("q"), array("q")
        for folder, listed in tree.folders(is_passed_over):
            images = [name for name in listed.ending(*IMAGE_SUFFIXES) if not is_passed_over(name)]
            if images:
                self.folders.append(folder)
            for name in images:
                stem = stem_of(name)
                suffix = name[len(stem) :]
                if suffix not in self._suffixes:
                    self._suffixes.append(suffix)
                names.append(hash(name))
                stems.append(hash(stem))
                tails[0].append(hash(_tail(folder, name)))
                tails[1].append(hash(_tail(folder, stem)))
                longer[0].append(hash(_tail(folder, name, 2)))
                longer[1].append(hash(_tail(folder, stem, 2)))
                folders.append(len(self.folders) - 1)
                suffixes.append(self._suffixes.index(suffix))
        self._folder, self._suffix = np.array(folders, np.int32), np.array(suffixes, np.int16)
        both = [np.array([*a, *b, *c], np.int64) for a, b, c in zip((names, stems), tails, longer, strict=True)]
        self._orders = [np.argsort(each, kind="stable") for each in both]
        self._hashes = [each[order] for each, order in zip(both, self._orders, strict=True)]

    def __len__(self) -> int:
        return len(self._folder)

    def find(self, pairs: Sequence[tuple[str, str]], by_stem: bool, whole_path: bool) -> Iterator[Sequence[int]]:
        """Yields for each folder and name the numbers of the images called so; with ``whole_path``, in a folder of the
        same last names. Of more than 64, as of bare names in many folders, the first."""
        hashes, order = self._hashes[by_stem], self._orders[by_stem]

        def search(keys: Iterable[str]) -> list[tuple[int, int]]:
            wanted = np.fromiter(map(hash, keys), np.int64, len(pairs))
            begins, ends = (np.searchsorted(hashes, wanted, side) for side in ("left", "right"))
            return list(zip(begins.tolist(), ends.tolist(), strict=True))

        near = search(_tail(folder, name) if whole_path and folder else name for folder, name in pairs)
        deep = any("/" in folder for folder, _ in pairs) if whole_path else False
        far = search(_tail(folder, name, 2) for folder, name in pairs) if deep else near
        for (folder, _), one, other in zip(pairs, near, far, strict=True):
            begin, end = other if "/" in folder and other[0] < other[1] else one
            found = order[begin : min(end, begin + _MOST_ALIKE)]
            yield (found % len(self)).tolist() if end > begin else ()

    def folder(self, number: int) -> str:
        """The folder of an image."""
        return self.folders[int(self._folder[number])]

    def path(self, number: int, name: str, by_stem: bool) -> str:
        """The path of an image that is called ``name``."""
        return join(self.folder(number), name + (self._suffixes[int(self._suffix[number])] if by_stem else ""))


def _tail(folder: str, name: str, folders: int = 1) -> str:
    return "/".join((*folder.split("/")[-folders:], name))


def divide(value: Any) -> tuple[str, str] | None:
    """Folder and name that a cell may mean; None for one that is no path."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value or len(value) > 4096 or "\n" in value or "\0" in value:
        return None
    parts = [part for part in re.split(r"[\\/]+", value.split("://")[-1]) if part not in ("", ".")]
    return ("/".join(parts[:-1]), parts[-1]) if parts and parts[-1] != ".." else None


@dataclass(slots=True, eq=False)
class Naming:
    """How a column names images.

    Attributes:
        by_stem: Without their suffixes.
        whole_path: The folders in its values are those of the images, below one of ``bases``.
        rows: Rows with a value.
        hits: Rows that name an image.
        images: The different images among them.
        words: Rows whose value is no whole number, a header among them.
        bases: Folders to which the values are relative, those of most hits first.
        rivals: Two folders that fit equally well; empty if one fits better.
    """

    by_stem: bool
    whole_path: bool
    rows: int = 0
    hits: int = 0
    images: int = 0
    words: int = 0
    bases: list[str] = field(default_factory=list)
    rivals: tuple[str, ...] = ()

    def resolve(self, index: ImageIndex, values: Sequence[Any]) -> Iterator[str | None]:
        """Yields the path of the image that each value names; None for none."""
        divided = [divide(value) or ("", "") for value in values]
        numbers = index.find(divided, self.by_stem, self.whole_path)
        for (folder, name), found in zip(divided, numbers, strict=True):
            places = {self.base_of(index.folder(number), folder): number for number in found}
            chosen = next((base for base in self.bases if base in places), None)
            yield None if chosen is None else index.path(places[chosen], name, self.by_stem)

    def base_of(self, place: str, folder: str) -> str | None:
        """The folder to which ``folder`` is relative if it is ``place``; for one of another machine, whose first parts
        are not here, ``..`` for each of these; None if it cannot be."""
        if not self.whole_path or not folder:
            return place
        if place == folder:
            return ""
        if place and folder.endswith(f"/{place}"):
            return "/".join([".."] * (folder.count("/") - place.count("/")))
        return place[: -len(folder) - 1] if place.endswith(f"/{folder}") else None


class NamingCounter:
    """Counts in which ways the values of one column name images."""

    def __init__(self, index: ImageIndex) -> None:
        self._index = index
        self._ways = [Naming(stem, whole) for stem in (False, True) for whole in (True, False)]
        self._bases: list[Counter[str]] = [Counter() for _ in self._ways]
        self._images = [array("q") for _ in self._ways]

    def add(self, values: Iterable[Any]) -> None:
        """Adds values, some at a time."""
        divided = [pair for value in values if (pair := divide(value)) is not None]
        for n, way in enumerate(self._ways):
            way.rows += len(divided)
            way.words += sum(not name.isdigit() for _, name in divided)
            for (folder, _), numbers in zip(
                divided, self._index.find(divided, way.by_stem, way.whole_path), strict=True
            ):
                bases: dict[str, int] = {}
                for number in numbers:
                    if (base := way.base_of(self._index.folder(number), folder)) is not None:
                        bases.setdefault(base, number)
                if bases:
                    way.hits += 1
                    self._images[n].append(next(iter(bases.values())))
                    self._bases[n].update(bases.keys())

    def named(self) -> list[int]:
        """The images that the rows name, in order."""
        return self._images[self._ways.index(self._best())].tolist()

    def best(self, hint: str) -> Naming | None:
        """The way that fits best; ``hint`` is the path of the table, whose words decide between folders."""
        found = self._best()
        n = self._ways.index(found)
        found.images = len(np.unique(np.array(self._images[n], np.int64)))
        found.bases = _order_bases(self._bases[n], hint)
        found.rivals = _find_rivals(found.bases, self._bases[n], found.hits, hint)
        return found if found.hits else None

    def _best(self) -> Naming:
        """The first way by which half of the rows name an image, else the one of most: a path that is not there is no
        image of the same name elsewhere."""
        half = (way for way in self._ways if 2 * way.hits >= way.rows > 0)
        return next(half, max(self._ways, key=lambda way: way.hits))


def _order_bases(bases: Counter[str], hint: str) -> list[str]:
    """Folders by hits; of equal ones that with the words of the table's name, then the nearest. Folders of a split
    other than the table's are left out if another folder is there."""
    words = words_of_path(hint)
    splits = split_words(words)
    fitting = [base for base in bases if not splits or not split_words(words_of_path(base)) - splits]
    beside = hint.rpartition("/")[0]
    return sorted(
        fitting or bases,
        key=lambda base: (
            -bases[base], -len(words & words_of_path(base)), base != beside, base.count("/"), len(base), base
        ),
    )  # fmt: skip


def _find_rivals(ordered: list[str], bases: Counter[str], hits: int, hint: str) -> tuple[str, ...]:
    """The first two folders, if the same rows name images in both and nothing but the order of names decides."""
    if len(ordered) < 2 or hint.rpartition("/")[0] in ordered[:2]:
        return ()
    one, other = ordered[:2]
    words = words_of_path(hint)
    alike = len(words & words_of_path(one)) == len(words & words_of_path(other))
    return (one, other) if alike and bases[one] == bases[other] and bases[one] + bases[other] > hits else ()


_SPLIT_WORDS = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip


def words_of_path(path: str) -> set[str]:
    """The words of a path in lower case."""
    return set(re.split(r"[^a-z]+", path.lower())) - {""}


def split_words(words: Iterable[str]) -> set[str]:
    """The splits that words mean."""
    return {_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS}


def blocks(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """Rows, some thousand at a time. Those before a :class:`SourceError` come before it."""
    block: list[Any] = []
    try:
        for row in rows:
            block.append(row)
            if len(block) == _BLOCK:
                yield block
                block = []
    except SourceError:
        if block:
            yield block
        raise
    if block:
        yield block

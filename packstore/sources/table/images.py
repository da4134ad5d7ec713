"""Finds the images that the rows of tables name, and keeps the rows by image."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from packstore.core.errors import AmbiguousSourceError, Answer, printable
from packstore.sources.annotation_formats.spool import ValuesByImage
from packstore.sources.beside import join
from packstore.sources.contents import stem_of
from packstore.sources.ignoring import ignore_paths
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.splits import find_meanings
from packstore.sources.table.columns import ColumnFacts
from packstore.sources.tree import Tree

_MOST_ALIKE = 64


class ImageIndex:
    """Index of all images of a tree except hidden ones, by name and by stem. Images are numbered from 0. Creating it
    lists the whole tree.

    Takes some 100 bytes an image: it keeps only hashes of names, alone and with the last one or two folders.
    """

    def __init__(self, tree: Tree) -> None:
        self.folders: list[str] = []
        suffixes: dict[str, int] = {}
        of_folder, of_suffix = array("i"), array("h")
        keys = [[array("q") for _ in range(3)] for _ in range(2)]
        for folder, listed in tree.folders(is_passed_over):
            images = [name for name in listed.ending(*IMAGE_SUFFIXES) if not is_passed_over(name)]
            if images:
                self.folders.append(folder)
            tails = _list_tails(folder)
            for name in images:
                stem = stem_of(name)
                for text, by_depth in zip((name, stem), keys, strict=True):
                    for tail, hashes in zip(tails, by_depth, strict=True):
                        hashes.append(hash(tail + text))
                of_folder.append(len(self.folders) - 1)
                of_suffix.append(suffixes.setdefault(name[len(stem) :], len(suffixes)))
        self._suffixes = [*suffixes]
        self._folder, self._suffix = np.array(of_folder, np.int32), np.array(of_suffix, np.int16)
        both = [np.concatenate([np.array(each, np.int64) for each in by_depth]) for by_depth in keys]
        self._orders = [np.argsort(each, kind="stable") for each in both]
        self._hashes = [each[order] for each, order in zip(both, self._orders, strict=True)]

    def __len__(self) -> int:
        return len(self._folder)

    def find_images(self, pairs: Sequence[tuple[str, str]], by_stem: bool, whole_path: bool) -> Iterator[Sequence[int]]:
        """Yields the numbers of the images that each pair of folder and name may mean; empty for none. Yields at most
        64 a pair.

        Args:
            pairs: Folder and name in each cell of a table; the folder may be empty.
            by_stem: Names have no suffix.
            whole_path: The last two folders must be equal, too, or only the last folder if no image has both. False
                compares only names.
        """
        hashes, order = self._hashes[by_stem], self._orders[by_stem]

        def search(keys: Iterable[str]) -> list[tuple[int, int]]:
            wanted = np.fromiter(map(hash, keys), np.int64, len(pairs))
            begins, ends = (np.searchsorted(hashes, wanted, side) for side in ("left", "right"))
            return list(zip(begins.tolist(), ends.tolist(), strict=True))

        near = search(_list_tails(folder)[1] + name if whole_path and folder else name for folder, name in pairs)
        deep = any("/" in folder for folder, _ in pairs) if whole_path else False
        far = search(_list_tails(folder)[2] + name for folder, name in pairs) if deep else near
        for (folder, _), one, other in zip(pairs, near, far, strict=True):
            begin, end = other if "/" in folder and other[0] < other[1] else one
            numbers = order[begin : min(end, begin + _MOST_ALIKE)]
            yield (numbers % len(self)).tolist() if end > begin else ()

    def folder_of_image(self, number: int) -> str:
        """Returns the folder of an image by the image's number."""
        return self.folders[int(self._folder[number])]

    def path_of_image(self, number: int, name: str, by_stem: bool) -> str:
        """Returns the path of an image by its number. ``name`` is the image's name; with ``by_stem``, it is without
        suffix."""
        return join(self.folder_of_image(number), name + (self._suffixes[int(self._suffix[number])] if by_stem else ""))


def _list_tails(folder: str) -> tuple[str, str, str]:
    """Returns what precedes a name in a path of no, one and two folders: ``""``, ``b/`` and ``a/b/`` for ``a/b``."""
    parts = folder.split("/")
    return "", f"{parts[-1]}/", f"{'/'.join(parts[-2:])}/"


def split_path(value: Any) -> tuple[str, str] | None:
    """Splits a cell into folder and name, at slashes and backslashes. Drops ``file://`` or another scheme, and empty
    parts.

    Whole numbers are names. Returns None for a cell that is no path: no text, several lines, or over 4,096 characters.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value or len(value) > 4096 or "\n" in value or "\0" in value:
        return None
    parts = [part for part in re.split(r"[\\/]+", value.split("://")[-1]) if part not in ("", ".")]
    return ("/".join(parts[:-1]), parts[-1]) if parts and parts[-1] != ".." else None


@dataclass(slots=True, eq=False)
class Naming:
    """Way in which a column names images.

    Attributes:
        by_stem: Values are names without suffixes.
        whole_path: Folders in the values are those of the images, below one of ``bases``. False: the folders mean
            nothing.
        rows: Number of rows with a value.
        hits: Number of rows that name an image.
        images: Number of different images that rows name.
        words: Number of rows whose value is not a whole number, including a header.
        bases: Folders to which the values are relative, those with most hits first.
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

    def find_paths(self, index: ImageIndex, values: Sequence[Any]) -> Iterator[str | None]:
        """Yields the path of the image that each value names; None if it names none. Takes the first of
        :attr:`bases` that has the image."""
        divided = [split_path(value) or ("", "") for value in values]
        for (_, name), places in zip(divided, self.find_places(index, divided), strict=True):
            chosen = next((base for base in self.bases if base in places), None)
            yield None if chosen is None else index.path_of_image(places[chosen], name, self.by_stem)

    def find_places(self, index: ImageIndex, pairs: Sequence[tuple[str, str]]) -> Iterator[dict[str, int]]:
        """Yields the numbers of the images that each pair of folder and name may mean, by the folder to which the pair
        is relative."""
        for (folder, _), alike in zip(pairs, index.find_images(pairs, self.by_stem, self.whole_path), strict=True):
            places: dict[str, int] = {}
            for number in alike:
                if (base := self._find_base(index.folder_of_image(number), folder)) is not None:
                    places.setdefault(base, number)
            yield places

    def _find_base(self, place: str, folder: str) -> str | None:
        """Returns the folder to which a cell's ``folder`` is relative, if it means the folder ``place`` of an image.
        None if it does not.

        If the first parts of ``folder`` are of another machine, returns ``..`` for each of them. Without
        ``whole_path``, or for an empty ``folder``, returns ``place``.
        """
        if not self.whole_path or not folder:
            return place
        if place == folder:
            return ""
        if place and folder.endswith(f"/{place}"):
            return "/".join([".."] * (folder.count("/") - place.count("/")))
        return place[: -len(folder) - 1] if place.endswith(f"/{folder}") else None


class NamingCounter:
    """Counts how many values of a column name an image, for each way to name one. Finds the best way.

    The ways: with or without suffixes, by whole paths or by names alone.
    """

    def __init__(self, index: ImageIndex) -> None:
        self._index = index
        self._ways: list[tuple[Naming, Counter[str], array[int]]] = [
            (Naming(stem, whole), Counter(), array("q")) for stem in (False, True) for whole in (True, False)
        ]

    def count_values(self, values: Iterable[Any]) -> None:
        """Counts some values of the column, in order. Values that are no path do not count."""
        divided = [pair for value in values if (pair := split_path(value)) is not None]
        words = sum(not name.isdigit() for _, name in divided)
        for way, bases, images in self._ways:
            way.rows += len(divided)
            way.words += words
            for places in way.find_places(self._index, divided):
                if places:
                    way.hits += 1
                    images.append(next(iter(places.values())))
                    bases.update(places.keys())

    def list_named(self) -> list[int]:
        """Returns the numbers of the images that the rows name, in order. Rows that name none are left out."""
        return self._best_way()[2].tolist()

    def best_naming(self, hint: str) -> Naming | None:
        """Returns the way that fits best, with its counts and folders; None if no value names an image.

        Folders with more hits come first, then those with more words in common with ``hint``, the path of the table,
        then the table's own folder. Leaves out folders of other splits than the table's, if others remain.
        """
        naming, bases, images = self._best_way()
        naming.images = len(np.unique(np.array(images, np.int64)))
        words, splits, beside = words_of_path(hint), find_meanings(hint), hint.rpartition("/")[0]
        fitting = [base for base in bases if not splits or not find_meanings(base) - splits] or [*bases]
        ranks = {base: (-bases[base], -len(words & words_of_path(base)), base != beside) for base in fitting}
        naming.bases = sorted(fitting, key=lambda base: (ranks[base], base.count("/"), len(base), base))
        one, *others = naming.bases[:2] or [""]
        # Some row names an image in both folders.
        if others and ranks[one] == ranks[others[0]] and 2 * bases[one] > naming.hits:
            naming.rivals = (one, *others)
        return naming if naming.hits else None

    def _best_way(self) -> tuple[Naming, Counter[str], array[int]]:
        """Returns the first way that finds an image for half of the values, else the way with most hits.

        Whole paths come before names alone. A path that does not exist thus does not mean an image of the same name
        elsewhere.
        """
        half = (each for each in self._ways if 2 * each[0].hits >= each[0].rows > 0)
        return next(half, max(self._ways, key=lambda each: each[0].hits))


def words_of_path(path: str) -> set[str]:
    """Returns the words of a path in lower case: runs of the letters a–z, so that ``train2017`` gives ``train``."""
    return set(re.split(r"[^a-z]+", path.lower())) - {""}


class NamedRow(NamedTuple):
    """Row of a table that names an image.

    Attributes:
        image: Path of the image.
        table: Number of the table.
        place: File and row, for messages.
        cells: Values by column.
    """

    image: str
    table: int
    place: str
    cells: Mapping[str, Any]


class RowsByImage(ValuesByImage):
    """Rows of tables by image, in a temporary file: place and cells of each.

    Creating it reads all rows. This raises :class:`AmbiguousSourceError` for an image that two tables name, and
    :class:`SourceError` if the temporary file cannot be written.

    Attributes:
        table_of: Number of its table, by image.
        facts: Facts about each column, except the columns of images.
    """

    def __init__(self, tree: Tree, tables: Sequence[Any], rows: Iterable[NamedRow], merge: bool = True) -> None:
        """Reads all rows. ``merge``: all rows of an image are one sample. False makes each row a sample: a null
        character and the number of earlier rows of its image follow its path."""
        self.table_of = array("q")
        self.facts: dict[str, ColumnFacts] = {}
        self._tree, self._tables, self._merge = tree, tables, merge
        self._repeats: Counter[str] = Counter()
        super().__init__(tree, self._record_rows(rows))
        self._repeats.clear()

    def image_path(self, image: int) -> str:
        """Returns the path of an image."""
        return super().image_path(image).partition("\0")[0]

    def key_of(self, image: int) -> str:
        """Returns the key of an image's sample: its path, with ``#1`` … for further rows that are samples."""
        return super().image_path(image).replace("\0", "#")

    def cells_of(self, image: int) -> list[dict[str, Any]]:
        """Returns the cells of an image's rows, in order. Thread-safe."""
        return [cells for _, cells in self.values_of(image)]

    def list_different(self, image: int, columns: Iterable[str]) -> dict[str, list[str]]:
        """Returns the different values of an image's rows by column. Missing values are left out."""
        rows = self.cells_of(image)
        return {name: list(dict.fromkeys(path for cells in rows for path in cells.get(name) or ())) for name in columns}

    def _record_rows(self, rows: Iterable[NamedRow]) -> Iterator[tuple[str, Any]]:
        """Updates the facts about the columns of each row. Yields its image, and its place and cells.

        Raises :class:`AmbiguousSourceError` for an image that another table names.
        """
        for image, number, place, cells in rows:
            table = self._tables[number]
            if not self._merge and self.has_image(image):
                self._repeats[image] += 1
                image = f"{image}\0{self._repeats[image]}"
            owner = self.number_image(image)
            if owner == len(self.table_of):
                self.table_of.append(number)
            elif self.table_of[owner] != number:
                both = self._tables[self.table_of[owner]].file, table.file
                raise AmbiguousSourceError(
                    f"{self._tree.name(image)} is named by {' and by '.join(map(printable, both))}: leave one out with "
                    "--ignore",
                    [Answer(ignore_paths([each])) for each in both],
                )
            for name, value in cells.items():
                if name not in table.further:
                    self.facts.setdefault(name, ColumnFacts(table.is_text)).add_value(value, table.is_text)
            yield image, [place, cells]

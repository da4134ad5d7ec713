"""Finds the images that rows of tables name, and keeps rows by image; the base of sources whose images a list names."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.sources.annotation_formats.spool import ValuesByImage
from packstore.sources.beside import join
from packstore.sources.contents import stem_of
from packstore.sources.ignoring import ignore_paths
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over
from packstore.sources.rows import FileRow, FileRowSource, in_packing_order
from packstore.sources.splits import find_meanings
from packstore.sources.table.columns import ColumnFacts
from packstore.sources.tree import Tree

_MOST_ALIKE = 64
_MAX_SPLITS = 100


class ImageIndex:
    """Index of all images of a tree except hidden ones, by stem. Images are numbered from 0. Creating it lists the
    whole tree.

    Takes some 60 bytes an image: it keeps only hashes of stems, alone and with the last one or two folders.
    """

    def __init__(self, tree: Tree) -> None:
        self._folders: list[str] = []
        self._suffixes: list[str] = []
        of_folder, of_suffix = array("i"), array("h")
        keys = [array("q") for _ in range(3)]
        for folder, listed in tree.folders(is_passed_over):
            self._folders.append(folder)
            tails = _list_tails(folder)
            for name in listed.ending(*IMAGE_SUFFIXES):
                if is_passed_over(name):
                    continue
                stem, suffix = _split_suffix(name)
                # Stems are hashed alone, and with the last one and two folders of their path.
                for tail, hashes in zip(tails, keys, strict=True):
                    hashes.append(hash(tail + stem))
                if suffix not in self._suffixes:
                    self._suffixes.append(suffix)
                of_folder.append(len(self._folders) - 1)
                of_suffix.append(self._suffixes.index(suffix))
        self._folder, self._suffix = np.array(of_folder, np.int32), np.array(of_suffix, np.int16)
        all_keys = np.concatenate([np.array(each, np.int64) for each in keys])
        self._order = np.argsort(all_keys, kind="stable")
        self._hashes = all_keys[self._order]

    def __len__(self) -> int:
        return len(self._folder)

    def find_places(self, pairs: Sequence[tuple[str, str]], whole_path: bool) -> Iterator[dict[str, int]]:
        """Yields the numbers of the images that each pair of folder and name may mean, at most 64, by the folder to
        which the pair is relative.

        Args:
            pairs: Folder and name in each cell of a table; the folder may be empty. A name without a suffix means an
                image with any suffix.
            whole_path: The folder of the image must be that of the cell, below some other folder. False compares only
                names.
        """

        def search(depth: int) -> list[tuple[int, int]]:
            tails = (_list_tails(folder)[depth if whole_path and folder else 0] for folder, _ in pairs)
            keys = (hash(tail + stem) for tail, (stem, _) in zip(tails, named, strict=True))
            wanted = np.fromiter(keys, np.int64, len(pairs))
            begins, ends = (np.searchsorted(self._hashes, wanted, side) for side in ("left", "right"))
            return list(zip(begins.tolist(), ends.tolist(), strict=True))

        named = [_split_suffix(name) for _, name in pairs]
        near = search(1)
        far = search(2) if whole_path else near
        for (folder, _), (_, suffix), one, other in zip(pairs, named, near, far, strict=True):
            # The longest known part of the path is the surest.
            begin, end = other if other[0] < other[1] else one
            places: dict[str, int] = {}
            for number in (self._order[begin : min(end, begin + _MOST_ALIKE)] % max(1, len(self))).tolist():
                place = self._folders[self._folder[number]]
                base = _find_base(place, folder) if whole_path and folder else place
                if base is not None and suffix in ("", self._suffixes[self._suffix[number]]):
                    places.setdefault(base, number)
            yield places

    def path_of_image(self, number: int, name: str) -> str:
        """Returns the path of an image by its number. ``name`` is the image's name, with or without suffix."""
        stem, _ = _split_suffix(name)
        return join(self._folders[self._folder[number]], stem + self._suffixes[self._suffix[number]])


def _split_suffix(name: str) -> tuple[str, str]:
    """Splits the name of an image into stem and suffix; another suffix stays in the stem."""
    stem = stem_of(name)
    return (stem, name[len(stem) :]) if name.lower().endswith(IMAGE_SUFFIXES) else (name, "")


def _list_tails(folder: str) -> tuple[str, str, str]:
    """Returns what precedes a name in a path of no, one and two folders: ``""``, ``b/`` and ``a/b/`` for ``a/b``."""
    parts = folder.split("/")
    return "", f"{parts[-1]}/", f"{'/'.join(parts[-2:])}/"


def _find_base(place: str, folder: str) -> str | None:
    """Returns the folder to which a cell's ``folder`` is relative if it means the folder ``place``, else None."""
    if place == folder:
        return ""
    if place and folder.endswith(f"/{place}"):
        # The first parts of ``folder`` are of another machine.
        return "/".join([".."] * (folder.count("/") - place.count("/")))
    return place[: -len(folder) - 1] if place.endswith(f"/{folder}") else None


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
    """Evidence that a column names images: how many of its values name a file.

    Attributes:
        whole_path: Folders in the values are those of the images, below one of ``bases``. False: the folders mean
            nothing.
        rows: Number of rows with a value.
        hits: Number of rows that name an image.
        suffixed: Number of them that name it with its suffix.
        words: Number of rows whose value is not a whole number, including a header.
        named: Number of the image that each of the ``hits`` names.
        bases: Folders to which the values are relative, with the hits of each; :meth:`rank_bases` sorts them.
    """

    whole_path: bool = True
    rows: int = 0
    hits: int = 0
    suffixed: int = 0
    words: int = 0
    named: array[int] = field(default_factory=lambda: array("q"))
    bases: dict[str, int] = field(default_factory=Counter)

    def count_values(self, index: ImageIndex, values: Iterable[Any]) -> None:
        """Counts some values of the column, in order. Values that are no path do not count."""
        pairs = [pair for value in values if (pair := split_path(value)) is not None]
        self.rows += len(pairs)
        for (_, name), places in zip(pairs, index.find_places(pairs, self.whole_path), strict=True):
            self.words += not name.isdigit()
            if places:
                self.hits += 1
                self.suffixed += name.lower().endswith(IMAGE_SUFFIXES)
                self.named.append(next(iter(places.values())))
                for base in places:
                    self.bases[base] += 1

    @property
    def by_stem(self) -> bool:
        """True if most names are without suffixes."""
        return 2 * self.suffixed < self.hits

    @property
    def images(self) -> NDArray[np.int64]:
        """Numbers of the different images that the rows name, sorted."""
        return np.unique(np.array(self.named, np.int64))

    def rank_bases(self, hint: str) -> tuple[str, ...]:
        """Sorts :attr:`bases`, the likeliest first, by the path of the table, ``hint``.

        Those with most hits come first, then those with more words in common with ``hint``, then the table's own
        folder. Leaves out folders of other splits than the table's, if others remain. Returns the first two if they fit
        equally well, and some row names an image in both.
        """
        words, splits, beside = words_of_path(hint), find_meanings(hint), hint.rpartition("/")[0]
        fitting = [base for base in self.bases if not splits or not find_meanings(base) - splits] or [*self.bases]
        ranks = {b: (-self.bases[b], -len(words & words_of_path(b)), b != beside) for b in fitting}
        ranked = sorted(fitting, key=lambda base: (ranks[base], base.count("/"), len(base), base))
        self.bases = {base: self.bases[base] for base in ranked}
        equal = len(ranked) > 1 and ranks[ranked[0]] == ranks[ranked[1]]
        return tuple(ranked[:2]) if equal and 2 * self.bases[ranked[0]] > self.hits else ()

    def find_paths(self, index: ImageIndex, values: Sequence[Any]) -> Iterator[str | None]:
        """Yields the path of the image that each value names; None if it names none. Takes the first of
        :attr:`bases` that has the image."""
        pairs = [split_path(value) or ("", "") for value in values]
        ranks = {base: rank for rank, base in enumerate(self.bases)}
        for (_, name), places in zip(pairs, index.find_places(pairs, self.whole_path), strict=True):
            chosen = min(places.keys() & ranks.keys(), key=ranks.__getitem__, default=None)
            yield None if chosen is None else index.path_of_image(places[chosen], name)


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
        """Returns the further images of an image's rows by column; equal cells count once."""
        rows = self.cells_of(image)
        cells = {name: dict.fromkeys(tuple(each.get(name) or ()) for each in rows) for name in columns}
        return {name: [*chain.from_iterable(each)] for name, each in cells.items()}

    def _record_rows(self, rows: Iterable[NamedRow]) -> Iterator[tuple[str, Any]]:
        """Updates the facts about the columns of each row, and yields its image, and its place and cells."""
        for image, number, place, cells in rows:
            table = self._tables[number]
            if not self._merge and image.encode("utf-8", "surrogateescape") in self._numbers:
                self._repeats[image] += 1
                # No path has a null character, so the name is new.
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


class SplitNumbers:
    """Names of the splits of images, and the number of each image's split.

    Attributes:
        names: Names of the splits in the order of the list.
        of_image: Number of the split of each image.
    """

    def __init__(self, where: str, splits: Iterable[str] = ()) -> None:
        """Adds the ``splits`` of images, in their order. ``where``: Name of the list, for messages."""
        self.names: list[str] = []
        self.of_image = bytearray()
        self._where = where
        for split in splits:
            self.of_image.append(self.number_split(split))

    def number_split(self, split: str) -> int:
        """Returns the number of a split; adds a new one. Raises :class:`SourceError` for more than 100."""
        if split not in self.names:
            self.names.append(split)
            if len(self.names) > _MAX_SPLITS:
                raise SourceError(f"{self._where}: more than {_MAX_SPLITS} splits")
        return self.names.index(split)


class ListedValues(ValuesByImage):
    """Values of images, and the split of each image.

    Creating it raises :class:`SourceError` for an image in two splits, for more than 100 splits, and if the temporary
    file cannot be written.

    Attributes:
        splits: Splits of the images.
    """

    def __init__(self, tree: Tree, where: str, lines: Iterable[tuple[str, Any, str]]) -> None:
        """``lines`` are image, value and split. ``where`` names their file."""
        self.splits = SplitNumbers(where)
        super().__init__(tree, self._assign_splits(where, lines))

    def _assign_splits(self, where: str, lines: Iterable[tuple[str, Any, str]]) -> Iterator[tuple[str, Any]]:
        """Yields image and value of each line; sets the splits of the images."""
        of_image = self.splits.of_image
        for name, value, split in lines:
            number, image = self.splits.number_split(split), self.number_image(name)
            if image == len(of_image):
                of_image.append(number)
            elif of_image[image] != number:
                raise SourceError(f"{where}: {printable(name)} is in two splits")
            yield name, value


class ListedSource(FileRowSource):
    """Images of a list, in the order in which they are first named. Subclasses set :attr:`listed` and :attr:`assigned`
    when they open, and read the values of a row from its number, the value ``entry``."""

    listed: ValuesByImage
    assigned: SplitNumbers

    def splits(self) -> Sequence[str]:
        """Returns the splits in packing order."""
        return in_packing_order(self.assigned.names)

    def file_of(self, image: int) -> str:
        """Returns the path of an image in the tree, by its number: in this base as it is listed."""
        return self.listed.image_path(image)

    def images_of(self, split: str) -> list[int]:
        """Returns the numbers of the images of a split."""
        number = self.assigned.names.index(split)
        images: list[int] = np.flatnonzero(np.frombuffer(self.assigned.of_image, np.uint8) == number).tolist()
        return images

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields one row for each image of a split. Its value ``entry`` is the number of the image."""
        for image in self.images_of(split):
            yield FileRow(self.file_of(image), {"entry": image})

    def close(self) -> None:
        """Closes the list and the tree. Nothing can be read afterwards."""
        if hasattr(self, "listed"):
            self.listed.close()
        super().close()

"""Rows of tables by the image that they name, in a temporary file."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.sources.annotation_formats.spool import Spool
from packstore.sources.contents import suffix_of
from packstore.sources.ignoring import ignore_paths
from packstore.sources.table.columns import ColumnFacts
from packstore.sources.table.reading import TEXT
from packstore.sources.tree import Tree


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


class RowsByImage:
    """Rows of tables by image, in a temporary file. Images are numbered in the order in which rows name them first.

    Creating it reads all rows. This raises :class:`AmbiguousSourceError` for an image that two tables name, and
    :class:`SourceError` if the temporary file cannot be written.

    Attributes:
        table_of: Number of its table, by image.
        facts: Facts about each column, except the columns of images.
    """

    def __init__(self, tree: Tree, tables: Sequence[Any], rows: Iterable[NamedRow]) -> None:
        self.table_of = array("q")
        self.facts: dict[str, ColumnFacts] = {}
        self._tree, self._tables = tree, tables
        self._names: list[bytes] = []
        self._owners = array("q")
        try:
            self._spool = Spool(self._record_rows(rows))
        except OSError as error:
            raise SourceError(f"{tree.name()}: its rows need a temporary file: {error.strerror}") from None
        owners = np.array(self._owners, np.int64)
        self._order = np.argsort(owners, kind="stable")
        self._starts = np.searchsorted(owners[self._order], np.arange(len(self._names) + 1))

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self._spool)

    def __iter__(self) -> Iterator[Any]:
        """Yields place and cells of each row, in the order of the tables."""
        return (self._spool.read_value(line) for line in range(len(self._spool)))

    @property
    def image_count(self) -> int:
        """Number of images."""
        return len(self._names)

    def image_path(self, image: int) -> str:
        """Returns the path of an image."""
        return self._names[image].decode("utf-8", "surrogateescape")

    def numbers_of(self, image: int) -> list[int]:
        """Returns the numbers of an image's rows, in order."""
        numbers: list[int] = self._order[self._starts[image] : self._starts[image + 1]].tolist()
        return numbers

    def rows_of(self, image: int) -> list[Any]:
        """Returns place and cells of an image's rows, in order. Thread-safe."""
        return [self._spool.read_value(line) for line in self.numbers_of(image)]

    def cells_of(self, image: int) -> list[dict[str, Any]]:
        """Returns the cells of an image's rows, in order. Thread-safe."""
        return [cells for _, cells in self.rows_of(image)]

    def list_different(self, image: int, columns: Iterable[str]) -> dict[str, list[str]]:
        """Returns the different values of an image's rows by column. Missing values are left out."""
        rows = self.cells_of(image)
        return {name: list(dict.fromkeys(c[name] for c in rows if c.get(name) is not None)) for name in columns}

    def images_with_several(self) -> list[int]:
        """Returns the numbers of the images with several rows."""
        numbers: list[int] = np.flatnonzero(np.diff(self._starts) > 1).tolist()
        return numbers

    def close(self) -> None:
        """Closes the temporary file. Rows cannot be read afterwards."""
        self._spool.close()

    def _record_rows(self, rows: Iterable[NamedRow]) -> Iterator[Any]:
        """Assigns each row to its image, and updates the facts about its columns. Yields its place and cells.

        Raises :class:`AmbiguousSourceError` for an image that another table names.
        """
        numbers: dict[bytes, int] = {}
        for image, number, place, cells in rows:
            table = self._tables[number]
            raw = image.encode("utf-8", "surrogateescape")
            owner = numbers.setdefault(raw, len(numbers))
            if owner == len(self._names):
                self._names.append(raw)
                self.table_of.append(number)
            elif self.table_of[owner] != number:
                raise self._named_twice_error(image, self._tables[self.table_of[owner]].file, table.file)
            text = suffix_of(table.file) in TEXT
            for name, value in cells.items():
                if name not in table.further:
                    self.facts.setdefault(name, ColumnFacts()).add_value(value, text=text)
            self._owners.append(owner)
            yield [place, cells]

    def _named_twice_error(self, image: str, first: str, second: str) -> AmbiguousSourceError:
        """Returns the error for an image that two tables name."""
        return AmbiguousSourceError(
            f"{self._tree.name(image)} is named by {printable(first)} and by {printable(second)}: leave one out with "
            "--ignore",
            [Answer(ignore_paths([each])) for each in (first, second)],
        )

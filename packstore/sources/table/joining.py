"""Joins tables of the same images: ISIC's classes and metadata, Open Images' boxes and images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from packstore.core.errors import AmbiguousSourceError, Answer, printable
from packstore.sources.contents import suffix_of
from packstore.sources.ignoring import ignore_paths
from packstore.sources.table.finding import Table
from packstore.sources.table.images import ImageIndex, batch_rows
from packstore.sources.table.reading import TEXT
from packstore.sources.tree import Tree


def join_tables(tree: Tree, tables: Sequence[Table]) -> list[Table]:
    """Joins each table with one row per image to the first earlier table that fits. Returns the tables that were not
    joined.

    Their :attr:`Table.joined` has the tables that were joined to them. Tables fit if they name as many images, and
    share no column in the first 4,096 rows. If the earlier table has several rows per image, it may also have fewer
    images. :class:`JoinedRows` finds later if the images are the same.
    """
    groups: list[Table] = []
    columns: list[set[str]] = []
    for table in tables:
        own = {name for row in list(_first_cells(tree, table)) for name in row} - {table.image}
        place = next((n for n, each in enumerate(groups) if _can_join(each, table) and not columns[n] & own), None)
        if place is None:
            groups.append(table)
            columns.append(own)
        else:
            groups[place] = replace(groups[place], joined=(*groups[place].joined, table))
            columns[place] |= own
    return groups


def _first_cells(tree: Tree, table: Table) -> list[Mapping[str, Any]]:
    """Returns the cells of the first 4096 rows of a table."""
    return [row.cells for row in next(batch_rows(table.rows(tree)), [])]


def _can_join(one: Table, other: Table) -> bool:
    """Tells if table ``other`` may be joined to table ``one``, by their numbers of rows and images.

    Both must be of the same split, both or neither of text, and have names of columns. Only one column of ``other`` may
    name images.
    """
    named = all(table.header or suffix_of(table.file) not in TEXT for table in (one, other))
    alike = (suffix_of(one.file) in TEXT) == (suffix_of(other.file) in TEXT) and one.split == other.split
    if not (named and alike and _has_row_per_image(other)) or other.further:
        return False
    enough = other.naming.images - one.naming.images
    return enough == 0 if _has_row_per_image(one) else enough >= 0


def _has_row_per_image(table: Table) -> bool:
    """Tells if a table has one row for each image."""
    return table.naming.hits == table.naming.images


class JoinedRows:
    """Rows of the tables that are joined to one, by image; in memory. Creating it reads these tables.

    If the first table has several rows per image, the joined tables may have more images. Joining rows raises
    :class:`AmbiguousSourceError` if the tables otherwise do not name the same images, or have a column in common.
    """

    def __init__(self, tree: Tree, table: Table, index: ImageIndex) -> None:
        self._tree, self._table = tree, table
        self._rows: list[dict[str, Mapping[str, Any]]] = []
        for other in table.joined:
            rows: dict[str, Mapping[str, Any]] = {}
            for block in batch_rows(other.rows(tree)):
                images = other.naming.find_paths(index, [row.cells.get(other.image) for row in block])
                for row, image in zip(block, images, strict=True):
                    if image is not None:
                        rows[image] = {name: value for name, value in row.cells.items() if name != other.image}
            self._rows.append(rows)
        self._taken: set[str] = set()

    def join_cells(self, image: str, cells: Mapping[str, Any]) -> dict[str, Any]:
        """Returns ``cells`` of an image together with its cells in the joined tables. Marks the image as taken.

        Raises :class:`AmbiguousSourceError` if a joined table does not name the image, or has a column in common with
        another.
        """
        row = dict(cells)
        for other, rows in zip(self._table.joined, self._rows, strict=True):
            more = rows.get(image)
            if more is None or row.keys() & more.keys():
                raise self._mismatch_error(image, other)
            row |= more
        self._taken.add(image)
        return row

    def remaining_images(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields images that :meth:`join_cells` was not called for, with their cells in the joined tables.

        Raises :class:`AmbiguousSourceError` if there are such images, but the first table has one row for each image.
        """
        for image in dict.fromkeys(image for rows in self._rows for image in rows if image not in self._taken):
            if _has_row_per_image(self._table):
                raise self._mismatch_error(image, self._table.joined[0])
            yield image, self.join_cells(image, {})

    def _mismatch_error(self, image: str, other: Table) -> AmbiguousSourceError:
        """Returns the error for two tables that name different images, or have a column in common."""
        files = self._table.file, other.file
        return AmbiguousSourceError(
            f"{self._tree.name()}: {' and '.join(map(printable, files))} name as many images, but not the same, or "
            f"have a column in common ({printable(image)}): leave one out with --ignore",
            [Answer(ignore_paths([file])) for file in files],
        )

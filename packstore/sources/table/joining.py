"""Tables of the same images with other columns, a row an image each, as ISIC's classes and metadata: one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from packstore.core.errors import AmbiguousSourceError, Answer, printable
from packstore.sources.contents import suffix_of
from packstore.sources.ignoring import pattern_of
from packstore.sources.table.finding import Table
from packstore.sources.table.images import ImageIndex, blocks
from packstore.sources.table.reading import TEXT
from packstore.sources.tree import Tree


def join_tables(tree: Tree, tables: Sequence[Table]) -> list[Table]:
    """Puts tables behind the first one of as many images, if each has a row an image, and no column of another."""
    found: list[Table] = []
    columns: list[set[str]] = []
    for table in tables:
        own = {name for row in list(_first(tree, table)) for name in row} - {table.image}
        place = next((n for n, each in enumerate(found) if _fits(each, table) and not columns[n] & own), None)
        if place is None:
            found.append(table)
            columns.append(own)
        else:
            found[place] = replace(found[place], joined=(*found[place].joined, table))
            columns[place] |= own
    return found


def _first(tree: Tree, table: Table) -> list[Mapping[str, Any]]:
    """The cells of the first rows of a table, whose names are its columns."""
    return [row.cells for row in next(blocks(table.rows(tree)), [])]


def _fits(one: Table, other: Table) -> bool:
    single = all(table.naming.hits == table.naming.images and not table.further for table in (one, other))
    named = all(table.header or suffix_of(table.file) not in TEXT for table in (one, other))
    alike = (suffix_of(one.file) in TEXT) == (suffix_of(other.file) in TEXT)
    return single and named and alike and one.naming.images == other.naming.images


class JoinedRows:
    """The rows of the tables that are joined to one, by image; in memory."""

    def __init__(self, tree: Tree, table: Table, index: ImageIndex) -> None:
        self._tree, self._table = tree, table
        self._rows: list[dict[str, Mapping[str, Any]]] = []
        for other in table.joined:
            rows: dict[str, Mapping[str, Any]] = {}
            for block in blocks(other.rows(tree)):
                images = other.naming.resolve(index, [row.cells.get(other.image) for row in block])
                for row, image in zip(block, images, strict=True):
                    if image is not None:
                        rows[image] = {name: value for name, value in row.cells.items() if name != other.image}
            self._rows.append(rows)

    def take(self, image: str, cells: Mapping[str, Any]) -> dict[str, Any]:
        """Cells of an image with those in the other tables. Raises :class:`AmbiguousSourceError` if one does not name
        it, or has a column of another."""
        found = dict(cells)
        for other, rows in zip(self._table.joined, self._rows, strict=True):
            more = rows.pop(image, None)
            if more is None or found.keys() & more.keys():
                raise self._differs(image, other)
            found |= more
        return found

    def finish(self) -> None:
        """Raises :class:`AmbiguousSourceError` for an image that was not taken."""
        for other, rows in zip(self._table.joined, self._rows, strict=True):
            for image in rows:
                raise self._differs(image, other)

    def _differs(self, image: str, other: Table) -> AmbiguousSourceError:
        files = self._table.file, other.file
        return AmbiguousSourceError(
            f"{self._tree.name()}: {' and '.join(map(printable, files))} name as many images, but not the same, or "
            f"have a column in common ({printable(image)}): leave one out with --ignore",
            [Answer(("--ignore", f"/{pattern_of(file)}")) for file in files],
        )

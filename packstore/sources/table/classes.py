"""Reads classes in tables: a column of class names, one or several in each cell, or a column for each class. Also
reads tables of classes, and Open Images' names and hierarchy.

Source of the latter: https://storage.googleapis.com/openimages/web/download_v7.html
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Field, Label, Labels
from packstore.sources.annotation_formats.parsing import parse_json
from packstore.sources.beside import join, read_text
from packstore.sources.contents import suffix_of
from packstore.sources.table.boxes import is_blank, parse_text_list
from packstore.sources.table.columns import ColumnFacts, ColumnRoles, parse_flag
from packstore.sources.table.finding import Table
from packstore.sources.table.images import RowsByImage
from packstore.sources.table.reading import MAX_BYTES, TEXT
from packstore.sources.tree import Tree

UNCERTAIN, BLANK = "uncertain", "unmentioned"
"""Columns for classes with the cell -1, and for classes with a blank cell, as in CheXpert."""
_MAX_CLASSES = 1 << 16


class ClassTable(NamedTuple):
    """Table that describes the classes of other tables, a row each.

    Attributes:
        file: Path of the table.
        column: Column of the other tables that has the classes.
        names: Names of the classes, if their numbers count from 0; else None.
    """

    file: str
    column: str
    names: tuple[str, ...] | None


def separate_class_table(tree: Tree, tables: Sequence[Table]) -> tuple[list[Table], ClassTable | None]:
    """Separates a table of classes that names an image of each, such as an icon. Returns the other tables, and the
    table of classes; None if there is none.

    It has a row for each image, and fewer rows than the others. One of its columns has a different value in each row,
    and has all values of one column of the others.
    """
    for table in tables:
        others = [each for each in tables if each is not table]
        few = table.naming.hits == table.naming.images < min(_MAX_CLASSES, sum(t.naming.images for t in others))
        if not few or not (table.header or suffix_of(table.file) not in TEXT):
            continue
        rows = [{n: str(v) for n, v in row.cells.items() if n != table.image} for row in table.rows(tree)]
        unique = {name: [row.get(name, "") for row in rows] for name in rows[0]}
        unique = {name: values for name, values in unique.items() if len({*values}) == len(rows) and all(values)}
        used = _list_few_values(tree, others, len(rows)) if unique else {}
        matches = [
            (len(values), column, key)
            for column, values in used.items()
            for key, own in unique.items()
            if len(values) > 1 and values <= {*own}
        ]
        if matches:
            _, column, key = max(matches, key=lambda each: each[0])
            texts = [name for name, own in unique.items() if not all(map(str.isdecimal, own))]
            named = next((name for name in texts if "name" in name.lower()), next(iter(texts), key))
            titles = dict(zip(unique[key], unique[named], strict=True))
            numbers = [titles.get(str(number)) for number in range(len(rows))]
            names = tuple(name for name in numbers if name is not None)
            return others, ClassTable(table.file, column, names if len(names) == len(rows) else None)
    return list(tables), None


def _list_few_values(tree: Tree, tables: Sequence[Table], most: int) -> dict[str, set[str]]:
    """Returns the different values of each column that all tables have, without those of more than ``most`` values."""
    found: dict[str, set[str]] = {}
    columns: set[str] | None = None
    for table in tables:
        own: set[str] = set()
        for row in table.rows(tree):
            for name, value in row.cells.items():
                if name != table.image:
                    own.add(name)
                    if len(values := found.setdefault(name, set())) <= most:
                        values.add(str(value))
        columns = own if columns is None else columns & own
    return {name: values for name, values in found.items() if name in (columns or ()) and len(values) <= most}


class ClassColumn:
    """Column whose cells are classes: one, a list of texts, or several with a separator.

    Creating it raises :class:`SourceError` for more than 65,536 different texts.

    Attributes:
        names: Names of the classes: sorted, or by the numbers in the column; None if these have no names.
    """

    def __init__(
        self,
        where: str,
        roles: ColumnRoles,
        facts: ColumnFacts,
        titles: Mapping[str, str],
        numbered: tuple[str, ...] | None,
    ) -> None:
        """``titles`` maps texts in the table to names of classes, and ``numbered`` are names by number, if they are
        known. Raises :class:`SourceError` for too many classes."""
        self._separator, self._titles = roles.separator, titles
        self._lists = bool(facts.filled_count) and facts.lists
        self.names: tuple[str, ...] | None = None
        self._numbers = facts.values.kinds <= {"int"} and not facts.values.negative and not facts.lists
        if self._numbers:
            self.names = numbered
            return
        if facts.texts is None:
            raise SourceError(f"{where}: more than {_MAX_CLASSES:,} classes in {printable(roles.label)}")
        self.names = tuple(sorted({part for text in facts.texts for part in self._split_classes(text)}))

    def class_per_box(self, value: Any, boxes: int) -> list[Any]:
        """Returns a class for each box of a row. The only class of a cell is that of all boxes.

        Raises :class:`ValueError` if there are several classes, but not one for each box. Raises it also for no class.
        """
        classes = self.all_classes(value)
        if len(classes) not in (1, boxes):
            raise ValueError(f"{boxes} boxes have {len(classes)} classes" if classes else "a box has no class")
        return classes if len(classes) == boxes else classes * boxes

    def all_classes(self, value: Any) -> list[Any]:
        """Returns all classes in a cell: names, or numbers if the column has numbers. A blank cell has none."""
        if is_blank(value):
            return []
        if self._lists:
            return parse_text_list(value) or []
        return [int(value)] if self._numbers else self._split_classes(str(value))

    def _split_classes(self, text: str) -> list[str]:
        """Splits a text into names of classes, by the column's separator. Replaces identifiers by their titles.

        If the column's cells are lists, parses ``text`` as a list and returns its texts, without replacing them.
        """
        if self._lists:
            return parse_text_list(text) or []
        separator = self._separator
        parts = [part.strip() for part in text.split(separator) if part.strip()] if separator else [text]
        return [self._titles.get(part, part) for part in parts]


class FlagColumns:
    """Columns that are a class each, with 1 or 0, or -1 for an uncertain class.

    They become ``label`` if each row has exactly one 1, and each image one row. Otherwise they become ``labels``,
    with ``uncertain`` for the classes that have -1 and ``unmentioned`` for those with blank cells. Creating it raises
    :class:`SourceError` for other values.
    """

    def __init__(self, where: str, names: Sequence[str], rows: RowsByImage) -> None:
        """Raises :class:`SourceError` if a column has other values than 0, 1, -1 and blank cells."""
        self._names, self._rows = names, rows
        self._values: set[int | None] = set()
        for name in names:
            each = rows.facts[name]
            if each.flags is None:
                raise SourceError(f"{where}: column {printable(name)} has other values than 0, 1, -1")
            self._values |= each.flags | ({None} if each.values.count < len(rows) else set())

    @cached_property
    def fields(self) -> dict[str, Field]:
        """Fields of the store's columns. Reads all rows.

        These are ``label``; or ``labels``, with ``uncertain`` and ``unmentioned`` if there are such cells.
        """
        if (
            self._values <= {0, 1}
            and not self._rows.images_with_several()
            and all(len(self._classes_flagged(1, [c])) == 1 for _, c in self._rows)
        ):
            return {"label": Label(tuple(self._names))}
        columns: dict[str, Field] = {"labels": Labels(tuple(self._names), of=False)}
        columns |= {UNCERTAIN: Labels(tuple(self._names), of=False)} if -1 in self._values else {}
        return columns | ({BLANK: Labels(tuple(self._names), of=False)} if None in self._values else {})

    def flag_values(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Reads the classes of an image from the cells of its rows. Returns values for each of :attr:`fields`: a
        name for ``label``, else lists of names."""
        if "label" in self.fields:
            return {"label": self._classes_flagged(1, rows)[0]}
        every = {
            "labels": self._classes_flagged(1, rows),
            UNCERTAIN: self._classes_flagged(-1, rows),
            BLANK: self._classes_flagged(None, rows),
        }
        return {name: value for name, value in every.items() if name in self.fields}

    def _classes_flagged(self, wanted: int | None, rows: list[dict[str, Any]]) -> list[str]:
        """Returns the classes that have a flag in one of the rows. ``wanted``: 1, 0, -1, or None for a blank cell."""
        return [name for name in self._names if any(parse_flag(cells.get(name)) == wanted for cells in rows)]


_TABLES = re.compile(r"(.*/)?[\w-]*annotations-(bbox|(human|machine)-imagelabels|object-segmentation)[\w-]*\.csv", re.I)
_HIERARCHY = re.compile(r"[\w-]*hierarchy[\w-]*\.json", re.I)
_DEEPEST = 64
_NAMES = re.compile(r"[\w-]*class-descriptions[\w-]*\.csv", re.I)


def find_descriptions(tree: Tree, tables: Iterable[str]) -> list[str]:
    """Finds the files with names of classes beside Open Images' tables. Beside other ``tables``, finds none."""
    return _find_beside_tables(tree, tables, _NAMES)


def find_hierarchies(tree: Tree, tables: Iterable[str]) -> list[str]:
    """Finds the files with the hierarchy of classes beside Open Images' tables. Beside other ``tables``, finds none."""
    return _find_beside_tables(tree, tables, _HIERARCHY)


def _find_beside_tables(tree: Tree, tables: Iterable[str], names: re.Pattern[str]) -> list[str]:
    """Finds files with a name that matches ``names`` in the folders of Open Images' tables."""
    folders = sorted({file.rpartition("/")[0] for file in tables if _TABLES.fullmatch(file)})
    return [join(folder, name) for folder in folders for name in tree.names(folder).files if names.fullmatch(name)]


def read_descriptions(tree: Tree, files: Iterable[str]) -> dict[str, str]:
    """Reads names of classes by their identifiers, from lines such as ``/m/011k07,Tortoise``. Skips other lines.

    Raises :class:`SourceError` for a file that is no CSV.
    """
    titles: dict[str, str] = {}
    for file in files:
        text = read_text(tree, file, MAX_BYTES).decode("utf-8-sig")
        try:
            titles.update(row for row in csv.reader(io.StringIO(text, newline="")) if len(row) == 2)  # type: ignore[misc]
        except csv.Error as error:
            raise SourceError(f"{tree.name(file)}: {error}") from None
    return titles


def read_hierarchy(tree: Tree, files: Iterable[str], titles: Mapping[str, str]) -> dict[str, list[str]]:
    """Reads the classes above each class, the nearest first. The class above a part (wheel) is its whole (car).

    Classes have the names in ``titles``, or else their identifiers. Raises :class:`SourceError` for a file that is no
    hierarchy.
    """
    parents: dict[str, list[str]] = {}
    for file in files:
        text = read_text(tree, file, MAX_BYTES)
        try:
            _collect_parents(parse_json(text), [], titles, parents)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise SourceError(f"{tree.name(file)} is not a hierarchy of classes ({printable(reason)[:80]})") from None
    return parents


def _collect_parents(node: Any, above: list[str], titles: Mapping[str, str], parents: dict[str, list[str]]) -> None:
    """Adds the classes ``above`` a node to ``parents``. Does the same for its children.

    Raises :class:`ValueError` for more than 64 levels, and :class:`KeyError` or :class:`TypeError` for a malformed
    node.
    """
    if len(above) > _DEEPEST:
        raise ValueError(f"more than {_DEEPEST} levels")
    name = titles.get(node["LabelName"], str(node["LabelName"]))
    known = parents.setdefault(name, [])
    known += [each for each in above if each not in known]
    for kind in ("Subcategory", "Part"):
        for child in node.get(kind, ()):
            _collect_parents(child, [name, *above], titles, parents)

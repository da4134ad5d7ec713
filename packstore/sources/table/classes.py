"""Reads classes in tables: a column of class names, one or several in each cell, or a column for each class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Field, Label, Labels
from packstore.sources.table.box_cells import is_blank, parse_text_list
from packstore.sources.table.columns import ColumnFacts, ColumnRoles, parse_flag
from packstore.sources.table.image_rows import RowsByImage

UNCERTAIN, BLANK = "uncertain", "unmentioned"
"""Columns for classes with the cell -1, and for classes with a blank cell, as in CheXpert."""
_MAX_CLASSES = 1 << 16


class ClassColumn:
    """Column whose cells are classes: one, a list of texts, or several with a separator.

    Creating it raises :class:`SourceError` for more than 65,536 different texts.

    Attributes:
        names: Names of the classes, sorted; None if the column holds their numbers.
    """

    def __init__(self, where: str, roles: ColumnRoles, facts: ColumnFacts, titles: Mapping[str, str]) -> None:
        """``titles`` maps texts in the table to names of classes. Raises :class:`SourceError` for too many classes."""
        self._separator, self._titles = roles.separator, titles
        self._lists = bool(facts.filled_count) and facts.lists
        self.names: tuple[str, ...] | None = None
        if facts.values.kinds <= {"int"} and not facts.values.negative and not facts.lists:
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
        return [int(value)] if self.names is None else self._split_classes(str(value))

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

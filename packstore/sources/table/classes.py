"""Classes of tables: a column that names them, with one or several a cell, or a column for each class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Field, Label, Labels
from packstore.sources.table.box_cells import is_blank, texts_of
from packstore.sources.table.columns import ColumnFacts, Roles, flag_of

UNCERTAIN, BLANK = "uncertain", "unmentioned"
"""Columns of the classes whose cell is -1, and of those whose cell is blank, as CheXpert has them."""
_MAX_CLASSES = 1 << 16


class ClassColumn:
    """A column whose cells are classes.

    Attributes:
        names: Names of the classes, sorted; None if the column holds their numbers.
    """

    def __init__(self, where: str, roles: Roles, facts: ColumnFacts, titles: Mapping[str, str]) -> None:
        """``titles`` has names of classes by their texts in the table. Raises :class:`SourceError`."""
        self._separator, self._titles = roles.separator, titles
        self._lists = bool(facts.filled) and facts.lists
        self.names: tuple[str, ...] | None = None
        if facts.values.kinds <= {"int"} and not facts.values.negative and not facts.lists:
            return
        if facts.texts is None:
            raise SourceError(f"{where}: more than {_MAX_CLASSES:,} classes in {printable(roles.label)}")
        self.names = tuple(sorted({part for text in facts.texts for part in self._parts(text)}))

    def one(self, value: Any) -> Any:
        """The class of a cell. Raises :class:`ValueError` for none or several."""
        return self.each(value, 1)[0]

    def each(self, value: Any, boxes: int) -> list[Any]:
        """The class of each box of a cell: the only one there, or one each. Raises :class:`ValueError`."""
        found = self.all(value)
        if len(found) not in (1, boxes):
            raise ValueError(f"{boxes} boxes have {len(found)} classes" if found else "a box has no class")
        return found if len(found) == boxes else found * boxes

    def all(self, value: Any) -> list[Any]:
        """The classes of a cell, none for a blank one."""
        if is_blank(value):
            return []
        if self._lists:
            return texts_of(value) or []
        return [int(value)] if self.names is None else self._parts(str(value))

    def _parts(self, text: str) -> list[str]:
        if self._lists:
            return texts_of(text) or []
        separator = self._separator
        parts = [part.strip() for part in text.split(separator) if part.strip()] if separator else [text]
        return [self._titles.get(part, part) for part in parts]


class FlagColumns:
    """Columns of 0 and 1 that are a class each, and -1 for an uncertain one: ``label`` if each row has exactly one;
    else ``labels``, and those of -1 and of blanks."""

    def __init__(
        self,
        where: str,
        names: Sequence[str],
        facts: Mapping[str, ColumnFacts],
        rows: Callable[[], Iterable[Any]],
        records: int,
        several: bool,
    ) -> None:
        """``rows`` yields place and cells of each of all ``records`` rows, ``several`` of one image. Raises
        :class:`SourceError`."""
        self._names, self._rows, self._several = names, rows, several
        self._values: set[int | None] = set()
        for name in names:
            each = facts[name]
            if each.flags is None:
                raise SourceError(f"{where}: column {printable(name)} has other values than 0, 1, -1")
            self._values |= each.flags | ({None} if each.values.count < records else set())

    @cached_property
    def fields(self) -> dict[str, Field]:
        """Declarations of the columns."""
        if (
            self._values <= {0, 1}
            and not self._several
            and all(len(self._having(1, [c])) == 1 for _, c in self._rows())
        ):
            return {"label": Label(tuple(self._names))}
        found: dict[str, Field] = {"labels": Labels(tuple(self._names), of=False)}
        found |= {UNCERTAIN: Labels(tuple(self._names), of=False)} if -1 in self._values else {}
        return found | ({BLANK: Labels(tuple(self._names), of=False)} if None in self._values else {})

    def values(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """The values of an image, of its rows' cells."""
        if "label" in self.fields:
            return {"label": self._having(1, rows)[0]}
        every = {"labels": self._having(1, rows), UNCERTAIN: self._having(-1, rows), BLANK: self._having(None, rows)}
        return {name: value for name, value in every.items() if name in self.fields}

    def _having(self, wanted: int | None, rows: list[dict[str, Any]]) -> list[str]:
        return [name for name in self._names if any(flag_of(cells.get(name)) == wanted for cells in rows)]

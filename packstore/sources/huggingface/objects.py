"""Boxes in tables, as sets for detection have them: ``objects`` with ``bbox`` and ``category``, or a column ``bbox``.

A struct of lists is what ``datasets`` makes of ``Sequence({…})``, a list of structs what it makes of ``[{…}]``
(https://huggingface.co/docs/datasets/object_detection). None of them says what its four numbers mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from packstore.core.errors import AmbiguousSourceError, Answer, printable
from packstore.sources.boxes import BOX_NAMES, CONVENTIONS, LABEL_NAMES, NOT_CONVERTED, BoxRanges


@dataclass(frozen=True, slots=True)
class ObjectColumn:
    """A column of a table that holds boxes.

    Attributes:
        column: Its name.
        boxes: Name of the boxes in each object; empty if the column is the boxes.
        labels: Name of their classes in each object, or else of another column; empty for none.
        classes: Names of the classes by number; None if they have none.
        named: The values of ``labels`` are names.
        has_rest: Objects have more than boxes and labels.
        convention: One of :data:`packstore.sources.boxes.CONVENTIONS`; empty while it is not known.
    """

    column: str
    boxes: str = ""
    labels: str = ""
    classes: tuple[str, ...] | None = None
    named: bool = False
    has_rest: bool = False
    convention: str = ""

    def boxes_of(self, value: Any) -> Any:
        """The boxes of a row as they are in the table; None for none."""
        return _member(value, self.boxes) if self.boxes else value

    def labels_of(self, value: Any) -> list[int] | None:
        """The numbers of the classes of a row. Raises :class:`ValueError`."""
        found = _member(value, self.labels) if self.boxes else value
        if found is None:
            return None
        if not self.named:
            return [_number(each) for each in found]
        assert self.classes is not None
        numbers = {name: number for number, name in enumerate(self.classes)}
        unknown = next((each for each in found if each not in numbers), None)
        if unknown is not None or None in found:
            raise ValueError(f"{printable(str(unknown))!r} is none of the classes: its table has changed")
        return [numbers[each] for each in found]

    def rest_of(self, value: Any) -> Any:
        """What a row's objects have besides boxes and labels."""
        own = (self.boxes, self.labels)
        if isinstance(value, list):
            return [{name: each for name, each in item.items() if name not in own} for item in value]
        return value and {name: each for name, each in value.items() if name not in own}


@dataclass(slots=True)
class Objects:
    """What all objects of a dataset say of their convention and their classes.

    Attributes:
        found: The column.
        ranges: Of its boxes.
        names: Of its classes, if its labels are names.
        fits: Each box has four numbers and, if there are labels, one label.
    """

    found: ObjectColumn
    ranges: BoxRanges = field(default_factory=BoxRanges)
    names: set[str] = field(default_factory=set)
    fits: bool = True

    def add(self, value: Any, labels: Any, sides: tuple[Any, Any] | None) -> None:
        """Adds a row: values of the column, of the column of labels, and width and height of its image."""
        boxes = self.found.boxes_of(value) or []
        if any(box is None or len(box) != 4 or None in box for box in boxes):
            self.fits = False
            return
        known = sides is not None and all(type(each) is int and 0 < each < 1 << 31 for each in sides)
        every = np.array([sides] * len(boxes), np.float64) if known else None
        try:
            corners = np.array(boxes, np.float64).reshape(-1, 4)
        except OverflowError:  # JSON has whole numbers of any size
            self.fits = False
            return
        self.ranges.add(corners, every)
        if self.found.labels:
            classes = _member(value, self.found.labels) if self.found.boxes else labels
            self.fits &= len(classes or ()) == len(boxes)
            if self.found.named:
                self.names.update(each for each in classes or () if each is not None)

    def settle(self, convention: str | None, name: str, path: Any) -> ObjectColumn | None:
        """The column with its convention; None if it is to stay as it is: it holds no boxes, or so it was said.

        Raises :class:`AmbiguousSourceError` if the boxes fit several conventions, and ``convention`` is None."""
        if convention == NOT_CONVERTED or not self.fits or not self.ranges.count:
            return None
        found = replace(self.found, classes=tuple(sorted(self.names))) if self.found.named else self.found
        possible = self.ranges.possible_conventions()
        if convention is None and len(possible) != 1:
            shown = printable(f"{found.column}.{found.boxes}" if found.boxes else found.column)
            choices = possible or CONVENTIONS[:3]
            fitting = f"could be {' or '.join(choices)}" if possible else "fit no convention"
            raise AmbiguousSourceError(
                f"{name}: the {self.ranges.count:,} boxes in {shown} {fitting}: say which with --layout, or keep them "
                f"as JSON, which no loader moves with its image, with --layout {NOT_CONVERTED}",
                [Answer(("--layout", each)) for each in (*choices, NOT_CONVERTED)],
                path,
            )
        return replace(found, convention=convention or possible[0])


def find_objects(columns: Mapping[str, str | Mapping[str, str]]) -> ObjectColumn | None:
    """Finds the only column that holds boxes, by names and kinds; None for none or several.

    Args:
        columns: The kind of each column, or of each member of its objects: ``boxes`` for lists of boxes, ``numbers``
            and ``names`` for lists of whole numbers and of texts, empty for all else.
    """
    found = []
    for column, kind in columns.items():
        beside = {column: kind} if isinstance(kind, str) else kind
        found += [
            ObjectColumn(column, "" if isinstance(kind, str) else name)
            for name, its in beside.items()
            if its == "boxes" and name.lower() in BOX_NAMES
        ]
    if len(found) != 1:
        return None
    inside = columns[found[0].column]
    plain = {name: kind for name, kind in columns.items() if isinstance(kind, str)}
    beside = plain if isinstance(inside, str) else inside
    by_name = {name.lower(): name for name, kind in beside.items() if kind in ("numbers", "names")}
    label = next((by_name[name] for name in LABEL_NAMES if name in by_name), "")
    has_rest = not isinstance(inside, str) and len(inside) > 1 + bool(label)
    return replace(found[0], labels=label, named=bool(label) and beside[label] == "names", has_rest=has_rest)


def kind_of_value(value: Any) -> str | dict[str, str] | None:
    """The kind of a value of JSON as :func:`find_objects` takes it; None where it says nothing."""
    if isinstance(value, dict):
        return {name: kind for name, each in value.items() if isinstance(kind := _kind_of_list(each), str)}
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        found: str | dict[str, str] | None = None
        for item in value:
            found = merged_kind(found, {name: _kind_of_item(each) for name, each in item.items()})
        return found
    return _kind_of_list(value)


def merged_kind(one: str | dict[str, str] | None, other: str | dict[str, str] | None) -> str | dict[str, str] | None:
    """The kind of values of two kinds."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, dict) and isinstance(other, dict):
        return {**other, **{name: kind if other.get(name, kind) == kind else "" for name, kind in one.items()}}
    return one if one == other else ""


def _kind_of_list(value: Any) -> str | None:
    if value is None or value == []:
        return None
    kinds = {_kind_of_item(each) for each in value} if isinstance(value, list) else {""}
    return kinds.pop() if len(kinds) == 1 else ""


def _kind_of_item(value: Any) -> str:
    if isinstance(value, list):
        return "boxes" if all(type(each) in (int, float) for each in value) else ""
    return "numbers" if type(value) is int else "names" if isinstance(value, str) else ""


def _member(value: Any, name: str) -> Any:
    """A member of a row's objects, a struct of lists or a list of structs."""
    if isinstance(value, list):
        return [None if each is None else each.get(name) for each in value]
    return None if value is None else value.get(name)


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.40} is no number of a class")
    return value

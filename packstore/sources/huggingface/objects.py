"""Boxes in tables, as sets for detection have them: ``objects`` with ``bbox`` and ``category``, or a column ``bbox``.

``datasets`` stores ``Sequence({…})`` as a struct of lists, and ``[{…}]`` as a list of structs
(https://huggingface.co/docs/datasets/object_detection). Neither states the convention of the four numbers of a box.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from packstore.core.column import is_crowd_name
from packstore.core.errors import AmbiguousSourceError, Answer, printable
from packstore.sources.boxes import BOX_NAMES, CONVENTIONS, LABEL_NAMES, NOT_CONVERTED, BoxConventionCounter

ValueKind = str | dict[str, str]
"""Kind of a column for :func:`find_object_column`: ``boxes`` for lists of boxes, ``numbers`` for lists of integers,
``names`` for lists of texts, ``""`` for anything else; for objects, the kind of each member by name."""


@dataclass(frozen=True, slots=True)
class ObjectColumn:
    """Column of a table that holds boxes: objects with boxes and other members, or the boxes alone.

    Attributes:
        column: Its name.
        boxes: Name of the boxes in each object; ``""`` if the column holds the boxes alone.
        labels: Name of the classes in each object, or of another column; ``""`` for none.
        crowds: Name of the flags of crowd regions in each object; ``""`` for none.
        classes: Names of the classes by number; None if they have none.
        named: The values of ``labels`` are names.
        has_rest: Objects have further members.
        convention: One of :data:`packstore.sources.boxes.CONVENTIONS`; ``""`` while it is unknown.
    """

    column: str
    boxes: str = ""
    labels: str = ""
    crowds: str = ""
    classes: tuple[str, ...] | None = None
    named: bool = False
    has_rest: bool = False
    convention: str = ""

    def boxes_of(self, value: Any) -> Any:
        """Returns the boxes in the value of a row, as they are in the table; None if it has none."""
        return _collect_member(value, self.boxes) if self.boxes else value

    def labels_of(self, value: Any) -> list[int] | None:
        """Returns the class numbers in the value of a row; None if it has none. Converts names by :attr:`classes`.

        ``value``: the row's objects; without objects, the value of the column of labels. Raises :class:`ValueError` for
        an unknown name, and for anything but a class number.
        """
        labels = _collect_member(value, self.labels) if self.boxes else value
        if labels is None:
            return None
        if not self.named:
            return [_require_class_number(each) for each in labels]
        assert self.classes is not None
        numbers = {name: number for number, name in enumerate(self.classes)}
        unknown = next((each for each in labels if each not in numbers), None)
        if unknown is not None or None in labels:
            raise ValueError(f"{printable(str(unknown))!r} is not one of the classes: its table has changed")
        return [numbers[each] for each in labels]

    def crowds_of(self, value: Any) -> list[int] | None:
        """Returns 1 for each crowd region among the objects of a row, and 0 for other objects; None without objects."""
        flags = _collect_member(value, self.crowds)
        return None if flags is None else [int(flag in (1, True)) for flag in flags]

    def rest_of(self, value: Any) -> Any:
        """Returns the objects of a row without boxes and labels; None stays None."""
        own = (self.boxes, self.labels)
        if isinstance(value, list):
            return [{name: each for name, each in item.items() if name not in own} for item in value]
        return value and {name: each for name, each in value.items() if name not in own}


@dataclass(slots=True)
class ObjectFacts:
    """Facts about all objects of a dataset, which decide their convention and their classes.

    Attributes:
        found: The column.
        ranges: Counts of the boxes that contradict each convention.
        names: Names of its classes, if its labels are names.
        fits: Each box has four numbers and, if there are labels, one label.
    """

    found: ObjectColumn
    ranges: BoxConventionCounter = field(default_factory=BoxConventionCounter)
    names: set[str] = field(default_factory=set)
    fits: bool = True

    def add_row(self, value: Any, labels: Any, sides: tuple[Any, Any] | None) -> None:
        """Updates the facts by a row. For a box of other than four numbers, only sets :attr:`fits` to False.

        Args:
            value: Value of the column.
            labels: Value of the column of labels; not used if objects hold the labels.
            sides: Width and height of the image; None if unknown. Values that are no sides count as unknown.
        """
        boxes = self.found.boxes_of(value) or []
        if any(box is None or len(box) != 4 or None in box for box in boxes):
            self.fits = False
            return
        known = sides is not None and all(type(each) is int and 0 < each < 1 << 31 for each in sides)
        image_sizes = np.array([sides] * len(boxes), np.float64) if known else None
        try:
            corners = np.array(boxes, np.float64).reshape(-1, 4)
        except OverflowError:  # JSON has whole numbers of any size
            self.fits = False
            return
        self.ranges.count_boxes(corners, image_sizes)
        if self.found.labels:
            classes = _collect_member(value, self.found.labels) if self.found.boxes else labels
            self.fits &= len(classes or ()) == len(boxes)
            if self.found.named:
                self.names.update(each for each in classes or () if each is not None)

    def decide_convention(self, convention: str | None, name: str, path: Any) -> ObjectColumn | None:
        """Returns the column with its convention: that of the user, or the only one that the boxes fit.

        Returns None if :attr:`fits` is False, the column holds no boxes, or ``convention`` is ``json``. Raises
        :class:`AmbiguousSourceError` if ``convention`` is None, and the boxes fit several conventions or none.

        Args:
            convention: Convention that the user names; None for none.
            name: Name of the source, for messages.
            path: Path of the source.
        """
        if convention == NOT_CONVERTED or not self.fits or not self.ranges.count:
            return None
        objects = replace(self.found, classes=tuple(sorted(self.names))) if self.found.named else self.found
        possible = self.ranges.possible_conventions()
        if convention is None and len(possible) != 1:
            shown = printable(f"{objects.column}.{objects.boxes}" if objects.boxes else objects.column)
            choices = possible or CONVENTIONS[:3]
            fitting = f"could be {' or '.join(choices)}" if possible else "fit no convention"
            raise AmbiguousSourceError(
                f"{name}: the {self.ranges.count:,} boxes in {shown} {fitting}: say which with --layout, or keep them "
                f"as JSON, which no loader moves with its image, with --layout {NOT_CONVERTED}",
                [Answer(("--layout", each)) for each in (*choices, NOT_CONVERTED)],
                path,
            )
        return replace(objects, convention=convention or possible[0])


def find_object_column(columns: Mapping[str, ValueKind]) -> ObjectColumn | None:
    """Finds the only column that holds boxes, and the labels beside them, by the names and kinds of columns. None
    for no such column, or several."""
    candidates = []
    for column, kind in columns.items():
        beside = {column: kind} if isinstance(kind, str) else kind
        candidates += [
            ObjectColumn(column, "" if isinstance(kind, str) else name)
            for name, its in beside.items()
            if its == "boxes" and name.lower() in BOX_NAMES
        ]
    if len(candidates) != 1:
        return None
    inside = columns[candidates[0].column]
    plain = {name: kind for name, kind in columns.items() if isinstance(kind, str)}
    beside = plain if isinstance(inside, str) else inside
    by_name = {name.lower(): name for name, kind in beside.items() if kind in ("numbers", "names")}
    label = next((by_name[name] for name in LABEL_NAMES if name in by_name), "")
    has_rest = not isinstance(inside, str) and len(inside) > 1 + bool(label)
    crowds = "" if isinstance(inside, str) else next(filter(is_crowd_name, inside), "")
    return replace(
        candidates[0], labels=label, crowds=crowds, named=bool(label) and beside[label] == "names", has_rest=has_rest
    )


def classify_value(value: Any) -> ValueKind | None:
    """Returns the kind of a value of JSON. Objects have a dictionary with the kind of each member.

    Returns None if the kind is open, as for an empty list.
    """
    if isinstance(value, dict):
        return {name: kind for name, each in value.items() if isinstance(kind := _classify_list(each), str)}
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        members: ValueKind | None = None
        for item in value:
            members = merge_kinds(members, {name: _classify_item(each) for name, each in item.items()})
        return members
    return _classify_list(value)


def merge_kinds(one: ValueKind | None, other: ValueKind | None) -> ValueKind | None:
    """Returns the common kind of two values of a column; ``""`` if their kinds differ. If one is None, returns the
    other.

    Merges the kinds of objects member by member.
    """
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, dict) and isinstance(other, dict):
        return {**other, **{name: kind if other.get(name, kind) == kind else "" for name, kind in one.items()}}
    return one if one == other else ""


def _classify_list(value: Any) -> str | None:
    """Returns the common kind of the items of a list. Returns ``""`` if they differ, or if the value is no list.

    Returns None for an empty list and for None.
    """
    if value is None or value == []:
        return None
    kinds = {_classify_item(each) for each in value} if isinstance(value, list) else {""}
    return kinds.pop() if len(kinds) == 1 else ""


def _classify_item(value: Any) -> str:
    """Returns the kind of an item: ``boxes`` for lists of numbers, ``numbers`` for integers, ``names`` for texts.
    Anything else has ``""``."""
    if isinstance(value, list):
        return "boxes" if all(type(each) in (int, float) for each in value) else ""
    return "numbers" if type(value) is int else "names" if isinstance(value, str) else ""


def _collect_member(value: Any, name: str) -> Any:
    """Returns the values of a member in all objects of a row. The objects are a struct of lists, or a list of structs.

    Returns None for a missing value, and for a struct without the member. A missing object of a list gives None in the
    result."""
    if isinstance(value, list):
        return [None if each is None else each.get(name) for each in value]
    return None if value is None else value.get(name)


def _require_class_number(value: Any) -> int:
    """Returns the value if it is a whole number from 0. Raises :class:`ValueError` for anything else."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.40} is no class number")
    return value

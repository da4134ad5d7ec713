"""Boxes of tables: the numbers in each row, and the convention that all rows follow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.sources.boxes import BoxConventionCounter
from packstore.sources.table.box_cells import is_blank, parse_boxes, parse_number_cell
from packstore.sources.table.columns import ColumnRoles
from packstore.sources.table.images import batch_rows


def find_convention(
    where: str, roles: ColumnRoles, rows: Iterable[Any], sized: Mapping[int, tuple[int, int]], said: str | None
) -> str:
    """Finds the convention that all boxes follow, by the names of their columns and by the sizes of images: those in
    ``sized``, and columns ``width`` and ``height``. Its name ends in ``n`` if boxes are fractions of the image. Names
    of corners are believed even if boxes do not fit. Returns ``xyxy`` if there are no boxes.

    Args:
        where: Name of the table, for messages.
        roles: Names the columns of the boxes.
        rows: Place and cells of each row.
        sized: Width and height of the image of some rows, by row number; they exclude conventions that put boxes
            outside of an image.
        said: Convention that the user names: it is returned, once all rows are checked.

    Raises:
        AmbiguousSourceError: The boxes fit several conventions, or none.
        SourceError: A cell of boxes is malformed.
    """
    ranges, measured = BoxConventionCounter(), BoxConventionCounter()
    for number, block in enumerate(batch_rows(rows)):
        boxes, sides = [], []
        for n, (place, cells) in enumerate(block, number * 4096):
            try:
                own = read_row_boxes(cells, roles.boxes)
            except ValueError as error:
                raise SourceError(f"{place}: {error}") from None
            for box in own:
                boxes.append(box)
                if n in sized:
                    measured.count_boxes(np.array([box]), np.array([sized[n]], np.float64))
                width, height = (parse_number_cell(cells.get(name)) for name in ("width", "height"))
                sides.append((width, height) if {"width", "height"}.isdisjoint(roles.boxes) else (None, None))
        full = all(w and h for w, h in sides)
        ranges.count_boxes(np.array(boxes).reshape(-1, 4), np.array(sides, np.float64) if full and sides else None)
    if said is not None:
        return said
    possible = [
        name for name in ranges.possible_conventions() if not measured.count or name in measured.possible_conventions()
    ]
    named = [name for name in possible if name.removesuffix("n") == roles.convention]
    if roles.convention == "xywh" and not named:
        named = possible
    if roles.convention in ("xywh", "cxcywh"):
        named = [name for name in possible if name.removesuffix("n") in ("xywh", "cxcywh")]
        precise = roles.convention == "cxcywh" or not roles.boxes[0].lower().endswith(("x", "left"))
        named = [n for n in named if n.removesuffix("n") == roles.convention] or named if precise else named
    choices = named if roles.convention else possible
    if roles.convention == "xyxy" and len(choices) != 1:
        choices = ["xyxyn"] if ranges.fractions and not ranges.whole else ["xyxy"]
    if len(choices) == 1 or not ranges.count:
        return choices[0] if choices else "xyxy"
    offered = choices or ["xyxy", "xywh", "cxcywh"]
    columns = ", ".join(map(printable, roles.boxes))
    raise AmbiguousSourceError(
        f"{where}: the {ranges.count:,} boxes in {columns} could be {' or '.join(offered)}: say which with --layout",
        [Answer(("--layout", each)) for each in offered],
    )


def read_row_boxes(cells: Mapping[str, Any], columns: Sequence[str]) -> list[list[float]]:
    """Reads the boxes of a row; none if all cells are blank. Raises :class:`ValueError` for a cell that is no number,
    or no box."""
    values = [cells.get(name) for name in columns]
    if all(map(is_blank, values)):
        return []
    if len(columns) == 1:
        found = parse_boxes(values[0])
        if found is None:
            shown = printable(str(values[0])[:40])
            raise ValueError(f"{printable(columns[0])} is {shown!r}, and should be four numbers, or a list of such")
        return found[0]
    numbers = [parse_number_cell(value) for value in values]
    for name, value, number in zip(columns, values, numbers, strict=True):
        if number is None:
            raise ValueError(f"{printable(name)} is {printable(str(value)[:40])!r}, and should be a number")
    return [[number for number in numbers if number is not None]]

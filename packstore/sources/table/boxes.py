"""Boxes of tables: the numbers in each row, and the convention that all rows follow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from packstore.core.errors import AmbiguousSourceError, Answer, SampleError, SourceError, printable
from packstore.images.orientation import read_annotation_orientation, read_orientation, swaps_sides
from packstore.images.sniff import HeaderError, sniff
from packstore.sources.boxes import BoxConventionCounter
from packstore.sources.table.box_cells import is_blank, parse_boxes, parse_number_cell
from packstore.sources.table.columns import ColumnRoles
from packstore.sources.table.image_rows import RowsByImage
from packstore.sources.table.images import batch_rows
from packstore.sources.tree import Tree

_MEASURED, _HEADER = 512, 1 << 16


def find_convention(
    where: str, roles: ColumnRoles, rows: Iterable[Any], sized: Mapping[int, tuple[int, int]], said: str | None
) -> str:
    """Finds the convention that all boxes follow, by the names of their columns and the sizes of images.

    The name of the convention ends in ``n`` if boxes are fractions of the image. Sizes are those in ``sized``, and
    columns ``width`` and ``height``. Columns named like corners are ``xyxy``, even if boxes do not fit. Without boxes,
    returns the first convention that the names allow.

    Args:
        where: Name of the table, for messages.
        roles: Names the columns of the boxes.
        rows: Place and cells of each row.
        sized: Width and height of the image of some rows, by row number; they exclude conventions that put boxes
            outside of an image.
        said: Convention that the user names: it is returned, after all cells are checked.

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
    """Reads the boxes of a row; none if all cells are blank. A single column may hold several boxes in a cell.

    Raises :class:`ValueError` for a cell that is no number, or no box.
    """
    values = [cells.get(name) for name in columns]
    if all(map(is_blank, values)):
        return []
    if len(columns) == 1:
        cell = parse_boxes(values[0])
        if cell is None:
            shown = printable(str(values[0])[:40])
            raise ValueError(f"{printable(columns[0])} is {shown!r}, and should be four numbers, or a list of such")
        return cell[0]
    numbers = [parse_number_cell(value) for value in values]
    for name, value, number in zip(columns, values, numbers, strict=True):
        if number is None:
            raise ValueError(f"{printable(name)} is {printable(str(value)[:40])!r}, and should be a number")
    return [[number for number in numbers if number is not None]]


def measure_images(tree: Tree, rows: RowsByImage) -> dict[int, tuple[int, int]]:
    """Reads (width, height), upright, of at most 1,023 images, at equal steps; of all images if there are fewer.

    Returns the sizes by row number; all rows of an image have one. Leaves out images without a readable header.
    """
    sizes: dict[int, tuple[int, int]] = {}
    for image in range(0, rows.image_count, max(1, rows.image_count // _MEASURED)):
        start = tree.first_bytes(rows.image_path(image), _HEADER)
        with suppress(HeaderError, SampleError, ValueError):
            info = sniff(start)
            turned = swaps_sides(read_orientation(start, info))
            sides = (info.height, info.width) if turned else (info.width, info.height)
            sizes |= dict.fromkeys(rows.numbers_of(image), sides)
    return sizes


def read_stored_sides(image: bytes) -> tuple[tuple[int, int], bool]:
    """Reads width and height, as stored, of an image file, and if they change places in the upright image. Raises
    :class:`ValueError` if it is no image."""
    try:
        info, swapped = sniff(image), swaps_sides(read_annotation_orientation(image))
    except HeaderError as error:
        raise ValueError(error.reason) from error
    upright = swapped and info.kind == "tiff"  # whose header is read as decoded
    return (info.height, info.width) if upright else (info.width, info.height), swapped

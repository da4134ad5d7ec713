"""Parses the boxes and masks in the cells of tables, and finds the convention of boxes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.images.orientation import read_annotation_orientation, swaps_sides
from packstore.images.sniff import HeaderError, sniff
from packstore.sources.boxes import CONVENTIONS, NOT_CONVERTED, BoxConventionCounter
from packstore.sources.table.reading import batch_rows

_BOX_NUMBERS = {
    "xyxy": (
        *("xmin ymin xmax ymax", "x1 y1 x2 y2", "x0 y0 x1 y1", "xtl ytl xbr ybr", "left top right bottom"),
        "minx miny maxx maxy",
    ),
    "cxcywh": (
        *("cx cy w h", "xcenter ycenter width height", "xcenter ycenter w h", "centerx centery width height"),
        "xc yc w h",
    ),
    "xywh": (
        *("x y w h", "x y width height", "left top width height", "xmin ymin width height", "xmin ymin w h"),
        *("x1 y1 w h", "x1 y1 width height"),
    ),
}
# Convention, and the names of the four numbers of a box, without punctuation.
_FOURS = [
    (convention, tuple(before + number for number in four.split()))
    for convention, sets in _BOX_NUMBERS.items()
    for four in sets
    for before in ("", "bbox", "box", "roi")
]
# Cells of images without a box; Global Wheat's is ``no_box``.
_NO_BOX = ("no_box", "nobox", "no box", "none", "nan")


class MalformedBoxError(SourceError):
    """A cell of a column of boxes is no box."""


def find_convention(
    where: str,
    names: Sequence[str],
    implied: str,
    rows: Iterable[Any],
    sized: Mapping[int, tuple[int, int]],
    said: str | None,
) -> str:
    """Finds the convention that all boxes follow, by the names of their columns and the sizes of images.

    The name of the convention ends in ``n`` if boxes are fractions of the image. Columns named like corners are
    ``xyxy``, even if boxes do not fit. Without boxes, returns the first convention that the names allow.

    Args:
        where: Name of the table, for messages.
        names: Columns of the boxes.
        implied: Convention that their names imply; empty for none.
        rows: Place and cells of each row.
        sized: Width and height of the image of some rows, by row number; others may have columns ``width`` and
            ``height``. They exclude conventions that put boxes outside of an image.
        said: Convention that the user names: it is returned, after all cells are checked.

    Raises:
        AmbiguousSourceError: The boxes fit several conventions, or none.
        MalformedBoxError: A cell is no box.
    """
    ranges, measured = BoxConventionCounter(), BoxConventionCounter()
    for number, block in enumerate(batch_rows(rows)):
        boxes: list[list[float]] = []
        within: list[tuple[list[float], Sequence[float | None]]] = []
        for n, (place, cells) in enumerate(block, number * 4096):
            try:
                own = read_row_boxes(cells, names)
            except ValueError as error:
                raise MalformedBoxError(f"{place}: {error}") from None
            boxes += own
            stated = [parse_number_cell(cells.get(name)) for name in ("width", "height") if name not in names]
            size = sized.get(n, stated)
            within += [(box, size) for box in own if len(size) == 2 and all(size)]
        ranges.count_boxes(np.array(boxes).reshape(-1, 4))
        if within:
            measured.count_boxes(*(np.array(each, np.float64) for each in zip(*within, strict=True)))
    if said is not None:
        return said
    choices = [
        name for name in ranges.possible_conventions() if not measured.count or name in measured.possible_conventions()
    ]
    if implied == "xyxy":
        choices = ["xyxyn" if ranges.fractions and not ranges.whole else "xyxy"]
    elif implied:  # x, y, w, h may be centres as well
        meant = ("xywh", "cxcywh") if implied == "xywh" and names[0].lower().endswith(("x", "left")) else (implied,)
        choices = [name for name in choices if name.removesuffix("n") in meant]
    if len(choices) == 1 or not ranges.count:
        return choices[0] if choices else "xyxy"
    offered = [*(choices or CONVENTIONS[:3]), NOT_CONVERTED]
    fitting = f"could be {' or '.join(choices)}" if choices else "fit no convention"
    raise AmbiguousSourceError(
        f"{where}: the {ranges.count:,} boxes in {', '.join(map(printable, names))} {fitting}: say which with "
        f"--layout, or keep them as they are with --layout {NOT_CONVERTED}",
        [Answer(("--layout", each)) for each in offered],
    )


def convert_runs(text: str, width: int, height: int) -> tuple[list[float], dict[str, Any]]:
    """Converts the run lengths of a mask from Kaggle's form to COCO's. Returns the mask's box (left, top, right,
    bottom), and its runs.

    Kaggle's ``EncodedPixels`` are pairs ``start length …``, column by column, from 1. COCO's are lengths alone, of
    background and mask by turns. Raises :class:`ValueError` for runs outside of the image, or not in order.
    """
    counts, at = [], 0
    left, top, right, bottom = width, height, 0, 0
    numbers = list(map(int, text.split()))
    for start, length in zip(numbers[::2], numbers[1::2], strict=True):
        end = start - 1 + length
        if start - 1 < at or length < 1 or end > width * height:
            raise ValueError(f"its run {start} {length} is not in order, or not within {width} x {height} pixels")
        counts += [start - 1 - at, length]
        first, last = (start - 1) // height, (end - 1) // height
        left, right = min(left, first), max(right, last + 1)
        spans = first < last  # includes the bottom of one column and the top of the next
        top = 0 if spans else min(top, (start - 1) % height)
        bottom = height if spans else max(bottom, (end - 1) % height + 1)
        at = end
    rest = [width * height - at] if at < width * height else []
    return [left, top, right, bottom], {"size": [height, width], "counts": counts + rest}


def letters_and_digits(name: str) -> str:
    """Returns the ASCII letters and digits of a name, in lower case."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def parse_number_cell(value: Any) -> float | None:
    """Returns the number in a cell, also if it is written as text. Returns None for booleans, NaN, infinity and
    other values."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if number - number == 0 else None


def is_blank(value: Any) -> bool:
    """Tells if a cell has no value: None, an empty text or NaN."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def find_box_columns(names: Iterable[str]) -> tuple[tuple[str, ...], str]:
    """Finds the four columns with names of a box's numbers (``xmin`` …). Returns them and their convention.

    Compares only letters and digits, without case. Prefers corners to centres, and centres to a corner with sizes.
    Returns ``((), "")`` if there are no such columns.
    """
    plain = {letters_and_digits(name): name for name in names}
    for convention, four in _FOURS:
        if all(name in plain for name in four):
            return tuple(plain[name] for name in four), convention
    return (), ""


def parse_boxes(value: Any) -> list[list[Any]] | None:
    """Parses the boxes in a cell. A cell holds

    - one box: ``[1, 2, 3, 4]``, ``1 2 3 4`` or ``1,2,3,4``;
    - several boxes: a list of them, or boxes separated by ``;``;
    - no box: a text such as ``no_box``.

    Python's notation is read, too. Returns None for other values.
    """
    if isinstance(value, str):
        text = value.strip()
        if text.lower() in _NO_BOX:
            return []
        if text[:1] in ("[", "("):
            value = parse_list(text)
        else:
            value = [re.split(r"[\s,]+", part.strip()) for part in text.split(";") if part.strip()]
    if not isinstance(value, list):
        return None
    if len(value) == 4 and not any(isinstance(each, list) for each in value):
        value = [value]
    boxes = [[parse_number_cell(part) for part in each] if isinstance(each, list) else [] for each in value]
    return None if any(len(box) != 4 or None in box for box in boxes) else boxes


def parse_list(text: str) -> Any:
    """Parses a list in the notation of JSON or Python. Returns None for other texts."""
    quoted = text.replace("'", '"')
    for each in (text, quoted, quoted.replace("(", "[").replace(")", "]")):
        try:
            return json.loads(each)
        except (ValueError, RecursionError):
            continue
    return None


def read_row_boxes(cells: Mapping[str, Any], columns: Sequence[str]) -> list[list[float]]:
    """Reads the boxes of a row; none if all cells are blank. A single column may hold several boxes in a cell.

    Raises :class:`ValueError` for cells that are no box.
    """
    values = [cells.get(name) for name in columns]
    if all(map(is_blank, values)):
        return []
    boxes = parse_boxes(values[0] if len(columns) == 1 else values)
    if boxes is None:
        named = ", ".join(f"{name} is {str(value)[:40]!r}" for name, value in zip(columns, values, strict=True))
        raise ValueError(f"{printable(named)}, expected the four numbers of a box")
    return boxes


def read_stored_sides(image: bytes) -> tuple[tuple[int, int], bool]:
    """Reads width and height, as stored, of an image file, and if they change places in the upright image. Raises
    :class:`ValueError` if it is no image."""
    try:
        info, swapped = sniff(image), swaps_sides(read_annotation_orientation(image))
    except HeaderError as error:
        raise ValueError(error.reason) from error
    upright = swapped and info.kind == "tiff"  # whose header is read as decoded
    return (info.height, info.width) if upright else (info.width, info.height), swapped

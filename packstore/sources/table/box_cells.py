"""Parses boxes in tables: the columns and cells that have them, and the convention that their names imply."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

_CORNERS = (
    ("xmin", "ymin", "xmax", "ymax"), ("x1", "y1", "x2", "y2"), ("x0", "y0", "x1", "y1"), ("xtl", "ytl", "xbr", "ybr"),
    ("left", "top", "right", "bottom"), ("bboxx1", "bboxy1", "bboxx2", "bboxy2"), ("minx", "miny", "maxx", "maxy"),
    ("roix1", "roiy1", "roix2", "roiy2"), ("bboxxmin", "bboxymin", "bboxxmax", "bboxymax"),
    ("boxxmin", "boxymin", "boxxmax", "boxymax"),
)  # fmt: skip
_SIZES = (
    ("x", "y", "w", "h"), ("x", "y", "width", "height"), ("left", "top", "width", "height"),
    ("bboxx", "bboxy", "bboxw", "bboxh"), ("bboxx", "bboxy", "bboxwidth", "bboxheight"),
    ("xmin", "ymin", "width", "height"), ("xmin", "ymin", "w", "h"), ("x1", "y1", "w", "h"),
    ("x1", "y1", "width", "height"), ("boxx", "boxy", "boxw", "boxh"),
)  # fmt: skip
_CENTRES = (
    ("cx", "cy", "w", "h"), ("xcenter", "ycenter", "width", "height"), ("xcenter", "ycenter", "w", "h"),
    ("centerx", "centery", "width", "height"), ("xc", "yc", "w", "h"),
)  # fmt: skip
_NAMES = re.compile(r"(.*bbox|box|boxes|boundingbox|.*boxes?(string|list)?|rect|rectangle|region|roi)(es|s)?")
_NO_BOX = ("no_box", "nobox", "no box", "none", "nan")
"""Cells of images without a box; Global Wheat's is ``no_box``."""


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
    for convention, sets in (("xyxy", _CORNERS), ("cxcywh", _CENTRES), ("xywh", _SIZES)):
        for four in sets:
            if all(name in plain for name in four):
                return tuple(plain[name] for name in four), convention
    return (), ""


def is_box_name(name: str) -> bool:
    """Tells if a column has a name for boxes."""
    return _NAMES.fullmatch(letters_and_digits(name)) is not None


def parse_boxes(value: Any) -> tuple[list[list[float]], str] | None:
    """Parses the boxes in a cell. Returns them, and their convention if the cell names it, else ``""``. A cell holds

    - one box: ``[1, 2, 3, 4]``, ``1 2 3 4``, or an object of just four numbers, such as ``{"xmin": 1, …}``;
    - several boxes: a list of them, or boxes separated by ``;``;
    - no box: a text such as ``no_box``.

    Python's notation is read, too. Returns None for other values, and for boxes of several conventions.
    """
    if isinstance(value, str):
        text = value.strip()
        if text.lower() in _NO_BOX:
            return [], ""
        if text[:1] in "[{(" and text:
            value = _parse_list(text)
        else:
            value = [re.split(r"[\s,]+", part.strip()) for part in text.split(";") if part.strip()]
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, list):
        return None
    if len(value) == 4 and not any(isinstance(each, (list, Mapping)) for each in value):
        value = [value]
    boxes, conventions = [], set()
    for each in value:
        convention = ""
        if isinstance(each, Mapping):
            names, convention = find_box_columns(map(str, each))
            if len(each) != len(names):
                return None
            each = [each[name] for name in names]
        numbers = (
            [number for part in each if (number := parse_number_cell(part)) is not None]
            if isinstance(each, list)
            else []
        )
        if len(numbers) != 4 or len(each) != 4:
            return None
        boxes.append(numbers)
        conventions.add(convention)
    return (boxes, "".join(conventions)) if len(conventions) < 2 else None


def parse_text_list(value: Any) -> list[str] | None:
    """Parses a cell with a list of texts, also in the notation of JSON or Python. Returns None for other values."""
    texts = _parse_list(value) if isinstance(value, str) and value[:1] == "[" else value
    return texts if isinstance(texts, list) and all(isinstance(each, str) for each in texts) else None


def _parse_list(text: str) -> Any:
    """Parses a list or an object in the notation of JSON, Python or numpy. Returns None for other texts."""
    plain = text if '"' in text else text.replace("'", '"')
    whole = re.sub(r"(?<=\d)\.(?!\d)", "", plain)
    for each in (plain, plain.replace("(", "[").replace(")", "]"), re.sub(r"(?<=\d)\s+(?=[-\d])", ", ", whole)):
        try:
            return json.loads(each)
        except (ValueError, RecursionError):
            continue
    return None

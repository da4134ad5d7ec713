"""Finds the roles of a table's columns (splits, boxes, classes, points, numbers) by the values of all rows."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from packstore.core.errors import UsageError, printable
from packstore.images.orientation import read_annotation_orientation, swaps_sides
from packstore.images.sniff import HeaderError, sniff
from packstore.sources.columns import LABEL_COLUMNS, is_label_name, name_words
from packstore.sources.huggingface.metadata import MISSING, ColumnValues, classify_text
from packstore.sources.splits import is_split_value

_SPLIT_NAMES = ("split", "set", "subset", "partition", "usage", "phase", "dataset", "data_set")
_MAX_TEXTS, _LEAST_POINTS = 1 << 16, 3
_SEPARATORS = "|;,"
_FLAGS = {"": None, "0": 0, "1": 1, "-1": -1, "0.0": 0, "1.0": 1, "-1.0": -1}
_RUNS = re.compile(r"\d+ \d+( \d+ \d+)*")
_CROWD_NAMES = ("iscrowd", "isgroupof")
_RUN_NAMES = ("encodedpixels", "rle", "rlemask", "maskrle")
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
_FOURS = [
    (convention, tuple(before + number for number in four.split()))
    for convention, sets in _BOX_NUMBERS.items()
    for four in sets
    for before in ("", "bbox", "box", "roi")
]
"""Convention, and the names of the four numbers of a box, without punctuation."""
_BOX_NAMES = re.compile(r"(.*bbox|box|boxes|boundingbox|.*boxes?(string|list)?|rect|rectangle|region|roi)(es|s)?")
_NO_BOX = ("no_box", "nobox", "no box", "none", "nan")
"""Cells of images without a box; Global Wheat's is ``no_box``."""


@dataclass(slots=True)
class ColumnFacts:
    """Facts about all values of a column. Blank cells do not count, except for ``flags`` and ``empty``. Without values,
    ``split``, ``lists`` and ``runs`` are true.

    Attributes:
        values: Kinds of the values.
        texts: Different values as texts; None if there are more than 65,536.
        flags: Which of 0, 1, -1 and blank (None) occur; None if there are other values.
        split: All values are names of splits.
        high: Largest number, at least 0.
        boxes: Conventions of the boxes, as the values state them; None if some value is no box.
        lists: All values are lists of texts.
        runs: All values are run lengths, ``start length start length …``.
        empty: Some value is an empty text.
        numbers: Number of values that are numbers.
        negatives: Number of values that are numbers below 0.
    """

    values: ColumnValues = field(default_factory=ColumnValues)
    texts: set[str] | None = field(default_factory=set)
    flags: set[int | None] | None = field(default_factory=set)
    split: bool = True
    high: float = 0.0
    boxes: set[str] | None = field(default_factory=set)
    lists: bool = True
    runs: bool = True
    empty: bool = False
    numbers: int = 0
    negatives: int = 0

    def add_value(self, value: Any, *, text: bool) -> None:
        """Updates all facts by the value of a cell. A blank cell changes only :attr:`values`, :attr:`flags` and
        :attr:`empty`.

        ``text``: the table holds only texts. Numbers are parsed then.
        """
        self.values.add_value(value, text=text)
        blank = value in (None, "")
        self.empty |= value == ""
        shown = "" if blank else value if isinstance(value, str) else json.dumps(value, default=str)
        if self.flags is not None:
            self.flags = self.flags | {_FLAGS[shown]} if shown in _FLAGS else None
        if blank:
            return
        self.split = self.split and isinstance(value, str) and is_split_value(value)
        if self.boxes is not None:
            cell = parse_boxes(value)
            self.boxes = None if cell is None else self.boxes | ({cell[1]} if cell[0] else set())
        self.runs = self.runs and isinstance(value, str) and _RUNS.fullmatch(value) is not None
        self.lists = self.lists and parse_text_list(value) is not None
        if self.texts is not None:
            self.texts.add(shown)
            if len(self.texts) > _MAX_TEXTS:
                self.texts = None
        if (number := parse_number_cell(value)) is not None:
            self.numbers += 1
            self.negatives += number < 0
            self.high = max(self.high, number)

    @property
    def numeric(self) -> bool:
        """All values are numbers or blank, and some is a number."""
        return bool(self.values.kinds) and self.values.kinds <= {"int", "float"}

    @property
    def class_kinds(self) -> set[str]:
        """Kinds of the values as classes. In a table of texts, numbers beside names are names: ``7`` beside ``A`` or
        ``007``. Not beside texts for missing values, such as ``NA``, alone."""
        kinds = self.values.kinds
        names = (text for text in self.texts or () if classify_text(text) == "text" and text not in MISSING)
        return {"text"} if self.values.text and "text" in kinds and any(names) else kinds

    @property
    def mostly_numeric(self) -> bool:
        """True if at least half of the values are numbers. If the column holds boxes, the other values are errors."""
        return 0 < self.filled_count <= 2 * self.numbers

    @property
    def filled_count(self) -> int:
        """Number of values that are not blank."""
        return self.values.count - self.values.missing

    def find_separator(self) -> str:
        """Returns the separator of classes within cells; empty if each cell is one class, or :attr:`texts` is None.

        - ``|`` separates if it occurs.
        - ``;`` and ``,`` separate if some part of a cell is also a whole cell. There must be fewer different parts than
          different cells, too.

        A separator does not count if a part would be empty.
        """
        for each in _SEPARATORS if self.texts else "":
            cells = [[part.strip() for part in text.split(each)] for text in self.texts or ()]
            several = [parts for parts in cells if len(parts) > 1]
            single = {parts[0] for parts in cells if len(parts) == 1}
            parts = {part for parts in cells for part in parts}
            if not several or "" in parts:
                continue
            if each == "|" or (len(parts) < len(cells) and any(single.intersection(parts) for parts in several)):
                return each
        return ""


@dataclass(slots=True)
class ColumnRoles:
    """Columns by their role. A role without a column is empty.

    Attributes:
        split: Column of splits.
        boxes: Four columns, or the only one, whose cells are boxes.
        crowds: Column of flags that are 1 for crowds, such as Open Images' ``IsGroupOf``.
        convention: ``xyxy``, ``xywh`` or ``cxcywh`` if the names of the columns imply it; else empty.
        runs: Column of masks by run lengths, such as Kaggle's ``EncodedPixels``.
        label: Column of a class, or of several.
        several: Cells of ``label`` may have several classes.
        separator: Separator of classes in its cells.
        flags: Columns that are a class each.
        points: Name, and columns of x and y, of each point.
        rest: All columns without a role; each becomes a column of the store.
    """

    split: str = ""
    boxes: tuple[str, ...] = ()
    crowds: str = ""
    convention: str = ""
    runs: str = ""
    label: str = ""
    several: bool = False
    separator: str = ""
    flags: tuple[str, ...] = ()
    points: tuple[tuple[str, str, str], ...] = ()
    rest: tuple[str, ...] = ()


def find_roles(
    facts: Mapping[str, ColumnFacts], given: Mapping[str, Sequence[str]], header: bool, several: bool = False
) -> ColumnRoles:
    """Finds the roles of all columns except those of images. Decides by their names and values.

    Columns that the user names by role have this role. Looks for run lengths and points only if there are no boxes.
    Looks for flags only if there is no label. Raises :class:`UsageError` for a named column that does not exist.

    Args:
        facts: Facts of each column.
        given: Columns that the user names, by role.
        header: The table names its columns.
        several: An image has several rows. Then columns are no points unless the user names them, as an image has the
            points of one row.
    """
    unknown = [name for role, names in given.items() if role != "image" for name in names if name not in facts]
    if unknown:
        raise UsageError(f"no column {printable(unknown[0])}; columns: {', '.join(map(printable, list(facts)[:20]))}")
    roles = ColumnRoles()
    free = {name: each for name, each in facts.items() if not any(name in names for names in given.values())}
    splits = (n for n, each in free.items() if n.lower() in _SPLIT_NAMES and each.split and each.filled_count)
    roles.split = next(iter(given.get("split", splits)), "")
    free.pop(roles.split, None)
    roles.boxes, bare_label = tuple(given.get("boxes", ())), ""
    if not roles.boxes:
        numbered = [point for point in _find_point_columns(free) if point[0].isdigit()]
        if len(numbered) < _LEAST_POINTS:  # else x1, y1, x2, y2, x3, y3 … are points
            roles.boxes, roles.convention, bare_label = _find_box_columns(free, header)
        if not roles.boxes:
            runs = (n for n in free if letters_and_digits(n) == _RUN_NAMES[0] and free[n].runs and free[n].filled_count)
            roles.runs = next(runs, "")
        free = {name: each for name, each in free.items() if name not in (*roles.boxes, roles.runs)}
    flagged = [name for name, each in free.items() if each.flags is not None and 1 in each.flags]
    crowds = (name for name in flagged if roles.boxes and letters_and_digits(name) in _CROWD_NAMES)
    roles.crowds = next(crowds, "")
    if "keypoints" in given:
        names = given["keypoints"]
        roles.points = tuple((_point_name(x), x, y) for x, y in zip(names[::2], names[1::2], strict=True))
    elif not roles.boxes and not several:
        roles.points = _find_point_columns(free)
        free = {n: each for n, each in free.items() if not any(n in (x, y) for _, x, y in roles.points)}
    labels = given.get("labels", ())
    if len(labels) > 1:
        roles.flags = tuple(labels)
    elif labels or "label" in given:
        roles.label = labels[0] if labels else given["label"][0]
        roles.several = bool(labels)
    else:
        roles.label = bare_label or _find_label_column(free, header, bool(roles.boxes or roles.runs))
        free.pop(roles.label, None)
    if roles.label:
        one = facts[roles.label]
        plain = "label" not in given and one.values.kinds <= {"text"} and not one.lists
        roles.separator = one.find_separator() if plain else ""
        roles.several |= bool(roles.separator) or bool(one.filled_count and one.lists)
    elif not roles.flags:
        roles.flags = _find_flag_columns(free, alone=not (roles.split or roles.boxes or roles.points))
    roles.rest = tuple(name for name in free if name not in roles.flags)
    return roles


def _find_box_columns(free: Mapping[str, ColumnFacts], header: bool) -> tuple[tuple[str, ...], str, str]:
    """Finds the columns of boxes among ``free`` columns. Returns them, their convention if the names imply it, and the
    column of classes.

    Without a header, goes by the types of all columns: those of RetinaNet, SKU-110K or makesense. Only then is there a
    column of classes.

    All are empty if there are no boxes, or if several columns have them in their cells.
    """
    if not header:
        listed = list(free)
        kinds = "".join(
            "n" if free[name].numeric else "t" if free[name].class_kinds == {"text"} else "?" for name in listed
        )
        if kinds in ("nnnnt", "nnnntnn"):  # of RetinaNet; of SKU-110K, with width and height of the image
            return tuple(listed[:4]), "", listed[4]
        return (tuple(listed[1:5]), "xywh", listed[0]) if kinds == "tnnnnnn" else ((), "", "")  # of makesense
    four, convention = find_box_columns(name for name, each in free.items() if each.mostly_numeric)
    if four:
        return four, convention, ""
    plain = {name: letters_and_digits(name) for name, each in free.items() if each.filled_count and each.boxes}
    named = [name for name, text in plain.items() if _BOX_NAMES.fullmatch(text)]
    cells = [name for name in named if plain[name] == "bbox"] or named
    said = free[cells[0]].boxes if len(cells) == 1 else None
    return ((cells[0],), "".join(said), "") if said is not None and len(said) == 1 else ((), "", "")


def _find_point_columns(free: Mapping[str, ColumnFacts]) -> tuple[tuple[str, str, str], ...]:
    """Finds pairs of ``free`` columns such as ``nose_x`` and ``nose_y``. Returns the name and both columns of each.

    Values must be positions in pixels: some exceed 2, and at most one in twenty is negative, for a point beside the
    image. Returns ``()`` otherwise, and for fewer than three pairs.
    """
    pairs = []
    by_name = {name.lower(): name for name in free}
    for name in free:
        match = re.fullmatch(r"(.+?)[ _.-]?x|x[ _.-]?(.+)", name, re.I)
        if match is None:
            continue
        other = re.sub("x$", "y", name.lower()) if match[1] is not None else "y" + name.lower()[1:]
        if other in by_name and other != name.lower():
            pairs.append((_point_name(name), name, by_name[other]))
    both = [free[name] for _, x, y in pairs for name in (x, y)]
    inside = 20 * sum(each.negatives for each in both) <= sum(each.numbers for each in both)
    pixels = inside and all(each.numeric for each in both) and any(each.high > 2 for each in both)
    return tuple(pairs) if len(pairs) >= _LEAST_POINTS and pixels else ()


def _point_name(column: str) -> str:
    """Returns the name of a point from its column of x."""
    return re.sub(r"[ _.-]?x$|^x[ _.-]?", "", column, flags=re.I) or column


def _find_label_column(free: Mapping[str, ColumnFacts], header: bool, with_boxes: bool) -> str:
    """Finds the column of classes among ``free`` columns; ``""`` if there is none.

    With a header, takes a column whose name is that of labels; texts before numbers. Otherwise takes the only column
    that is left, in two cases:

    - Texts: they repeat, or there are boxes.
    - Numbers: there is no header, or there are boxes.
    """
    kinds = {
        n: each.class_kinds for n, each in free.items() if each.filled_count and letters_and_digits(n) not in _RUN_NAMES
    }
    fitting = [
        name
        for name, its in kinds.items()
        if its <= {"text", "bool"} or (its == {"int"} and not free[name].values.negative) or free[name].lists
    ]
    named = [
        name for name in fitting if not (name.lower() == "y" and {"x", "X"} & free.keys())
        and (is_label_name(name_words(name)) or name.lower() in LABEL_COLUMNS
        or re.search(r"label|class|category|tags?$|finding|^(emotion|breed|species|diagnosis|dx)$", name.lower()))
    ] if header else []  # fmt: skip
    exact = [name for name in named if name.lower() in LABEL_COLUMNS]
    texts = [name for name in exact or named if "text" in kinds[name]]
    if named:
        return (texts or exact or named)[0]
    if len(free) != 1 or not fitting:
        return ""
    only = fitting[0]
    one = free[only]
    if "text" in kinds[only]:
        repeated = one.texts is not None and (2 * len(one.texts) <= one.filled_count or one.find_separator() != "")
        return only if repeated or with_boxes else ""
    return only if not header or with_boxes else ""


def _find_flag_columns(free: Mapping[str, ColumnFacts], alone: bool) -> tuple[str, ...]:
    """Finds ``free`` columns of 0 and 1 that are a class each; -1 and blank cells may occur.

    Returns none if there are fewer than four, or if no column has a 1. With ``alone``, two are enough if there are no
    other columns.
    """
    names = [name for name, each in free.items() if each.flags is not None and each.flags & {0, 1}]
    if not any(1 in (free[name].flags or ()) for name in names):
        return ()
    enough = len(names) >= 2 if alone and len(names) == len(free) else len(names) >= 4
    return tuple(names) if enough else ()


def parse_flag(value: Any) -> int | None:
    """Returns the flag in a cell: 0, 1 or -1, also written 1.0. Returns None for a blank cell, and for any other value,
    such as ``true``."""
    shown = "" if value is None else value if isinstance(value, str) else json.dumps(value)
    return _FLAGS.get(shown)


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


def parse_boxes(value: Any) -> tuple[list[list[Any]], str] | None:
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
    boxes: list[list[Any]] = []
    conventions = set()
    for each in value:
        convention = ""
        if isinstance(each, Mapping):
            names, convention = find_box_columns(map(str, each))
            if len(each) != len(names):
                return None
            each = [each[name] for name in names]
        numbers = [parse_number_cell(part) for part in each] if isinstance(each, list) else []
        if len(numbers) != 4 or None in numbers:
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


def read_stored_sides(image: bytes) -> tuple[tuple[int, int], bool]:
    """Reads width and height, as stored, of an image file, and if they change places in the upright image. Raises
    :class:`ValueError` if it is no image."""
    try:
        info, swapped = sniff(image), swaps_sides(read_annotation_orientation(image))
    except HeaderError as error:
        raise ValueError(error.reason) from error
    upright = swapped and info.kind == "tiff"  # whose header is read as decoded
    return (info.height, info.width) if upright else (info.width, info.height), swapped

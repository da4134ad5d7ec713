"""Finds the roles of a table's columns (splits, boxes, classes, points, numbers) by the values of all rows."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from packstore.core.errors import UsageError, printable
from packstore.core.fields import Array, Field, Json, Label, Text
from packstore.sources.columns import CAPTION_COLUMNS, LABEL_COLUMNS, is_label_name, name_words
from packstore.sources.splits import is_split_value
from packstore.sources.table.boxes import (
    find_box_columns,
    letters_and_digits,
    parse_boxes,
    parse_list,
    parse_number_cell,
)

_SPLIT_NAMES = ("split", "set", "subset", "partition", "usage", "phase", "dataset", "data_set")
_MAX_TEXTS, _LEAST_POINTS = 1 << 16, 3
_SEPARATORS = "|;,"
_FLAGS = {"": None, "0": 0, "1": 1, "-1": -1, "0.0": 0, "1.0": 1, "-1.0": -1}
_RUNS = re.compile(r"\d+ \d+( \d+ \d+)*")
_CROWD_NAMES = ("iscrowd", "isgroupof")
_RUN_NAMES = ("encodedpixels", "rle", "rlemask", "maskrle")
_BOX_NAMES = re.compile(r"(.*bbox|box|boxes|boundingbox|.*boxes?(string|list)?|rect|rectangle|region|roi)(es|s)?")
_INTEGER = re.compile(r"[+-]?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf)", re.IGNORECASE)
MISSING = frozenset(
    {"", "#N/A", "N/A", "n/a", "NA", "<NA>", "#NA", "NULL", "null", "None", "NaN", "nan", "-nan", "-NaN"}
)
"""Texts that pandas reads as a missing number."""
_BOOLEANS = {"True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False}
_LABELS = re.compile(r"label|class|category|tags?$|finding|^(emotion|breed|species|diagnosis|dx)$")
# Forms of values: names of splits, lists of classes, lists of class numbers, run lengths (``start length …``), and
# boxes.
_FORMS: Mapping[str, Callable[[Any], bool]] = {
    "splits": lambda value: isinstance(value, str) and is_split_value(value),
    "lists": lambda value: parse_class_list(value) is not None,
    "number lists": lambda value: (found := parse_class_list(value)) is not None and all(map(_is_class_number, found)),
    "runs": lambda value: isinstance(value, str) and _RUNS.fullmatch(value) is not None,
    "boxes": lambda value: parse_boxes(value) is not None,
}
# First column of the boxes, their convention, and the column of classes in tables without a header. The keys are the
# types of the columns: numbers and texts.
_BARE_BOXES = {
    "nnnnt": (0, "", 4),  # RetinaNet
    "nnnntnn": (0, "", 4),  # SKU-110K, with width and height of the image
    "tnnnnnn": (1, "xywh", 0),  # makesense, with the same
}


@dataclass(slots=True)
class ColumnFacts:
    """Facts about all values of a column, from which :meth:`declare_field` chooses the column's type.

    Attributes:
        text: The table stores every value as text, as CSV does. ``kinds`` then say what the texts look like.
        count: Number of values.
        missing: Number of blank values among them: None and empty texts.
        kinds: Kinds of the others: ``int``, ``float``, ``bool``, ``text``, ``document``; of lists, ``ints``,
            ``numbers``, ``empty``.
        texts: Different values as texts; None if there are more than 65,536.
        fits: Names in :data:`_FORMS` of the forms that all values have so far.
        high: Largest number, at least 0.
        numbers: Number of values that are numbers.
        negatives: Number of values that are numbers below 0.
    """

    text: bool = False
    count: int = 0
    missing: int = 0
    kinds: set[str] = field(default_factory=set)
    texts: set[str] | None = field(default_factory=set)
    fits: set[str] = field(default_factory=lambda: set(_FORMS))
    high: float = 0.0
    numbers: int = 0
    negatives: int = 0

    def add_value(self, value: Any, text: bool) -> None:
        """Updates the facts by the value of a cell of a table of texts or not. A blank cell changes only the counts."""
        self.count += 1
        blank = value in (None, "")
        self.missing += blank
        if not (value is None or (text and blank)):
            self.kinds.add(_classify_value(parse_text(value) if text else value))
            if text is not self.text:
                self.kinds.add("document")
        if blank:
            return
        if self.fits:
            self.fits = {form for form in self.fits if _FORMS[form](value)}
        if self.texts is not None:
            self.texts.add(value if isinstance(value, str) else json.dumps(value, default=str))
            if len(self.texts) > _MAX_TEXTS:
                self.texts = None
        if (number := parse_number_cell(value)) is not None:
            self.numbers += 1
            self.negatives += number < 0
            self.high = max(self.high, number)

    def declare_field(self) -> tuple[Field, Callable[[Any], Any]]:
        """Returns the field that fits all values added, and the function that converts a value.

        - Numbers, and booleans: :class:`Array`.
        - Texts: :class:`Text`. In a table of texts, they may include numbers and booleans.
        - Lists of numbers: a ragged :class:`Array`.
        - Anything else, and no values: :class:`Json`.
        """
        kinds = self.kinds
        if kinds == {"text"} or (self.text and kinds & {"text", "bool"} and kinds != {"bool"}):
            return Text(), lambda value: None if value in (None, "") else str(value)
        convert = parse_text if self.text else keep_value
        if kinds and kinds <= {"int", "float"}:
            return Array("int64" if kinds == {"int"} else "float64"), convert
        if kinds == {"bool"}:
            return Array("bool"), convert
        if kinds and kinds <= {"ints", "numbers", "empty"} and kinds != {"empty"}:
            return Array("float64" if "numbers" in kinds else "int64", ragged=True), keep_value
        return Json(), keep_value

    def holds(self, form: str) -> bool:
        """Tells if some value is not blank, and all such values have a form in :data:`_FORMS`."""
        return form in self.fits and self.filled_count > 0

    @property
    def flags(self) -> set[int | None]:
        """The values, if they are flags: 0, 1, -1, and None for blank. Empty if there are other values."""
        if self.texts is None or not self.texts <= _FLAGS.keys():
            return set()
        return {_FLAGS[text] for text in self.texts} | ({None} if self.missing else set())

    @property
    def numeric(self) -> bool:
        """All values are numbers or blank, and some is a number."""
        return bool(self.kinds) and self.kinds <= {"int", "float"}

    @property
    def class_kinds(self) -> set[str]:
        """Kinds of the values as classes. In a table of texts, numbers beside names are names: ``7`` beside ``A`` or
        ``007``. Not beside texts for missing values, such as ``NA``, alone."""
        names = (text for text in self.texts or () if parse_text(text) == text and text not in MISSING)
        return {"text"} if self.text and "text" in self.kinds and any(names) else self.kinds

    @property
    def mostly_numeric(self) -> bool:
        """True if at least half of the values are numbers. If the column holds boxes, the other values are errors."""
        return 0 < self.filled_count <= 2 * self.numbers

    @property
    def filled_count(self) -> int:
        """Number of values that are not blank."""
        return self.count - self.missing

    def find_separator(self) -> str:
        """Returns the separator of classes within cells; empty if each cell is one class, or :attr:`texts` is None.

        - ``|`` separates if it occurs.
        - ``;`` and ``,`` separate if some part of a cell is also a whole cell. There must be fewer different parts than
          different cells, too.

        A separator does not count if a part would be empty.
        """
        for each in _SEPARATORS if self.texts else "":
            cells = [[part.strip() for part in text.split(each)] for text in self.texts or ()]
            several = {part for parts in cells if len(parts) > 1 for part in parts}
            single = {parts[0] for parts in cells if len(parts) == 1}
            fewer = len(several | single) < len(cells) and not several.isdisjoint(single)
            if several and "" not in several and (each == "|" or fewer):
                return each
        return ""


def parse_text(text: str | None) -> Any:
    """Returns the value of a text in CSV by its form: a whole number, a number, a boolean, or the text itself.

    ``NA`` and the like are texts, and so are numbers with leading zeros, and those too large for float64. An empty text
    is None.
    """
    if not text or text in MISSING:
        return text or None
    if _INTEGER.fullmatch(text):
        return int(text)
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if not _NUMBER.fullmatch(text) or re.match(r"[+-]?0\d", text):
        return text
    number = float(text)
    return text if math.isinf(number) and text[-1] not in "fF" else number  # an explicit inf is a number


def _classify_value(value: Any) -> str:
    """Returns the kind of a value of JSON or Arrow: ``missing``, ``int``, ``text``, ``ints``, ``document`` …."""
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -(2**63) <= value < 2**63 else "document"
    if isinstance(value, (float, str)):
        return "float" if isinstance(value, float) else "text"
    if isinstance(value, list):
        kinds = {"document" if isinstance(each, list) else _classify_value(each) for each in value}
        if kinds <= {"int", "float"}:
            return "empty" if not kinds else "ints" if kinds == {"int"} else "numbers"
    return "document"


def keep_value(value: Any) -> Any:
    """Returns a value unchanged."""
    return value


def to_class_number(value: Any) -> int | None:
    """Converts a value to a class number. A missing value, and a number below 0, which is an unknown class, become
    None."""
    number = -1 if value is None or value in MISSING else int(value)
    return None if number < 0 else number


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
    facts: Mapping[str, ColumnFacts],
    given: Mapping[str, Sequence[str]],
    header: bool,
    several: bool,
    declared: Mapping[str, Field],
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
        declared: Fields of the columns whose types the table states; labels among them are no flags.
    """
    unknown = [name for role, names in given.items() if role != "image" for name in names if name not in facts]
    if unknown:
        raise UsageError(f"no column {printable(unknown[0])}; columns: {', '.join(map(printable, list(facts)[:20]))}")
    roles, bare_label = ColumnRoles(), ""
    free = {name: each for name, each in facts.items() if not any(name in names for names in given.values())}
    splits = [name for name, each in free.items() if name.lower() in _SPLIT_NAMES and each.holds("splits")]
    roles.split = next(iter(given.get("split", splits)), "")
    free = {name: each for name, each in free.items() if name not in (*splits, roles.split)}
    if "boxes" in given:
        roles.boxes = tuple(given["boxes"])
    elif sum(name.isdigit() for name, _, _ in _find_point_columns(free)) < _LEAST_POINTS:  # else x1, y1, x2, y2, x3 …
        roles.boxes, roles.convention, bare_label = _find_box_columns(free, header)
    if not roles.boxes:
        runs = (n for n in free if letters_and_digits(n) == _RUN_NAMES[0] and free[n].holds("runs"))
        roles.runs = next(runs, "")
    free = {name: each for name, each in free.items() if name not in (*roles.boxes, roles.runs)}
    crowds = (n for n in free if roles.boxes and letters_and_digits(n) in _CROWD_NAMES and 1 in free[n].flags)
    roles.crowds = next(iter(given.get("crowds", crowds)), "")
    if "keypoints" in given:
        names = given["keypoints"]
        roles.points = tuple((_point_name(x), x, y) for x, y in zip(names[::2], names[1::2], strict=True))
    elif not roles.boxes and not several:
        roles.points = _find_point_columns(free)
        free = {n: each for n, each in free.items() if not any(n in point[1:] for point in roles.points)}
    labels = given.get("labels") or given.get("label") or ()
    if len(labels) > 1:
        roles.flags = tuple(labels)
    else:
        found = bare_label or ("" if labels else _find_label_column(free, header, bool(roles.boxes or roles.runs)))
        roles.label, roles.several = (*labels, found)[0], "labels" in given
        free.pop(roles.label, None)
    if roles.label:
        one = facts[roles.label]
        plain = "label" not in given and one.kinds <= {"text"} and not one.holds("lists")
        roles.separator = one.find_separator() if plain else ""
        roles.several |= bool(roles.separator) or one.holds("lists")
    elif not roles.flags:
        unstated = {name: each for name, each in free.items() if not isinstance(declared.get(name), Label)}
        roles.flags = _find_flag_columns(unstated, alone=not (roles.split or roles.boxes or roles.points))
    roles.rest = (*(n for n in splits if n != roles.split), *(n for n in free if n not in roles.flags))
    return roles


def _find_box_columns(free: Mapping[str, ColumnFacts], header: bool) -> tuple[tuple[str, ...], str, str]:
    """Finds the columns of boxes among ``free`` columns, their convention if known, and the column of classes."""
    if not header:
        # Only the types of all columns can tell: those of RetinaNet, SKU-110K or makesense.
        listed = list(free)
        types = ("n" if one.numeric else "t" if one.class_kinds == {"text"} else "?" for one in free.values())
        form = _BARE_BOXES.get("".join(types))
        return (tuple(listed[form[0] :][:4]), form[1], listed[form[2]]) if form else ((), "", "")
    four, convention = find_box_columns(name for name, each in free.items() if each.mostly_numeric)
    if four:
        return four, convention, ""
    plain = {name: letters_and_digits(name) for name, each in free.items() if each.holds("boxes")}
    named = [name for name, text in plain.items() if _BOX_NAMES.fullmatch(text)]
    cells = [name for name in named if plain[name] == "bbox"] or named
    # Several columns with boxes in their cells are ambiguous.
    return ((cells[0],) if len(cells) == 1 else ()), "", ""


def _find_point_columns(free: Mapping[str, ColumnFacts]) -> tuple[tuple[str, str, str], ...]:
    """Finds at least three pairs of ``free`` columns such as ``nose_x`` and ``nose_y``; returns name and both columns
    of each.
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
    # Positions in pixels exceed 2; fractions do not.
    pixels = all(each.numeric for each in both) and any(each.high > 2 for each in both)
    return tuple(pairs) if len(pairs) >= _LEAST_POINTS and pixels else ()


def _point_name(column: str) -> str:
    """Returns the name of a point from its column of x."""
    return re.sub(r"[ _.-]?x$|^x[ _.-]?", "", column, flags=re.I) or column


def _find_label_column(free: Mapping[str, ColumnFacts], header: bool, with_boxes: bool) -> str:
    """Finds the column of classes among ``free`` columns; ``""`` if there is none."""
    kinds = {
        n: each.class_kinds for n, each in free.items() if each.filled_count and letters_and_digits(n) not in _RUN_NAMES
    }
    fitting = [
        name
        for name, its in kinds.items()
        if (its <= {"text", "bool"} and free[name].texts is not None)
        or (its == {"int"} and not free[name].negatives)
        or (free[name].holds("lists") and (with_boxes or not free[name].holds("number lists")))
    ]
    if header:
        with_x = not {"x", "X"}.isdisjoint(free)
        named = [name for name in fitting if _names_labels(name) and not (with_x and name.lower() == "y")]
        named.sort(key=lambda name: (name.lower() not in LABEL_COLUMNS, "text" not in kinds[name]))
        if named:
            return named[0]
    # The name says nothing, so only a column that is left alone can be it.
    if len(free) != 1 or not fitting:
        return ""
    (only,) = fitting
    one = free[only]
    if "text" in kinds[only]:
        repeated = one.texts is not None and (2 * len(one.texts) <= one.filled_count or one.find_separator() != "")
        captions = header and only.lower() in CAPTION_COLUMNS  # images of one subject often share a caption
        return only if (repeated and not captions) or with_boxes else ""
    return only if not header or with_boxes else ""


def _names_labels(name: str) -> bool:
    """Tells if a column has a name of labels."""
    return is_label_name(name_words(name)) or name.lower() in LABEL_COLUMNS or _LABELS.search(name.lower()) is not None


def _find_flag_columns(free: Mapping[str, ColumnFacts], alone: bool) -> tuple[str, ...]:
    """Finds ``free`` columns of 0 and 1 that are a class each; -1 and blank cells may occur."""
    names = [name for name, each in free.items() if each.flags & {0, 1}]
    if not any(1 in free[name].flags for name in names):
        return ()
    # Two may be chance, unless there are no other columns.
    enough = len(names) >= 2 if alone and len(names) == len(free) else len(names) >= 4
    return tuple(names) if enough else ()


def parse_flag(value: Any) -> int | None:
    """Returns the flag in a cell: 0, 1 or -1, also written 1.0. Returns None for a blank cell, and for any other value,
    such as ``true``."""
    shown = "" if value is None else value if isinstance(value, str) else json.dumps(value)
    return _FLAGS.get(shown)


def parse_class_list(value: Any) -> list[Any] | None:
    """Parses a cell with a list of classes: numbers from 0, or texts, also as JSON or Python writes them. Returns
    None for other values.
    """
    classes = parse_list(value) if isinstance(value, str) and value[:1] == "[" else value
    if not isinstance(classes, list):
        return None
    fits = all(map(_is_class_number, classes)) or all(isinstance(each, str) for each in classes)
    return classes if fits else None


def _is_class_number(value: Any) -> bool:
    """Tells if a value of JSON is a whole number from 0."""
    return type(value) is int and value >= 0

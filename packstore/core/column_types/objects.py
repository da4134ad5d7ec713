"""Types of values other than numbers: text, JSON, bytes."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packstore.core.column_types.base import Column, ColumnType, Field, unfit_error
from packstore.core.column_types.forms import Buffer, Form, show_text
from packstore.core.errors import StoreError
from packstore.core.plainjson import load_json

_SHAPES = frozenset({
    *("obb", "obbs", "xyxy", "xyxyn", "xywh", "xywhn", "cxcywh", "ltrb", "ltwh", "tlbr", "tlwh", "rect", "rects"),
    *("rectangle", "rectangles", "quad", "quads", "quadrilateral", "quadrilaterals", "poly", "polys", "polyline"),
    *("polylines", "segment", "segments", "contour", "contours", "mask", "masks", "rle", "rles", "kpt", "kpts"),
    *("point", "points", "vertex", "vertices", "corner", "corners", "joint", "joints", "coord", "coords"),
    *("coordinate", "coordinates", "center", "centre", "centroid", "centroids", "ellipse", "circle", "line", "lines"),
})  # fmt: skip
"""Words in keys of shapes."""
_ENDS = ("box", "boxes", "polygon", "polygons", "keypoint", "keypoints", "landmark", "landmarks", "segmentation",
         "segmentations")  # fmt: skip
"""Ends of such words, as in ``gtbboxes``."""
_FACTS = frozenset({
    *("num", "number", "count", "counts", "total", "n", "id", "ids", "index", "score", "scores", "label", "labels"),
    *("class", "classes", "category", "categories", "name", "names", "type", "types", "area", "areas", "color"),
    *("colour", "colors", "colours", "confidence", "confidences", "visibility", "text", "texts"),
})  # fmt: skip
"""Words in keys of facts about shapes, which stay true if the image moves."""
_PAIRS = (
    *(("x", "y"), ("cx", "cy"), ("xc", "yc"), ("xcenter", "ycenter"), ("centerx", "centery"), ("xs", "ys")),
    *(("xmin", "ymin"), ("minx", "miny"), ("xmax", "ymax"), ("maxx", "maxy"), ("left", "top"), ("right", "bottom")),
    *(("xtl", "ytl"), ("xbr", "ybr"), ("startx", "starty"), ("endx", "endy"), ("posx", "posy")),
    *((f"x{number}", f"y{number}") for number in range(5)),
)
"""Pairs of keys that together are a place in an image, in lower case without separators."""
_PLACES = {name: pair for pair in _PAIRS for name in pair}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_KEY = re.compile(rb'"((?:[^"\\]|\\.)*)"\s*:')
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)")
_NUMBERS = re.compile(r"(?:[A-Z]+|m)?[\s\d.,;:()\[\]{}eEMLCHVZz+-]*")
"""A text of numbers alone, perhaps after a word, as in ``POLYGON ((0 0, …))``."""


@dataclass(frozen=True, slots=True)
class Bytes(Field):
    """Bytes of any length."""

    optional: bool = False


class BytesType(ColumnType):
    """Bytes of any length. Base of all types whose values are Python objects instead of numbers."""

    name = "bytes"
    field: ClassVar[type[Field] | None] = Bytes
    form: ClassVar[Form] = "bytes"
    large = True
    is_object = True
    meaning = "bytes"
    extension = "bin"

    def to_stored(self, column: Column, value: Any) -> bytes:
        """Returns the bytes. Raises :class:`ValueError` for a value that is not bytes-like."""
        return to_bytes(column, value)

    def from_stored(self, column: Column, raw: Any, shape: tuple[int, ...] | None) -> Any:
        """Returns the bytes, copied."""
        return bytes(raw)

    def show(self, column: Column, value: Any) -> dict[str, Any]:
        """Returns the first 64 bytes in hexadecimal as ``value``, and the number of bytes as ``nbytes``."""
        return {"as": "bytes", "value": value[:64].hex(" "), "nbytes": len(value)}


@dataclass(frozen=True, slots=True)
class Text(Field):
    """A string."""

    optional: bool = False


class TextType(BytesType):
    """A string in UTF-8. Bytes that are not UTF-8 are kept as surrogates."""

    name = "text"
    field = Text
    form = "text"
    large = False
    meaning = "text"
    extension = "txt"

    def to_stored(self, column: Column, value: Any) -> bytes:
        """Encodes a string as UTF-8; a surrogate becomes the byte that it stands for.

        Raises :class:`ValueError` for other types, and for surrogates that stand for no byte.
        """
        if not isinstance(value, str):
            raise unfit_error(column, "a str", value)
        try:
            return value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise ValueError(f"a value of column {column.name!r} cannot be stored: {error}") from None

    def from_stored(self, column: Column, raw: Any, shape: tuple[int, ...] | None) -> str:
        """Decodes UTF-8; other bytes become surrogates."""
        return bytes(raw).decode("utf-8", "surrogateescape")

    def show(self, column: Column, value: Any) -> dict[str, Any]:
        """Returns the first 16,000 characters as ``value``."""
        return {"as": "text", **show_text(value)}


@dataclass(frozen=True, slots=True)
class Json(Field):
    """Any JSON value.

    Attributes:
        optional: A sample may have no value.
        shapes: The value has shapes in pixels of the image, which turn with it: COCO's annotations or segmentations. In
            a column ``polygons``: YOLO's polygons, in fractions of the sides.
    """

    optional: bool = False
    shapes: bool = False

    def column(self, name: str) -> Column:
        """Creates the field's column. With ``shapes``, it has a frame."""
        frame = "stored" if self.shapes else None
        return Column(name, "ragged", "uint8", type="json", nullable=self.optional, frame=frame)


class JsonType(BytesType):
    """A JSON value in UTF-8. None is a value like any other."""

    name = "json"
    field = Json
    form = "text"
    large = False
    none_is_value = True
    meaning = "JSON"
    extension = "json"

    def to_stored(self, column: Column, value: Any) -> bytes:
        """Formats a value as JSON. Raises :class:`ValueError` for a value that JSON cannot hold, such as NaN."""
        try:
            return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"a value of column {column.name!r} cannot be JSON: {error}") from None

    def from_stored(self, column: Column, raw: Any, shape: tuple[int, ...] | None) -> Any:
        """Parses JSON. Raises :class:`StoreError` if the JSON is damaged."""
        try:
            return load_json(bytes(raw), "is not JSON")
        except ValueError as error:
            raise StoreError(f"a value of column {column.name!r} {error}") from None

    def show(self, column: Column, value: Any) -> dict[str, Any]:
        """Returns the first 16,000 characters of indented JSON as ``value``."""
        return {"as": "json", **show_text(json.dumps(value, ensure_ascii=False, indent=1))}

    def keep_rows(self, column: Column, raw: Buffer, kept: NDArray[np.bool_]) -> Buffer:
        """Removes entries from a list, or from the list ``annotations`` of an object."""
        try:
            value = json.loads(bytes(raw))
        except (ValueError, RecursionError):
            return raw  # the caller reports it
        entries = value.get("annotations") if isinstance(value, dict) else value
        if not isinstance(entries, list) or len(entries) != len(kept):
            return raw
        entries[:] = compress(entries, kept.tolist())
        return json.dumps(value, ensure_ascii=False).encode("utf-8")

    def find_hidden_boxes(self, column: Column, values: Iterable[Buffer]) -> bool:
        """Tells if a value has boxes or points under a usual key, such as ``bbox`` or ``xmin``, at any depth."""
        named = _names_shape(column.name)  # the column's name counts as a key
        for value in values:
            raw = bytes(value)
            # Parsing takes ten times as long as looking at the keys.
            if not named and not any(map(_may_name_shape, set(_KEY.findall(raw)))):
                continue
            # Whoever reads a value that is not JSON reports it.
            with suppress(ValueError, RecursionError):
                if _has_shape({column.name: json.loads(raw)}):
                    return True
        return False


def to_bytes(column: Column, value: Any) -> bytes:
    """Returns a bytes-like value as ``bytes``. Raises :class:`ValueError` for another type."""
    if not isinstance(value, Buffer):
        raise unfit_error(column, "bytes", value)
    return bytes(value)


def _has_shape(value: Any) -> bool:
    """Tells if a JSON value contains a shape or a place, at any depth."""
    if isinstance(value, list):
        return any(_has_shape(each) for each in value if isinstance(each, dict | list))
    if not isinstance(value, dict):
        return False
    numbers, names = 0, set()
    for key, each in value.items():
        if _names_shape(key):  # the numbers of bbox_x and bbox_y count together
            numbers += 2 if each == [] else _count_numbers(each)  # an object with boxes elsewhere, and here with none
        elif (name := _simplify(key)) in _PLACES and _count_numbers(each):
            names.add(name)
    # A single number is a count or an id rather than a place.
    if numbers > 1 or any(names.issuperset(_PLACES[name]) for name in names):
        return True
    return any(_has_shape(each) for each in value.values() if isinstance(each, dict | list))


@functools.lru_cache(4096)
def _may_name_shape(key: bytes) -> bool:
    """Tells if a key, as written in JSON, may belong to a shape or a place."""
    text = key.decode("utf-8", "replace")
    # An escaped key is only known once it is parsed.
    return "\\" in text or _names_shape(text) or _simplify(text) in _PLACES


@functools.lru_cache(4096)
def _names_shape(key: str) -> bool:
    """Tells if a key names a shape, as ``bbox`` or ``all_points_x`` do, and not a fact about it."""
    words = {word.lower() for word in _WORD.findall(key)}
    return not words & _FACTS and (bool(words & _SHAPES) or any(word.endswith(_ENDS) for word in words))


@functools.lru_cache(4096)
def _simplify(key: str) -> str:
    """Returns a key in lower case without separators: ``xmin`` for ``x_min`` and ``xMin``."""
    return re.sub(r"[\W_]", "", key).lower()


def _count_numbers(value: Any) -> int:
    """Counts the numbers in a JSON value, and in its texts, up to 2."""
    found, waiting = 0, [value]
    while waiting and found < 2:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)
        elif isinstance(each, str):
            found += len(_NUMBER.findall(each[:200])) if _NUMBERS.fullmatch(each[:200]) else 0
        # True and False are integers in Python.
        elif isinstance(each, int | float) and not isinstance(each, bool):
            found += 1
    return min(found, 2)


TEXT, JSON, BYTES = TextType(), JsonType(), BytesType()

"""Finds boxes and points in JSON values, by their keys."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from typing import Any

from packstore.core.column_types.forms import Buffer

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


def find_hidden_boxes(name: str, values: Iterable[Buffer]) -> bool:
    """Tells if one of the stored values of the JSON column ``name`` seems to contain boxes or points.

    Stops at the first. ``name`` counts as a key.
    """
    named = _names_shape(name)
    for value in values:
        raw = bytes(value)
        # Parsing takes ten times as long as looking at the keys.
        if not named and not any(map(_may_name_shape, set(_KEY.findall(raw)))):
            continue
        try:
            if _has_shape({name: json.loads(raw)}):
                return True
        except (ValueError, RecursionError):  # not JSON: whoever reads the value reports it
            continue
    return False


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
    if numbers > 1 or any(names.issuperset(_PLACES[name]) for name in names):
        return True
    return any(_has_shape(each) for each in value.values() if isinstance(each, dict | list))


@functools.lru_cache(4096)
def _may_name_shape(key: bytes) -> bool:
    """Tells if a key as JSON writes it may belong to a shape or a place."""
    text = key.decode("utf-8", "replace")
    return "\\" in text or _names_shape(text) or _simplify(text) in _PLACES


@functools.lru_cache(4096)
def _names_shape(key: str) -> bool:
    """Tells if a key has a word for a shape, such as ``bbox``, ``gtBoxes`` or ``all_points_x``, and none for a fact
    about it."""
    words = {word.lower() for word in _WORD.findall(key)}
    return not words & _FACTS and (bool(words & _SHAPES) or any(word.endswith(_ENDS) for word in words))


@functools.lru_cache(4096)
def _simplify(key: str) -> str:
    """Returns a key in lower case without separators: ``xmin`` for ``x_min`` and ``xMin``."""
    return re.sub(r"[\W_]", "", key).lower()


def _count_numbers(value: Any) -> int:
    """Counts the numbers in a JSON value, at any depth. Returns 2 if there are more. Counts those in texts, too."""
    found, waiting = 0, [value]
    while waiting and found < 2:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)
        elif isinstance(each, str):
            found += len(_NUMBER.findall(each[:200])) if _NUMBERS.fullmatch(each[:200]) else 0
        elif isinstance(each, int | float) and not isinstance(each, bool):
            found += 1
    return min(found, 2)

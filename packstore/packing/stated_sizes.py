"""Finds the sizes of the image that annotations state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

Size = tuple[int, int]
"""Width and height."""

_SIZES = (("width", "height"), ("@width", "@height"), ("imageWidth", "imageHeight"))
_PARTS = ("image", "size", "annotation", "asset", "media", "metadata", "item")
_ANYWHERE = "original_width", "original_height"
"""Label Studio states the size in each result."""


def walk_stated_sizes(values: Any) -> Iterator[Size]:
    """Yields the sizes of the image that values state: numbers or texts named ``width`` and ``height`` in columns and
    in the JSON of files of annotations."""
    for names in _SIZES if isinstance(values, Mapping) else ():
        sides = [_to_side(values.get(name)) for name in names]
        if sides[0] and sides[1]:
            yield sides[0], sides[1]
    if isinstance(values, Mapping):
        for name in (*_PARTS, "json"):
            yield from walk_stated_sizes(values.get(name))
        for name in ("image", "media"):
            if isinstance(part := values.get(name), Mapping):
                yield from _walk_listed_sizes(part.get("size"))
        yield from _walk_result_sizes(values.get("json"))


def _walk_listed_sizes(size: Any) -> Iterator[Size]:
    """Yields the size that a list ``[height, width]`` states, as in Datumaro."""
    if isinstance(size, list) and len(size) == 2:
        height, width = map(_to_side, size)
        if height and width:
            yield width, height


def _walk_result_sizes(value: Any) -> Iterator[Size]:
    """Yields the sizes in the results of Label Studio, at any depth."""
    if isinstance(value, Mapping):
        sides = [_to_side(value.get(name)) for name in _ANYWHERE]
        if sides[0] and sides[1]:
            yield sides[0], sides[1]
    for each in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        if isinstance(each, (Mapping, list)):
            yield from _walk_result_sizes(each)


def _to_side(value: Any) -> int:
    """Converts a number or its text to a side in pixels; returns 0 for anything else."""
    try:
        side = float(value) if isinstance(value, (int, float, str, np.number)) else 0.0
        return int(side) if side >= 1 and side == int(side) else 0
    except (ValueError, OverflowError):
        return 0

"""Values as JSON, cut to a size that a page can show."""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

LONGEST_TEXT = 16_000
"""Most characters of a text that are shown."""
MOST_ROWS = 2000
"""Most rows of boxes, points and arrays that are shown."""


def show_text(text: str) -> dict[str, Any]:
    """Returns the first 16,000 characters of a text as ``value``. If there are more, ``cut`` is the number of all."""
    return {"value": text[:LONGEST_TEXT], **({"cut": len(text)} if len(text) > LONGEST_TEXT else {})}


def show_numbers(array: NDArray[Any]) -> dict[str, Any]:
    """Returns the first rows of an array as ``value``, and its ``shape``. If there are more rows, ``cut`` is the number
    of all.
    """
    kept = cut_rows(array)
    cut = {"cut": len(array)} if array.ndim and len(kept) < len(array) else {}
    return {"value": to_json_numbers(kept), "shape": list(array.shape), **cut}


def cut_rows(array: NDArray[Any]) -> NDArray[Any]:
    """Returns the first rows of an array: at most 2,000, and about 128,000 numbers, but at least one row."""
    kept = array[:MOST_ROWS] if array.ndim else array
    if kept.ndim and kept.size > 64 * MOST_ROWS:
        kept = kept[: max(1, MOST_ROWS * 64 // max(1, kept[0].size))]
    return kept


def to_json_numbers(array: NDArray[Any]) -> Any:
    """Converts ``array`` to lists for JSON. NaN, infinity and whole numbers of more than 53 bits become strings."""

    def plain(value: Any) -> Any:
        """Converts a value of a list, and the values of nested lists."""
        if isinstance(value, list):
            return [plain(each) for each in value]
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        return str(value) if type(value) is int and abs(value) >= 1 << 53 else value

    return plain(array.tolist())

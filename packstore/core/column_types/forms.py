"""Forms of values: stored, in batches, drawn, moved with their image, as JSON for the page; and their dtypes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Buffer = bytes | bytearray | memoryview
"""Bytes of one record."""

Form = Literal["file", "files", "text", "bytes", "numbers"]
"""The form of stored values: an image file, several of them, UTF-8, other bytes, or numbers."""

Collation = Literal["stack", "rows", "objects", "planes", "images", "image_lists", "segments"]
"""Collation of the values of a batch in a loader.

- ``stack``: numbers of one shape become one tensor.
- ``rows``: any number of rows a record become a list of tensors, a padded tensor, or a multi-hot tensor of classes.
- ``objects``: Python objects become a list.
- ``planes``: arrays and mask files on the pixels of the main image become one tensor; if they differ in shape, a list
  or a padded tensor.
- ``images``: images are decoded and augmented like the main image, and become one tensor.
- ``image_lists``: lists of images are decoded, and become a list of lists.
- ``segments``: shapes of objects move with the image, and become lists of polygons or masks.
"""

_DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64"
NUMPY_DTYPE: dict[str, np.dtype[Any]] = {
    # numpy has no bfloat16: its bit patterns
    name: np.dtype("uint16" if name == "bfloat16" else name).newbyteorder("<")
    for name in _DTYPES.split()
}
"""The numpy dtype of each dtype that a column may have. Stored values are little-endian."""
ITEM_SIZE = {name: dtype.itemsize for name, dtype in NUMPY_DTYPE.items()}
"""Bytes of one element by dtype name."""
LONGEST_TEXT = 16_000
"""Most characters of a text that are shown."""
MOST_ROWS = 2000
"""Most rows of boxes, points and arrays that are shown."""


def bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounds each value to the nearest bfloat16 (ties to even), as a bit pattern.

    Too large values become infinite. NaN becomes the quiet NaN.
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    # Ties round to even: the lowest kept bit is added.
    rounded = ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    # The carry of rounding would turn some NaN into infinity or negative zero.
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


class RowClasses(NamedTuple):
    """Classes of the rows of a value, such as those of boxes.

    Attributes:
        numbers: Class number of each row. There may be more or fewer than rows.
        names: Class names by number; None if the classes have no names.
        crowds: 1 for each row that is a crowd or a region to ignore; None if nothing flags them.
    """

    numbers: NDArray[Any]
    names: Sequence[str] | None
    crowds: NDArray[Any] | None = None

    @property
    def texts(self) -> list[str]:
        """Name of each row's class; the number as text if the class has no name. Crowds have ``(crowd)`` behind it."""
        names = self.names or ()
        # A damaged store may have numbers beyond the classes.
        texts = [names[n] if 0 <= n < len(names) else str(n) for n in np.asarray(self.numbers).tolist()]
        flags = [] if self.crowds is None else self.crowds.tolist()
        return [f"{text} (crowd)" if crowd else text for text, crowd in zip_longest(texts, flags[: len(texts)])]


class Canvas(Protocol):
    """The image of a record, over which values are drawn. Coordinates are pixels of the whole image."""

    def draw_mask(self, mask: NDArray[Any]) -> None:
        """Blends a mask ``(H, W)`` of class numbers over the image, each class in its own colour. 0 is transparent.

        Stretches the mask over the image.
        """

    def draw_boxes(self, boxes: NDArray[Any], classes: RowClasses | None = None) -> None:
        """Draws boxes ``(n, 4)``: left, top, right, bottom. Skips boxes that are not finite.

        With ``classes``, each class has its own colour, and boxes have names.
        """

    def draw_rings(
        self,
        objects: Sequence[Sequence[Sequence[float]]],
        outlined: Sequence[bool],
        holed: Sequence[bool],
        fractions: bool,
        classes: RowClasses | None = None,
    ) -> None:
        """Fills the rings of objects, ``x, y, x, y …``. Each object has its own colour; with ``classes`` each class.

        ``outlined``: for each object, draw also the rings themselves; ``holed``: rings inside others are holes.
        ``fractions``: coordinates are fractions of the sides of the image, not pixels.
        """

    def draw_points(self, points: NDArray[Any]) -> None:
        """Draws points ``(n, k)`` or ``(n, points, k)``: x, y, and with k = 3 visibility. Each row has its own colour.

        Skips points that are not finite, and those of visibility 0. Points of visibility 1 are hollow.
        """


class RowMoves(Protocol):
    """Moves coordinates as operations move the pixels of images. Each method returns new arrays.

    ``images`` is int64 ``(N,)``: the image of each row.
    """

    def move_boxes(self, boxes: NDArray[Any], images: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Moves boxes ``(N, 4)`` and clips them to the results. Returns them, and bool ``(N,)``: boxes to keep.

        Boxes are left, top, right, bottom, float32. Boxes smaller than the user's minimum are not kept.
        """

    def move_points(self, points: NDArray[Any], images: NDArray[np.int64]) -> NDArray[Any]:
        """Moves points ``(N, …, k)``, float32. Does not clip them.

        Points are x, y; with k = 3 also visibility. Points with visibility become zeros if they are not visible.
        Mirroring an image of width W maps x to W - 1 - x.
        """


class RowFaults(NamedTuple):
    """Faulty rows of one kind.

    Attributes:
        kind: Kind of the findings, a key of :attr:`ColumnType.faults`.
        rows: bool ``(n,)``: which rows are faulty.
        depends_on_size: The fault depends on the size of the image. Its finding then states the size.
    """

    kind: str
    rows: NDArray[np.bool_]
    depends_on_size: bool = False


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
        # JavaScript's numbers are float64.
        return str(value) if type(value) is int and abs(value) >= 1 << 53 else value

    return plain(array.tolist())

"""Builds the annotation of an image from any format: objects with boxes, points, tags.

Coordinates are pixels from the top left corner of the image. Boxes are ``left, top, right, bottom``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from packstore.core.errors import printable
from packstore.core.plainjson import load_json

SizeReader = Callable[[], tuple[int, int]]
"""Reads width and height of the upright image; called only by formats that need them."""
Polygon = list[float]
"""``x, y, x, y …``, as in COCO."""

NO_CLASS = "(none)"
"""Class of objects without a class, in a data set in which other objects have one."""


@dataclass(slots=True)
class AnnotatedObject:
    """Object in an image.

    Attributes:
        label: Name of its class; None without a class.
        box: Left, top, right, bottom.
        segmentation: Polygons, or COCO's run lengths ``{"size": [height, width], "counts": …}``; None for a box alone.
        values: Further values of the object, by column.
        crowd: It is no ordinary object, but a crowd or a region to ignore.
    """

    label: str | None
    box: Sequence[float]
    segmentation: Any = None
    values: Mapping[str, Any] = field(default_factory=dict)
    crowd: bool = False


@dataclass(slots=True)
class Annotation:
    """Annotation of one image.

    Attributes:
        objects: Objects with a box.
        points: Single points: class, x and y.
        tags: Classes of the whole image.
        values: Further values of the image, by column.
        json: Unchanged content of the file about the image; None if the columns hold all of it.
    """

    objects: list[AnnotatedObject] = field(default_factory=list)
    points: list[tuple[str | None, float, float]] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    json: Any = None

    def add_points(self, label: str | None, flat: Polygon) -> None:
        """Adds points of one class, given as ``x, y, x, y …``. Raises :class:`ValueError` for an odd number of
        coordinates."""
        self.points += [(label, x, y) for x, y in zip(flat[::2], flat[1::2], strict=True)]


def to_float(value: Any) -> float:
    """Converts a number or its text to a float. Raises :class:`ValueError` for any other value, infinity, NaN and
    booleans."""
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"found {printable(repr(value)[:40])}, expected a number")
    return number


def to_floats(values: Iterable[Any], count: int | None = None) -> list[float]:
    """Converts values to floats. Raises :class:`ValueError` if a value is no number, and, with ``count``, for any other
    number of values."""
    numbers = [to_float(value) for value in values]
    if count is not None and len(numbers) != count:
        raise ValueError(f"found {len(numbers)} numbers, expected {count}")
    return numbers


def flatten_points(points: Iterable[Sequence[Any]]) -> Polygon:
    """Converts ``[[x, y], …]`` to ``x, y, …``; ignores further values of a point. Raises :class:`ValueError` if a
    coordinate is missing, or is no number."""
    return [number for point in points for number in to_floats(point[:2], 2)]


def bounding_box(*polygons: Sequence[float]) -> list[float]:
    """Returns the smallest box around polygons. Raises :class:`ValueError` if there are no points, or a point has one
    coordinate."""
    numbers = [number for polygon in polygons for number in polygon]
    if len(numbers) < 2 or any(len(polygon) % 2 for polygon in polygons):
        raise ValueError(f"found {len(numbers)} coordinates of a shape, expected pairs of x and y")
    xs, ys = ([n for polygon in polygons for n in polygon[start::2]] for start in (0, 1))
    return [min(xs), min(ys), max(xs), max(ys)]


def box_from_corner(left: Any, top: Any, width: Any, height: Any) -> list[float]:
    """Makes a box ``[left, top, right, bottom]`` from its top left corner, width and height. Raises :class:`ValueError`
    if a value is no number."""
    x, y, w, h = to_floats((left, top, width, height))
    return [x, y, x + w, y + h]


def box_from_centre(x: Any, y: Any, width: Any, height: Any) -> list[float]:
    """Makes a box from its centre, width and height. Raises :class:`ValueError` if a value is no number."""
    cx, cy, w, h = to_floats((x, y, width, height))
    return [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]


def rotate_box(box: Sequence[float], degrees: float, about: tuple[float, float] | None = None) -> Polygon:
    """Rotates a box clockwise, about the point ``about`` or else its centre; returns the four corners."""
    left, top, right, bottom = box
    cx, cy = about or ((left + right) / 2, (top + bottom) / 2)
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    corners = ((left, top), (right, top), (right, bottom), (left, bottom))
    return [n for x, y in corners for n in (cx + (x - cx) * cos - (y - cy) * sin, cy + (x - cx) * sin + (y - cy) * cos)]


def object_from_polygons(label: str | None, *polygons: Polygon, crowd: bool = False, **values: Any) -> AnnotatedObject:
    """Builds an object from its polygons, with the box around them. ``values`` go to further columns. Raises
    :class:`ValueError` if there are no points, or a point has one coordinate."""
    return AnnotatedObject(label, bounding_box(*polygons), list(polygons), values, crowd)


def object_from_box(
    label: str | None, box: Sequence[float], degrees: float = 0, crowd: bool = False, **values: Any
) -> AnnotatedObject:
    """Builds an object from its box, which is not checked. ``values`` go to further columns.

    If ``degrees`` is not 0, rotates the box clockwise about its centre. The object then has a polygon of the four
    corners, and the box around them.
    """
    if not degrees:
        return AnnotatedObject(label, box, None, values, crowd)
    return object_from_polygons(label, rotate_box(box, degrees), crowd=crowd, **values)


def object_from_run_lengths(
    label: str | None, size: Sequence[int], counts: Any, box: Sequence[float], crowd: bool = False, **values: Any
) -> AnnotatedObject:
    """Builds an object from its box and the run lengths of its mask. ``values`` go to further columns. Raises
    :class:`ValueError` for a size that is no number.

    ``size``: Height and width of the image. ``counts``: COCO's string or a list of run lengths; they are not checked.
    """
    return AnnotatedObject(
        label, box, {"size": [int(to_float(each)) for each in size], "counts": counts}, values, crowd
    )


def is_flagged(flags: Any, *names: str) -> bool:
    """Tells if one of the flags ``names`` of an object is set: neither missing nor 0, False, ``"0"`` or ``"false"``."""
    values = [flags.get(name) for name in names] if isinstance(flags, Mapping) else []
    return any(value not in (None, 0, "") and str(value).lower() not in ("0", "false") for value in values)


def nonempty_text(value: Any) -> str | None:
    """Returns ``value`` if it is a text that is not empty, else None."""
    return value if isinstance(value, str) and value else None


def parse_json(data: bytes) -> Any:
    """Parses JSON. Raises :class:`ValueError` if it is invalid or nested too deeply."""
    try:
        return load_json(data, "is no JSON")
    except ValueError as error:
        raise ValueError(f"its annotation {printable(str(error))}") from None


def parse_json_lines(data: bytes) -> list[Any]:
    """Parses each line that is not blank as JSON. Raises :class:`ValueError` for an invalid line."""
    return [parse_json(line) for line in data.splitlines() if line.strip()]


def split_lines(data: bytes) -> list[str]:
    """Splits UTF-8 text into its lines. Raises :class:`ValueError` if ``data`` is not UTF-8."""
    return data.decode("utf-8-sig").splitlines()


def numbered_lines(data: bytes, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    """Yields number, from 1, and text of each line that is not blank. Raises :class:`ValueError` at the call if
    ``data`` has another encoding."""
    return ((number, line) for number, line in enumerate(data.decode(encoding).splitlines(), 1) if line.strip())


def as_list(value: Any) -> list[Any]:
    """Returns a list unchanged, ``[]`` for None or ``""``, and ``[value]`` for any other value. Parsed XML has a single
    value instead of a list of one element."""
    return value if isinstance(value, list) else [] if value in (None, "") else [value]

"""What an annotation says of an image, whatever format it is in: objects with boxes, points, tags; and its geometry.

Coordinates are pixels of the image from its left top corner, boxes ``left, top, right, bottom``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import printable

Sides = Callable[[], tuple[int, int]]
"""Returns width and height of the upright image, which only some formats need."""
Polygon = list[float]
"""``x, y, x, y …``, as COCO has it."""

NO_CLASS = "(none)"
"""Class of objects without one, if others have one."""


@dataclass(slots=True)
class AnnotatedObject:
    """One object of an image.

    Attributes:
        label: Name of its class; None for none.
        box: Left, top, right, bottom.
        segmentation: Its polygons, or ``{"size": [height, width], "counts": …}``, run lengths as COCO has them; None
            for a box alone.
        values: Further values of the object, by column.
    """

    label: str | None
    box: Sequence[float]
    segmentation: Any = None
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Annotation:
    """What is said of one image.

    Attributes:
        objects: What has an extent.
        points: Single points: class, x and y.
        tags: Classes of the image as a whole.
        values: Further values of the image, by column.
        json: All that the file says of the image, as it stands there; None for nothing beyond the columns.
    """

    objects: list[AnnotatedObject] = field(default_factory=list)
    points: list[tuple[str | None, float, float]] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    json: Any = None


def real(value: Any) -> float:
    """A number, or a text that is one. Raises :class:`ValueError` for anything else, infinity and NaN among it."""
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"found {printable(repr(value)[:40])}, which is no number")
    return number


def reals(values: Iterable[Any], count: int | None = None) -> list[float]:
    """Numbers, as many as ``count`` if it is given. Raises :class:`ValueError`."""
    found = [real(value) for value in values]
    if count is not None and len(found) != count:
        raise ValueError(f"found {len(found)} numbers, expected {count}")
    return found


def flatten(points: Iterable[Sequence[Any]]) -> Polygon:
    """``[[x, y], …]`` as ``x, y, …``. Raises :class:`ValueError`."""
    return [number for point in points for number in reals(point[:2], 2)]


def box_around(*polygons: Sequence[float]) -> list[float]:
    """The smallest box around polygons. Raises :class:`ValueError` for polygons without points."""
    numbers = [number for polygon in polygons for number in polygon]
    if len(numbers) < 2 or any(len(polygon) % 2 for polygon in polygons):
        raise ValueError(f"found {len(numbers)} coordinates of a shape, expected pairs")
    xs, ys = ([n for polygon in polygons for n in polygon[start::2]] for start in (0, 1))
    return [min(xs), min(ys), max(xs), max(ys)]


def from_corner(left: Any, top: Any, width: Any, height: Any) -> list[float]:
    """A box of its left top corner, width and height. Raises :class:`ValueError`."""
    x, y, w, h = reals((left, top, width, height))
    return [x, y, x + w, y + h]


def from_centre(x: Any, y: Any, width: Any, height: Any) -> list[float]:
    """A box of its centre, width and height. Raises :class:`ValueError`."""
    cx, cy, w, h = reals((x, y, width, height))
    return [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]


def turn(box: Sequence[float], degrees: float, about: tuple[float, float] | None = None) -> Polygon:
    """The four corners of a box that is turned clockwise about its centre, or about a point."""
    left, top, right, bottom = box
    cx, cy = about or ((left + right) / 2, (top + bottom) / 2)
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    corners = ((left, top), (right, top), (right, bottom), (left, bottom))
    return [n for x, y in corners for n in (cx + (x - cx) * cos - (y - cy) * sin, cy + (x - cx) * sin + (y - cy) * cos)]


def of_polygon(label: str | None, *polygons: Polygon, **values: Any) -> AnnotatedObject:
    """An object of its polygons. Raises :class:`ValueError`."""
    return AnnotatedObject(label, box_around(*polygons), list(polygons), values)


def of_box(label: str | None, box: Sequence[float], degrees: float = 0, **values: Any) -> AnnotatedObject:
    """An object of its box, which may be turned clockwise about its centre."""
    if not degrees:
        return AnnotatedObject(label, box, None, values)
    return of_polygon(label, turn(box, degrees), **values)


def of_runs(
    label: str | None, size: Sequence[int], counts: Any, box: Sequence[float], **values: Any
) -> AnnotatedObject:
    """An object of its run lengths ``counts`` (COCO's text, or a list) in an image of ``size``, height and width."""
    return AnnotatedObject(label, box, {"size": [int(real(each)) for each in size], "counts": counts}, values)


def text_or_none(value: Any) -> str | None:
    """A text that says something; None for anything else."""
    return value if isinstance(value, str) and value else None


def load_json(data: bytes) -> Any:
    """The value of a JSON text. Raises :class:`ValueError`."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        reason = "is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"its annotation is no JSON: {printable(reason)}") from None


def full_lines(data: bytes, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    """Yields number and text of each line that is not blank. Raises :class:`ValueError` for another encoding."""
    return ((number, line) for number, line in enumerate(data.decode(encoding).splitlines(), 1) if line.strip())


def as_list(value: Any) -> list[Any]:
    """A list as it is; nothing as an empty one; anything else as its only item, as XML has it."""
    return value if isinstance(value, list) else [] if value in (None, "") else [value]


def to_runs(mask: NDArray[np.bool_]) -> list[int]:
    """Run lengths of a mask ``(H, W)``, column by column and beginning with the background, as COCO has them."""
    flat = mask.T.ravel()
    edges = np.flatnonzero(np.diff(flat.astype(np.int8))) + 1
    lengths = np.diff([0, *edges.tolist(), len(flat)]).tolist()
    return [0, *lengths] if len(flat) and flat[0] else lengths

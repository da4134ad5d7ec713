"""What the generators of annotation formats yield about an image: objects with boxes, points, tags and other values.

Coordinates are pixels from the top left corner of the image. Boxes are ``left, top, right, bottom``. Polygons are
``x, y, x, y …``, as in COCO.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from packstore.sources.annotation_formats.parsing import to_float, to_floats

NO_CLASS = "(none)"
"""Class of objects without a class, in a dataset in which other objects have one."""


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


class Point(NamedTuple):
    """Single point of a class."""

    label: str | None
    x: float
    y: float


class Tag(NamedTuple):
    """Class of the whole image."""

    name: str


class Value(NamedTuple):
    """Value of the image for another column; for ``json``, in place of the whole annotation."""

    column: str
    value: Any


Part = AnnotatedObject | Point | Tag | Value
Parts = Iterator[Part]


@dataclass(slots=True)
class Annotation:
    """Annotation of one image: all that a generator has yielded, by its kind.

    Attributes:
        objects: Objects with a box.
        points: Single points.
        tags: Classes of the whole image.
        values: Further values of the image, by column. ``json`` is the content of the file about the image, None if the
            columns hold all of it.
    """

    objects: list[AnnotatedObject] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)

    def add(self, parts: Iterable[Part]) -> None:
        """Adds what a generator yields."""
        for part in parts:
            if isinstance(part, AnnotatedObject):
                self.objects.append(part)
            elif isinstance(part, Point):
                self.points.append(part)
            elif isinstance(part, Tag):
                self.tags.append(part.name)
            else:
                self.values[part.column] = part.value


@dataclass(slots=True)
class Picture:
    """The image of an annotation, as far as a generator may need it.

    Attributes:
        read_size: Reads width and height of the upright image.
        classes: Names of classes by number, as the file of the annotation lists them.
        is_sized: The size was read.
    """

    read_size: Callable[[], tuple[int, int]]
    classes: Mapping[Any, str]
    is_sized: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the upright image. Raises :class:`HeaderError` for a damaged image."""
        self.is_sized = True
        return self.read_size()


def box(
    label: str | None, corners: Sequence[float], degrees: float = 0, crowd: bool = False, **values: Any
) -> AnnotatedObject:
    """Makes an object from its box, which is not checked. ``values`` go to further columns.

    If ``degrees`` is not 0, rotates the box clockwise about its centre. The object then has a polygon of the four
    corners, and the box around them.
    """
    if not degrees:
        return AnnotatedObject(label, corners, None, values, crowd)
    return polygon(label, rotate_box(corners, degrees), crowd=crowd, **values)


def polygon(label: str | None, *polygons: list[float], crowd: bool = False, **values: Any) -> AnnotatedObject:
    """Makes an object from its polygons, with the box around them. ``values`` go to further columns. Raises
    :class:`ValueError` if there are no points, or a point has one coordinate."""
    return AnnotatedObject(label, bounding_box(*polygons), list(polygons), values, crowd)


def run_lengths(
    label: str | None, mask: Mapping[str, Any], corners: Any = None, crowd: bool = False, **values: Any
) -> AnnotatedObject:
    """Makes an object from its box and the run lengths of its mask. ``values`` go to further columns. Raises
    :class:`ValueError` for a size that is no number.

    ``mask`` has ``size``, height and width of the image, and ``counts``, COCO's string or a list of run lengths, which
    are not checked. Without ``corners``, the box is the whole image.
    """
    height, width = (int(to_float(each)) for each in mask["size"])
    runs = {"size": [height, width], "counts": mask["counts"]}
    return AnnotatedObject(label, corners or [0, 0, width, height], runs, values, crowd)


def points(label: str | None, flat: Sequence[float]) -> Iterator[Point]:
    """Yields the points ``x, y, x, y …`` of one class. Raises :class:`ValueError` for an odd number of coordinates."""
    for x, y in zip(flat[::2], flat[1::2], strict=True):
        yield Point(label, x, y)


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


def box_from_radii(x: float, y: float, rx: float, ry: float) -> list[float]:
    """Makes the box around an ellipse from its centre and radii."""
    return [x - rx, y - ry, x + rx, y + ry]


def rotate_box(box: Sequence[float], degrees: float, about: tuple[float, float] | None = None) -> list[float]:
    """Rotates a box clockwise, about the point ``about`` or else its centre; returns the four corners."""
    left, top, right, bottom = box
    cx, cy = about or ((left + right) / 2, (top + bottom) / 2)
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    corners = ((left, top), (right, top), (right, bottom), (left, bottom))
    return [n for x, y in corners for n in (cx + (x - cx) * cos - (y - cy) * sin, cy + (x - cx) * sin + (y - cy) * cos)]

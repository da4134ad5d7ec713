"""What the generators of annotation formats read, a file of annotations, and what they yield: the images that it lists,
and for an image objects with boxes, points, tags and other values.

Coordinates are pixels from the top left corner of the image. Boxes are ``left, top, right, bottom``. Polygons are
``x, y, x, y …``, as in COCO.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from packstore.sources.annotation_formats.parsing import parse_id, to_float, to_floats
from packstore.sources.beside import is_file, join, read_lines
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.tree import Tree


@dataclass(slots=True)
class AnnotatedObject:
    """Object in an image.

    Attributes:
        label: Name of its class; None without a class.
        box: Left, top, right, bottom.
        segmentation: Polygons, or COCO's run lengths ``{"size": [height, width], "counts": …}``; None for a box alone.
        values: Further values of the object, by column; ``crowd`` if it is no ordinary object, but a crowd or a region
            to ignore.
    """

    label: str | None
    box: Sequence[float]
    segmentation: Any = None
    values: Mapping[str, Any] = field(default_factory=dict)


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

    def name_class(self, number: Any) -> str | None:
        """Returns the name of a class by its number, or the number as text; None for None."""
        known = parse_id(number)
        return None if number is None else self.classes.get(known, str(number if known is None else known))


class Listed(NamedTuple):
    """Image that a file of annotations lists.

    Attributes:
        name: Path of the image. It may be a path on the machine that wrote the file.
        item: What the file has about the image; any JSON value. None for an image without annotation.
        split: Split of the image, in any case of letters; None for the split of the file.
        further_images: Paths of further images that the entry describes.
    """

    name: str
    item: Any
    split: str | None = None
    further_images: Sequence[str] = ()


class Document:
    """File of annotations, from which the generator of a format lists images.

    Attributes:
        path: Path in the tree.
        folder: Path of its folder.
        tree: The source.
        content: Its content, as the format parses it.
        classes: Names of classes by number, in their order, to be set by the generator.
        files: Further files that the generator has read.
        expected: Beginnings of paths of files that belong to the layout, and may be left.
        ignored: Number of values and images that are left out, by reason.
    """

    def __init__(self, path: str, content: Any, tree: Tree) -> None:
        self.path, self.content, self.tree = path, content, tree
        self.folder = path.rpartition("/")[0]
        self.classes: Mapping[Any, str] = {}
        self.files: list[str] = []
        self.expected: list[str] = []
        self.ignored: Counter[str] = Counter()

    def count_left(self, reason: str, count: int = 1) -> None:
        """Counts entries or values that are left out, by reason."""
        self.ignored[reason] += count

    def find(self, path: str) -> bool:
        """Tells if a file is in the tree, and then counts it as read."""
        there = is_file(self.tree, path)
        self.files += [path] if there else []
        return there

    def read_lines(self, path: str) -> list[str]:
        """Reads the lines of a file, without blank ones; ``[]`` if it is missing."""
        return [line for _, line in read_lines(self.tree, path)] if self.find(path) else []

    def list_images(self, folder: str) -> Sequence[str]:
        """Lists the names of the images in a folder of the tree."""
        return self.tree.names(folder).ending(*IMAGE_SUFFIXES)

    def list_items(self, items: Iterable[Any], *names: str) -> Iterator[Listed]:
        """Lists the images ``items``; the path of each is the first of its values ``names`` that is not empty. Raises
        :class:`KeyError` if the last is missing as well."""
        for item in items:
            yield Listed(next(filter(None, map(item.get, names)), None) or item[names[-1]], item)

    def match_frames(
        self, images: Sequence[str], lines: Iterable[tuple[float, Any]], number: str = r"(\d{1,11})\.\w+"
    ) -> Iterator[tuple[str, int, Sequence[Any]]]:
        """Yields each image of a video with its number and its ``lines``; each line is given with the number of its
        frame. An image is named by this number, the group of the pattern ``number``. Counts frames without an image
        as left out.

        Raises :class:`ValueError` if there are images and frames, but no frame has an image.
        """
        frames: dict[float, list[Any]] = {}
        for frame, line in lines:
            frames.setdefault(frame, []).append(line)
        matches = [re.fullmatch(number, image.rpartition("/")[2]) for image in images]
        numbers = [-1 if match is None else int(match[1]) for match in matches]
        if images and frames and not frames.keys() & set(numbers):
            raise ValueError(
                f"no image is named by the number of a frame, such as {min(frames):g}; the first is {images[0]}"
            )
        for image, own in zip(images, numbers, strict=True):
            yield image, own, frames.get(own, [])
        self.count_left("frames of a video without an image", len(frames.keys() - set(numbers)))

    def list_frames(self, folder: str | None, lines: Iterable[tuple[float, Any]]) -> Iterator[Listed]:
        """Lists the images of a folder with their lines, as :meth:`match_frames`; none if the folder is None
        (missing).
        """
        images = () if folder is None else self.list_images(folder)
        for image, _, own in self.match_frames(images, lines):
            yield Listed(join(folder or "", image), own)


def box(
    label: str | None,
    corners: Sequence[float],
    degrees: float = 0,
    about: tuple[float, float] | None = None,
    **values: Any,
) -> AnnotatedObject:
    """Makes an object from its box, which is not checked. ``values`` go to further columns.

    Rotates the box clockwise by ``degrees``, about the point ``about`` or else its centre. A rotated object has a
    polygon of the four corners, and the box around them.
    """
    if not degrees:
        return AnnotatedObject(label, corners, None, values)
    left, top, right, bottom = corners
    cx, cy = about or ((left + right) / 2, (top + bottom) / 2)
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    flat = []
    for x, y in ((left, top), (right, top), (right, bottom), (left, bottom)):
        flat += [cx + (x - cx) * cos - (y - cy) * sin, cy + (x - cx) * sin + (y - cy) * cos]
    return polygon(label, flat, **values)


def polygon(label: str | None, *polygons: list[float], **values: Any) -> AnnotatedObject:
    """Makes an object from its polygons, with the box around them. ``values`` go to further columns. Raises
    :class:`ValueError` if there are no points, or a point has one coordinate."""
    return AnnotatedObject(label, bounding_box(*polygons), list(polygons), values)


def mask(label: str | None, mask: Any, corners: Sequence[float] | None = None, **values: Any) -> AnnotatedObject:
    """Makes an object from its mask: polygons, or run lengths ``{"size": [height, width], "counts": …}``. Without
    ``corners``, the box of run lengths is that of the whole image. ``values`` go to further columns. Raises
    :class:`ValueError` for a size that is no number; checks nothing else.
    """
    if isinstance(mask, Mapping):
        height, width = (int(to_float(each)) for each in mask["size"])
        mask, corners = {"size": [height, width], "counts": mask["counts"]}, corners or [0, 0, width, height]
    return AnnotatedObject(label, corners or (), mask, values)


def outline(label: str | None, flat: list[float], closed: bool, **values: Any) -> Iterator[AnnotatedObject | Point]:
    """Yields the polygon ``x, y, x, y …`` if it is closed, else its points without ``values``. Raises
    :class:`ValueError` for an odd number of coordinates, and for a polygon without points."""
    if closed:
        yield polygon(label, flat, **values)
    else:
        yield from (Point(label, x, y) for x, y in zip(flat[::2], flat[1::2], strict=True))


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

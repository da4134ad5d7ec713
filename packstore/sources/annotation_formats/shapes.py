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

from packstore.core.errors import printable
from packstore.sources.annotation_formats.parsing import to_float, to_floats
from packstore.sources.beside import is_file, read_lines
from packstore.sources.listing import IMAGE_SUFFIXES
from packstore.sources.tree import Tree

_NAMED = 4
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


class Listed(NamedTuple):
    """Image that a file of annotations lists.

    Attributes:
        name: Path of the image. It may be a path on the machine that wrote the file.
        item: What the file has about the image; any JSON value. None for an image without annotation.
        split: Split of the image, in any case of letters; None for the split of the file.
        further_images: Paths of further images that the entry describes.
        identifier: Its id in the file, for messages.
    """

    name: str
    item: Any
    split: str | None = None
    further_images: Sequence[str] = ()
    identifier: str = ""


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
        first_ignored: Identifiers of the first images that are left out, by reason.
    """

    def __init__(self, path: str, content: Any, tree: Tree) -> None:
        self.path, self.content, self.tree = path, content, tree
        self.folder = path.rpartition("/")[0]
        self.classes: Mapping[Any, str] = {}
        self.files: list[str] = []
        self.expected: list[str] = []
        self.ignored: Counter[str] = Counter()
        self.first_ignored: dict[str, list[str]] = {}

    def leave(self, reason: str, count: int = 1, identifier: str = "") -> None:
        """Counts what is left out. Keeps the first 4 identifiers for each reason."""
        self.ignored[reason] += count
        known = self.first_ignored.setdefault(reason, [])
        if identifier and len(known) < _NAMED:
            known.append(identifier)

    def leave_values(self, names: Iterable[Any], of: str = "files of annotations") -> None:
        """Counts 1 for each name of a value that is left out."""
        for name in names:
            self.leave(f"values {printable(str(name))!r:.40} of {of}")

    def find(self, *paths: str) -> str | None:
        """Finds the first of several files in the tree; None if all are missing. The file counts as read."""
        file = next((path for path in paths if is_file(self.tree, path)), None)
        self.files += [] if file is None else [file]
        return file

    def read_lines(self, *paths: str) -> list[str]:
        """Reads the lines, without blank ones, of the first of several files that exists; ``[]`` if all are missing."""
        file = self.find(*paths)
        return [] if file is None else [line for _, line in read_lines(self.tree, file)]

    def list_images(self, folder: str) -> Sequence[str]:
        """Lists the names of the images in a folder of the tree."""
        return self.tree.names(folder).ending(*IMAGE_SUFFIXES)

    def match_frames(
        self, images: Sequence[str], frames: Mapping[int, list[Any]], number: str
    ) -> Iterator[tuple[str, int, list[Any]]]:
        """Yields each image of a video with its number and the lines of its frame, or ``[]``. An image is named by the
        number of its frame, the group of the pattern ``number``. Counts frames without an image as left out.

        Raises :class:`ValueError` if there are images and frames, but no frame has an image. Also raises it if a frame
        has two images, such as ``1.jpg`` and ``000001.jpg``.
        """
        matches = [re.fullmatch(number, image.rpartition("/")[2]) for image in images]
        numbers = [-1 if match is None else int(match[1]) for match in matches]
        if images and frames and not frames.keys() & set(numbers):
            raise ValueError(
                f"no image is named by the number of a frame ({min(frames):06}.jpg); the first is {images[0]}"
            )
        twice = next((each for each, count in Counter(numbers).items() if count > 1 and each in frames), None)
        if twice is not None:
            raise ValueError(f"two images are named by the number of frame {twice}: remove one")
        for image, own in zip(images, numbers, strict=True):
            yield image, own, frames.get(own, [])
        self.leave("frames of a video without an image", len(frames.keys() - set(numbers)))


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

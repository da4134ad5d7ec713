"""Objects and images with their labels, as a store has them; and text of JSON and XML."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from packstore.core.column import DIFFICULT, Column, find_class_column, find_crowd_column
from packstore.core.manifest import Manifest

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot hold."""


@dataclass(frozen=True, slots=True)
class LabelledObject:
    """An object on an image.

    Attributes:
        box: ``left, top, right, bottom`` in pixels.
        label: Its class number; 0 if it has no label.
        name: Its class name; the number as text if it has none.
        keypoints: ``(points, 2 or 3)`` as lists; None for none.
        extra: Its value in the JSON column: an annotation of COCO, or a polygon. None for none.
        crowd: It is no ordinary object, but a crowd or a region to ignore.
        difficult: It is hard to recognise, see Pascal VOC.
    """

    box: tuple[float, float, float, float]
    label: int
    name: str
    keypoints: list[list[float]] | None
    extra: Any
    crowd: bool = False
    difficult: int = 0

    @property
    def corner_and_size(self) -> list[float]:
        """``left, top, width, height`` of its box in pixels."""
        left, top, right, bottom = self.box
        return [left, top, right - left, bottom - top]

    @property
    def polygon(self) -> list[float] | None:
        """Its polygon, ``x, y, x, y, …`` in pixels. None unless it has exactly one.

        None, too, for fewer than 3 points, an odd number of values, or values that are no finite numbers.
        """
        shapes = self.extra
        if not (isinstance(shapes, list) and len(shapes) == 1 and isinstance(shapes[0], list)):
            return None
        flat = shapes[0]
        real = all(isinstance(n, (int, float)) and math.isfinite(n) for n in flat)
        return [float(n) for n in flat] if real and len(flat) >= 6 and len(flat) % 2 == 0 else None


@dataclass(frozen=True, slots=True)
class LabelledImage:
    """An image and its labels.

    Attributes:
        number: Number of its record.
        file: Path of its file in the export.
        width: Width of the image in pixels, in the frame of its objects; 0 if unknown.
        height: Height of the image in pixels, in the frame of its objects; 0 if unknown.
        split: Name of its split; ``""`` in a store without splits.
        objects: Its objects; None if the record has no boxes.
        tag: Class of the whole image; None for none.
    """

    number: int
    file: str
    width: int
    height: int
    split: str
    objects: Sequence[LabelledObject] | None
    tag: str | None

    @property
    def inner_path(self) -> str:
        """Path of its file below the folder of the images."""
        return self.file.partition("/")[2]

    def scale(self, flat: Sequence[float], whole: int = 1) -> list[float]:
        """Converts ``x, y, x, y, …`` in pixels to shares of the image's sides, of which each is ``whole``."""
        across, down = whole / max(1, self.width), whole / max(1, self.height)
        return [value * (down if number % 2 else across) for number, value in enumerate(flat)]


class ObjectColumns:
    """Names of the columns of a store that describe objects: boxes, labels, keypoints and a JSON column.

    Attributes:
        boxes: Name of the first column of boxes; None if the store has none.
        labels: Name of the column with a label for each box, or None.
        keypoints: Name of the column with keypoints for each box, or None.
        classes: Class names of the labels, or None.
        shape: Shape of an object's keypoints; None without keypoints.
        extra: Name of the JSON column, or None.
        crowds: Name of the column that flags crowd regions, or None.
        difficult: Name of the column that flags difficult objects, or None.
    """

    def __init__(self, manifest: Manifest, extra: str) -> None:
        """Finds the first column of boxes, and the class numbers and keypoints that belong to these boxes.

        Each name is None if there is no such column. ``extra``: name of a JSON column with a value for each object;
        ignored if the store has no such column or no boxes.
        """
        columns = manifest.columns
        self.boxes: str | None = next((column.name for column in columns if column.coordinates == "xyxy"), None)
        beside = [column for column in columns if self.boxes is not None and column.parallel == self.boxes]
        labels, crowds = find_class_column(beside, self.boxes), find_crowd_column(columns)
        points = next((column for column in beside if column.coordinates and len(column.shape) == 2), None)
        self.labels = None if labels is None else labels.name
        self.keypoints = None if points is None else points.name
        self.crowds = crowds[0].name if crowds is not None and crowds[1] == self.boxes else None
        self.classes = labels.classes if labels is not None else None
        difficult = (c.name for c in beside if c.name == DIFFICULT and c.traits.has_classes)
        self.difficult = next(difficult, None)
        self.shape = points.shape if points is not None else None
        texts = {column.name for column in columns if column.traits.extension == "json"}
        self.extra = extra if extra in texts and self.boxes is not None else None


def find_captions_column(columns: Sequence[Column]) -> str | None:
    """Returns the name of the column of captions. Returns None if there is no such column.

    Takes the first of these: ``captions`` if it is JSON, ``caption`` and ``text`` if they are text.
    """
    extensions = {"captions": "json", "caption": "txt", "text": "txt"}
    there = {column.name: column.traits.extension for column in columns}
    return next((name for name, extension in extensions.items() if there.get(name) == extension), None)


def pair_coordinates(flat: Sequence[float]) -> list[tuple[float, float]]:
    """Converts ``x, y, x, y, …`` to points ``(x, y)``. Raises :class:`ValueError` for an odd number of values."""
    return list(zip(flat[::2], flat[1::2], strict=True))


def format_number(value: float) -> str:
    """Formats a finite number in its shortest exact form: ``3``, ``2.5``. NaN and infinity raise an error."""
    return str(int(value)) if value == int(value) else repr(value)


def escape_xml(text: str) -> str:
    """Escapes ``text`` for XML content and attributes. Characters that XML cannot hold become U+FFFD."""
    return escape(_NO_XML.sub("\ufffd", text), {'"': "&quot;", "\n": "&#10;", "\r": "&#13;", "\t": "&#9;"})


def format_json(value: Any) -> str:
    """Formats ``value`` as JSON on one line, in ASCII."""
    return json.dumps(value, separators=(",", ":"))


def join_texts(texts: Iterable[str | None], separator: str = ",\n") -> Iterator[str]:
    """Yields texts that are not empty, with the separator before each but the first."""
    first = True
    for text in texts:
        if text:
            yield text if first else separator + text
            first = False

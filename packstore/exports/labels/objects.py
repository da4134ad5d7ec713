"""Objects and images with their labels, as a store has them; and text of JSON and XML."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

from packstore.core.column import DIFFICULT, Column, find_class_column, find_crowd_column
from packstore.core.errors import UsageError
from packstore.core.manifest import Manifest

_MAX_CLASSES = 1 << 20
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot hold."""


@dataclass(frozen=True, slots=True)
class LabelledObject:
    """An object on an image.

    Attributes:
        box: ``left, top, right, bottom`` in pixels.
        label: Its class number; 0 if it has no label.
        keypoints: ``(points, 2 or 3)`` as lists; None for none.
        extra: Its value in the JSON column: an annotation of COCO, or a polygon. None for none.
        crowd: It is no ordinary object, but a crowd or a region to ignore.
        difficult: It is hard to recognise, see Pascal VOC.
    """

    box: tuple[float, float, float, float]
    label: int
    keypoints: list[list[float]] | None
    extra: Any
    crowd: bool = False
    difficult: int = 0

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


class ObjectColumns:
    """Names of the columns of a store that describe objects: boxes, labels, keypoints and a JSON column. Also reads the
    objects of a record.

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

    def read_objects(self, item: Callable[[str], Any]) -> list[LabelledObject] | None:
        """Reads the objects of a record. Returns None if the record has no value of boxes.

        Leaves out objects whose boxes or keypoints are not finite. Without a label for each box, all objects get
        class 0. Without keypoints for each box, objects have no keypoints.

        ``item``: returns the record's value in a column, by name.
        """
        boxes = None if self.boxes is None else item(self.boxes)
        if boxes is None:
            return None
        columns: list[Sequence[Any]] = []
        for name in (self.labels, self.keypoints, self.crowds, self.difficult):
            values = None if name is None else item(name)
            columns.append([None] * len(boxes) if values is None or len(values) != len(boxes) else values.tolist())
        extra = self._read_extra(item, len(boxes))
        return [
            LabelledObject(tuple(box), label or 0, points, each, (crowd or 0) > 0, difficult or 0)
            for box, label, points, crowd, difficult, each in zip(
                np.asarray(boxes, np.float64).tolist(), *columns, extra, strict=True
            )
            if all(map(math.isfinite, (*box, *(value for point in points or () for value in point))))
        ]

    def _read_extra(self, item: Callable[[str], Any], count: int) -> Sequence[Any]:
        """Returns the JSON column's value for each of ``count`` objects, or None for each if these do not fit."""
        value = None if self.extra is None else item(self.extra)
        if isinstance(value, dict):
            value = value.get("annotations")  # the list is in an object
        return value if isinstance(value, list) and len(value) == count else [None] * count

    def class_names(self, most: Callable[[], int]) -> list[str]:
        """Returns the class names. Without names, returns the numbers up to ``most()`` as text. Without labels, returns
        ``object``.

        Raises :class:`UsageError` if ``most()`` is 2^20 or more.
        """
        if self.classes is not None:
            return list(self.classes)
        if self.labels is None:
            return ["object"]
        largest = most()
        if largest >= _MAX_CLASSES:
            raise UsageError(
                f"the column {self.labels!r} has class numbers up to {largest:,} without names, and the export lists "
                f"all classes, at most {_MAX_CLASSES:,}; pack the source again with names of classes, or leave the "
                f"column out (packstore select --drop-column {self.labels})"
            )
        return [str(number) for number in range(largest + 1)]


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


def join_texts(texts: Iterable[str], separator: str = ",\n") -> Iterator[str]:
    """Yields texts that are not empty, with the separator before each but the first."""
    first = True
    for text in texts:
        if text:
            yield text if first else separator + text
            first = False

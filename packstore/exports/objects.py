"""What exports of labels beside images share: boxes with what goes with them, and sizes of images."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from packstore.core.column import Column
from packstore.core.files import open_file, sync_file_system
from packstore.core.manifest import Manifest
from packstore.exports.base import BLOCK_BYTES, Record, ShardWriter
from packstore.exports.folder import FilesExport, file_of
from packstore.images.decoders.orientation import read_orientation, swaps_sides
from packstore.images.sniff import HeaderError, sniff


@dataclass(frozen=True, slots=True)
class Thing:
    """An object on an image.

    Attributes:
        box: ``xyxy`` in pixels.
        label: The number of its class; 0 where there are no labels.
        keypoints: ``(points, 2 or 3)`` as lists; None without.
        further: What another column says of it: of ``json`` the annotation of COCO, of ``polygons`` a polygon.
    """

    box: tuple[float, float, float, float]
    label: int
    keypoints: list[list[float]] | None
    further: Any


class Things:
    """The columns of a store in which its objects are."""

    def __init__(self, manifest: Manifest, further: str) -> None:
        """``further`` is a column of JSON with a value for each object."""
        columns = manifest.columns
        self.boxes: str | None = next((column.name for column in columns if column.type == "boxes"), None)
        beside = [column for column in columns if self.boxes is not None and column.parallel == self.boxes]
        labels = next((column for column in beside if column.type == "labels"), None)
        points = next((column for column in beside if column.type == "keypoints" and len(column.shape) == 2), None)
        self.labels = None if labels is None else labels.name
        self.keypoints = None if points is None else points.name
        self.classes = labels.classes if labels is not None else None
        self.shape = points.shape if points is not None else None
        texts = {column.name for column in columns if column.type == "json"}
        self.further = further if further in texts and self.boxes is not None else None

    @property
    def shown(self) -> list[str]:
        """Names of the columns."""
        return [name for name in (self.boxes, self.labels, self.keypoints) if name is not None]

    def of(self, item: Callable[[str], Any]) -> list[Thing] | None:
        """The objects of a record, whose values ``item`` gives; None where it has no boxes. Boxes that are not finite
        numbers are left out."""
        boxes = None if self.boxes is None else item(self.boxes)
        if boxes is None:
            return None
        columns: list[Sequence[Any]] = []
        for name in (self.labels, self.keypoints):
            values = None if name is None else item(name)
            columns.append([None] * len(boxes) if values is None or len(values) != len(boxes) else values.tolist())
        further = self._further(item, len(boxes))
        return [
            Thing(tuple(box), label or 0, points, each)
            for box, label, points, each in zip(np.asarray(boxes, np.float64).tolist(), *columns, further, strict=True)
            if all(map(math.isfinite, (*box, *(value for point in points or () for value in point))))
        ]

    def _further(self, item: Callable[[str], Any], count: int) -> Sequence[Any]:
        value = None if self.further is None else item(self.further)
        if isinstance(value, dict):
            value = value.get("annotations")
        return value if isinstance(value, list) and len(value) == count else [None] * count

    def names(self, most: Callable[[], int]) -> list[str]:
        """Names of the classes; numbers where they have none, up to what ``most`` gives."""
        if self.classes is not None:
            return list(self.classes)
        return [str(number) for number in range(most() + 1)] if self.labels is not None else ["object"]


class ObjectsExport(FilesExport):
    """Images as files in a folder, and labels beside them.

    Attributes:
        further: See :class:`Things`.
        images: The folder of the images.
    """

    shard_bytes = None
    further = ""
    images = "images"

    @property
    def label_bytes(self) -> int:
        """About how many bytes the labels of an image take."""
        return BLOCK_BYTES if self.things.boxes else 0

    @cached_property
    def things(self) -> Things:
        """Where the objects are."""
        return Things(self.manifest, self.further)

    def shown(self) -> Sequence[str]:
        return self.things.shown

    def losses(self) -> Sequence[str]:
        lost = [] if self.things.boxes else ["objects: the store has no boxes"]
        return [*lost, "the order of the records, and keys whose names no file can have"]

    def overhead(self) -> int:
        return super().overhead() + self.label_bytes

    def begin(self, number: int, split: str) -> ShardWriter:
        return ObjectsWriter(self)

    def sync(self, shard: ShardWriter) -> None:
        sync_file_system(self.path)

    def image_path(self, record: Record) -> str:
        """The path of a record's image."""
        return f"{self.images}/{self.paths(record)}"

    def write_labels(self, record: Record, image: str, size: tuple[int, int]) -> Mapping[str, str]:
        """Writes what goes with the file ``image`` of a record, of ``size`` width and height, (0, 0) for no image.
        Returns what the record's line has to say of it."""
        return {"width": str(size[0]), "height": str(size[1])}

    def write(self, path: str, data: bytes) -> None:
        """Writes a file of the export."""
        with open_file(self.path / path, "wb") as file:
            file.write(data)

    def most_label(self) -> int:
        """The largest number of a class in the store."""
        name = self.things.labels
        found = (self.reader.item(name, i) for i in range(len(self.reader))) if name is not None else ()
        return max((int(values.max()) for values in found if values is not None and len(values)), default=0)


class ObjectsWriter(ShardWriter):
    """Writes images, and lets the export write what goes with each."""

    def __init__(self, export: ObjectsExport) -> None:
        self._export = export
        self._made: set[PurePosixPath] = set()

    def add(self, record: Record) -> Mapping[str, str]:
        data = file_of(record)
        path = self._export.image_path(record)
        self.make_folder(path)
        self._export.write(path, data)
        return {"file": path, **self._export.write_labels(record, path, size_of(data))}

    def make_folder(self, path: str) -> None:
        """Makes the folder of a file."""
        folder = PurePosixPath(path).parent
        if folder not in self._made:
            (self._export.path / folder).mkdir(parents=True, exist_ok=True)
            self._made.add(folder)

    def close(self) -> None:
        return


def size_of(data: bytes) -> tuple[int, int]:
    """Width and height of an image upright; (0, 0) for what is no image."""
    try:
        info = sniff(data)
    except HeaderError:
        return 0, 0
    return (info.height, info.width) if swaps_sides(read_orientation(data, info)) else (info.width, info.height)


def captions_column(columns: Sequence[Column]) -> str | None:
    """The column of captions: ``captions`` (lists of strings), ``caption`` or ``text``."""
    types = {"captions": "json", "caption": "text", "text": "text"}
    return next(
        (name for name in types for column in columns if (column.name, column.type) == (name, types[name])), None
    )

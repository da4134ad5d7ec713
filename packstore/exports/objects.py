"""Shared parts of exports that write labels beside images: objects with boxes, and sizes of images."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np

from packstore.core.column import DIFFICULT, UPRIGHT, Column, find_class_column, find_crowd_column
from packstore.core.errors import UsageError
from packstore.core.files import open_file, sync_file_system
from packstore.core.manifest import Manifest
from packstore.exports.base import BLOCK_BYTES, Record, ShardWriter
from packstore.exports.folder import FilesExport, image_file
from packstore.images.encode.options import readers_transpose
from packstore.images.orientation import read_orientation, swaps_sides
from packstore.images.sniff import HeaderError, sniff
from packstore.images.turning import make_turn
from packstore.stores.base import Reader

_MAX_CLASSES = 1 << 20
_COCO_COLUMN = "json"
"""Column in which the source ``coco`` keeps polygons."""


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

    @property
    def visible_columns(self) -> list[str]:
        """Names of the columns of boxes, labels and keypoints."""
        return [name for name in (self.boxes, self.labels, self.keypoints) if name is not None]

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
        """Reads the JSON column's value for each of ``count`` objects. The values are a list, or the list
        ``annotations`` of an object.

        For any other content or number of values, returns None for each object.
        """
        value = None if self.extra is None else item(self.extra)
        if isinstance(value, dict):
            value = value.get("annotations")
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


class ObjectsExport(FilesExport):
    """Base of exports that hold images as files, and labels beside the images.

    This base writes no labels. It adds width and height of each image to its record line. Raises :class:`UsageError`
    for class numbers of 2^20 or more without names, unless the kind writes no classes. Creating the object reads all
    labels of objects without class names to find such numbers.

    Attributes:
        extra: Name of the JSON column with a value for each object, see :class:`ObjectColumns`.
        crowds: The format marks crowd regions. If False, they are left out: other readers would train on them.
        images: The folder of the images.
        upright_kinds: Kinds of image files that the format's own tools turn upright by their orientation, so that their
            labels count in the upright image. Labels of other files count in the frame of the store.
    """

    shard_bytes = None
    extra = ""
    crowds = False
    images = "images"
    upright_kinds: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, path: Path, manifest: Manifest, reader: Reader, *, recoded: bool) -> None:
        super().__init__(path, manifest, reader, recoded=recoded)
        if self.object_columns.labels in self.visible_columns():
            _ = self.object_classes  # refuses class numbers that are too large, before anything is written

    @property
    def label_bytes(self) -> int:
        """Estimated bytes on disk of an image's labels. By default a block of the file system; 0 in a store without
        boxes."""
        return BLOCK_BYTES if self.object_columns.boxes else 0

    @cached_property
    def object_columns(self) -> ObjectColumns:
        """Names of the columns that describe objects."""
        return ObjectColumns(self.manifest, self.extra)

    @cached_property
    def object_classes(self) -> list[str]:
        """Class names of objects, by number. Without names, numbers as text; reads all labels for them.

        Raises :class:`UsageError` for class numbers of 2^20 or more without names.
        """
        return self.object_columns.class_names(self.largest_label)

    def visible_columns(self) -> Sequence[str]:
        """Returns the names of the columns of boxes, labels and keypoints that the store has. Adds the column of crowd
        regions if the format marks them."""
        objects = self.object_columns
        return [*objects.visible_columns, *([objects.crowds] if self.crowds and objects.crowds else [])]

    def describe_hidden(self, name: str) -> str:
        """Describes a column that is not written. For the column ``json``, adds that polygons of COCO in it are not
        written. For the column of crowd regions, adds their number, which reads the column."""
        if name == self.object_columns.crowds and self.object_columns.boxes in self.visible_columns():
            return f"{name!r} (crowd regions are left out of the labels: {self._count_crowds():,})"
        if name == _COCO_COLUMN and self.object_columns.boxes:
            return f"{name!r} (polygons in it, as COCO has them, are not written)"
        return super().describe_hidden(name)

    def losses(self) -> Sequence[str]:
        """Returns a text on the order of records and on keys. If the store has no boxes, returns a text on boxes before
        it."""
        lost = [] if self.object_columns.boxes else ["objects: the store has no boxes"]
        return [*lost, "the order of the records, and keys whose names no file can have"]

    def overhead(self) -> int:
        """Adds the estimated bytes of an image's labels, :attr:`label_bytes`, to the usual estimate."""
        return super().overhead() + self.label_bytes

    def begin(self, number: int, split: str) -> ShardWriter:
        """Returns a writer of images and labels. Ignores ``number`` and ``split``: shards leave no trace in the
        folder."""
        return ObjectsWriter(self)

    def sync(self, shard: ShardWriter) -> None:
        """Flushes the whole file system, whatever the shard, since each image is a file."""
        sync_file_system(self.path)

    def image_path(self, record: Record) -> str:
        """Returns the path of a record's image in the export. By default it is in the folder :attr:`images`."""
        return f"{self.images}/{self.record_paths(record)}"

    def write_labels(self, record: Record, image: str, size: tuple[int, int]) -> Mapping[str, str]:
        """Writes the labels of a record if the format has a file for each image.

        By default writes none, and returns the size as ``{"width": "640", "height": "480"}``.

        Args:
            record: The record.
            image: Path of its image in the export.
            size: Width and height of the image; (0, 0) if its size cannot be read.

        Returns:
            Further entries of the record's line in ``packstore.rows.jsonl``.
        """
        return {"width": str(size[0]), "height": str(size[1])}

    def write_export_file(self, path: str, data: bytes) -> None:
        """Writes the file ``path`` of the export; replaces a file that exists."""
        with open_file(self.path / path, "wb") as file:
            file.write(data)

    def read_value(self, number: int, name: str) -> Any:
        """Reads the value of record ``number`` in the column ``name`` from the store. Returns None if it is missing."""
        return self.reader.item(name, number)

    def read_objects(self, item: Callable[[str], Any]) -> list[LabelledObject] | None:
        """Reads the objects of a record, see :meth:`ObjectColumns.read_objects`. Leaves out crowd regions if the format
        cannot mark them."""
        objects = self.object_columns.read_objects(item)
        return objects if self.crowds or objects is None else [each for each in objects if not each.crowd]

    def _count_crowds(self) -> int:
        """Counts the crowd regions in the store."""
        name = self.object_columns.crowds
        flags = (self.reader.item(name, i) for i in range(len(self.reader))) if name is not None else ()
        return sum(int(np.count_nonzero(values > 0)) for values in flags if values is not None)

    def largest_label(self) -> int:
        """Returns the largest class number of objects in the store; 0 if there is none. Reads all labels."""
        name = self.object_columns.labels
        labels = (self.reader.item(name, i) for i in range(len(self.reader))) if name is not None else ()
        return max((int(values.max()) for values in labels if values is not None and len(values)), default=0)


class ObjectsWriter(ShardWriter):
    """Writes each image as a file, and calls the export to write its labels."""

    def __init__(self, export: ObjectsExport) -> None:
        self._export = export
        self._folders: set[PurePosixPath] = set()

    def add(self, record: Record) -> Mapping[str, str]:
        """Writes the image and its labels. Returns ``{"file": path}`` of the image, and the entries of
        :meth:`ObjectsExport.write_labels`."""
        data = image_file(record)
        path = self._export.image_path(record)
        self.create_parent(path)
        self._export.write_export_file(path, data)
        record, size = self._turn_labels(record, data)
        return {"file": path, **self._export.write_labels(record, path, size)}

    def _turn_labels(self, record: Record, data: bytes) -> tuple[Record, tuple[int, int]]:
        """Returns the record with its values in the frame that the format needs, and width and height of the image in
        this frame; (0, 0) if ``data`` is no image."""
        try:
            info = sniff(data)
        except HeaderError:
            return record, (0, 0)
        size, orientation = (info.width, info.height), read_orientation(data, info)
        upright = readers_transpose(self._export.manifest)
        if not upright and info.kind in self._export.upright_kinds and orientation != 1:
            turn, upright = make_turn(orientation, size, UPRIGHT), True
            columns = {name: column for name, column in record.columns.items() if name in record.stored}
            record = replace(record, stored=turn.move_stored_values(columns, record.stored))
        return record, size[::-1] if upright and swaps_sides(orientation) else size

    def create_parent(self, path: str) -> None:
        """Creates the folder of the file ``path`` unless this writer has created it already."""
        folder = PurePosixPath(path).parent
        if folder not in self._folders:
            (self._export.path / folder).mkdir(parents=True, exist_ok=True)
            self._folders.add(folder)

    def close(self) -> None:
        """Does nothing: each file is closed once it is written."""
        return


def find_captions_column(columns: Sequence[Column]) -> str | None:
    """Returns the name of the column of captions. Returns None if there is no such column.

    Takes the first of these: ``captions`` if it is JSON, ``caption`` and ``text`` if they are text.
    """
    extensions = {"captions": "json", "caption": "txt", "text": "txt"}
    there = {column.name: column.traits.extension for column in columns}
    return next((name for name, extension in extensions.items() if there.get(name) == extension), None)

"""Shared parts of label exports: an image with its labels, formats with a file per image, and formats with a document
of many images.

A format is a class that turns a :class:`LabelledImage` into text.
"""

from __future__ import annotations

import json
import math
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar
from xml.sax.saxutils import escape

import numpy as np

from packstore.core.files import open_file
from packstore.exports.base import BLOCK_BYTES, Record
from packstore.exports.names import safe_name
from packstore.exports.objects import LabelledObject, ObjectsExport
from packstore.exports.paths import make_distinct
from packstore.stores.export_manifest import ExportManifest, RecordLines

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot hold."""


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


class LabelsExport(ObjectsExport):
    """Base of exports with images as files, and boxes, classes and polygons in another tool's format.

    Attributes:
        tags: The format has classes of whole images (tags).
        polygons: The format has polygons.
    """

    extra = "segmentations"
    tags: ClassVar[bool] = True
    polygons: ClassVar[bool] = True

    def visible_columns(self) -> Sequence[str]:
        """Returns the columns of boxes and labels. Adds polygons and the class of the image if store and format have
        them."""
        objects = self.object_columns
        extra = objects.extra if self.polygons else None
        crowds = objects.crowds if self.crowds else None
        return [name for name in (objects.boxes, objects.labels, crowds, extra, self._tag_column) if name is not None]

    def losses(self) -> Sequence[str]:
        """Returns the texts of the base. If polygons are written, puts a text first on shapes that are no single
        polygon.

        Leaves out the text on missing boxes if classes of images are written.
        """
        lost = [each for each in super().losses() if not (self._tag_column and each.startswith("objects:"))]
        if self.object_columns.extra and self.polygons:
            lost.insert(0, "shapes of objects with several polygons or run lengths: they become boxes")
        return lost

    @property
    def _tag_column(self) -> str | None:
        """Name of the column with the class of the whole image: ``label``. None if the store has none, or the format
        has no such classes."""
        return "label" if self.tags and self.manifest.has_label else None

    @cached_property
    def image_classes(self) -> list[str]:
        """Class names of whole images. Without names: the class numbers that occur, which reads all labels.

        Empty if the store or the format has no classes of images.
        """
        name = self._tag_column
        if name is None or self.manifest.classes is not None:
            return [] if name is None else list(self.manifest.classes or ())
        numbers = self.reader.fixed_column(name)
        if self.manifest.column(name).nullable:
            numbers = numbers[self.reader.fixed_column(self.manifest.column(name).valid_name)]
        return [str(number) for number in np.unique(numbers).tolist()]

    def read_labels(self, number: int, file: str, size: tuple[int, int], split: str, item: Any) -> LabelledImage:
        """Builds the :class:`LabelledImage` of a record.

        Args:
            number: Number of the record.
            file: Path of its image in the export.
            size: Width and height of the image.
            split: Name of its split.
            item: Returns the record's value in a column, by name.
        """
        label = None if self._tag_column is None else item(self._tag_column)
        names = self.manifest.classes
        tag = None if label is None else str(label) if names is None else names[label]
        return LabelledImage(number, file, *size, split, self.read_objects(item), tag)

    def class_name(self, obj: LabelledObject) -> str:
        """Returns the class name of an object. Returns its class number as text if the class has no name."""
        return self.object_classes[obj.label] if 0 <= obj.label < len(self.object_classes) else str(obj.label)

    @property
    def split_ranges(self) -> list[tuple[str, str, int, int]]:
        """Name, folder, first record and end of each split. Without splits, one range of all records with empty name
        and folder."""
        if not self.manifest.splits:
            return [("", "", 0, self.manifest.records)]
        folders = make_distinct([safe_name(split.name) for split in self.manifest.splits])
        pairs = zip(self.manifest.splits, folders, strict=True)
        return [(each.name, folder, each.start, each.stop) for each, folder in pairs]


class SidecarExport(LabelsExport):
    """Base of formats with a label file for each image. An image without boxes and class gets none; an empty list of
    boxes counts as boxes."""

    @property
    def label_bytes(self) -> int:
        """Estimated bytes of a label file: a block of the file system, or 0 if the store has no labels."""
        return BLOCK_BYTES if self.visible_columns() else 0

    @abstractmethod
    def format_sidecar(self, image: LabelledImage) -> tuple[str, str]:
        """Returns path and text of the label file of an image."""

    def write_labels(self, record: Record, image: str, size: tuple[int, int]) -> Mapping[str, str]:
        """Writes the label file and returns its path as ``{"beside": path}``. Creates its folder if needed.

        For an image without labels, writes nothing and returns an empty mapping. Bytes that are not UTF-8 become ``?``.
        """
        labels = self.read_labels(record.number, image, size, record.split, record.__getitem__)
        if labels.objects is None and labels.tag is None:
            return {}
        path, text = self.format_sidecar(labels)
        (self.path / path).parent.mkdir(parents=True, exist_ok=True)
        self.write_export_file(path, text.encode("utf-8", "replace"))
        return {"beside": path}


class DocumentExport(LabelsExport):
    """Base of formats with one document of all images, or one for each split.

    Attributes:
        document: Path of the document. If it has ``{split}``, there is a document for each split.
        no_split: Replaces ``{split}`` in a store without splits.
        separator: Separator between the texts of images.
    """

    document: ClassVar[str]
    no_split: ClassVar[str] = "all"
    separator: ClassVar[str] = ",\n"

    @property
    def label_bytes(self) -> int:
        """Estimated bytes of text for an image: ten times the stored bytes of its labels."""
        sizes = {column.name: column.size_of(self.manifest.records) for column in self.columns}
        # A box of 16 bytes is some 160 in JSON or XML.
        return (
            150
            + self.mean_key_bytes
            + 10 * sum(sizes[name] for name in self.visible_columns()) // max(1, self.manifest.records)
        )

    @abstractmethod
    def format_head(self) -> str:
        """Returns the text before the images."""

    @abstractmethod
    def format_entry(self, image: LabelledImage) -> str:
        """Returns the text of an image. ``""`` leaves the image out."""

    @abstractmethod
    def format_tail(self) -> str:
        """Returns the text after the images."""

    def format_extra_files(self) -> Mapping[str, str]:
        """Returns the texts of further files, by path. By default there are none."""
        return {}

    def finish(self, export_manifest: ExportManifest, lines: Path | None) -> ExportManifest:
        """Writes the documents and the further files, and adds them to the export manifest. Reads all labels. Writes
        the export manifest unless the export is bare.

        Splits with the same path share a document. Bytes that are not UTF-8 become ``?``.
        """
        assert lines is not None
        rows = RecordLines.map_file(lines)
        files: dict[str, list[tuple[str, int, int]]] = {}
        for name, folder, start, stop in self.split_ranges:
            files.setdefault(self.document.format(split=folder or self.no_split), []).append((name, start, stop))
        for path, parts in files.items():
            (self.path / path).parent.mkdir(parents=True, exist_ok=True)
            with open_file(self.path / path, "wb") as out:
                for n, text in enumerate(self._format_entries(rows, parts)):
                    out.write(text.encode("utf-8", "replace") if n else self.format_head().encode("utf-8", "replace"))
                out.write(self.format_tail().encode("utf-8", "replace"))
        extra = self.format_extra_files()
        for path, text in extra.items():
            self.write_export_file(path, text.encode("utf-8", "replace"))
        return super().finish(replace(export_manifest, files=(*files, *extra)), lines)

    def _format_entries(self, rows: RecordLines, parts: Sequence[tuple[str, int, int]]) -> Iterator[str]:
        """Yields ``""``, which the caller replaces by the head. Then yields the text of each image that has one, with
        the separator between texts.

        ``parts``: name, first record and end of each split.
        """
        yield ""
        first = True
        for split, start, stop in parts:
            for number in range(start, stop):
                line = rows[number]
                size = int(line["width"]), int(line["height"])
                item = partial(self.read_value, number)
                text = self.format_entry(self.read_labels(number, line["file"], size, split, item))
                if text:
                    yield text if first else self.separator + text
                    first = False


def find_single_polygon(obj: LabelledObject) -> list[float] | None:
    """Returns the polygon of an object, ``x, y, x, y, …`` in pixels. Returns None unless it has exactly one.

    Returns None, too, for fewer than 3 points, an odd number of values, or values that are no finite numbers.
    """
    shapes = obj.extra
    if not (isinstance(shapes, list) and len(shapes) == 1 and isinstance(shapes[0], list)):
        return None
    flat = shapes[0]
    real = all(isinstance(n, (int, float)) and math.isfinite(n) for n in flat)
    return [float(n) for n in flat] if real and len(flat) >= 6 and len(flat) % 2 == 0 else None


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

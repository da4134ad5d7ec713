"""Shared parts of label exports: an image with its labels, a file per image, and documents of many images.

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

from packstore.core.export_manifest import ExportManifest, RecordLines
from packstore.core.files import open_file
from packstore.exports.base import BLOCK_BYTES, Record
from packstore.exports.names import safe_name
from packstore.exports.objects import LabelledObject, ObjectsExport
from packstore.exports.paths import make_distinct

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot hold."""


@dataclass(frozen=True, slots=True)
class LabelledImage:
    """An image and its labels.

    Attributes:
        number: Number of its record.
        file: Path of its file in the export.
        width: Width of the upright image in pixels; 0 if it cannot be read.
        height: Height, likewise.
        split: Name of its split; ``""`` for none.
        objects: Its objects; None if it has no value of boxes.
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
        tags: The format has classes of whole images.
        polygons: The format has polygons.
    """

    extra = "segmentations"
    tags: ClassVar[bool] = True
    polygons: ClassVar[bool] = True

    def visible_columns(self) -> Sequence[str]:
        objects = self.objects
        extra = objects.extra if self.polygons else None
        return [name for name in (objects.boxes, objects.labels, extra, self._tag) if name is not None]

    def losses(self) -> Sequence[str]:
        lost = [each for each in super().losses() if not (self._tag and each.startswith("objects:"))]
        if self.objects.extra and self.polygons:
            lost.insert(0, "shapes of objects with several polygons or run lengths: they become boxes")
        return lost

    @property
    def _tag(self) -> str | None:
        """Name of the column with the class of the whole image, if the format has such classes."""
        columns = self.columns if self.tags else ()
        return next((each.name for each in columns if (each.name, each.type) == ("label", "label")), None)

    @cached_property
    def names(self) -> list[str]:
        """Class names of objects, by number."""
        return self.objects.class_names(self.largest_label)

    @cached_property
    def tag_names(self) -> list[str]:
        """Class names of whole images, by number; empty if there are none."""
        return list(self.manifest.classes or ()) if self._tag else []

    def read_labels(self, number: int, file: str, size: tuple[int, int], split: str, item: Any) -> LabelledImage:
        """Builds the :class:`LabelledImage` of a record. ``item`` returns a value by column name."""
        label = None if self._tag is None else item(self._tag)
        tag = None if label is None else self.tag_names[label] if self.tag_names else str(label)
        return LabelledImage(number, file, *size, split, self.objects.read_objects(item), tag)

    def class_of(self, obj: LabelledObject) -> str:
        """Returns the class name of an object."""
        return self.names[obj.label] if 0 <= obj.label < len(self.names) else str(obj.label)

    @property
    def splits(self) -> list[tuple[str, str, int, int]]:
        """Name, folder, first record and end of each split; a store without splits has one, with empty names."""
        if not self.manifest.splits:
            return [("", "", 0, self.manifest.records)]
        folders = make_distinct([safe_name(split.name) for split in self.manifest.splits])
        pairs = zip(self.manifest.splits, folders, strict=True)
        return [(each.name, folder, each.start, each.stop) for each, folder in pairs]


class SidecarExport(LabelsExport):
    """Base of formats with a label file for each image that has labels."""

    @property
    def label_bytes(self) -> int:
        return BLOCK_BYTES if self.visible_columns() else 0

    @abstractmethod
    def sidecar(self, image: LabelledImage) -> tuple[str, str]:
        """Returns path and text of an image's label file."""

    def write_labels(self, record: Record, image: str, size: tuple[int, int]) -> Mapping[str, str]:
        found = self.read_labels(record.number, image, size, record.split, record.__getitem__)
        if found.objects is None and found.tag is None:
            return {}
        path, text = self.sidecar(found)
        (self.path / path).parent.mkdir(parents=True, exist_ok=True)
        self.write_file(path, text.encode("utf-8", "replace"))
        return {"beside": path}


class DocumentExport(LabelsExport):
    """Base of formats with one document of all images, or one for each split.

    Attributes:
        document: Path of the document; with ``{split}`` there is one for each split.
        no_split: Replaces ``{split}`` in a store without splits.
        separator: Separator between entries.
    """

    document: ClassVar[str]
    no_split: ClassVar[str] = "all"
    separator: ClassVar[str] = ",\n"

    @property
    def label_bytes(self) -> int:
        sizes = {column.name: column.size_of(self.manifest.records) for column in self.columns}
        # A box of 16 bytes is some 160 in JSON or XML.
        return (
            150
            + self.key_bytes
            + 10 * sum(sizes[name] for name in self.visible_columns()) // max(1, self.manifest.records)
        )

    @abstractmethod
    def head(self) -> str:
        """Returns the text before all entries."""

    @abstractmethod
    def entry(self, image: LabelledImage) -> str:
        """Returns the text of an image; ``""`` leaves it out."""

    @abstractmethod
    def tail(self) -> str:
        """Returns the text after all entries."""

    def extra_files(self) -> Mapping[str, str]:
        """Returns the texts of further files, by path."""
        return {}

    def finish(self, export_manifest: ExportManifest, lines: Path | None) -> ExportManifest:
        assert lines is not None
        rows = RecordLines.map_file(lines)
        files: dict[str, list[tuple[str, int, int]]] = {}
        for name, folder, start, stop in self.splits:
            files.setdefault(self.document.format(split=folder or self.no_split), []).append((name, start, stop))
        for path, parts in files.items():
            (self.path / path).parent.mkdir(parents=True, exist_ok=True)
            with open_file(self.path / path, "wb") as out:
                for n, text in enumerate(self._format_entries(rows, parts)):
                    out.write(text.encode("utf-8", "replace") if n else self.head().encode("utf-8", "replace"))
                out.write(self.tail().encode("utf-8", "replace"))
        extra = self.extra_files()
        for path, text in extra.items():
            self.write_file(path, text.encode("utf-8", "replace"))
        return super().finish(replace(export_manifest, files=(*files, *extra)), lines)

    def _format_entries(self, rows: RecordLines, parts: Sequence[tuple[str, int, int]]) -> Iterator[str]:
        """Yields ``""``, which the caller replaces by the head, and then the text of each image that has one.

        Each text but the first begins with the separator. ``parts`` are the name of a split, its first record and its
        end.
        """
        yield ""
        first = True
        for split, start, stop in parts:
            for number in range(start, stop):
                line = rows[number]
                size = int(line["width"]), int(line["height"])
                item = partial(self.read_value, number)
                text = self.entry(self.read_labels(number, line["file"], size, split, item))
                if text:
                    yield text if first else self.separator + text
                    first = False


def single_polygon(obj: LabelledObject) -> list[float] | None:
    """Returns the polygon of an object, ``x, y, x, y, …`` in pixels, or None if it has none or several."""
    shapes = obj.extra
    if not (isinstance(shapes, list) and len(shapes) == 1 and isinstance(shapes[0], list)):
        return None
    flat = shapes[0]
    real = all(isinstance(n, (int, float)) and math.isfinite(n) for n in flat)
    return [float(n) for n in flat] if real and len(flat) >= 6 and len(flat) % 2 == 0 else None


def point_pairs(flat: Sequence[float]) -> list[tuple[float, float]]:
    """Converts ``x, y, x, y, …`` to points."""
    return list(zip(flat[::2], flat[1::2], strict=True))


def format_number(value: float) -> str:
    """Formats a number in its shortest exact form: ``3``, ``2.5``."""
    return str(int(value)) if value == int(value) else repr(value)


def escape_xml(text: str) -> str:
    """Escapes ``text`` for XML content and attributes; characters that XML cannot hold become U+FFFD."""
    return escape(_NO_XML.sub("\ufffd", text), {'"': "&quot;", "\n": "&#10;", "\r": "&#13;", "\t": "&#9;"})


def format_json(value: Any) -> str:
    """Formats ``value`` as JSON on one line, in ASCII."""
    return json.dumps(value, separators=(",", ":"))

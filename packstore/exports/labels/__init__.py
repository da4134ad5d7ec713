"""Exports of labels in the formats of tools that annotate and train; here their base, :class:`LabelsExport`.

A format is a class with names and flags, and one method that formats the labels of an image. They are a file beside it,
or a part of a document of many images. The objects and labels of an image are taken from a store's columns, and text is
escaped for JSON and XML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, Literal
from xml.sax.saxutils import escape

import numpy as np

from packstore.core.columns import DIFFICULT, UPRIGHT, Column, find_class_column, find_crowd_column
from packstore.core.errors import StoreError, UsageError, printable
from packstore.core.manifest import Manifest
from packstore.exports.base import BLOCK_BYTES, Record
from packstore.exports.folder import FolderExport
from packstore.images.annotations import make_turn
from packstore.images.orientation import read_orientation, readers_transpose, swaps_sides
from packstore.images.sniff import HeaderError, sniff
from packstore.stores import Reader
from packstore.stores.export_manifest import ExportManifest, RecordLines

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot hold."""
_COCO_COLUMN = "json"
"""Column in which the source ``coco`` keeps what else annotations say."""
_LOST_SHAPES = {"polygons": "several polygons or run lengths", "rings": "run lengths"}
_MAX_CLASSES = 1 << 20


@dataclass(frozen=True, slots=True)
class LabelledObject:
    """An object on an image.

    Attributes:
        box: ``left, top, right, bottom`` in pixels.
        label: Its class number; 0 if it has no label.
        name: Its class name; the number as text if it has none.
        keypoints: ``(points, 2 or 3)`` as lists; None for none.
        shape: Its shape in pixels, see :class:`packstore.Segments`; None for none.
        outline: Its rings in fractions of the image's sides, if the store has these; None otherwise.
        extra: Its annotation of COCO, in the column ``json``; None for none.
        crowd: It is no ordinary object, but a crowd or a region to ignore.
        difficult: It is hard to recognise, see Pascal VOC.
    """

    box: tuple[float, float, float, float]
    label: int
    name: str
    keypoints: list[list[float]] | None
    shape: Any
    outline: list[list[float]] | None
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
        """Its polygon, ``x, y, x, y, …`` in pixels. None unless it has exactly one, of at least three points."""
        rings = self.shape
        return rings[0] if isinstance(rings, list) and len(rings) == 1 and len(rings[0]) >= 6 else None


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
        return scale_ring(flat, whole / max(1, self.width), whole / max(1, self.height))


class ObjectColumns:
    """Names of the columns of a store that describe objects: boxes, labels, keypoints, segments and a JSON column.

    Attributes:
        boxes: Name of the first column of boxes; None if the store has none.
        labels: Name of the column with a label for each box, or None.
        keypoints: Name of the column with keypoints for each box, or None.
        classes: Class names of the labels, or None.
        shape: Shape of an object's keypoints; None without keypoints.
        segments: Name of the column with a shape for each box, or None.
        extra: Name of the JSON column with COCO's annotations, or None.
        crowds: Name of the column that flags crowd regions, or None.
        difficult: Name of the column that flags difficult objects, or None.
    """

    def __init__(self, manifest: Manifest) -> None:
        """Finds the first column of boxes, and the columns that belong to these boxes."""
        columns = manifest.columns
        self.boxes: str | None = next((column.name for column in columns if column.coordinates == "xyxy"), None)
        beside = [column for column in columns if self.boxes is not None and column.parallel == self.boxes]
        labels, crowds = find_class_column(beside, self.boxes), find_crowd_column(columns)
        points = next((column for column in beside if column.coordinates and len(column.shape) == 2), None)
        self.segments = next((column.name for column in beside if column.collation == "segments"), None)
        self.labels = None if labels is None else labels.name
        self.keypoints = None if points is None else points.name
        self.crowds = crowds[0].name if crowds is not None and crowds[1] == self.boxes else None
        self.classes = labels.classes if labels is not None else None
        difficult = (c.name for c in beside if c.name == DIFFICULT and c.traits.has_classes)
        self.difficult = next(difficult, None)
        self.shape = points.shape if points is not None else None
        texts = {column.name for column in columns if column.traits.form == "text"}
        self.extra = _COCO_COLUMN if _COCO_COLUMN in texts and self.boxes is not None else None


def find_captions_column(columns: Sequence[Column]) -> str | None:
    """Returns the name of the column of captions. Returns None if there is no such column.

    Takes the first of these: ``captions`` if it is JSON, ``caption`` and ``text`` if they are text.
    """
    extensions = {"captions": "json", "caption": "txt", "text": "txt"}
    there = {column.name: column.traits.extension for column in columns}
    return next((name for name, extension in extensions.items() if there.get(name) == extension), None)


def scale_ring(flat: Sequence[float], across: float, down: float) -> list[float]:
    """Multiplies ``x, y, x, y, …`` by factors."""
    return [value * (down if number % 2 else across) for number, value in enumerate(flat)]


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


class LabelsExport(FolderExport):
    """Base of exports that hold images as files, and labels beside the images.

    Raises :class:`UsageError` for class numbers of 2^20 or more without names, unless the kind writes no classes.
    Creating the object reads all labels of objects without class names to find such numbers.

    Attributes:
        images: The folder of the images.
        document: Path of the document of all images. If it has ``{split}``, there is a document for each split. Empty
            if each image has a file of labels.
        no_split: Replaces ``{split}`` in a store without splits.
        head: Beginning of a document.
        between: Text between images in a document.
        tail: End of a document.
        label_folder: Folder of the files of labels, which replaces :attr:`images` in the path of an image.
        label_suffix: Suffix of the files of labels.
        keypoints: The format has keypoints.
        segments: Shapes that the format has: ``polygons`` of one ring, ``rings`` (polygons of any number of rings), or
            ``all``. Empty for none.
        tags: The format has classes of whole images (tags).
        captions: The format has captions.
        difficult: The format marks objects that are hard to recognise.
        crowds: The format marks crowd regions. If False, they are left out: other readers would train on them.
        upright_kinds: Kinds of image files that the format's own tools turn upright by their orientation, so that their
            labels count in the upright image. Labels of other files count in the frame of the store.
    """

    images: ClassVar[str] = "images"
    document: ClassVar[str] = ""
    no_split: ClassVar[str] = "all"
    between: ClassVar[str] = ",\n"
    tail: ClassVar[str] = "\n]}\n"
    label_folder: ClassVar[str] = "images"
    label_suffix: ClassVar[str] = "json"
    keypoints: ClassVar[bool] = False
    segments: ClassVar[Literal["", "polygons", "rings", "all"]] = ""
    tags: ClassVar[bool] = False
    captions: ClassVar[bool] = False
    difficult: ClassVar[bool] = False
    crowds: ClassVar[bool] = False
    upright_kinds: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, path: Path, manifest: Manifest, reader: Reader, *, recoded: bool) -> None:
        super().__init__(path, manifest, reader, recoded=recoded)
        if self.object_columns.labels in self.visible_columns():
            _ = self.object_classes  # refuses class numbers that are too large, before anything is written

    @property
    def head(self) -> str:
        """Beginning of a document."""
        return ""

    @cached_property
    def object_columns(self) -> ObjectColumns:
        """Names of the columns that describe objects."""
        return ObjectColumns(self.manifest)

    @cached_property
    def _has_fractions(self) -> bool:
        """True if shapes are in fractions of the image's sides."""
        name = self.object_columns.segments
        return name is not None and self.manifest.column(name).coordinates == "fractions"

    @property
    def tag_column(self) -> str | None:
        """Name of the column with the class of the whole image: ``label``. None if the store has none, or the format
        has no such classes."""
        return "label" if self.tags and self.manifest.has_label else None

    @property
    def captions_column(self) -> str | None:
        """Name of the column of captions. None if the store has none, or the format has no captions."""
        return find_captions_column(self.columns) if self.captions else None

    def visible_columns(self) -> Sequence[str]:
        """Returns the columns of the store that the format has."""
        of = self.object_columns
        names = [self.tag_column, self.captions_column, of.boxes, of.labels]
        parts = {of.keypoints: self.keypoints, of.crowds: self.crowds, of.segments: self.segments}
        names += [name for name, written in {**parts, of.difficult: self.difficult}.items() if written]
        return [name for name in names if name is not None]

    def describe_hidden(self, name: str) -> str:
        """Describes a column that is not written. For the column of crowd regions, adds their number, which reads the
        column."""
        if name == self.object_columns.crowds and self.object_columns.boxes in self.visible_columns():
            count = sum(int(np.count_nonzero(flags > 0)) for flags in self._read_values(name))
            return f"{name!r} (crowd regions are left out of the labels: {count:,})"
        return super().describe_hidden(name)

    def losses(self) -> Sequence[str]:
        """Returns a text on the order of records and on keys. Before it, texts on shapes that the format lacks, and on
        boxes, if the store has neither boxes nor a class of images that is written."""
        lost = []
        if self.object_columns.segments and self.segments in _LOST_SHAPES:
            lost.append(f"shapes of objects with {_LOST_SHAPES[self.segments]}: they become boxes")
        if not self.object_columns.boxes and not self.tag_column:
            lost.append("objects: the store has no boxes")
        return [*lost, "the order of the records, and keys whose names no file can have"]

    def overhead(self) -> int:
        """Adds the estimated bytes of an image's labels, :meth:`label_bytes`, to the usual estimate."""
        return super().overhead() + self.label_bytes()

    def label_bytes(self) -> int:
        """Estimates the bytes on disk of an image's labels: of its text in a document, or of a block for its file."""
        columns = self.visible_columns()
        return 150 + self.estimate_text(columns) if self.document else BLOCK_BYTES if columns else 0

    def estimate_text(self, columns: Iterable[str]) -> int:
        """Estimates the bytes of text for an image: ten times the stored bytes of these columns, and the key."""
        # A box of 16 bytes is some 160 in JSON or XML, and a keypoint grows likewise.
        sizes = {column.name: column.size_of(self.manifest.records) for column in self.columns}
        return self.mean_key_bytes + 10 * sum(sizes[name] for name in columns) // max(1, self.manifest.records)

    def image_path(self, record: Record) -> str:
        """Returns the path of a record's image in the export: in the folder :attr:`images`."""
        return f"{self.images}/{self.record_paths(record)}"

    def write_beside(self, record: Record, image: str, data: bytes) -> Mapping[str, str]:
        """Writes the labels of a record, see :meth:`write_labels`, in the frame that the format needs."""
        try:
            info = sniff(data)
        except HeaderError:
            return self.write_labels(record, image, (0, 0))
        size, orientation = (info.width, info.height), read_orientation(data, info)
        upright = readers_transpose(self.manifest)
        if not upright and info.kind in self.upright_kinds and orientation != 1:
            turn, upright = make_turn(orientation, size, UPRIGHT), True
            columns = {name: column for name, column in record.columns.items() if name in record.stored}
            try:
                record = replace(record, stored=turn.move_stored_values(columns, record.stored))
            except ValueError as error:
                where = f"record {record.number} ({printable(record.key)})"
                raise StoreError(f"{where} cannot be turned upright: {error}") from None
        return self.write_labels(record, image, size[::-1] if upright and swaps_sides(orientation) else size)

    def write_labels(self, record: Record, image: str, size: tuple[int, int]) -> Mapping[str, str]:
        """Writes the labels of a record, unless the format has documents.

        An image without boxes and class gets no file; an empty list of boxes counts as boxes. Bytes that are not UTF-8
        become ``?``.

        Args:
            record: The record.
            image: Path of its image in the export.
            size: Width and height of the image; (0, 0) if its size cannot be read.

        Returns:
            Further entries of the record's line in ``packstore.rows.jsonl``: the path of the file as ``beside``. For
            documents, the size as ``{"width": "640", "height": "480"}``.
        """
        if self.document:
            return {"width": str(size[0]), "height": str(size[1])}
        labels = self.read_labels(record.number, image, size, record.split, record.__getitem__)
        text = None if labels.objects is None and labels.tag is None else self.format_image(labels)
        if text is None:
            return {}
        self.write_file(self.label_path(image), text.encode("utf-8", "replace"))
        return {"beside": self.label_path(image)}

    def label_path(self, image: str) -> str:
        """Returns the path of an image's file of labels."""
        before, _, after = f"/{image}".partition(f"/{self.images}/")
        return f"{before}/{self.label_folder}/{after.rpartition('.')[0]}.{self.label_suffix}"[1:]

    def format_image(self, image: LabelledImage) -> str | None:
        """Returns the text of an image's labels. None if it has none: then no file is written.

        A kind has to override this method, or :meth:`write_labels`.
        """
        raise NotImplementedError(f"{type(self).__name__} has to override format_image")

    def documents(self, export_manifest: ExportManifest, lines: Path | None) -> Mapping[str, Iterable[bytes]]:
        """Returns the texts of :meth:`format_documents`. Bytes that are not UTF-8 become ``?``."""
        assert lines is not None
        texts = self.format_documents(RecordLines.map_file(lines))
        return {path: (piece.encode("utf-8", "replace") for piece in pieces) for path, pieces in texts.items()}

    def format_documents(self, rows: RecordLines) -> Mapping[str, Iterable[str]]:
        """Returns the texts, in pieces, of files that follow all images, by path: the documents, and those of
        :meth:`list_more_documents`. Splits with the same path share a document.

        ``rows``: the record lines, with the path of each image, and its size if the format has documents.
        """
        files: dict[str, list[tuple[str, int, int]]] = {}
        for name, folder, start, stop in self.split_ranges if self.document else ():
            files.setdefault(self.document.format(split=folder or self.no_split), []).append((name, start, stop))
        made = {path: self._format_document(self._read_images(rows, parts)) for path, parts in files.items()}
        return {**made, **self.list_more_documents(rows)}

    def list_more_documents(self, rows: RecordLines) -> Mapping[str, Iterable[str]]:
        """Returns the texts, in pieces, of files beside the documents, such as class names. By default there are
        none."""
        return {}

    def _format_document(self, images: Iterable[LabelledImage]) -> Iterator[str]:
        """Yields the text of a document of ``images``, in pieces."""
        yield self.head
        yield from join_texts(map(self.format_image, images), self.between)
        yield self.tail

    def _read_images(self, rows: RecordLines, parts: Sequence[tuple[str, int, int]]) -> Iterator[LabelledImage]:
        """Yields the labels of the images in ``parts``: name, first record and end of each split."""
        for split, start, stop in parts:
            for number in range(start, stop):
                line = rows[number]
                size = int(line["width"]), int(line["height"])
                yield self.read_labels(number, line["file"], size, split, partial(self.read_value, number))

    def read_value(self, number: int, name: str) -> Any:
        """Reads the value of record ``number`` in the column ``name`` from the store. Returns None if it is missing."""
        return self.reader.item(name, number)

    def read_labels(self, number: int, file: str, size: tuple[int, int], split: str, item: Any) -> LabelledImage:
        """Builds the :class:`LabelledImage` of a record.

        Args:
            number: Number of the record.
            file: Path of its image in the export.
            size: Width and height of the image.
            split: Name of its split.
            item: Returns the record's value in a column, by name.
        """
        label = None if self.tag_column is None else item(self.tag_column)
        names = self.manifest.classes
        tag = None if label is None else str(label) if names is None else names[label]
        return LabelledImage(number, file, *size, split, self.read_objects(item, size), tag)

    def read_objects(self, item: Callable[[str], Any], size: tuple[int, int]) -> list[LabelledObject] | None:
        """Reads the objects of a record. Returns None if the record has no value of boxes.

        Leaves out objects whose boxes or keypoints are not finite, and crowd regions if the format cannot mark them.
        Without a label for each box, all objects get class 0. Without keypoints for each box, objects have no
        keypoints.

        ``item``: returns the record's value in a column, by name. ``size``: width and height of its image.
        """
        of, classes = self.object_columns, self.object_classes
        boxes = None if of.boxes is None else item(of.boxes)
        if boxes is None:
            return None
        columns: list[Sequence[Any]] = []
        for name in (of.labels, of.keypoints, of.crowds, of.difficult):
            values = None if name is None else item(name)
            columns.append([None] * len(boxes) if values is None or len(values) != len(boxes) else values.tolist())
        extra = None if of.extra is None else item(of.extra)
        if isinstance(extra, dict):
            extra = extra.get("annotations")  # the list is in an object
        for values in (None if of.segments is None else item(of.segments), extra):
            columns.append(values if isinstance(values, list) and len(values) == len(boxes) else [None] * len(boxes))
        objects = []
        for box, label, points, crowd, difficult, shape, each in zip(
            np.asarray(boxes, np.float64).tolist(), *columns, strict=True
        ):
            number, is_crowd = label or 0, (crowd or 0) > 0
            if all(map(isfinite, (*box, *(v for point in points or () for v in point)))) and self.crowds >= is_crowd:
                name = classes[number] if 0 <= number < len(classes) else str(number)
                outline = shape if self._has_fractions and isinstance(shape, list) else None
                if outline is not None:
                    shape = [scale_ring(ring, *size) for ring in outline]
                elif self._has_fractions and isinstance(shape, dict) and "even_odd" in shape:
                    shape = {"even_odd": [scale_ring(ring, *size) for ring in shape["even_odd"]]}
                objects.append(
                    LabelledObject(tuple(box), number, name, points, shape, outline, each, is_crowd, difficult or 0)
                )
        return objects

    @cached_property
    def object_classes(self) -> list[str]:
        """Class names of objects, by number. Without names, numbers as text; reads all labels for them. Without
        labels, ``object``.

        Raises :class:`UsageError` for class numbers of 2^20 or more without names.
        """
        of = self.object_columns
        if of.classes is not None or of.labels is None:
            return ["object"] if of.classes is None else list(of.classes)
        largest = max((int(values.max()) for values in self._read_values(of.labels) if len(values)), default=0)
        if largest >= _MAX_CLASSES:
            raise UsageError(
                f"the column {of.labels!r} has class numbers up to {largest:,} without names, and the export lists "
                f"all classes, at most {_MAX_CLASSES:,}; pack the source again with names of classes, or leave the "
                f"column out (packstore select --drop-column {of.labels})"
            )
        return [str(number) for number in range(largest + 1)]

    @cached_property
    def image_classes(self) -> list[str]:
        """Class names of whole images. Without names: the class numbers that occur, which reads all labels.

        Empty if the store or the format has no classes of images.
        """
        name = self.tag_column
        if name is None or self.manifest.classes is not None:
            return [] if name is None else list(self.manifest.classes or ())
        numbers = self.reader.fixed_column(name)
        if self.manifest.column(name).nullable:
            numbers = numbers[self.reader.fixed_column(self.manifest.column(name).valid_name)]
        return [str(number) for number in np.unique(numbers).tolist()]

    @cached_property
    def class_numbers(self) -> dict[str, int]:
        """Maps each class name to its number in the document. Classes of objects and of images share the numbers."""
        names = dict.fromkeys([*(self.object_classes if self.object_columns.boxes else ()), *self.image_classes])
        return {name: number for number, name in enumerate(names)}

    @property
    def split_ranges(self) -> list[tuple[str, str, int, int]]:
        """Name, folder, first record and end of each split. Without splits, one range of all records with empty name
        and folder."""
        folders = self.split_folders
        return [(name, folders.get(name, ""), start, stop) for name, start, stop in self.manifest.ranges]

    def _read_values(self, name: str) -> Iterator[Any]:
        """Yields the values of a column that are not missing."""
        values = (self.reader.item(name, number) for number in range(len(self.reader)))
        return (each for each in values if each is not None)

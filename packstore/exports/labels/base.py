"""Base of exports with labels beside images, in the format of a tool: :class:`LabelsExport`.

A format is a class with names and flags, and one method that formats labels: :meth:`SidecarExport.format_sidecar` for a
file beside each image, :meth:`DocumentExport.format_document` for documents of many images.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from packstore.core.column import UPRIGHT
from packstore.core.manifest import Manifest
from packstore.exports.base import BLOCK_BYTES, Record, safe_name
from packstore.exports.folder import FolderExport, make_distinct
from packstore.exports.labels.objects import LabelledImage, LabelledObject, ObjectColumns
from packstore.images.encode.options import readers_transpose
from packstore.images.orientation import read_orientation, swaps_sides
from packstore.images.sniff import HeaderError, sniff
from packstore.images.turning import make_turn
from packstore.stores import Reader
from packstore.stores.export_manifest import ExportManifest, RecordLines

_COCO_COLUMN = "json"
"""Column in which the source ``coco`` keeps polygons."""


class LabelsExport(FolderExport):
    """Base of exports that hold images as files, and labels beside the images.

    This base writes no labels. It adds width and height of each image to its record line. Raises :class:`UsageError`
    for class numbers of 2^20 or more without names, unless the kind writes no classes. Creating the object reads all
    labels of objects without class names to find such numbers.

    Attributes:
        images: The folder of the images.
        extra: Name of the JSON column with a value for each object, see :class:`ObjectColumns`.
        keypoints: The format has keypoints.
        polygons: The format has polygons, which are in the column :attr:`extra`.
        tags: The format has classes of whole images (tags).
        crowds: The format marks crowd regions. If False, they are left out: other readers would train on them.
        upright_kinds: Kinds of image files that the format's own tools turn upright by their orientation, so that their
            labels count in the upright image. Labels of other files count in the frame of the store.
    """

    images = "images"
    extra = "segmentations"
    keypoints: ClassVar[bool] = False
    polygons: ClassVar[bool] = False
    tags: ClassVar[bool] = False
    crowds: ClassVar[bool] = False
    upright_kinds: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, path: Path, manifest: Manifest, reader: Reader, *, recoded: bool) -> None:
        super().__init__(path, manifest, reader, recoded=recoded)
        if self.object_columns.labels in self.visible_columns():
            _ = self.object_classes  # refuses class numbers that are too large, before anything is written

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
        """Returns the columns that the format has: boxes and their labels, keypoints, crowd regions, polygons, and the
        class of the image."""
        of, names = self.object_columns, [self.tag_column]
        names += [of.boxes, of.labels, of.keypoints if self.keypoints else None]
        names += [of.crowds if self.crowds else None, of.extra if self.polygons else None]
        return [name for name in names if name is not None]

    def describe_hidden(self, name: str) -> str:
        """Describes a column that is not written. For the column ``json``, adds that polygons of COCO in it are not
        written. For the column of crowd regions, adds their number, which reads the column."""
        if name == self.object_columns.crowds and self.object_columns.boxes in self.visible_columns():
            return f"{name!r} (crowd regions are left out of the labels: {self._count_crowds():,})"
        if name == _COCO_COLUMN and self.object_columns.boxes:
            return f"{name!r} (polygons in it, as COCO has them, are not written)"
        return super().describe_hidden(name)

    def losses(self) -> Sequence[str]:
        """Returns a text on the order of records and on keys. Before it, texts on shapes that are no single polygon, if
        polygons are written, and on boxes, if the store has neither boxes nor a class of images that is written."""
        lost = []
        if self.object_columns.extra and self.polygons:
            lost.append("shapes of objects with several polygons or run lengths: they become boxes")
        if not self.object_columns.boxes and not self.tag_column:
            lost.append("objects: the store has no boxes")
        return [*lost, "the order of the records, and keys whose names no file can have"]

    def overhead(self) -> int:
        """Adds the estimated bytes of an image's labels, :attr:`label_bytes`, to the usual estimate."""
        return super().overhead() + self.label_bytes

    @property
    @abstractmethod
    def label_bytes(self) -> int:
        """Estimated bytes on disk of an image's labels."""

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
            record = replace(record, stored=turn.move_stored_values(columns, record.stored))
        return self.write_labels(record, image, size[::-1] if upright and swaps_sides(orientation) else size)

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

    def documents(self, export_manifest: ExportManifest, lines: Path | None) -> Mapping[str, Iterable[bytes]]:
        """Returns the texts of :meth:`format_documents`. Bytes that are not UTF-8 become ``?``."""
        assert lines is not None
        texts = self.format_documents(RecordLines.map_file(lines))
        return {path: (piece.encode("utf-8", "replace") for piece in pieces) for path, pieces in texts.items()}

    def format_documents(self, rows: RecordLines) -> Mapping[str, Iterable[str]]:
        """Returns the texts, in pieces, of files that follow all images, by path. By default there are none.

        ``rows``: the record lines, with the path of each image, and its size if :meth:`write_labels` adds it.
        """
        return {}

    def read_value(self, number: int, name: str) -> Any:
        """Reads the value of record ``number`` in the column ``name`` from the store. Returns None if it is missing."""
        return self.reader.item(name, number)

    def read_objects(self, item: Callable[[str], Any]) -> list[LabelledObject] | None:
        """Reads the objects of a record, see :meth:`ObjectColumns.read_objects`. Leaves out crowd regions if the format
        cannot mark them."""
        objects = self.object_columns.read_objects(item)
        return objects if self.crowds or objects is None else [each for each in objects if not each.crowd]

    @property
    def tag_column(self) -> str | None:
        """Name of the column with the class of the whole image: ``label``. None if the store has none, or the format
        has no such classes."""
        return "label" if self.tags and self.manifest.has_label else None

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


class SidecarExport(LabelsExport):
    """Base of formats with a label file for each image. An image without boxes and class gets none; an empty list of
    boxes counts as boxes."""

    @property
    def label_bytes(self) -> int:
        """Estimated bytes of a label file: a block of the file system, or 0 if the store has no labels."""
        return BLOCK_BYTES if self.visible_columns() else 0

    @abstractmethod
    def format_sidecar(self, image: LabelledImage) -> tuple[str, str]:
        """Returns path and text of the label file of an image. No file is written if the path is empty."""

    def write_labels(self, record: Record, image: str, size: tuple[int, int]) -> Mapping[str, str]:
        """Writes the label file and returns its path as ``{"beside": path}``.

        For an image without labels, writes nothing and returns an empty mapping. Bytes that are not UTF-8 become ``?``.
        """
        labels = self.read_labels(record.number, image, size, record.split, record.__getitem__)
        if labels.objects is None and labels.tag is None:
            return {}
        path, text = self.format_sidecar(labels)
        if not path:
            return {}
        self.write_file(path, text.encode("utf-8", "replace"))
        return {"beside": path}


class DocumentExport(LabelsExport):
    """Base of formats with one document of all images, or one for each split.

    Attributes:
        document: Path of the document. If it has ``{split}``, there is a document for each split.
        no_split: Replaces ``{split}`` in a store without splits.
    """

    document: ClassVar[str]
    no_split: ClassVar[str] = "all"

    @property
    def label_bytes(self) -> int:
        """Estimated bytes of text for an image."""
        return 150 + self.estimate_text(self.visible_columns())

    @abstractmethod
    def format_document(self, images: Iterator[LabelledImage]) -> Iterator[str]:
        """Yields the text of a document of ``images``, in pieces."""

    def format_documents(self, rows: RecordLines) -> Mapping[str, Iterable[str]]:
        """Returns the documents. Splits with the same path share a document."""
        files: dict[str, list[tuple[str, int, int]]] = {}
        for name, folder, start, stop in self.split_ranges:
            files.setdefault(self.document.format(split=folder or self.no_split), []).append((name, start, stop))
        return {path: self.format_document(self._read_images(rows, parts)) for path, parts in files.items()}

    def _read_images(self, rows: RecordLines, parts: Sequence[tuple[str, int, int]]) -> Iterator[LabelledImage]:
        """Yields the labels of the images in ``parts``: name, first record and end of each split."""
        for split, start, stop in parts:
            for number in range(start, stop):
                line = rows[number]
                size = int(line["width"]), int(line["height"])
                yield self.read_labels(number, line["file"], size, split, partial(self.read_value, number))

"""FiftyOne (https://docs.voxel51.com/user_guide/export_datasets.html): ``data/`` with ``labels.json``.

FiftyOne writes three such layouts: classes; boxes, as fractions of the image's sides; and samples with any labels
(``samples.json``). Of the fields of a sample, classes, detections, polylines and keypoints become columns; all fields
are in ``json``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from packstore.sources.annotation_formats.columns import AnnotationColumns
from packstore.sources.annotation_formats.documents import AnnotationEntry, DocumentSource, make_document_kind
from packstore.sources.annotation_formats.objects import (
    Annotation,
    SizeReader,
    box_from_corner,
    is_flagged,
    nonempty_text,
    object_from_box,
    object_from_polygons,
    to_floats,
)
from packstore.sources.beside import is_file, join
from packstore.sources.listing import IMAGE_SUFFIXES

_CROWDS = ("iscrowd", "IsGroupOf")
"""Attributes of objects that FiftyOne's importers of COCO and Open Images write."""
_SPLITS = ("train", "val", "validation", "test")


class FiftyOneFormat(AnnotationColumns):
    """Parser of FiftyOne's JSON, from a file or from its database. Masks of detections are in ``json`` alone."""

    title = "FiftyOne"
    ignored: Counter[str]

    def read_samples(self, document: Any) -> Iterator[AnnotationEntry]:
        """Yields an entry for each of the document's ``samples``. Adds the document's classes to the listed ones.

        The tags ``train``, ``val``, ``validation`` and ``test`` are splits if every sample has exactly one of them.
        Else there are no splits; if any sample has such a tag, ``ignored`` counts that once.
        """
        self.add_listed_classes(map(str, document.get("classes") or ()))
        samples = document.get("samples", ())
        tags = [[tag for tag in sample.get("tags") or () if tag in _SPLITS] for sample in samples]
        split = all(len(each) == 1 for each in tags)
        self.ignored["splits, since not each sample has one"] += not split and any(tags)
        for sample, own in zip(samples, tags, strict=True):
            yield AnnotationEntry(sample["filepath"], sample, own[0] if split else None)

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts a sample with any label fields, or the labels of one image in ``labels.json``. Classes become tags,
        boxes and closed shapes become objects, keypoints become points. ``json`` has the sample or the labels."""
        if "filepath" in raw:
            annotation = Annotation(json=raw)
            for value in raw.values():
                self._add_labels(annotation, value, read_size)
            return annotation
        labels, classes = raw["labels"], raw["classes"]
        annotation = Annotation(json=labels)
        for each in labels if isinstance(labels, list) else [labels]:
            if isinstance(each, Mapping) and "bounding_box" in each:
                self._add_object(annotation, _class_name(each["label"], classes), each, read_size)
            elif isinstance(each, Mapping):
                self._add_labels(annotation, each, read_size)
            elif each is not None:
                annotation.tags.append(_class_name(each, classes))
        return annotation

    def _add_labels(self, annotation: Annotation, value: Any, read_size: SizeReader) -> None:
        """Adds the labels in a field of a sample to ``annotation``: as tags, objects or points. Converts fractions of
        the image's sides to pixels. Skips fields of other types, open lines, and points that are NaN."""
        kind = value.get("_cls") if isinstance(value, Mapping) else None
        if kind == "Classification" and nonempty_text(value.get("label")):
            annotation.tags.append(value["label"])
        for each in value.get({"Classifications": "classifications"}.get(kind, ""), ()) if kind else ():
            annotation.tags.append(each["label"])
        for each in value["detections"] if kind == "Detections" else [value] if kind == "Detection" else ():
            self._add_object(annotation, nonempty_text(each.get("label")), each, read_size)
        for each in value["polylines"] if kind == "Polylines" else [value] if kind == "Polyline" else ():
            width, height = read_size()
            shapes = [[n * side for x, y in shape for n, side in ((x, width), (y, height))] for shape in each["points"]]
            if each.get("closed") or each.get("filled"):
                label, crowd = nonempty_text(each.get("label")), is_flagged(each, *_CROWDS)
                annotation.objects.append(object_from_polygons(label, *map(to_floats, shapes), crowd=crowd))
        for each in value["keypoints"] if kind == "Keypoints" else [value] if kind == "Keypoint" else ():
            width, height = read_size()
            places = [
                to_floats((x * width, y * height)) for x, y in each["points"] if x == x and y == y
            ]  # NaN: not seen
            annotation.points += [(nonempty_text(each.get("label")), x, y) for x, y in places]

    def _add_object(self, annotation: Annotation, label: str | None, each: Any, read_size: SizeReader) -> None:
        """Adds the box of a detection to ``annotation``, converted from fractions of the image's sides to pixels."""
        left, top, width, height = to_floats(each["bounding_box"], 4)
        across, down = read_size()
        box = box_from_corner(left * across, top * down, width * across, height * down)
        annotation.objects.append(object_from_box(label, box, crowd=is_flagged(each, *_CROWDS)))


class FiftyOneSource(FiftyOneFormat, DocumentSource):
    """Source of images in ``data``, with ``labels.json`` or ``samples.json``. With ``labels.json``, refuses two images
    that differ in their suffixes alone."""

    kind = "fiftyone"
    name_pattern = re.compile(r"(labels|samples)\.json")
    signature = re.compile(
        rb'^\s*\{\s*("classes"\s*:\s*(null|\[[^]]*\])\s*,\s*)?"labels"\s*:\s*\{|^\s*\{\s*"samples"\s*:\s*\[\s*\{'
    )

    def read_entries(self, file: str, document: Any) -> Iterator[AnnotationEntry]:
        """Yields the entries of ``samples.json`` or ``labels.json``. Adds the document's classes to the listed ones.

        The names in ``labels.json`` get the suffixes of the images in ``data`` or beside the file. Raises
        :class:`ValueError` if two images differ in their suffixes alone.
        """
        yield from self.read_samples(document)
        if "samples" in document:
            return
        suffixes: dict[str, str] = {}
        for folder in (join(file.rpartition("/")[0], "data"), file.rpartition("/")[0]):
            for name in self.tree.names(folder).ending(*IMAGE_SUFFIXES):
                if suffixes.setdefault(name.rpartition(".")[0], name) != name:
                    raise ValueError(
                        f"two images have the name {name.rpartition('.')[0]!r:.60} without suffix: rename one"
                    )
        for stem, labels in document["labels"].items():
            yield AnnotationEntry(
                suffixes.get(stem, stem), {"labels": labels, "classes": document.get("classes") or []}
            )

    def describing_files(self) -> Iterable[str]:
        """Returns the files of annotations, and ``metadata.json`` beside them, which describes the fields of
        samples."""
        files = super().describing_files()
        metadata = (join(file.rpartition("/")[0], "metadata.json") for file in files)
        return [*files, *(file for file in metadata if is_file(self.tree, file))]


def _class_name(label: Any, classes: Sequence[Any]) -> str:
    """Returns the name of a class from its number in ``classes``. Any other label, or a number that ``classes`` does
    not have, is returned as text."""
    return str(classes[label]) if isinstance(label, int) and classes and 0 <= label < len(classes) else str(label)


KIND = make_document_kind(FiftyOneSource, "FiftyOne: data with labels.json or samples.json")

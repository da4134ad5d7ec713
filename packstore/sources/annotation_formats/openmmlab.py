"""OpenMMLab's formats: ``metainfo`` with ``data_list`` (MMDetection, MMOCR, MMPreTrain), and WildReceipt.

- ``data_list`` (https://mmengine.readthedocs.io): ``img_path`` with ``instances`` of ``bbox`` and ``bbox_label``,
  ``polygon`` or ``mask``, ``text``; or ``gt_label`` of the image.
- WildReceipt: a line of JSON for each image, ``box`` of four corners, ``text``, ``label``; ``class_list.txt``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from packstore.core.fields import Field, Json, Text
from packstore.sources.annotation_formats.documents import AnnotationEntry, DocumentSource, make_document_kind
from packstore.sources.annotation_formats.ids import parse_id
from packstore.sources.annotation_formats.objects import (
    AnnotatedObject,
    Annotation,
    SizeReader,
    as_list,
    bounding_box,
    is_flagged,
    object_from_box,
    object_from_polygons,
    object_from_run_lengths,
    parse_json_lines,
    to_floats,
)
from packstore.sources.beside import is_file, join, read_lines

_MAX_ID = 65_535


class OpenMMLabSource(DocumentSource):
    """Source of images of a ``data_list``. ``texts`` has the text in each box; ``text`` is the text of an image of one
    word. ``gt_label`` becomes ``label`` or ``tags``."""

    kind = "openmmlab"
    title = "OpenMMLab"
    signature = re.compile(rb'\A\s*\{(?=.*"data_list"\s*:\s*\[).*"metainfo"\s*:', re.S)
    further_fields: ClassVar[Mapping[str, Field]] = {"texts": Json(optional=True), "text": Text(optional=True)}
    per_object = ("texts",)

    def read_entries(self, file: str, document: Any) -> Iterator[AnnotationEntry]:
        """Yields an entry for each image of the ``data_list``. Adds the classes of ``metainfo`` to the listed ones.
        Counts other values of ``metainfo`` as left out. Raises :class:`ValueError` for a class with an id above
        65,535."""
        head = document["metainfo"]
        names = _list_class_names(head)
        self.add_listed_classes(names)
        known = ("classes", "CLASSES", "category", "categories")
        self.ignored.update(f"values {name!r:.40} of metainfo" for name in head if name not in known)
        for image in document["data_list"]:
            yield AnnotationEntry(image.get("img_path") or image["file_name"], {"image": image, "names": names})

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts instances to objects, and ``gt_label`` to tags; ``json`` has the entry of the image. An only
        instance with a text, but without ``bbox`` and ``polygon``, gives no object: the text becomes the value
        ``text``."""
        image, names = raw["image"], raw["names"]
        annotation = Annotation(json=image)
        annotation.tags = [_class_name(names, number) for number in as_list(image.get("gt_label"))]
        instances = as_list(image.get("instances"))
        if len(instances) == 1 and "text" in instances[0] and not {"bbox", "polygon"} & instances[0].keys():
            annotation.values["text"] = instances[0]["text"]
            return annotation
        annotation.objects = [_make_object(each, names) for each in instances]
        return annotation


class WildReceiptSource(DocumentSource):
    """Source of receipts. ``texts`` has the words in each box, ``labels`` their meaning (``Store_name_value``)."""

    kind = "wildreceipt"
    title = "WildReceipt"
    name_pattern = re.compile(r".*\.(txt|json|jsonl)", re.I)
    signature = re.compile(rb'\A\s*\{(?=[^\n]*"file_name"\s*:)[^\n]*"annotations"\s*:\s*\[\s*\{[^}\n]*"box"\s*:\s*\[')
    further_fields: ClassVar[Mapping[str, Field]] = {"texts": Json(optional=True)}
    per_object = ("texts",)
    parse_document = staticmethod(parse_json_lines)

    def read_entries(self, file: str, document: Any) -> Iterator[AnnotationEntry]:
        """Yields an entry for each line."""
        for image in document:
            yield AnnotationEntry(image["file_name"], image)

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts each annotation to an object with its corners, class and text. A class without a name has its number
        as name. ``json`` has the line."""
        annotation = Annotation(json=raw)
        for each in raw["annotations"]:
            label = each.get("label")
            name = None if label is None else self._names_by_number.get(parse_id(label), str(label))
            annotation.objects.append(object_from_polygons(name, to_floats(each["box"]), texts=each.get("text")))
        return annotation

    def list_classes(self) -> Sequence[str]:
        """Returns the classes in the files ``class_list.txt``; ``[]`` without these files."""
        return list(dict.fromkeys(self._names_by_number.values()))

    def describing_files(self) -> Iterable[str]:
        """Returns the files of annotations, and the files ``class_list.txt`` beside them."""
        return [*self._files, *self._class_lists]

    @property
    def _class_lists(self) -> list[str]:
        """Paths of the files ``class_list.txt`` beside the files of annotations."""
        places = (join(file.rpartition("/")[0], "class_list.txt") for file in self._files)
        return [path for path in dict.fromkeys(places) if is_file(self.tree, path)]

    @cached_property
    def _names_by_number(self) -> dict[int | str | None, str]:
        """Names of classes by number, from lines such as ``1 Store_name_value``."""
        lines = (line.split(None, 1) for path in self._class_lists for _, line in read_lines(self.tree, path))
        return {parse_id(words[0]): words[-1] for words in lines}


def _list_class_names(head: Any) -> list[str]:
    """Returns the names of classes by number. ``head``, the ``metainfo``, has a list of names, or of ids with names;
    without a list returns ``[]``. A number without a name gets itself as name. Raises :class:`ValueError` for an id
    above 65,535."""
    listed = head.get("classes") or head.get("CLASSES") or head.get("category") or head.get("categories") or []
    if all(isinstance(each, str) for each in listed):
        return list(listed)
    by_id = {int(each["id"]): str(each["name"]) for each in listed}
    if max(by_id) > _MAX_ID:
        raise ValueError(f"a class has the id {max(by_id)}, expected at most {_MAX_ID:,}")
    return [by_id.get(number, str(number)) for number in range(max(by_id) + 1)]


def _class_name(names: Sequence[str], number: Any) -> str:
    """Returns the name of a class. If the class has no name, returns its number as text."""
    plain = parse_id(number)
    return names[plain] if isinstance(plain, int) and 0 <= plain < len(names) else str(number)


def _make_object(each: Any, names: Sequence[str]) -> AnnotatedObject:
    """Makes an object from an instance of ``data_list``. Its box is ``bbox``, or else the box around its polygons. A
    mask of run lengths replaces its polygon. Raises :class:`ValueError` if there is neither."""
    number, mask, text = each.get("bbox_label"), each.get("mask"), each.get("text")
    label, crowd = None if number is None else _class_name(names, number), is_flagged(each, "ignore_flag")
    polygons = [to_floats(each["polygon"])] if each.get("polygon") else []
    if isinstance(mask, list):
        polygons += [to_floats(polygon) for polygon in mask]
    box = to_floats(each["bbox"], 4) if each.get("bbox") else bounding_box(*polygons)
    if isinstance(mask, dict):
        return object_from_run_lengths(label, mask["size"], mask["counts"], box, crowd, texts=text)
    instance = object_from_box(label, box, crowd=crowd, texts=text)
    instance.segmentation = polygons or None
    return instance


OPENMMLAB = make_document_kind(OpenMMLabSource, "OpenMMLab: a JSON file of metainfo and data_list with images")
WILDRECEIPT = make_document_kind(WildReceiptSource, "WildReceipt: lines of JSON with boxes and texts")

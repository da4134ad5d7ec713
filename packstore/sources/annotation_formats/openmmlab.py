"""What OpenMMLab's libraries read: ``metainfo`` with ``data_list`` (MMDetection, MMOCR, MMPreTrain), and WildReceipt.

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
from packstore.sources.annotation_formats.documents import DocumentSource, Entry, document_kind
from packstore.sources.annotation_formats.objects import (
    AnnotatedObject,
    Annotation,
    Sides,
    as_list,
    box_around,
    load_json,
    of_box,
    of_polygon,
    of_runs,
    reals,
)
from packstore.sources.beside import is_file, join, read_lines


class OpenMMLabSource(DocumentSource):
    """Images that a ``data_list`` names; ``texts`` has the text of each box, ``text`` that of an image of one word."""

    kind = "openmmlab"
    title = "OpenMMLab"
    signature = re.compile(rb'\A\s*\{(?=.*"data_list"\s*:\s*\[).*"metainfo"\s*:', re.S)
    further: ClassVar[Mapping[str, Field]] = {"texts": Json(optional=True), "text": Text(optional=True)}
    per_object = ("texts",)

    def entries_of(self, file: str, document: Any) -> Iterator[Entry]:
        head = document["metainfo"]
        names = _class_names(head)
        self._listed = (*getattr(self, "_listed", ()), *names)
        known = ("classes", "CLASSES", "category", "categories")
        self.ignored.update(f"values {name!r:.40} of metainfo" for name in head if name not in known)
        for image in document["data_list"]:
            yield Entry(image.get("img_path") or image["file_name"], {"image": image, "names": names})

    def class_order(self) -> Sequence[str]:
        return self._listed

    def parse(self, raw: Any, sides: Sides) -> Annotation:
        image, names = raw["image"], raw["names"]
        found = Annotation(json=image)
        found.tags = [_name(names, number) for number in as_list(image.get("gt_label"))]
        instances = as_list(image.get("instances"))
        if len(instances) == 1 and "text" in instances[0] and not {"bbox", "polygon"} & instances[0].keys():
            found.values["text"] = instances[0]["text"]
            return found
        found.objects = [_object(each, names) for each in instances]
        return found


class WildReceiptSource(DocumentSource):
    """Receipts: ``texts`` has the words of each box, ``labels`` what they are (``Store_name_value``)."""

    kind = "wildreceipt"
    title = "WildReceipt"
    names = re.compile(r".*\.(txt|json|jsonl)", re.I)
    signature = re.compile(rb'\A\s*\{(?=[^\n]*"file_name"\s*:)[^\n]*"annotations"\s*:\s*\[\s*\{[^}\n]*"box"\s*:\s*\[')
    further: ClassVar[Mapping[str, Field]] = {"texts": Json(optional=True)}
    per_object = ("texts",)

    def load(self, data: bytes) -> Any:
        return [load_json(line) for line in data.splitlines() if line.strip()]

    def entries_of(self, file: str, document: Any) -> Iterator[Entry]:
        for image in document:
            yield Entry(image["file_name"], image)

    def parse(self, raw: Any, sides: Sides) -> Annotation:
        found = Annotation(json=raw)
        for each in raw["annotations"]:
            label = each.get("label")
            name = None if label is None else self._numbered.get(str(label), str(label))
            found.objects.append(of_polygon(name, reals(each["box"]), texts=each.get("text")))
        return found

    def class_order(self) -> Sequence[str]:
        return list(dict.fromkeys(self._numbered.values()))

    def describing_files(self) -> Iterable[str]:
        return [*self._files, *self._class_lists]

    @property
    def _class_lists(self) -> list[str]:
        places = (join(file.rpartition("/")[0], "class_list.txt") for file in self._files)
        return [path for path in dict.fromkeys(places) if is_file(self.tree, path)]

    @cached_property
    def _numbered(self) -> dict[str, str]:
        """Names of classes by number: ``1 Store_name_value``."""
        lines = (line.split(None, 1) for path in self._class_lists for _, line in read_lines(self.tree, path))
        return {words[0]: words[-1] for words in lines}


def _class_names(head: Any) -> list[str]:
    """Names of classes by number, of a list of names or of a list of ids with names."""
    listed = head.get("classes") or head.get("CLASSES") or head.get("category") or head.get("categories") or []
    if all(isinstance(each, str) for each in listed):
        return list(listed)
    by_id = {int(each["id"]): str(each["name"]) for each in listed}
    return [by_id.get(number, str(number)) for number in range(max(by_id) + 1)]


def _name(names: Sequence[str], number: Any) -> str:
    known = isinstance(number, int) and 0 <= number < len(names)
    return names[number] if known else str(number)


def _object(each: Any, names: Sequence[str]) -> AnnotatedObject:
    number, mask, text = each.get("bbox_label"), each.get("mask"), each.get("text")
    label = None if number is None else _name(names, number)
    polygons = [reals(each["polygon"])] if each.get("polygon") else []
    if isinstance(mask, list):
        polygons += [reals(polygon) for polygon in mask]
    box = reals(each["bbox"], 4) if each.get("bbox") else box_around(*polygons)
    if isinstance(mask, dict):
        return of_runs(label, mask["size"], mask["counts"], box, texts=text)
    found = of_box(label, box, texts=text)
    found.segmentation = polygons or None
    return found


OPENMMLAB = document_kind(OpenMMLabSource, "OpenMMLab: a JSON file of metainfo and data_list with images")
WILDRECEIPT = document_kind(WildReceiptSource, "WildReceipt: lines of JSON with boxes and texts")

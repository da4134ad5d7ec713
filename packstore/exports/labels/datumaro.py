"""Datumaro (https://open-edge-platform.github.io/datumaro): ``annotations/train.json`` with ``images/train``."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from packstore.exports.labels.base import DocumentExport, LabelledImage, format_json, single_polygon
from packstore.exports.objects import LabelledObject


class DatumaroExport(DocumentExport):
    """Boxes, polygons and labels; a document for each split."""

    name = "datumaro"
    help = "Datumaro: images and annotations/*.json"
    document = "annotations/{split}.json"
    no_split = "default"

    def head(self) -> str:
        labels = [{"name": name, "parent": "", "attributes": []} for name in self._numbers]
        categories = {"label": {"labels": labels, "attributes": []}}
        head = f'"dm_format_version":"1.0","media_type":2,"info":{{}},"categories":{format_json(categories)}'
        return f'{{{head},"items":[\n'

    def entry(self, image: LabelledImage) -> str:
        made = [self._format_object(obj, n) for n, obj in enumerate(image.objects or ())]
        if image.tag is not None:
            made.append({"id": 0, "type": "label", "label_id": self._numbers[image.tag]} | _REST)
        path = image.file.removeprefix("images/")
        path = path.partition("/")[2] if image.split else path
        media = {"path": path, "size": [image.height, image.width]}
        return format_json({"id": path.rpartition(".")[0], "annotations": made, "attr": {}, "image": media})

    def _format_object(self, obj: LabelledObject, number: int) -> dict[str, Any]:
        """Returns the annotation of an object: its polygon if it has one, else its box."""
        polygon, (left, top, right, bottom) = single_polygon(obj), obj.box
        shape: dict[str, Any] = {"type": "bbox", "bbox": [left, top, right - left, bottom - top]}
        if polygon is not None:
            shape = {"type": "polygon", "points": polygon}
        return {"id": number, **shape, "label_id": self._numbers.get(self.class_of(obj)), "z_order": 0} | _REST

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """Number of each class name; classes of objects and of images share the numbers."""
        names = dict.fromkeys([*(self.names if self.objects.boxes else ()), *self.tag_names])
        return {name: number for number, name in enumerate(names)}

    def tail(self) -> str:
        return "\n]}\n"


_REST: dict[str, Any] = {"attributes": {}, "group": 0}

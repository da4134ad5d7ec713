"""Datumaro (https://open-edge-platform.github.io/datumaro): ``annotations/train.json`` with ``images/train``."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from packstore.exports.labels.base import DocumentExport, LabelledImage, find_single_polygon, format_json
from packstore.exports.objects import LabelledObject


class DatumaroExport(DocumentExport):
    """Boxes, polygons and classes of images; a JSON document for each split."""

    name = "datumaro"
    help = "Datumaro: images and annotations/*.json"
    document = "annotations/{split}.json"
    no_split = "default"
    crowds = True

    def format_head(self) -> str:
        """Returns the start of the JSON with the class names."""
        labels = [{"name": name, "parent": "", "attributes": []} for name in self._class_numbers]
        categories = {"label": {"labels": labels, "attributes": []}}
        head = f'"dm_format_version":"1.0","media_type":2,"info":{{}},"categories":{format_json(categories)}'
        return f'{{{head},"items":[\n'

    def format_entry(self, image: LabelledImage) -> str:
        """Returns the item of an image. Its id is the image's path below the split's folder, without extension."""
        made = [self._format_object(obj, n) for n, obj in enumerate(image.objects or ())]
        if image.tag is not None:
            made.append({"id": 0, "type": "label", "label_id": self._class_numbers[image.tag]} | _REST)
        path = image.file.removeprefix("images/")
        path = path.partition("/")[2] if image.split else path
        media = {"path": path, "size": [image.height, image.width]}
        return format_json({"id": path.rpartition(".")[0], "annotations": made, "attr": {}, "image": media})

    def _format_object(self, obj: LabelledObject, number: int) -> dict[str, Any]:
        """Returns the annotation of an object: its polygon if it has exactly one, else its box. If the store has a
        column of crowd regions, it has the attribute ``is_crowd``, as Datumaro's converter from COCO writes it."""
        polygon, (left, top, right, bottom) = find_single_polygon(obj), obj.box
        shape: dict[str, Any] = {"type": "bbox", "bbox": [left, top, right - left, bottom - top]}
        if polygon is not None:
            shape = {"type": "polygon", "points": polygon}
        attributes = {"is_crowd": obj.crowd} if self.object_columns.crowds else {}
        label = self._class_numbers.get(self.class_name(obj))
        return {"id": number, **shape, "label_id": label, "z_order": 0} | _REST | {"attributes": attributes}

    @cached_property
    def _class_numbers(self) -> dict[str, int]:
        """Maps each class name to its number in the document. Classes of objects and of images share the numbers."""
        names = dict.fromkeys([*(self.object_classes if self.object_columns.boxes else ()), *self.image_classes])
        return {name: number for number, name in enumerate(names)}

    def format_tail(self) -> str:
        """Returns the end of the JSON."""
        return "\n]}\n"


_REST: dict[str, Any] = {"attributes": {}, "group": 0}

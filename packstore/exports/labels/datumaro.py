"""Datumaro (https://open-edge-platform.github.io/datumaro): ``annotations/train.json`` with ``images/train``."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from packstore.exports.labels.base import DocumentExport, Labelled, json_text, polygon_of
from packstore.exports.objects import Thing


class DatumaroExport(DocumentExport):
    """Boxes, polygons and labels; a document for each split."""

    name = "datumaro"
    help = "Datumaro: images and annotations/*.json"
    document = "annotations/{split}.json"
    whole = "default"

    def head(self) -> str:
        labels = [{"name": name, "parent": "", "attributes": []} for name in self._numbers]
        categories = {"label": {"labels": labels, "attributes": []}}
        head = f'"dm_format_version":"1.0","media_type":2,"info":{{}},"categories":{json_text(categories)}'
        return f'{{{head},"items":[\n'

    def entry(self, image: Labelled) -> str:
        made = [self._annotation(thing, n) for n, thing in enumerate(image.things or ())]
        if image.tag is not None:
            made.append({"id": 0, "type": "label", "label_id": self._numbers[image.tag]} | _REST)
        path = image.file.removeprefix("images/")
        path = path.partition("/")[2] if image.split else path
        media = {"path": path, "size": [image.height, image.width]}
        return json_text({"id": path.rpartition(".")[0], "annotations": made, "attr": {}, "image": media})

    def _annotation(self, thing: Thing, number: int) -> dict[str, Any]:
        polygon, (left, top, right, bottom) = polygon_of(thing), thing.box
        shape: dict[str, Any] = {"type": "bbox", "bbox": [left, top, right - left, bottom - top]}
        if polygon is not None:
            shape = {"type": "polygon", "points": polygon}
        return {"id": number, **shape, "label_id": self._numbers.get(self.name_of(thing)), "z_order": 0} | _REST

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """The number of each class."""
        names = dict.fromkeys([*(self.names if self.things.boxes else ()), *self.tag_names])
        return {name: number for number, name in enumerate(names)}

    def tail(self) -> str:
        return "\n]}\n"


_REST: dict[str, Any] = {"attributes": {}, "group": 0}

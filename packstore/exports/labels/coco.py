"""COCO (https://cocodataset.org/#format-data): ``images/`` and ``annotations/instances_train.json``, for
``pycocotools`` and torchvision's ``CocoDetection``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from packstore.exports.labels.base import LabelsExport
from packstore.exports.labels.objects import LabelledObject, find_captions_column, format_json, join_texts
from packstore.stores.export_manifest import RecordLines

_OWN = ("id", "image_id", "bbox", "category_id", "keypoints", "num_keypoints")
"""Keys of an annotation that come from columns; the JSON column cannot override them."""


class CocoExport(LabelsExport):
    """A folder of images, and a file ``instances_*.json`` for each split. If the store has captions, also
    ``captions_*.json``.

    Images get ids from 1 through the whole store. Ids of objects and captions begin at 1 in each file. Masks, areas and
    ``iscrowd`` come from a column ``json`` in the form of the source ``coco``. Objects whose boxes or keypoints are not
    finite are left out.
    """

    name = "coco"
    help = "COCO: images and annotations/instances_*.json"
    extra = "json"
    keypoints = True
    crowds = True

    def visible_columns(self) -> Sequence[str]:
        """Returns the columns of boxes, labels, keypoints and captions that the store has."""
        captions = find_captions_column(self.columns)
        return [*super().visible_columns(), *([] if captions is None else [captions])]

    def describe_hidden(self, name: str) -> str:
        """Describes a column that is not written. For the column ``json``, says which of its entries are written."""
        if name == self.object_columns.extra:
            return f"{name!r} (but segmentation, area, iscrowd and other entries of its objects are written)"
        return super().describe_hidden(name)

    @property
    def label_bytes(self) -> int:
        """Estimated bytes of JSON for an image."""
        return 100 + self.estimate_text((*self.visible_columns(), *filter(None, [self.object_columns.extra])))

    def format_documents(self, rows: RecordLines) -> Mapping[str, Iterable[str]]:
        """Returns an annotation file for each split, and a file of captions if the store has captions.

        Categories count from 1. Keypoints have numbers as names.
        """
        categories: list[dict[str, Any]] = [{"id": n + 1, "name": name} for n, name in enumerate(self.object_classes)]
        if self.object_columns.shape:
            points = [str(n) for n in range(self.object_columns.shape[0])]
            categories = [category | {"keypoints": points, "skeleton": []} for category in categories]
        files: dict[str, Iterable[str]] = {}
        captions, listed = find_captions_column(self.columns), f',"categories":{format_json(categories)}'
        for _, folder, start, stop in self.split_ranges:
            tail, images = f"_{folder}.json" if folder else ".json", range(start, stop)
            objects = self._read_annotations(images) if self.object_columns.boxes else iter(())
            files[f"annotations/instances{tail}"] = self._format_document(rows, images, objects, listed)
            if captions is not None:
                texts = self._read_captions(captions, images)
                files[f"annotations/captions{tail}"] = self._format_document(rows, images, texts, "")
        return files

    def _format_document(
        self, rows: RecordLines, records: range, annotations: Iterator[dict[str, Any]], more: str
    ) -> Iterator[str]:
        """Yields the text of a file of annotations: the images ``records``, their ``annotations``, and ``more``."""
        yield '{"info":{"description":"exported by packstore"},"licenses":[],"images":['
        yield from join_texts(format_json(self._format_image(rows[number], number)) for number in records)
        yield '],"annotations":['
        yield from join_texts(map(format_json, annotations))
        yield f"]{more}}}\n"

    def _format_image(self, line: Mapping[str, Any], number: int) -> dict[str, Any]:
        """Returns the COCO entry of an image, from its record line. ``file_name`` is relative to the folder of its
        split."""
        name = line["file"].removeprefix("images/")
        name = name.partition("/")[2] if self.manifest.splits else name
        return {"id": number + 1, "file_name": name, "width": int(line["width"]), "height": int(line["height"])}

    def _read_annotations(self, records: range) -> Iterator[dict[str, Any]]:
        """Yields the annotations of objects in ``records``, numbered from 1.

        Leaves out objects whose boxes or keypoints are not finite.
        """
        number = 0
        for record in records:
            for obj in self.read_objects(partial(self.read_value, record)) or ():
                number += 1
                yield {"id": number, "image_id": record + 1, **_format_annotation(obj)}

    def _read_captions(self, name: str, records: range) -> Iterator[dict[str, Any]]:
        """Yields the captions in column ``name`` of ``records``, numbered from 1. Skips
        values that are not strings."""
        number = 0
        for record in records:
            value = self.read_value(record, name)
            for caption in value if isinstance(value, list) else [value]:
                if isinstance(caption, str):
                    number += 1
                    yield {"id": number, "image_id": record + 1, "caption": caption}


def _format_annotation(obj: LabelledObject) -> dict[str, Any]:
    """Returns the annotation of an object, without ids.

    Category, box, keypoints and ``iscrowd`` come from the store's columns. All other entries come from the object's
    JSON, and ``iscrowd`` of a region to ignore, too. Without the JSON, ``area`` is the area of the box.

    Keypoints without visibility get 2, visible.
    """
    left, top, right, bottom = obj.box
    extra = obj.extra if isinstance(obj.extra, dict) else {}
    kept = {name: value for name, value in extra.items() if name not in _OWN}
    annotation = {"area": (right - left) * (bottom - top), "iscrowd": int(obj.crowd)} | kept
    annotation |= {"category_id": obj.label + 1, "bbox": [left, top, right - left, bottom - top]}
    if obj.keypoints is not None:
        points = [[*point, 2] if len(point) == 2 else point for point in obj.keypoints]
        annotation["keypoints"] = [value for point in points for value in point]
        annotation["num_keypoints"] = sum(point[2] > 0 for point in points)
    return annotation

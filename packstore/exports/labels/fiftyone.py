"""FiftyOne (https://docs.voxel51.com/user_guide/export_datasets.html): ``data``, ``samples.json``, ``metadata.json``.

The metadata has no version, so FiftyOne reads the folder as a ``FiftyOneDataset``, which can have any fields.
"""

from __future__ import annotations

from typing import Any

from packstore.exports.labels.base import (
    DocumentExport,
    LabelledImage,
    find_single_polygon,
    format_json,
    pair_coordinates,
)
from packstore.exports.objects import LabelledObject


class FiftyOneExport(DocumentExport):
    """Detections, polylines (polygons) and classifications; splits are tags of samples."""

    name = "fiftyone"
    help = "FiftyOne: data, samples.json and metadata.json"
    images = "data"
    document = "samples.json"
    crowds = True

    def format_head(self) -> str:
        """Returns the start of the JSON."""
        return '{"samples":[\n'

    def format_entry(self, image: LabelledImage) -> str:
        """Returns the sample of an image. An object with exactly one polygon becomes a polyline. Other objects become
        detections."""
        sample: dict[str, Any] = {"filepath": image.file, "tags": [image.split] if image.split else []}
        if image.tag is not None:
            sample["ground_truth_class"] = {"_cls": "Classification", "label": image.tag}
        if image.objects is not None:
            boxes = [self._format_detection(image, obj) for obj in image.objects if find_single_polygon(obj) is None]
            sample["ground_truth"] = {"_cls": "Detections", "detections": boxes}
            shapes = [
                self._format_polyline(image, obj) for obj in image.objects if find_single_polygon(obj) is not None
            ]
            if shapes:
                sample["ground_truth_polygons"] = {"_cls": "Polylines", "polylines": shapes}
        return format_json(sample)

    def _format_detection(self, image: LabelledImage, obj: LabelledObject) -> dict[str, Any]:
        """Returns the detection of an object, with its box in fractions of the image's sides."""
        left, top, right, bottom = obj.box
        across, down = 1 / max(1, image.width), 1 / max(1, image.height)
        box = [left * across, top * down, (right - left) * across, (bottom - top) * down]
        detection = {"_cls": "Detection", "label": self.class_name(obj), "bounding_box": box}
        return detection | self._format_crowd(obj)

    def _format_polyline(self, image: LabelledImage, obj: LabelledObject) -> dict[str, Any]:
        """Returns the closed polyline of an object's polygon, in fractions of the image's sides. Has no points if the
        object has no single polygon."""
        across, down = 1 / max(1, image.width), 1 / max(1, image.height)
        points = [[(x * across, y * down) for x, y in pair_coordinates(find_single_polygon(obj) or ())]]
        polyline = {"_cls": "Polyline", "label": self.class_name(obj), "points": points, "closed": True, "filled": True}
        return polyline | self._format_crowd(obj)

    def _format_crowd(self, obj: LabelledObject) -> dict[str, Any]:
        """Returns the attribute ``iscrowd``, as FiftyOne's importer of COCO writes it. Returns nothing without a column
        of crowd regions."""
        return {"iscrowd": int(obj.crowd)} if self.object_columns.crowds else {}

    def format_tail(self) -> str:
        """Returns the end of the JSON."""
        return "\n]}\n"

    def format_extra_files(self) -> dict[str, str]:
        """Returns the text of ``metadata.json``. If the store has boxes, it has the class names of objects."""
        info = {"classes": self.object_classes} if self.object_columns.boxes else {}
        return {"metadata.json": format_json({"media_type": "image", "info": info}) + "\n"}

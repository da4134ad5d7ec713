"""FiftyOne (https://docs.voxel51.com/user_guide/export_datasets.html): ``data``, ``samples.json``, ``metadata.json``.

The metadata has no version, so FiftyOne reads the folder as a ``FiftyOneDataset``, which can have any fields.
"""

from __future__ import annotations

from typing import Any

from packstore.exports.labels.base import DocumentExport, LabelledImage, format_json, point_pairs, single_polygon
from packstore.exports.objects import LabelledObject


class FiftyOneExport(DocumentExport):
    """Detections, polylines and classifications; splits are tags."""

    name = "fiftyone"
    help = "FiftyOne: data, samples.json and metadata.json"
    images = "data"
    document = "samples.json"

    def head(self) -> str:
        return '{"samples":[\n'

    def entry(self, image: LabelledImage) -> str:
        sample: dict[str, Any] = {"filepath": image.file, "tags": [image.split] if image.split else []}
        if image.tag is not None:
            sample["ground_truth_class"] = {"_cls": "Classification", "label": image.tag}
        if image.objects is not None:
            boxes = [self._format_detection(image, obj) for obj in image.objects if single_polygon(obj) is None]
            sample["ground_truth"] = {"_cls": "Detections", "detections": boxes}
            shapes = [self._format_polyline(image, obj) for obj in image.objects if single_polygon(obj) is not None]
            if shapes:
                sample["ground_truth_polygons"] = {"_cls": "Polylines", "polylines": shapes}
        return format_json(sample)

    def _format_detection(self, image: LabelledImage, obj: LabelledObject) -> dict[str, Any]:
        """Returns the detection of an object, with its box in fractions of the image's sides."""
        left, top, right, bottom = obj.box
        across, down = 1 / max(1, image.width), 1 / max(1, image.height)
        box = [left * across, top * down, (right - left) * across, (bottom - top) * down]
        return {"_cls": "Detection", "label": self.class_of(obj), "bounding_box": box}

    def _format_polyline(self, image: LabelledImage, obj: LabelledObject) -> dict[str, Any]:
        """Returns the closed polyline of an object's polygon, in fractions of the image's sides."""
        across, down = 1 / max(1, image.width), 1 / max(1, image.height)
        points = [[(x * across, y * down) for x, y in point_pairs(single_polygon(obj) or ())]]
        return {"_cls": "Polyline", "label": self.class_of(obj), "points": points, "closed": True, "filled": True}

    def tail(self) -> str:
        return "\n]}\n"

    def extra_files(self) -> dict[str, str]:
        info = {"classes": self.names} if self.objects.boxes else {}
        return {"metadata.json": format_json({"media_type": "image", "info": info}) + "\n"}

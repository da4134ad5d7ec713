"""FiftyOne (https://docs.voxel51.com/user_guide/export_datasets.html): ``data``, ``samples.json``, ``metadata.json``.

Without a version in its metadata FiftyOne reads such a folder as a ``FiftyOneDataset`` of any fields.
"""

from __future__ import annotations

from typing import Any

from packstore.exports.labels.base import DocumentExport, Labelled, json_text, pairs_of, polygon_of
from packstore.exports.objects import Thing


class FiftyOneExport(DocumentExport):
    """Detections, polylines and classifications; splits are tags."""

    name = "fiftyone"
    help = "FiftyOne: data, samples.json and metadata.json"
    images = "data"
    document = "samples.json"

    def head(self) -> str:
        return '{"samples":[\n'

    def entry(self, image: Labelled) -> str:
        sample: dict[str, Any] = {"filepath": image.file, "tags": [image.split] if image.split else []}
        if image.tag is not None:
            sample["ground_truth_class"] = {"_cls": "Classification", "label": image.tag}
        if image.things is not None:
            boxes = [self._detection(image, thing) for thing in image.things if polygon_of(thing) is None]
            sample["ground_truth"] = {"_cls": "Detections", "detections": boxes}
            shapes = [self._polyline(image, thing) for thing in image.things if polygon_of(thing) is not None]
            if shapes:
                sample["ground_truth_polygons"] = {"_cls": "Polylines", "polylines": shapes}
        return json_text(sample)

    def _detection(self, image: Labelled, thing: Thing) -> dict[str, Any]:
        left, top, right, bottom = thing.box
        across, down = 1 / max(1, image.width), 1 / max(1, image.height)
        box = [left * across, top * down, (right - left) * across, (bottom - top) * down]
        return {"_cls": "Detection", "label": self.name_of(thing), "bounding_box": box}

    def _polyline(self, image: Labelled, thing: Thing) -> dict[str, Any]:
        across, down = 1 / max(1, image.width), 1 / max(1, image.height)
        points = [[(x * across, y * down) for x, y in pairs_of(polygon_of(thing) or ())]]
        return {"_cls": "Polyline", "label": self.name_of(thing), "points": points, "closed": True, "filled": True}

    def tail(self) -> str:
        return "\n]}\n"

    def further_files(self) -> dict[str, str]:
        info = {"classes": self.names} if self.things.boxes else {}
        return {"metadata.json": json_text({"media_type": "image", "info": info}) + "\n"}

"""LabelMe (https://github.com/wkentaro/labelme): a JSON file beside each image, with shapes in pixels."""

from __future__ import annotations

from typing import Any

from packstore.exports.labels.base import Labelled, SidecarExport, json_text, pairs_of, polygon_of
from packstore.exports.objects import Thing


class LabelMeExport(SidecarExport):
    """Rectangles and polygons; the class of an image is a flag."""

    name = "labelme"
    help = "LabelMe: a JSON file beside each image"

    def sidecar(self, image: Labelled) -> tuple[str, str]:
        document = {
            "version": "5.4.1",
            "flags": {} if image.tag is None else {image.tag: True},
            "shapes": [self._shape(thing) for thing in image.things or ()],
            "imagePath": image.file.rpartition("/")[2],
            "imageData": None,
            "imageHeight": image.height,
            "imageWidth": image.width,
        }
        return f"{image.file.rpartition('.')[0]}.json", json_text(document)

    def _shape(self, thing: Thing) -> dict[str, Any]:
        polygon = polygon_of(thing)
        points = pairs_of(thing.box if polygon is None else polygon)
        kind = "rectangle" if polygon is None else "polygon"
        label = self.name_of(thing)
        return {"label": label, "points": points, "group_id": None, "shape_type": kind, "flags": {}}

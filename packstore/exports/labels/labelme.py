"""LabelMe (https://github.com/wkentaro/labelme): a JSON file beside each image, with shapes in pixels."""

from __future__ import annotations

from typing import Any

from packstore.exports.labels.base import (
    LabelledImage,
    SidecarExport,
    find_single_polygon,
    format_json,
    pair_coordinates,
)
from packstore.exports.objects import LabelledObject


class LabelMeExport(SidecarExport):
    """Boxes and polygons in a JSON file beside each image. The class of an image is a flag.

    An object with exactly one valid polygon becomes a polygon, any other its box as a rectangle. An image without boxes
    and class gets no file.
    """

    name = "labelme"
    help = "LabelMe: a JSON file beside each image"
    upright_kinds = frozenset(("jpeg",))  # see LabelMeSource.annotation_frame

    def format_sidecar(self, image: LabelledImage) -> tuple[str, str]:
        """Returns the path of the JSON file beside an image, and its text."""
        document = {
            "version": "5.4.1",
            "flags": {} if image.tag is None else {image.tag: True},
            "shapes": [self._format_shape(obj) for obj in image.objects or ()],
            "imagePath": image.file.rpartition("/")[2],
            "imageData": None,
            "imageHeight": image.height,
            "imageWidth": image.width,
        }
        return f"{image.file.rpartition('.')[0]}.json", format_json(document)

    def _format_shape(self, obj: LabelledObject) -> dict[str, Any]:
        """Returns the LabelMe shape of an object: its polygon if it has exactly one, else its box."""
        polygon = find_single_polygon(obj)
        points = pair_coordinates(obj.box if polygon is None else polygon)
        kind = "rectangle" if polygon is None else "polygon"
        label = self.class_name(obj)
        return {"label": label, "points": points, "group_id": None, "shape_type": kind, "flags": {}}

"""LabelMe (https://github.com/wkentaro/labelme): a JSON file beside each image, with shapes in pixels.

``imageData``, a copy of the image, is not kept.
"""

from __future__ import annotations

import math
import re
from typing import Any

from packstore.sources.annotation_formats.objects import (
    AnnotatedObject,
    Annotation,
    SizeReader,
    flatten_points,
    nonempty_text,
    object_from_box,
    object_from_polygons,
    parse_json,
)
from packstore.sources.annotation_formats.source import SidecarSource, make_sidecar_kind


class LabelMeSource(SidecarSource):
    """Source of images with LabelMe's files. Lines and points become ``keypoints``; circles and masks become boxes.
    Flags of the image that are true become tags. The copy of the image in the file is not kept."""

    kind = "labelme"
    title = "LabelMe"
    folder_pairs = (("", ""), ("", "annotations"), ("", "labels"), ("images", "annotations"), ("images", "labels"),
               ("images", "json"), ("imgs", "json"), ("images", "jsons"), ("images", "labelme"))  # fmt: skip
    signature = re.compile(rb'"shapes"\s*:\s*\[|"imageData"\s*:\s*(null|"/9j|"iVBOR)')

    def annotation_frame(self, kind: str) -> str | None:
        """Returns ``upright`` for JPEG, which LabelMe turns when it opens it (``apply_exif_orientation`` in
        ``labelme/utils/image.py``)."""
        return "upright" if kind == "jpeg" else None

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts shapes with an area to objects, lines and points to points, and true flags to tags. ``json`` has the
        file without ``imageData``. Raises :class:`ValueError` for an invalid shape."""
        document = parse_json(raw)
        document.pop("imageData", None)
        annotation = Annotation(json=document)
        for shape in document["shapes"]:
            label, points, kind = nonempty_text(shape["label"]), shape["points"], shape.get("shape_type") or "polygon"
            if kind in ("point", "line", "linestrip", "points"):
                flat = flatten_points(points)
                annotation.add_points(label, flat)
            else:
                annotation.objects.append(_make_object(label, kind, flatten_points(points)))
        flags = document.get("flags") or {}
        annotation.tags = [name for name, value in flags.items() if value is True]
        return annotation


def _make_object(label: str | None, kind: str, flat: list[float]) -> AnnotatedObject:
    """Makes an object from a shape with an area, by its type ``kind`` and its points ``flat``. Circles, rectangles and
    masks become boxes. The corners of a rectangle or mask are its two points, else the first and third point. Any other
    type becomes a polygon. Raises :class:`ValueError` for missing points, and for a circle of more than two points."""
    if kind in ("rectangle", "mask"):
        left, top, right, bottom = flat if len(flat) == 4 else [*flat[:2], *flat[4:6]]
        return object_from_box(label, [min(left, right), min(top, bottom), max(left, right), max(top, bottom)])
    if kind == "circle":
        x, y, ex, ey = flat
        radius = math.hypot(ex - x, ey - y)
        return object_from_box(label, [x - radius, y - radius, x + radius, y + radius])
    return object_from_polygons(label, flat)


KIND = make_sidecar_kind(LabelMeSource, "LabelMe: a JSON file with shapes beside each image")

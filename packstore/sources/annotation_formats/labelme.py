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
    Sides,
    flatten,
    load_json,
    of_box,
    of_polygon,
    text_or_none,
)
from packstore.sources.annotation_formats.source import SidecarSource, annotated_kind


class LabelMeSource(SidecarSource):
    """Images with LabelMe's files; lines and points are ``keypoints``, flags of the image that are set are tags."""

    kind = "labelme"
    title = "LabelMe"
    folders = (("", ""), ("", "annotations"), ("", "labels"), ("images", "annotations"), ("images", "labels"),
               ("images", "json"), ("imgs", "json"), ("images", "jsons"), ("images", "labelme"))  # fmt: skip
    signature = re.compile(rb'"shapes"\s*:\s*\[|"imageData"\s*:\s*(null|"/9j|"iVBOR)')

    def parse(self, raw: Any, sides: Sides) -> Annotation:
        document = load_json(raw)
        document.pop("imageData", None)
        found = Annotation(json=document)
        for shape in document["shapes"]:
            label, points, kind = text_or_none(shape["label"]), shape["points"], shape.get("shape_type") or "polygon"
            if kind in ("point", "line", "linestrip", "points"):
                flat = flatten(points)
                found.points += [(label, x, y) for x, y in zip(flat[::2], flat[1::2], strict=True)]
            else:
                found.objects.append(_object(label, kind, flatten(points)))
        flags = document.get("flags") or {}
        found.tags = [name for name, value in flags.items() if value is True]
        return found


def _object(label: str | None, kind: str, flat: list[float]) -> AnnotatedObject:
    if kind in ("rectangle", "mask"):
        left, top, right, bottom = flat if len(flat) == 4 else [*flat[:2], *flat[4:6]]
        return of_box(label, [min(left, right), min(top, bottom), max(left, right), max(top, bottom)])
    if kind == "circle":
        x, y, ex, ey = flat
        radius = math.hypot(ex - x, ey - y)
        return of_box(label, [x - radius, y - radius, x + radius, y + radius])
    return of_polygon(label, flat)


KIND = annotated_kind(LabelMeSource, "LabelMe: a JSON file with shapes beside each image")

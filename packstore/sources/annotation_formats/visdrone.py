"""VisDrone-DET (https://github.com/VisDrone/VisDrone-Dataset): ``images`` and ``annotations``, a line of left, top,
width, height, score, class, truncation and occlusion for each object; all are in ``json``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from packstore.sources.annotation_formats.objects import Annotation, Sides, from_corner, full_lines, of_box, reals
from packstore.sources.annotation_formats.source import SidecarSource, annotated_kind

CLASSES = (
    *("ignored regions", "pedestrian", "people", "bicycle", "car", "van", "truck", "tricycle", "awning-tricycle"),
    *("bus", "motor", "others"),
)


class VisDroneSource(SidecarSource):
    """Images of VisDrone with boxes of twelve classes, in their published order."""

    kind = "visdrone"
    title = "VisDrone"
    folders = (("images", "annotations"),)
    patterns = ("{stem}.txt",)
    signature = re.compile(rb"^\s*-?\d+(,-?\d+){7},?\s*(\r?\n|$)")

    def class_order(self) -> Sequence[str]:
        return CLASSES

    def parse(self, raw: Any, sides: Sides) -> Annotation:
        found = Annotation(json=[])
        for number, line in full_lines(raw):
            values = reals(line.strip().rstrip(",").split(","))
            if len(values) != 8 or not (values[5].is_integer() and 0 <= values[5] < len(CLASSES)):
                raise ValueError(f"line {number} is {line[:60]!r}; expected 8 numbers, class 0 to 11")
            found.json.append(values)
            found.objects.append(of_box(CLASSES[int(values[5])], from_corner(*values[:4])))
        return found


KIND = annotated_kind(VisDroneSource, "VisDrone: images with annotations of eight numbers a line")

"""VisDrone-DET (https://github.com/VisDrone/VisDrone-Dataset): ``images`` and ``annotations``, a line of left, top,
width, height, score, class, truncation and occlusion for each object; all are in ``json``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from packstore.sources.annotation_formats.objects import (
    Annotation,
    SizeReader,
    box_from_corner,
    numbered_lines,
    object_from_box,
    to_floats,
)
from packstore.sources.annotation_formats.source import SidecarSource, make_sidecar_kind

CLASSES = (
    *("ignored regions", "pedestrian", "people", "bicycle", "car", "van", "truck", "tricycle", "awning-tricycle"),
    *("bus", "motor", "others"),
)


class VisDroneSource(SidecarSource):
    """Source of images of VisDrone with boxes of twelve classes, in the publisher's order."""

    kind = "visdrone"
    title = "VisDrone"
    folder_pairs = (("images", "annotations"),)
    patterns = ("{stem}.txt",)
    signature = re.compile(rb"^\s*-?\d+(,-?\d+){7},?\s*(\r?\n|$)")

    def list_classes(self) -> Sequence[str]:
        """Returns the twelve classes of the publisher."""
        return CLASSES

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts each line to an object with its class and box. An object with the score 0, as ignored regions have
        it, is one to ignore. ``json`` has the eight numbers of each line. Raises
        :class:`ValueError` for a line without eight numbers, and for a class beyond 11."""
        annotation = Annotation(json=[])
        for number, line in numbered_lines(raw):
            values = to_floats(line.strip().rstrip(",").split(","))
            if len(values) != 8 or not (values[5].is_integer() and 0 <= values[5] < len(CLASSES)):
                raise ValueError(f"line {number} is {line[:60]!r}; expected 8 numbers, class 0 to 11")
            annotation.json.append(values)
            crowd = not values[4] or not values[5]
            annotation.objects.append(
                object_from_box(CLASSES[int(values[5])], box_from_corner(*values[:4]), crowd=crowd)
            )
        return annotation


KIND = make_sidecar_kind(VisDroneSource, "VisDrone: images with annotations of eight numbers a line")

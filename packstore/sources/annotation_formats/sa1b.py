"""SA-1B (https://ai.meta.com/datasets/segment-anything): a JSON file beside each image, with masks as run lengths.

Objects have no classes. The points and crops with which a mask was made are in ``json``.
"""

from __future__ import annotations

import re
from typing import Any

from packstore.sources.annotation_formats.objects import (
    AnnotatedObject,
    Annotation,
    Sides,
    from_corner,
    load_json,
    of_runs,
)
from packstore.sources.annotation_formats.source import SidecarSource, annotated_kind


class Sa1bSource(SidecarSource):
    """Images of Segment Anything with their masks."""

    kind = "sa1b"
    title = "SA-1B"
    folders = (("", ""),)
    signature = re.compile(rb'\A(?=.*"image"\s*:\s*\{)(?=.*"annotations"\s*:\s*\[)(?!.*"shapes"\s*:)', re.S)

    def parse(self, raw: Any, sides: Sides) -> Annotation:
        document = load_json(raw)
        found = Annotation(json=document)
        for each in document["annotations"]:
            box, mask = from_corner(*each["bbox"]), each["segmentation"]
            if isinstance(mask, dict):
                found.objects.append(of_runs(None, mask["size"], mask["counts"], box))
            else:
                found.objects.append(AnnotatedObject(None, box, mask))
        return found


KIND = annotated_kind(Sa1bSource, "SA-1B: a JSON file of masks beside each image")

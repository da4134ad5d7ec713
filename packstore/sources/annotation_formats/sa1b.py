"""SA-1B (https://ai.meta.com/datasets/segment-anything): a JSON file beside each image, with masks as run lengths.

Objects have no classes. The points and crops that prompted a mask are in ``json``.
"""

from __future__ import annotations

import re
from typing import Any

from packstore.sources.annotation_formats.objects import (
    AnnotatedObject,
    Annotation,
    SizeReader,
    box_from_corner,
    object_from_run_lengths,
    parse_json,
)
from packstore.sources.annotation_formats.source import SidecarSource, make_sidecar_kind


class Sa1bSource(SidecarSource):
    """Source of images of Segment Anything with their masks; objects have no classes."""

    kind = "sa1b"
    title = "SA-1B"
    folder_pairs = (("", ""),)
    signature = re.compile(rb'\A(?=.*"image"\s*:\s*\{)(?=.*"annotations"\s*:\s*\[)(?!.*"shapes"\s*:)', re.S)

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts each annotation to an object with its box and mask (run lengths or polygons), which are not checked.
        Objects have no class. ``json`` has the whole file."""
        document = parse_json(raw)
        annotation = Annotation(json=document)
        for each in document["annotations"]:
            box, mask = box_from_corner(*each["bbox"]), each["segmentation"]
            if isinstance(mask, dict):
                annotation.objects.append(object_from_run_lengths(None, mask["size"], mask["counts"], box))
            else:
                annotation.objects.append(AnnotatedObject(None, box, mask))
        return annotation


KIND = make_sidecar_kind(Sa1bSource, "SA-1B: a JSON file of masks beside each image")

"""VoTT (https://github.com/microsoft/VoTT): ``NAME-export.json`` with regions of images in pixels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from packstore.sources.annotation_formats.documents import AnnotationEntry, DocumentSource, make_document_kind
from packstore.sources.annotation_formats.objects import (
    Annotation,
    SizeReader,
    box_from_corner,
    object_from_box,
    object_from_polygons,
    to_floats,
)
from packstore.sources.annotation_formats.source import count_unused_values


class VottSource(DocumentSource):
    """Source of images of a VoTT project. The class of a region is its first tag; all tags are in ``json``."""

    kind = "vott"
    title = "VoTT"
    signature = re.compile(
        rb'\A(?=.*"assets"\s*:\s*\{)(?=.*("visitedAssets"|"tags"|"videoSettings"|"regions")\s*:)', re.S
    )

    def read_entries(self, file: str, document: Any) -> Iterator[AnnotationEntry]:
        """Yields an entry for each asset. Adds the project's tags to the listed classes, and counts the project's other
        values as left out."""
        self.add_listed_classes(each["name"] for each in document.get("tags") or ())
        self.ignored += count_unused_values(document, ("assets", "tags"))
        for asset in document["assets"].values():
            yield AnnotationEntry(asset["asset"]["name"], asset)

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts each region to an object with its box. If its type is ``POLYGON``, or the box is missing, its
        polygon is used. The class is the region's first tag, or None without tags. ``json`` has the whole asset."""
        annotation = Annotation(json=raw)
        for region in raw.get("regions", ()):
            label, box = next(iter(region.get("tags") or ()), None), region.get("boundingBox")
            if region.get("type", "RECTANGLE").upper() == "POLYGON" or not box:
                annotation.objects.append(
                    object_from_polygons(label, [n for p in region["points"] for n in to_floats((p["x"], p["y"]))])
                )
            else:
                annotation.objects.append(
                    object_from_box(label, box_from_corner(*(box[k] for k in ("left", "top", "width", "height"))))
                )
        return annotation


KIND = make_document_kind(VottSource, "VoTT: NAME-export.json beside the images")

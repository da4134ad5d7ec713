"""VoTT (https://github.com/microsoft/VoTT): ``NAME-export.json``, whose assets have regions in pixels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from packstore.sources.annotation_formats.documents import DocumentSource, Entry, document_kind
from packstore.sources.annotation_formats.objects import Annotation, Sides, from_corner, of_box, of_polygon, reals
from packstore.sources.annotation_formats.source import count_unused


class VottSource(DocumentSource):
    """Images of a project of VoTT; the first tag of a region is its class, all are in ``json``."""

    kind = "vott"
    title = "VoTT"
    signature = re.compile(
        rb'\A(?=.*"assets"\s*:\s*\{)(?=.*("visitedAssets"|"tags"|"videoSettings"|"regions")\s*:)', re.S
    )

    def entries_of(self, file: str, document: Any) -> Iterator[Entry]:
        tags = [each["name"] for each in document.get("tags") or ()]
        self._listed = (*getattr(self, "_listed", ()), *tags)
        self.ignored += count_unused(document, ("assets", "tags"))
        for asset in document["assets"].values():
            yield Entry(asset["asset"]["name"], asset)

    def class_order(self) -> Sequence[str]:
        return self._listed

    def parse(self, raw: Any, sides: Sides) -> Annotation:
        found = Annotation(json=raw)
        for region in raw.get("regions", ()):
            label, box = next(iter(region.get("tags") or ()), None), region.get("boundingBox")
            if region.get("type", "RECTANGLE").upper() == "POLYGON" or not box:
                found.objects.append(of_polygon(label, [n for p in region["points"] for n in reals((p["x"], p["y"]))]))
            else:
                found.objects.append(of_box(label, from_corner(*(box[k] for k in ("left", "top", "width", "height")))))
        return found


KIND = document_kind(VottSource, "VoTT: NAME-export.json beside the images")

"""CORD (https://github.com/clovaai/cord): ``image/receipt_00000.png`` and ``json/receipt_00000.json``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from packstore.core.fields import Field, Json
from packstore.sources.annotation_formats.objects import Annotation, Sides, load_json, of_polygon, reals, text_or_none
from packstore.sources.annotation_formats.source import SidecarSource, annotated_kind

_CORNERS = ("x1", "y1", "x2", "y2", "x3", "y3", "x4", "y4")


class CordSource(SidecarSource):
    """Receipts with their words: category of the line, corners and text of each; the rest is in ``json``."""

    kind = "cord"
    title = "CORD"
    folders = (("image", "json"), ("images", "json"))
    signature = re.compile(rb'"valid_line"\s*:\s*\[')
    further: ClassVar[Mapping[str, Field]] = {"texts": Json(optional=True)}
    per_object = ("texts",)

    def parse(self, raw: Any, sides: Sides) -> Annotation:
        document = load_json(raw)
        found = Annotation(json=document)
        for line in document["valid_line"]:
            for word in line["words"]:
                corners = reals(word["quad"][name] for name in _CORNERS)
                found.objects.append(of_polygon(text_or_none(line["category"]), corners, texts=word["text"]))
        return found


KIND = annotated_kind(CordSource, "CORD: image with words of receipts in json")

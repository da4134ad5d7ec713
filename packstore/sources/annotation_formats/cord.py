"""CORD (https://github.com/clovaai/cord): ``image/receipt_00000.png`` with ``json/receipt_00000.json``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from packstore.core.fields import Field, Json
from packstore.sources.annotation_formats.objects import (
    Annotation,
    SizeReader,
    nonempty_text,
    object_from_polygons,
    parse_json,
    to_floats,
)
from packstore.sources.annotation_formats.source import SidecarSource, make_sidecar_kind

_CORNERS = ("x1", "y1", "x2", "y2", "x3", "y3", "x4", "y4")


class CordSource(SidecarSource):
    """Source of receipts with corners and text of each word. A word's class is the category of its line. The rest is in
    ``json``."""

    kind = "cord"
    title = "CORD"
    folder_pairs = (("image", "json"), ("images", "json"))
    signature = re.compile(rb'"valid_line"\s*:\s*\[')
    further_fields: ClassVar[Mapping[str, Field]] = {"texts": Json(optional=True)}
    per_object = ("texts",)

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts each word of each valid line to an object with the word's corners and text. The class is the
        category of the line. ``json`` has the whole file."""
        document = parse_json(raw)
        annotation = Annotation(json=document)
        for line in document["valid_line"]:
            for word in line["words"]:
                corners = to_floats(word["quad"][name] for name in _CORNERS)
                annotation.objects.append(
                    object_from_polygons(nonempty_text(line["category"]), corners, texts=word["text"])
                )
        return annotation


KIND = make_sidecar_kind(CordSource, "CORD: image with words of receipts in json")

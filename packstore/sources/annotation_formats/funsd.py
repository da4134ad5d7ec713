"""FUNSD (https://guillaumejaume.github.io/FUNSD): ``images`` of forms, and ``annotations`` of their fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from packstore.core.fields import Field, Json
from packstore.sources.annotation_formats.objects import (
    Annotation,
    SizeReader,
    nonempty_text,
    object_from_box,
    parse_json,
    to_floats,
)
from packstore.sources.annotation_formats.source import SidecarSource, make_sidecar_kind


class FunsdSource(SidecarSource):
    """Source of forms with class, box and text of each field; words and links are in ``json``."""

    kind = "funsd"
    title = "FUNSD"
    folder_pairs = (("images", "annotations"),)
    signature = re.compile(rb'\A\s*\{\s*"form"\s*:\s*\[')
    further_fields: ClassVar[Mapping[str, Field]] = {"texts": Json(optional=True)}
    per_object = ("texts",)

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts each field of the form to an object with its class, box and text. ``json`` has the whole file."""
        document = parse_json(raw)
        annotation = Annotation(json=document)
        for each in document["form"]:
            annotation.objects.append(
                object_from_box(nonempty_text(each["label"]), to_floats(each["box"], 4), texts=each["text"])
            )
        return annotation


KIND = make_sidecar_kind(FunsdSource, "FUNSD: images with annotations of forms")

"""FUNSD (https://guillaumejaume.github.io/FUNSD): ``images`` and ``annotations`` with the fields of forms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from packstore.core.fields import Field, Json
from packstore.sources.annotation_formats.objects import Annotation, Sides, load_json, of_box, reals, text_or_none
from packstore.sources.annotation_formats.source import SidecarSource, annotated_kind


class FunsdSource(SidecarSource):
    """Forms with their fields: class, box and text of each; words and links are in ``json``."""

    kind = "funsd"
    title = "FUNSD"
    folders = (("images", "annotations"),)
    signature = re.compile(rb'\A\s*\{\s*"form"\s*:\s*\[')
    further: ClassVar[Mapping[str, Field]] = {"texts": Json(optional=True)}
    per_object = ("texts",)

    def parse(self, raw: Any, sides: Sides) -> Annotation:
        document = load_json(raw)
        found = Annotation(json=document)
        for each in document["form"]:
            found.objects.append(of_box(text_or_none(each["label"]), reals(each["box"], 4), texts=each["text"]))
        return found


KIND = annotated_kind(FunsdSource, "FUNSD: images with annotations of forms")

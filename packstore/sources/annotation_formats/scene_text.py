"""Words in scenes, one file for many images: TextOCR and COCO-Text, and ICDAR 2019's ArT and LSVT.

- TextOCR (https://textvqa.org/textocr), COCO-Text (https://bgshih.github.io/cocotext): ``imgs``, ``anns`` by id.
- ArT, LSVT (https://rrc.cvc.uab.es/?ch=14, ?ch=16): a list of words by image, ``gt_0`` for ``gt_0.jpg``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from packstore.core.fields import Field, Json
from packstore.sources.annotation_formats.documents import DocumentSource, Entry, document_kind
from packstore.sources.annotation_formats.objects import (
    Annotation,
    Sides,
    flatten,
    from_corner,
    of_box,
    of_polygon,
    reals,
)


class TextOcrSource(DocumentSource):
    """Images with words: ``texts`` has the word of each box; further values are in ``json``."""

    kind = "textocr"
    title = "TextOCR"
    signature = re.compile(
        rb'\A\s*\{.{0,2000}?"(imgs|anns)"\s*:\s*\{\s*"[^"]*"\s*:\s*\{[^{}]*"(image_id|file_name)"\s*:', re.S
    )
    further: ClassVar[Mapping[str, Field]] = {"texts": Json(optional=True)}
    per_object = ("texts",)

    def entries_of(self, file: str, document: Any) -> Iterator[Entry]:
        words: dict[str, list[Any]] = {str(number): [] for number in document["imgs"]}
        for each in document["anns"].values():
            owner = words.get(str(each["image_id"]))
            if owner is None:
                self.ignored["annotations of images that are not listed"] += 1
            else:
                owner.append(each)
        for number, image in document["imgs"].items():
            yield Entry(image["file_name"], {"image": image, "words": words[str(number)]}, image.get("set"))

    def parse(self, raw: Any, sides: Sides) -> Annotation:
        found = Annotation(json=raw)
        for each in raw["words"]:
            points, text = reals(each.get("points") or each.get("mask") or ()), each.get("utf8_string")
            whole = len(points) >= 6 and len(points) % 2 == 0
            box = from_corner(*reals(each["bbox"], 4))
            found.objects.append(of_polygon(None, points, texts=text) if whole else of_box(None, box, texts=text))
        return found


class ArtSource(DocumentSource):
    """Images with words and their polygons: ``texts`` has the word of each, or null for one that cannot be read."""

    kind = "art"
    title = "ICDAR 2019 ArT or LSVT"
    signature = re.compile(rb'\A\s*\{\s*"[^"]+"\s*:\s*\[\s*\{(?=[^}]*"transcription"\s*:)(?=[^}]*"points"\s*:)')
    further: ClassVar[Mapping[str, Field]] = {"texts": Json(optional=True)}
    per_object = ("texts",)

    def entries_of(self, file: str, document: Any) -> Iterator[Entry]:
        for name, words in document.items():
            yield Entry(name if name.lower().endswith((".jpg", ".png")) else f"{name}.jpg", words)

    def parse(self, raw: Any, sides: Sides) -> Annotation:
        found = Annotation(json=raw)
        for each in raw:
            text = None if each["transcription"] == "###" else each["transcription"]
            found.objects.append(of_polygon(None, flatten(each["points"]), texts=text))
        return found


TEXTOCR = document_kind(TextOcrSource, "TextOCR and COCO-Text: a JSON file of imgs and anns")
ART = document_kind(ArtSource, "ICDAR 2019 ArT and LSVT: a JSON file of words by image")

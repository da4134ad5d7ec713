"""Scene text, one file for many images: TextOCR, COCO-Text, and ICDAR 2019 ArT and LSVT.

- TextOCR (https://textvqa.org/textocr), COCO-Text (https://bgshih.github.io/cocotext): ``imgs``, ``anns`` by id.
- ArT, LSVT (https://rrc.cvc.uab.es/?ch=14, ?ch=16): a list of words by image, ``gt_0`` for ``gt_0.jpg``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from packstore.core.fields import Field, Json
from packstore.sources.annotation_formats.documents import AnnotationEntry, DocumentSource, make_document_kind
from packstore.sources.annotation_formats.ids import check_most_match, parse_id, parse_image_id
from packstore.sources.annotation_formats.objects import (
    Annotation,
    SizeReader,
    box_from_corner,
    flatten_points,
    object_from_box,
    object_from_polygons,
    to_floats,
)


class TextOcrSource(DocumentSource):
    """Source of images with words. ``texts`` has the word in each box; boxes have no class. Further values are in
    ``json``. Words of images that are not listed are left out, and counted."""

    kind = "textocr"
    title = "TextOCR"
    signature = re.compile(
        rb'\A\s*\{.{0,2000}?"(imgs|anns)"\s*:\s*\{\s*"[^"]*"\s*:\s*\{[^{}]*"(image_id|file_name)"\s*:', re.S
    )
    further_fields: ClassVar[Mapping[str, Field]] = {"texts": Json(optional=True)}
    per_object = ("texts",)

    def read_entries(self, file: str, document: Any) -> Iterator[AnnotationEntry]:
        """Yields an entry for each image with its words. The entry's split is the image's ``set``, if it has one.
        Counts words of unlisted images as left out."""
        words: dict[int | str | None, list[Any]] = {parse_id(number): [] for number in document["imgs"]}
        unmatched = []
        for name, each in document["anns"].items():
            owner = words.get(parse_image_id(self.tree.name(file), each["image_id"], name))
            if owner is None:
                unmatched.append(each["image_id"])
            else:
                owner.append(each)
        check_most_match(self.tree.name(file), "image_id", unmatched, len(document["anns"]), words)
        self.ignored["annotations of images that are not listed"] += len(unmatched)
        for number, image in document["imgs"].items():
            own = words[parse_id(number)]
            yield AnnotationEntry(image["file_name"], {"image": image, "words": own}, image.get("set"))

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts each word to an object with the word's text, without a class. The object has the word's polygon, or
        else the word's box if the polygon is missing or invalid. ``json`` has the entries of the image and its
        words."""
        annotation = Annotation(json=raw)
        for each in raw["words"]:
            points, text = to_floats(each.get("points") or each.get("mask") or ()), each.get("utf8_string")
            is_polygon = len(points) >= 6 and len(points) % 2 == 0
            box = box_from_corner(*to_floats(each["bbox"], 4))
            annotation.objects.append(
                object_from_polygons(None, points, texts=text) if is_polygon else object_from_box(None, box, texts=text)
            )
        return annotation


class ArtSource(DocumentSource):
    """Source of images with words in polygons. ``texts`` has the word of each polygon, null if the word is
    illegible."""

    kind = "art"
    title = "ICDAR 2019 ArT or LSVT"
    signature = re.compile(rb'\A\s*\{\s*"[^"]+"\s*:\s*\[\s*\{(?=[^}]*"transcription"\s*:)(?=[^}]*"points"\s*:)')
    further_fields: ClassVar[Mapping[str, Field]] = {"texts": Json(optional=True)}
    per_object = ("texts",)

    def read_entries(self, file: str, document: Any) -> Iterator[AnnotationEntry]:
        """Yields an entry for each image with its words. A name without ``.jpg`` or ``.png`` gets ``.jpg``."""
        for name, words in document.items():
            yield AnnotationEntry(name if name.lower().endswith((".jpg", ".png")) else f"{name}.jpg", words)

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts each word to an object with its polygon and its text, without a class. The text of an illegible
        word, ``###``, is None. ``json`` has the words as they are."""
        annotation = Annotation(json=raw)
        for each in raw:
            text = None if each["transcription"] == "###" else each["transcription"]
            annotation.objects.append(object_from_polygons(None, flatten_points(each["points"]), texts=text))
        return annotation


TEXTOCR = make_document_kind(TextOcrSource, "TextOCR and COCO-Text: a JSON file of imgs and anns")
ART = make_document_kind(ArtSource, "ICDAR 2019 ArT and LSVT: a JSON file of words by image")

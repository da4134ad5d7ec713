"""Scene text of ICDAR (https://rrc.cvc.uab.es): ``gt_img_1.txt`` for ``img_1.jpg``, a line for each word.

A line is four corners (2015, 2019) or left, top, right, bottom (2013), and then the word, which may contain commas; in
2019, a language precedes the word. ``###`` is a word to ignore.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from packstore.core.fields import Field, Json
from packstore.sources.annotation_formats.objects import (
    Annotation,
    SizeReader,
    numbered_lines,
    object_from_box,
    object_from_polygons,
    to_float,
    to_floats,
)
from packstore.sources.annotation_formats.source import SidecarSource, make_sidecar_kind

_NUMBER = r"-?\d+(?:\.\d+)?"
_CORNERS = re.compile(rf"({_NUMBER}(?:,\s*{_NUMBER}){{7}}),(.*)")
_BOX = re.compile(rf"({_NUMBER}(?:(?:,\s*|\s+){_NUMBER}){{3}})(?:,\s*|\s+)(.*)")


class IcdarSource(SidecarSource):
    """Source of images with words. ``texts`` has the word in each box, null for a word to ignore. Boxes have no
    classes."""

    kind = "icdar"
    title = "ICDAR"
    folder_pairs = (
        *(("", ""), ("images", ""), ("images", "gt"), ("imgs", "annotations"), ("train_images", "train_gts")),
        *(("test_images", "test_gts"), ("imgs", "gt")),
        *(("ch4_training_images", "ch4_training_localization_transcription_gt"), ("ch4_test_images", "ch4_test_gt")),
        *(("ch4_test_images", "Challenge4_Test_Task1_GT"), ("ch4_test_images", "Challenge4_Test_Task4_GT")),
        *((f"Challenge2_{name}_Task12_Images", f"Challenge2_{name}_Task1_GT") for name in ("Training", "Test")),
    )
    patterns = ("gt_{stem}.txt", "res_{stem}.txt")
    signature = re.compile(rb"^(\xef\xbb\xbf)?\s*-?\d+(\.\d+)?([,\s]\s*-?\d+(\.\d+)?){3}")
    further_fields: ClassVar[Mapping[str, Field]] = {"texts": Json(optional=True)}
    per_object = ("texts",)

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts each line to an object without a class. The object's text is the word without quotes around it, and
        None for ``###``. ``json`` has the lines as texts. Raises :class:`ValueError` for a line of another form."""
        annotation = Annotation()
        lines = []
        for number, line in numbered_lines(raw, "utf-8-sig"):
            corners, box = _CORNERS.fullmatch(line.strip()), _BOX.fullmatch(line.strip())
            match = corners or box
            if match is None:
                raise ValueError(f"line {number} of its words is {line[:60]!r}; expected corners and a word")
            places = to_floats(re.split(r",\s*|\s+", match[1]))
            text = match[2].strip()
            quoted = len(text) > 1 and text[0] == text[-1] == '"'
            word: str | None = text[1:-1] if quoted else text
            word = None if word == "###" else word
            lines.append(line)
            if len(places) == 8:
                annotation.objects.append(object_from_polygons(None, places, texts=word))
            else:
                annotation.objects.append(object_from_box(None, [to_float(place) for place in places], texts=word))
        annotation.json = lines
        return annotation


KIND = make_sidecar_kind(IcdarSource, "ICDAR: gt_img_1.txt with words beside images, or in a folder above them")

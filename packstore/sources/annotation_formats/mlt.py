"""ICDAR MLT 2017 and 2019 (https://rrc.cvc.uab.es/?ch=15): words with corners and language.

Files are ``tr_img_00001.txt`` in ``train_gt_t13`` (2019), or ``gt_img_1.txt`` in
``ch8_training_localization_transcription_gt_v2`` (2017).
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
    object_from_polygons,
    to_floats,
)
from packstore.sources.annotation_formats.source import SidecarSource, make_sidecar_kind

_NUMBER = r"-?\d+(?:\.\d+)?"
_LINE = re.compile(rf"({_NUMBER}(?:,{_NUMBER}){{7}}),([A-Za-z]+),(.*)")


class MltSource(SidecarSource):
    """Source of images with words. ``labels`` has the language in each box. ``texts`` has the word, null for a word to
    ignore."""

    kind = "mlt"
    title = "ICDAR MLT"
    folder_pairs = (
        *((f"ImagesPart{n}", "train_gt_t13") for n in (1, 2)),
        *(("ImagesPart1", "gt"), ("images", "train_gt_t13"), ("ImagesPart2", "gt")),
        *((f"ch8_training_images_{n}", "ch8_training_localization_transcription_gt_v2") for n in range(1, 9)),
        *(
            (f"ch8_{name}_images", f"ch8_{name}_localization_transcription_gt_v2")
            for name in ("training", "validation")
        ),
    )
    patterns = ("{stem}.txt", "gt_{stem}.txt")
    signature = re.compile(rb"\A(\xef\xbb\xbf)?\s*-?\d+(\.\d+)?(,-?\d+(\.\d+)?){7},[A-Za-z]+,")
    further_fields: ClassVar[Mapping[str, Field]] = {"texts": Json(optional=True)}
    per_object = ("texts",)

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts each line to an object, with its language as class and its word as text. The text of ``###`` is
        None. ``json`` has the lines as texts. Raises :class:`ValueError` for a line of another form."""
        annotation, lines = Annotation(), []
        for number, line in numbered_lines(raw, "utf-8-sig"):
            match = _LINE.fullmatch(line.strip())
            if match is None:
                raise ValueError(
                    f"line {number} of its words is {line[:60]!r}; expected corners, a language and a word"
                )
            word = None if match[3] == "###" else match[3]
            lines.append(line)
            annotation.objects.append(object_from_polygons(match[2], to_floats(match[1].split(",")), texts=word))
        annotation.json = lines
        return annotation


KIND = make_sidecar_kind(MltSource, "ICDAR MLT: ImagesPart1 with words and languages in train_gt_t13")

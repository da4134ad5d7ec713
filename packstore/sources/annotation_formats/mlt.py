"""ICDAR MLT 2017 and 2019 (https://rrc.cvc.uab.es/?ch=15): ``tr_img_00001.txt`` in ``train_gt_t13``, corners, language,
word; in 2017 ``gt_img_1.txt`` in ``ch8_training_localization_transcription_gt_v2``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from packstore.core.fields import Field, Json
from packstore.sources.annotation_formats.objects import Annotation, Sides, full_lines, of_polygon, reals
from packstore.sources.annotation_formats.source import SidecarSource, annotated_kind

_NUMBER = r"-?\d+(?:\.\d+)?"
_LINE = re.compile(rf"({_NUMBER}(?:,{_NUMBER}){{7}}),([A-Za-z]+),(.*)")


class MltSource(SidecarSource):
    """Images with words: class is the language, ``texts`` the word of each box, or null for one to ignore."""

    kind = "mlt"
    title = "ICDAR MLT"
    folders = (
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
    further: ClassVar[Mapping[str, Field]] = {"texts": Json(optional=True)}
    per_object = ("texts",)

    def parse(self, raw: Any, sides: Sides) -> Annotation:
        found, lines = Annotation(), []
        for number, line in full_lines(raw, "utf-8-sig"):
            match = _LINE.fullmatch(line.strip())
            if match is None:
                raise ValueError(
                    f"line {number} of its words is {line[:60]!r}; expected corners, a language and a word"
                )
            word = None if match[3] == "###" else match[3]
            lines.append(line)
            found.objects.append(of_polygon(match[2], reals(match[1].split(",")), texts=word))
        found.json = lines
        return found


KIND = annotated_kind(MltSource, "ICDAR MLT: ImagesPart1 with words and languages in train_gt_t13")

"""DOTA (https://captain-whu.github.io/DOTA): ``images`` and ``labelTxt``, a line of four corners, class and difficulty
for each object. ``boxes`` are the smallest around the corners, which are in ``segmentations`` in their order.
"""

from __future__ import annotations

import re
from typing import Any

from packstore.core.fields import Labels
from packstore.sources.annotation_formats.objects import Annotation, Sides, full_lines, of_polygon, reals
from packstore.sources.annotation_formats.source import SidecarSource, annotated_kind

_HEAD = ("imagesource", "gsd")
_LINE = rb"-?\d+(\.\d+)?([ \t]+-?\d+(\.\d+)?){7}[ \t]+[^\s\d]\S*[ \t]+\d[ \t]*(\r?\n|$)"


class DotaSource(SidecarSource):
    """Images of DOTA with oriented boxes; ``difficult`` goes with them. Lines of the head are in ``json``."""

    kind = "dota"
    title = "DOTA"
    folders = (("images", "labelTxt"), ("images", "labelTxt-v1.0"), ("images", "labelTxt-v1.5"),
               ("images", "labelTxt-v2.0"), ("images", "annfiles"))  # fmt: skip
    patterns = ("{stem}.txt",)
    signature = re.compile(rb"^\s*((imagesource|gsd):[^\n]*\n\s*)*(" + _LINE + rb"|$)", re.I)
    further = {"difficult": Labels(of="boxes", optional=True)}  # noqa: RUF012 - never changed
    per_object = ("difficult",)

    def parse(self, raw: Any, sides: Sides) -> Annotation:
        found = Annotation()
        head: dict[str, str] = {}
        for number, line in full_lines(raw):
            name, colon, value = line.partition(":")
            words = line.split()
            if colon and name.lower() in _HEAD:
                head[name] = value.strip()
                continue
            if len(words) not in (9, 10):
                raise ValueError(f"line {number} of its labels has {len(words)} words, expected 9 or 10")
            difficult = int(words[9]) if len(words) > 9 else 0
            found.objects.append(of_polygon(words[8], reals(words[:8]), difficult=difficult))
        found.json = head or None
        return found


KIND = annotated_kind(DotaSource, "DOTA: images with oriented boxes in labelTxt")

"""DOTA (https://captain-whu.github.io/DOTA): ``images`` and ``labelTxt``, a line of four corners, class and difficulty
for each object. ``boxes`` are the smallest around the corners; ``segmentations`` has the corners, in their order.
"""

from __future__ import annotations

import re
from typing import Any

from packstore.core.fields import Labels
from packstore.sources.annotation_formats.objects import (
    Annotation,
    SizeReader,
    numbered_lines,
    object_from_polygons,
    to_floats,
)
from packstore.sources.annotation_formats.source import SidecarSource, make_sidecar_kind

_HEAD = ("imagesource", "gsd")
_LINE = rb"-?\d+(\.\d+)?([ \t]+-?\d+(\.\d+)?){7}[ \t]+[^\s\d]\S*[ \t]+\d[ \t]*(\r?\n|$)"


class DotaSource(SidecarSource):
    """Source of images of DOTA with oriented boxes. ``difficult`` is a flag of each box. ``json`` has the lines of the
    head."""

    kind = "dota"
    title = "DOTA"
    folder_pairs = (("images", "labelTxt"), ("images", "labelTxt-v1.0"), ("images", "labelTxt-v1.5"),
               ("images", "labelTxt-v2.0"), ("images", "annfiles"))  # fmt: skip
    patterns = ("{stem}.txt",)
    signature = re.compile(rb"^\s*((imagesource|gsd):[^\n]*\n\s*)*(" + _LINE + rb"|$)", re.I)
    further_fields = {"difficult": Labels(of="boxes", optional=True)}  # noqa: RUF012 - never changed
    per_object = ("difficult",)

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts each line of corners to an object with its class and difficulty. A missing difficulty is 0. ``json``
        has the lines of the head by name, and is None without a head. Raises :class:`ValueError` for a line of another
        form."""
        annotation = Annotation()
        head: dict[str, str] = {}
        for number, line in numbered_lines(raw):
            name, colon, value = line.partition(":")
            words = line.split()
            if colon and name.lower() in _HEAD:
                head[name] = value.strip()
                continue
            if len(words) not in (9, 10):
                raise ValueError(f"line {number} has {len(words)} words, expected 9 or 10")
            difficult = int(words[9]) if len(words) > 9 else 0
            annotation.objects.append(object_from_polygons(words[8], to_floats(words[:8]), difficult=difficult))
        annotation.json = head or None
        return annotation


KIND = make_sidecar_kind(DotaSource, "DOTA: images with oriented boxes in labelTxt")

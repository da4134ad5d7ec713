"""Label Studio (https://labelstud.io/guide/export): JSON, or JSON-MIN, of tasks with percentages of the image's sides.

Only the first annotation of a task that was not cancelled becomes columns; further ones and predictions are in
``json``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from packstore.sources.annotation_formats.documents import DocumentSource, Entry, document_kind
from packstore.sources.annotation_formats.objects import (
    Annotation,
    Sides,
    flatten,
    from_corner,
    of_box,
    of_polygon,
    real,
    turn,
)
from packstore.sources.listing import IMAGE_SUFFIXES

_VALUES = ("rectanglelabels", "polygonlabels", "ellipselabels", "keypointlabels", "brushlabels", "labels")


class LabelStudioSource(DocumentSource):
    """Images of an export's tasks; choices are ``label`` or ``tags``."""

    kind = "label_studio"
    title = "Label Studio"
    signature = re.compile(
        rb'^\s*\[\s*\{(?=.*("annotations"\s*:\s*\[|"completions"\s*:\s*\[|"annotation_id"\s*:|"annotator"\s*:))'
        rb'(?=.*("data"\s*:\s*\{|"annotation_id"\s*:|"lead_time"\s*:))', re.S)  # fmt: skip

    def entries_of(self, file: str, document: Any) -> Iterator[Entry]:
        for task in document:
            data = task.get("data", task)
            names = [value for value in data.values() if isinstance(value, str) and _is_image(value)]
            if len(names) != 1:
                raise ValueError(f"task {task.get('id')!r:.40} names {len(names)} images, expected one")
            yield Entry(_local(names[0]), task)

    def parse(self, raw: Any, sides: Sides) -> Annotation:
        found = Annotation(json=raw)
        if "data" in raw:
            made = [
                each for each in raw.get("annotations", raw.get("completions", ())) if not each.get("was_cancelled")
            ]
            for result in made[0]["result"] if made else ():
                if "value" in result:
                    self._add(found, result["value"], result, sides)
            return found
        for value in raw.values():  # JSON-MIN: the results of each control under its name
            for each in value if isinstance(value, list) else ():
                if isinstance(each, dict) and any(name in each for name in _VALUES):
                    self._add(found, each, each, sides)
        choices = raw.get("choice", raw.get("choices"))
        found.tags += [choices] if isinstance(choices, str) else (choices or {}).get("choices", [])
        return found

    def _add(self, found: Annotation, value: Any, result: Any, sides: Sides) -> None:
        found.tags += value.get("choices", [])
        named = next((name for name in _VALUES if name in value), None)
        if named is None and "x" not in value and "points" not in value:
            return  # a text, a rating, a relation
        label = value[named][0] if named is not None and value[named] else None
        if "original_width" in result and "original_height" in result:
            width, height = real(result["original_width"]) / 100, real(result["original_height"]) / 100
        else:
            width, height = (side / 100 for side in sides())
        if "points" in value:
            flat = flatten(value["points"])
            scaled = [n * (height if place % 2 else width) for place, n in enumerate(flat)]
            found.objects.append(of_polygon(label, scaled))
        elif "radiusX" in value:
            x, y, rx, ry = (real(value[name]) for name in ("x", "y", "radiusX", "radiusY"))
            box = [(x - rx) * width, (y - ry) * height, (x + rx) * width, (y + ry) * height]
            found.objects.append(of_box(label, box, real(value.get("rotation", 0))))
        elif named == "keypointlabels" or ("height" not in value and "x" in value):
            found.points.append((label, real(value["x"]) * width, real(value["y"]) * height))
        elif "x" in value:
            x, y, w, h = (real(value[name]) for name in ("x", "y", "width", "height"))
            box, degrees = from_corner(x * width, y * height, w * width, h * height), real(value.get("rotation", 0))
            turned = turn(box, degrees, (box[0], box[1])) if degrees else None  # about its left top corner
            found.objects.append(of_box(label, box) if turned is None else of_polygon(label, turned))


def _is_image(text: str) -> bool:
    return re.split(r"[?#](?!d=)", text)[0].lower().endswith(IMAGE_SUFFIXES)


def _local(name: str) -> str:
    """The name of an image without the folder of uploads, and without the eight digits before an uploaded file."""
    served = re.search(r"[?&]d=([^&]+)", name)
    return unquote(served[1], errors="surrogateescape") if served is not None else name


KIND = document_kind(LabelStudioSource, "Label Studio: an export as JSON or JSON-MIN beside the images")

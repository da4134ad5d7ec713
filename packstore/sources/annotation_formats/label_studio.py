"""Label Studio (https://labelstud.io/guide/export): JSON, or JSON-MIN, of tasks with percentages of the image's sides.

Columns have the first annotation of a task that was not cancelled; further ones and predictions are in ``json``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from packstore.sources.annotation_formats.documents import AnnotationEntry, DocumentSource, make_document_kind
from packstore.sources.annotation_formats.objects import (
    Annotation,
    SizeReader,
    box_from_corner,
    flatten_points,
    object_from_box,
    object_from_polygons,
    rotate_box,
    to_float,
)
from packstore.sources.listing import IMAGE_SUFFIXES

_VALUES = ("rectanglelabels", "polygonlabels", "ellipselabels", "keypointlabels", "brushlabels", "labels")


class LabelStudioSource(DocumentSource):
    """Source of images of an export's tasks; choices become ``label`` or ``tags``. Columns have the first annotation of
    a task that was not cancelled. Other annotations, predictions and brush masks are in ``json`` alone. Opening refuses
    a task without an image, or with several."""

    kind = "label_studio"
    title = "Label Studio"
    signature = re.compile(
        rb'^\s*\[\s*\{(?=.*("annotations"\s*:\s*\[|"completions"\s*:\s*\[|"annotation_id"\s*:|"annotator"\s*:))'
        rb'(?=.*("data"\s*:\s*\{|"annotation_id"\s*:|"lead_time"\s*:))', re.S)  # fmt: skip

    def read_entries(self, file: str, document: Any) -> Iterator[AnnotationEntry]:
        """Yields an entry for each task. Raises :class:`ValueError` for a task without an image, or with several."""
        for task in document:
            data = task.get("data", task)
            names = [value for value in data.values() if isinstance(value, str) and _is_image(value)]
            if len(names) != 1:
                raise ValueError(f"task {task.get('id')!r:.40} names {len(names)} images, expected one")
            yield AnnotationEntry(_path_from_url(names[0]), task)

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts a task: its first annotation that was not cancelled, or all results of JSON-MIN. ``json`` has the
        whole task. A task without such an annotation has no objects."""
        annotation = Annotation(json=raw)
        if "data" in raw:
            made = [
                each for each in raw.get("annotations", raw.get("completions", ())) if not each.get("was_cancelled")
            ]
            for result in made[0]["result"] if made else ():
                if "value" in result:
                    self._add_result(annotation, result["value"], result, read_size)
            return annotation
        for value in raw.values():  # JSON-MIN: the results of each control under its name
            for each in value if isinstance(value, list) else ():
                if isinstance(each, dict) and any(name in each for name in _VALUES):
                    self._add_result(annotation, each, each, read_size)
        choices = raw.get("choice", raw.get("choices"))
        annotation.tags += [choices] if isinstance(choices, str) else (choices or {}).get("choices", [])
        return annotation

    def _add_result(self, annotation: Annotation, value: Any, result: Any, read_size: SizeReader) -> None:
        """Adds the ``value`` of a result to ``annotation``.

        - Choices become tags.
        - A shape becomes an object, with the first of its labels. A rectangle is rotated about its top left corner.
        - An ellipse becomes its box, or the rotated box if it is rotated.
        - A point becomes a point.
        - Texts, ratings, relations and brush masks are skipped.

        Converts percentages to pixels by the size in ``result``, or else the image's. Raises :class:`ValueError` for a
        coordinate that is no number.
        """
        annotation.tags += value.get("choices", [])
        named = next((name for name in _VALUES if name in value), None)
        if named is None and "x" not in value and "points" not in value:
            return
        label = value[named][0] if named is not None and value[named] else None
        if "original_width" in result and "original_height" in result:
            width, height = to_float(result["original_width"]) / 100, to_float(result["original_height"]) / 100
        else:
            width, height = (side / 100 for side in read_size())
        if "points" in value:
            flat = flatten_points(value["points"])
            scaled = [n * (height if place % 2 else width) for place, n in enumerate(flat)]
            annotation.objects.append(object_from_polygons(label, scaled))
        elif "radiusX" in value:
            x, y, rx, ry = (to_float(value[name]) for name in ("x", "y", "radiusX", "radiusY"))
            box = [(x - rx) * width, (y - ry) * height, (x + rx) * width, (y + ry) * height]
            annotation.objects.append(object_from_box(label, box, to_float(value.get("rotation", 0))))
        elif named == "keypointlabels" or ("height" not in value and "x" in value):
            annotation.points.append((label, to_float(value["x"]) * width, to_float(value["y"]) * height))
        elif "x" in value:
            x, y, w, h = (to_float(value[name]) for name in ("x", "y", "width", "height"))
            box, degrees = (
                box_from_corner(x * width, y * height, w * width, h * height),
                to_float(value.get("rotation", 0)),
            )
            turned = rotate_box(box, degrees, (box[0], box[1])) if degrees else None  # about its left top corner
            annotation.objects.append(
                object_from_box(label, box) if turned is None else object_from_polygons(label, turned)
            )


def _is_image(text: str) -> bool:
    """Tells if a path or URL has the suffix of an image."""
    path = _path_from_url(text)
    return (path if path != text else re.split("[?#]", text)[0]).lower().endswith(IMAGE_SUFFIXES)


def _path_from_url(name: str) -> str:
    """Returns the image's path in a URL of Label Studio's server (``/data/local-files/?d=a.jpg``). Returns any other
    name unchanged."""
    served = re.search(r"/data/local-files/?\?(?:[^#]*&)?d=([^&#]+)", name)
    return unquote(served[1], errors="surrogateescape") if served is not None else name


KIND = make_document_kind(LabelStudioSource, "Label Studio: an export as JSON or JSON-MIN beside the images")

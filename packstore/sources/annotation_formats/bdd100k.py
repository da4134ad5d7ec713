"""BDD100K (https://doc.bdd100k.com/format.html): a JSON list of frames with labels, one file for each split.

Open lines and curved polygons (lanes, drivable areas) and attributes are in ``json`` alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from packstore.sources.annotation_formats.documents import AnnotationEntry, DocumentSource, make_document_kind
from packstore.sources.annotation_formats.objects import (
    Annotation,
    SizeReader,
    flatten_points,
    is_flagged,
    nonempty_text,
    object_from_box,
    object_from_polygons,
    object_from_run_lengths,
    to_floats,
)


class Bdd100kSource(DocumentSource):
    """Source of images with boxes, masks and polygons: BDD100K, and other data sets in Scalabel's format. Open lines,
    curves and attributes are in ``json`` alone."""

    kind = "bdd100k"
    title = "BDD100K"
    signature = re.compile(
        rb'^\s*(\[|\{\s*"frames"\s*:\s*\[)\s*\{(?=.*"name"\s*:)(?=.*"labels"\s*:)(?=.*"(box2d|poly2d|category)"\s*:)',
        re.S,
    )

    def read_entries(self, file: str, document: Any) -> Iterator[AnnotationEntry]:
        """Yields an entry for each frame: of the list, or of an object's ``frames``. Counts the object's ``config`` as
        left out."""
        self.ignored["values 'config' of files of annotations"] += isinstance(document, dict) and "config" in document
        for frame in document["frames"] if isinstance(document, dict) else document:
            yield AnnotationEntry(frame["name"], frame)

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts each label to an object. Uses its box, else its run lengths, else its closed polygons. An object
        with run lengths has the box of the whole image. ``json`` has the whole frame. Only ``json`` has open lines and
        curves. The attributes ``crowd`` and ``ignored`` mark crowds."""
        annotation = Annotation(json=raw)
        for each in raw.get("labels") or ():
            label = nonempty_text(each["category"])
            crowd = is_flagged(each.get("attributes"), "crowd", "iscrowd", "ignore", "ignored")
            if each.get("box2d"):
                box = to_floats(each["box2d"][name] for name in ("x1", "y1", "x2", "y2"))
                annotation.objects.append(object_from_box(label, box, crowd=crowd))
            elif each.get("rle"):
                runs = each["rle"]
                annotation.objects.append(
                    object_from_run_lengths(label, runs["size"], runs["counts"], [0, 0, *reversed(runs["size"])], crowd)
                )
            elif each.get("poly2d"):
                shapes = [shape for shape in each["poly2d"] if shape.get("closed", True)]
                if shapes and all(set(shape.get("types", "L")) <= {"L"} for shape in shapes):
                    polygons = (flatten_points(shape["vertices"]) for shape in shapes)
                    annotation.objects.append(object_from_polygons(label, *polygons, crowd=crowd))
        return annotation


KIND = make_document_kind(Bdd100kSource, "BDD100K: a JSON list of frames with labels")

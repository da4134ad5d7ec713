"""BDD100K (https://doc.bdd100k.com/format.html): a JSON list of frames with labels, one file for each split.

Lanes and drivable areas that are no closed polygon, and attributes, are in ``json``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from packstore.sources.annotation_formats.documents import DocumentSource, Entry, document_kind
from packstore.sources.annotation_formats.objects import (
    Annotation,
    Sides,
    flatten,
    of_box,
    of_polygon,
    of_runs,
    reals,
    text_or_none,
)


class Bdd100kSource(DocumentSource):
    """Images of BDD100K, and of what else Scalabel writes; attributes of the image are in ``json``."""

    kind = "bdd100k"
    title = "BDD100K"
    signature = re.compile(
        rb'^\s*(\[|\{\s*"frames"\s*:\s*\[)\s*\{(?=.*"name"\s*:)(?=.*"labels"\s*:)(?=.*"(box2d|poly2d|category)"\s*:)',
        re.S,
    )

    def entries_of(self, file: str, document: Any) -> Iterator[Entry]:
        self.ignored["values 'config' of files of annotations"] += isinstance(document, dict) and "config" in document
        for frame in document["frames"] if isinstance(document, dict) else document:
            yield Entry(frame["name"], frame)

    def parse(self, raw: Any, sides: Sides) -> Annotation:
        found = Annotation(json=raw)
        for each in raw.get("labels") or ():
            label = text_or_none(each["category"])
            if each.get("box2d"):
                found.objects.append(of_box(label, reals(each["box2d"][name] for name in ("x1", "y1", "x2", "y2"))))
            elif each.get("rle"):
                runs = each["rle"]
                found.objects.append(of_runs(label, runs["size"], runs["counts"], [0, 0, *reversed(runs["size"])]))
            elif each.get("poly2d"):
                shapes = [shape for shape in each["poly2d"] if shape.get("closed", True)]
                if shapes and all(set(shape.get("types", "L")) <= {"L"} for shape in shapes):
                    found.objects.append(of_polygon(label, *(flatten(shape["vertices"]) for shape in shapes)))
        return found


KIND = document_kind(Bdd100kSource, "BDD100K: a JSON list of frames with labels")

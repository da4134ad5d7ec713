"""Datumaro (https://open-edge-platform.github.io/datumaro): ``annotations/train.json`` with ``images/train``.

Classes are in the order of the file. Masks are run lengths as in COCO.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from packstore.sources.annotation_formats.columns import AnnotationColumns
from packstore.sources.annotation_formats.documents import AnnotationEntry, DocumentSource, make_document_kind
from packstore.sources.annotation_formats.objects import (
    Annotation,
    SizeReader,
    bounding_box,
    box_from_centre,
    box_from_corner,
    is_flagged,
    object_from_box,
    object_from_polygons,
    object_from_run_lengths,
    to_floats,
)


class DatumaroFormat(AnnotationColumns):
    """Parser of Datumaro's JSON, from a file or from the library."""

    title = "Datumaro"
    ignored: Counter[str]

    def read_entries(self, file: str, document: Any) -> Iterator[AnnotationEntry]:
        """Yields an entry for each item. The split is the name of the file, but none for ``default``. An item without a
        path has the file name ``ID.jpg``.

        Adds the file's classes to the listed ones. Counts other parts of the file's head as left out.
        """
        labels = [each["name"] for each in (document["categories"].get("label") or {}).get("labels", ())]
        self.add_listed_classes(labels)
        self.ignored["values 'info' of files of annotations"] += bool(document.get("info"))
        further = [name for name in document["categories"] if name != "label"]
        self.ignored.update(f"values {name!r:.40} of categories" for name in further)
        split = file.rpartition("/")[2].rpartition(".")[0]
        for item in document["items"]:
            media = item.get("image") or item.get("media") or {}
            name = media.get("path") or f"{item['id']}.jpg"
            yield AnnotationEntry(name, {"item": item, "labels": labels}, "" if split == "default" else split)

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts labels to tags, shapes with an area to objects, and points and lines to points.

        - An ellipse becomes its box.
        - A mask without a box gets the whole image as its box.
        - An object with the attribute ``is_crowd`` is a crowd.
        - Other annotations are in ``json`` alone, which has the whole item.

        Raises :class:`ValueError` for points or lines without coordinates, or with an odd number of them.
        """
        annotation = Annotation(json=raw["item"])
        for each in raw["item"]["annotations"]:
            number, kind = each.get("label_id"), each["type"]
            label = None if number is None else raw["labels"][number] if number >= 0 else None
            crowd = is_flagged(each.get("attributes"), "is_crowd")
            if kind == "label":
                annotation.tags += [] if label is None else [label]
            elif kind == "bbox":
                annotation.objects.append(object_from_box(label, box_from_corner(*each["bbox"]), crowd=crowd))
            elif kind == "rotated_bbox":
                box = box_from_centre(*(each["rbox"][:4] if "rbox" in each else each["bbox"][:4]))
                degrees = float((each.get("rbox") or each["bbox"])[4])
                annotation.objects.append(object_from_box(label, box, degrees, crowd))
            elif kind == "polygon":
                annotation.objects.append(object_from_polygons(label, to_floats(each["points"]), crowd=crowd))
            elif kind == "ellipse":
                annotation.objects.append(object_from_box(label, to_floats(each["points"], 4), crowd=crowd))
            elif kind == "mask":
                runs = each["rle"]
                box = box_from_corner(*each["bbox"]) if each.get("bbox") else [0, 0, runs["size"][1], runs["size"][0]]
                annotation.objects.append(object_from_run_lengths(label, runs["size"], runs["counts"], box, crowd))
            elif kind in ("points", "polyline"):
                flat = to_floats(each["points"])
                bounding_box(flat)  # raises for none, and for an odd number
                annotation.add_points(label, flat)
        return annotation


class DatumaroSource(DatumaroFormat, DocumentSource):
    """Source of images of a Datumaro data set; each file of annotations is a split."""

    kind = "datumaro"
    signature = re.compile(rb'^\s*\{(?=.*"(items|categories|dm_format_version|media_type)"\s*:).*'
                           rb'("categories"\s*:\s*\{|"dm_format_version"\s*:)', re.S)  # fmt: skip


KIND = make_document_kind(DatumaroSource, "Datumaro: annotations/*.json with images")

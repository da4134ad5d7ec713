"""Datumaro (https://open-edge-platform.github.io/datumaro): ``annotations/train.json`` with ``images/train``.

Classes have the order of the file. Masks are run lengths as COCO has them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from packstore.sources.annotation_formats.columns import AnnotationColumns
from packstore.sources.annotation_formats.documents import DocumentSource, Entry, document_kind
from packstore.sources.annotation_formats.objects import (
    Annotation,
    Sides,
    box_around,
    from_centre,
    from_corner,
    of_box,
    of_polygon,
    of_runs,
    reals,
)


class DatumaroFormat(AnnotationColumns):
    """Datumaro's JSON, wherever it comes from."""

    title = "Datumaro"
    ignored: Counter[str]

    def entries_of(self, file: str, document: Any) -> Iterator[Entry]:
        """What a file says of each image, as :meth:`DocumentSource.entries_of`."""
        labels = [each["name"] for each in (document["categories"].get("label") or {}).get("labels", ())]
        self._listed = (*getattr(self, "_listed", ()), *labels)
        self.ignored["values 'info' of files of annotations"] += bool(document.get("info"))
        further = [name for name in document["categories"] if name != "label"]
        self.ignored.update(f"values {name!r:.40} of categories" for name in further)
        split = file.rpartition("/")[2].rpartition(".")[0]
        for item in document["items"]:
            media = item.get("image") or item.get("media") or {}
            name = media.get("path") or f"{item['id']}.jpg"
            yield Entry(name, {"item": item, "labels": labels}, "" if split == "default" else split)

    def class_order(self) -> Sequence[str]:
        return self._listed

    def parse(self, raw: Any, sides: Sides) -> Annotation:
        found = Annotation(json=raw["item"])
        for each in raw["item"]["annotations"]:
            number, kind = each.get("label_id"), each["type"]
            label = None if number is None else raw["labels"][number] if number >= 0 else None
            if kind == "label":
                found.tags += [] if label is None else [label]
            elif kind == "bbox":
                found.objects.append(of_box(label, from_corner(*each["bbox"])))
            elif kind == "rotated_bbox":
                box = from_centre(*(each["rbox"][:4] if "rbox" in each else each["bbox"][:4]))
                found.objects.append(of_box(label, box, float((each.get("rbox") or each["bbox"])[4])))
            elif kind == "polygon":
                found.objects.append(of_polygon(label, reals(each["points"])))
            elif kind == "ellipse":
                found.objects.append(of_box(label, reals(each["points"], 4)))
            elif kind == "mask":
                runs = each["rle"]
                box = from_corner(*each["bbox"]) if each.get("bbox") else [0, 0, runs["size"][1], runs["size"][0]]
                found.objects.append(of_runs(label, runs["size"], runs["counts"], box))
            elif kind in ("points", "polyline"):
                flat = reals(each["points"])
                box_around(flat)  # pairs
                found.points += [(label, x, y) for x, y in zip(flat[::2], flat[1::2], strict=True)]
        return found


class DatumaroSource(DatumaroFormat, DocumentSource):
    """Images of a data set of Datumaro, a split for each file of annotations."""

    kind = "datumaro"
    signature = re.compile(rb'^\s*\{(?=.*"(items|categories|dm_format_version|media_type)"\s*:).*'
                           rb'("categories"\s*:\s*\{|"dm_format_version"\s*:)', re.S)  # fmt: skip


KIND = document_kind(DatumaroSource, "Datumaro: annotations/*.json with images")

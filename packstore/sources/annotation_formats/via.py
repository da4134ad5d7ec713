"""VGG Image Annotator (https://www.robots.ox.ac.uk/~vgg/software/via/): regions in pixels, as JSON or as CSV.

Projects and exports of VIA 1 and 2, and projects of VIA 3, whose regions of images become those of VIA 2. A region's
class is its attribute of the project's only kind that is a list, or one called like a class, or its only one; all
attributes are in ``json``.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from typing import Any

from packstore.sources.annotation_formats.documents import DocumentSource, Entry, document_kind
from packstore.sources.annotation_formats.objects import (
    Annotation,
    Sides,
    from_corner,
    load_json,
    of_box,
    of_polygon,
    real,
    reals,
)
from packstore.sources.annotation_formats.via3 import as_via2

_METADATA, _PROJECT = "_via_img_metadata", ("_via_settings", "_via_attributes", "_via_data_format_version",
                                            "_via_image_id_list")  # fmt: skip
_NAMES = re.compile(r"(class|label|type|name|category|object)(_?(name|type|class|label))?", re.I)


_HEAD = ("filename", "file_size", "file_attributes", "region_count", "region_id", "region_shape_attributes",
         "region_attributes")  # fmt: skip


class ViaSource(DocumentSource):
    """Images that a project or an export of VIA names; points and polylines are ``keypoints``."""

    kind = "via"
    title = "VIA"
    names = re.compile(r".*\.(json|csv)", re.I)
    signature = re.compile(
        rb'\A"?#?filename"?,"?file_size"?,|\A\s*\{\s*"project"\s*:\s*\{[^{}]*"(pid|creator)"\s*:|'
        rb'"_via_img_metadata"\s*:|"_via_settings"\s*:|^\s*\{\s*"[^"]+"\s*:\s*\{(?=[^{]*"(size|fileref)"\s*:)[^{]*"filename"\s*:'
    )

    def load(self, data: bytes) -> Any:
        start = data.removeprefix(b"\xef\xbb\xbf").lstrip()
        return load_json(data) if start[:1] in (b"{", b"[", b"") else _read_csv(data.decode("utf-8-sig"))

    def entries_of(self, file: str, document: Any) -> Iterator[Entry]:
        for name in _PROJECT:
            self.ignored[f"values {name!r} of files of annotations"] += name in document
        if "project" in document:
            self.ignored["values 'project' and 'config' of files of annotations"] += 1
        for entry in (
            as_via2(document, self.ignored) if "project" in document else document.get(_METADATA, document).values()
        ):
            yield Entry(entry["filename"], entry)

    def parse(self, raw: Any, sides: Sides) -> Annotation:
        found = Annotation(json=raw)
        regions = raw["regions"]
        for region in regions.values() if isinstance(regions, dict) else regions:
            shape, label = region["shape_attributes"], _label(region.get("region_attributes") or {})
            kind = shape["name"]
            if kind == "rect":
                box = from_corner(*(shape[name] for name in ("x", "y", "width", "height")))
                found.objects.append(of_box(label, box))
            elif kind in ("circle", "ellipse"):
                x, y = reals((shape["cx"], shape["cy"]))
                rx, ry = reals((shape.get("rx", shape.get("r")), shape.get("ry", shape.get("r"))))
                found.objects.append(of_box(label, [x - rx, y - ry, x + rx, y + ry]))
            elif kind == "point":
                found.points.append((label, real(shape["cx"]), real(shape["cy"])))
            else:
                xs, ys = reals(shape["all_points_x"]), reals(shape["all_points_y"])
                pairs = list(zip(xs, ys, strict=True))
                if kind == "polyline":
                    found.points += [(label, x, y) for x, y in pairs]
                else:
                    found.objects.append(of_polygon(label, [number for pair in pairs for number in pair]))
        return found


def _read_csv(text: str) -> dict[str, Any]:
    """An export as CSV, a line a region, as one of JSON. Raises :class:`ValueError`."""
    try:
        head, *lines = [line for line in csv.reader(io.StringIO(text, newline="")) if line and "".join(line).strip()]
    except csv.Error as error:
        raise ValueError(str(error)) from None
    if tuple(name.strip().lstrip("#") for name in head) != _HEAD:
        raise ValueError(f"its header is {','.join(head)[:80]}; expected {','.join(_HEAD)}")
    found: dict[str, Any] = {}
    for number, line in enumerate(lines, 2):
        if len(line) != len(_HEAD):
            raise ValueError(f"region {number - 1} has {len(line)} fields, expected {len(_HEAD)}")
        name, size, attributes, _, _, shape, own = line
        entry = {
            "filename": name,
            "size": size,
            "regions": [],
            "file_attributes": load_json(attributes.encode() or b"{}"),
        }
        entry = found.setdefault(name, entry)
        shape_attributes = load_json(shape.encode() or b"{}")
        if shape_attributes:
            region = {"shape_attributes": shape_attributes, "region_attributes": load_json(own.encode() or b"{}")}
            entry["regions"].append(region)
    return found


def _label(attributes: dict[str, Any]) -> str | None:
    """The class among the attributes of a region; a check box counts by what is checked, if that is one."""
    texts: dict[str, str] = {}
    for name, value in attributes.items():
        chosen = [key for key, on in value.items() if on] if isinstance(value, dict) else [value]
        if len(chosen) == 1 and isinstance(chosen[0], str) and chosen[0].strip():
            texts[name] = chosen[0].strip()
    named = [value for name, value in texts.items() if _NAMES.fullmatch(name.strip())]
    return named[0] if named else next(iter(texts.values())) if len(texts) == 1 else None


KIND = document_kind(ViaSource, "VIA: a JSON file of the VGG Image Annotator beside the images")

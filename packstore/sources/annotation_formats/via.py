"""VGG Image Annotator (https://www.robots.ox.ac.uk/~vgg/software/via/): regions in pixels, as JSON or as CSV.

Projects and exports of VIA 1 and 2, and projects of VIA 3, which are converted to the structure of VIA 2. The class of
a region is its attribute with a name such as ``class`` or ``label``, or else its only attribute. All attributes are in
``json``.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from typing import Any

from packstore.sources.annotation_formats.documents import AnnotationEntry, DocumentSource, make_document_kind
from packstore.sources.annotation_formats.objects import (
    Annotation,
    SizeReader,
    box_from_corner,
    object_from_box,
    object_from_polygons,
    parse_json,
    to_float,
    to_floats,
)
from packstore.sources.annotation_formats.via3 import convert_to_via2

_METADATA, _PROJECT = "_via_img_metadata", ("_via_settings", "_via_attributes", "_via_data_format_version",
                                            "_via_image_id_list")  # fmt: skip
_NAMES = re.compile(r"(class|label|type|name|category|object)(_?(name|type|class|label))?", re.I)


_HEAD = ("filename", "file_size", "file_attributes", "region_count", "region_id", "region_shape_attributes",
         "region_attributes")  # fmt: skip


class ViaSource(DocumentSource):
    """Source of images of a VIA project or export. Points and polylines become ``keypoints``; circles and ellipses
    become boxes. All attributes are in ``json``."""

    kind = "via"
    title = "VIA"
    name_pattern = re.compile(r".*\.(json|csv)", re.I)
    signature = re.compile(
        rb'\A"?#?filename"?,"?file_size"?,|\A\s*\{\s*"project"\s*:\s*\{[^{}]*"(pid|creator)"\s*:|'
        rb'"_via_img_metadata"\s*:|"_via_settings"\s*:|^\s*\{\s*"[^"]+"\s*:\s*\{(?=[^{]*"(size|fileref)"\s*:)[^{]*"filename"\s*:'
    )

    def parse_document(self, data: bytes) -> Any:
        """Parses JSON, or else CSV, which gets the structure of a JSON export. Raises :class:`ValueError` for invalid
        content."""
        start = data.removeprefix(b"\xef\xbb\xbf").lstrip()
        return parse_json(data) if start[:1] in (b"{", b"[", b"") else _read_csv(data.decode("utf-8-sig"))

    def read_entries(self, file: str, document: Any) -> Iterator[AnnotationEntry]:
        """Yields an entry for each image. Projects of VIA 3 get the structure of VIA 2. Counts settings of a project as
        left out."""
        for name in _PROJECT:
            self.ignored[f"values {name!r} of files of annotations"] += name in document
        if "project" in document:
            self.ignored["values 'project' and 'config' of files of annotations"] += 1
        for entry in (
            convert_to_via2(document, self.ignored)
            if "project" in document
            else document.get(_METADATA, document).values()
        ):
            yield AnnotationEntry(entry["filename"], entry)

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts the regions of an image; ``json`` has the image's entry. Raises :class:`ValueError` for a coordinate
        that is no number.

        - Rectangles and polygons become objects. A shape of an unknown name is taken for a polygon.
        - Circles and ellipses become their boxes.
        - Points and polylines become points.
        """
        annotation = Annotation(json=raw)
        regions = raw["regions"]
        for region in regions.values() if isinstance(regions, dict) else regions:
            shape, label = region["shape_attributes"], _find_class(region.get("region_attributes") or {})
            kind = shape["name"]
            if kind == "rect":
                box = box_from_corner(*(shape[name] for name in ("x", "y", "width", "height")))
                annotation.objects.append(object_from_box(label, box))
            elif kind in ("circle", "ellipse"):
                x, y = to_floats((shape["cx"], shape["cy"]))
                rx, ry = to_floats((shape.get("rx", shape.get("r")), shape.get("ry", shape.get("r"))))
                annotation.objects.append(object_from_box(label, [x - rx, y - ry, x + rx, y + ry]))
            elif kind == "point":
                annotation.points.append((label, to_float(shape["cx"]), to_float(shape["cy"])))
            else:
                xs, ys = to_floats(shape["all_points_x"]), to_floats(shape["all_points_y"])
                pairs = list(zip(xs, ys, strict=True))
                if kind == "polyline":
                    annotation.points += [(label, x, y) for x, y in pairs]
                else:
                    annotation.objects.append(
                        object_from_polygons(label, [number for pair in pairs for number in pair])
                    )
        return annotation


def _read_csv(text: str) -> dict[str, Any]:
    """Parses a CSV export to the structure of a JSON export. Each line is a region, or an image without regions, which
    gets an empty list. Raises :class:`ValueError` for another header, a line of another length, and invalid JSON in a
    field."""
    try:
        head, *lines = [line for line in csv.reader(io.StringIO(text, newline="")) if line and "".join(line).strip()]
    except csv.Error as error:
        raise ValueError(str(error)) from None
    if tuple(name.strip().lstrip("#") for name in head) != _HEAD:
        raise ValueError(f"its header is {','.join(head)[:80]}; expected {','.join(_HEAD)}")
    entries: dict[str, Any] = {}
    for number, line in enumerate(lines, 2):
        if len(line) != len(_HEAD):
            raise ValueError(f"region {number - 1} has {len(line)} fields, expected {len(_HEAD)}")
        name, size, attributes, _, _, shape, own = line
        entry = {
            "filename": name,
            "size": size,
            "regions": [],
            "file_attributes": parse_json(attributes.encode() or b"{}"),
        }
        entry = entries.setdefault(name, entry)
        shape_attributes = parse_json(shape.encode() or b"{}")
        if shape_attributes:
            region = {"shape_attributes": shape_attributes, "region_attributes": parse_json(own.encode() or b"{}")}
            entry["regions"].append(region)
    return entries


def _find_class(attributes: dict[str, Any]) -> str | None:
    """Returns the class of a region: an attribute with a name such as ``class``, or else the only attribute. Of several
    such names, takes the first. Returns None if there is no such attribute.

    An attribute counts if it is a text, or check boxes of which one is checked.
    """
    texts: dict[str, str] = {}
    for name, value in attributes.items():
        chosen = [key for key, on in value.items() if on] if isinstance(value, dict) else [value]
        if len(chosen) == 1 and isinstance(chosen[0], str) and chosen[0].strip():
            texts[name] = chosen[0].strip()
    named = [value for name, value in texts.items() if _NAMES.fullmatch(name.strip())]
    return named[0] if named else next(iter(texts.values())) if len(texts) == 1 else None


KIND = make_document_kind(ViaSource, "VIA: a JSON file of the VGG Image Annotator beside the images")

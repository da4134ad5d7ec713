"""VGG Image Annotator 1 and 2 (https://www.robots.ox.ac.uk/~vgg/software/via/): a JSON file of regions in pixels.

A region's class is its attribute of the project's only kind that is a list, or one called like a class, or its only
one; all attributes are in ``json``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from packstore.sources.annotation_formats.documents import DocumentSource, Entry, document_kind
from packstore.sources.annotation_formats.objects import Annotation, Sides, from_corner, of_box, of_polygon, real, reals

_METADATA, _PROJECT = "_via_img_metadata", ("_via_settings", "_via_attributes", "_via_data_format_version",
                                            "_via_image_id_list")  # fmt: skip
_NAMES = re.compile(r"(class|label|type|name|category|object)(_?(name|type|class|label))?", re.I)


class ViaSource(DocumentSource):
    """Images that a project or an export of VIA names; points and polylines are ``keypoints``."""

    kind = "via"
    title = "VIA"
    signature = re.compile(
        rb'"_via_img_metadata"\s*:|"_via_settings"\s*:|^\s*\{\s*"[^"]+"\s*:\s*\{(?=[^{]*"(size|fileref)"\s*:)[^{]*"filename"\s*:'
    )

    def entries_of(self, file: str, document: Any) -> Iterator[Entry]:
        """See :meth:`DocumentSource.entries_of`."""
        for name in _PROJECT:
            self.ignored[f"values {name!r} of files of annotations"] += name in document
        for entry in document.get(_METADATA, document).values():
            yield Entry(entry["filename"], entry)

    def parse(self, raw: Any, sides: Sides) -> Annotation:
        """See :meth:`AnnotatedSource.parse`."""
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

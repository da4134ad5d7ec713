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

from packstore.sources.annotation_formats import shapes
from packstore.sources.annotation_formats.documents import document
from packstore.sources.annotation_formats.parsing import get_floats, parse_id, parse_json, to_floats
from packstore.sources.annotation_formats.shapes import Document, Listed, Parts, Picture, Point

_PROJECT = ("_via_settings", "_via_attributes", "_via_data_format_version", "_via_image_id_list")
_NAMES = re.compile(r"(class|label|type|name|category|object)(_?(name|type|class|label))?", re.I)
_HEAD = (
    *("filename", "file_size", "file_attributes", "region_count", "region_id", "region_shape_attributes"),
    "region_attributes",
)
_VIA3_SHAPES: dict[int, tuple[str, ...]] = {
    1: ("point", "cx", "cy"),
    2: ("rect", "x", "y", "width", "height"),
    3: ("circle", "cx", "cy", "r"),
    4: ("ellipse", "cx", "cy", "rx", "ry"),
    5: ("polyline",),
    6: ("polyline",),
    7: ("polygon",),
}
"""Shapes of VIA 3 by number: their names in VIA 2, and the names of the coordinates that follow."""


def _parse_via(data: bytes) -> Any:
    """Parses JSON, or else CSV, which gets the structure of a JSON export. Raises :class:`ValueError` for invalid
    content."""
    start = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    return parse_json(data) if start[:1] in (b"{", b"[", b"") else _parse_csv(data.decode("utf-8-sig"))


def _parse_csv(text: str) -> dict[str, Any]:
    """Parses a CSV export. Each line is a region, or an image without regions, which gets an empty list. Raises
    :class:`ValueError` for another header, a line of another length, and invalid JSON in a field."""
    try:
        head, *lines = [line for line in csv.reader(io.StringIO(text, newline="")) if line and "".join(line).strip()]
    except csv.Error as error:
        raise ValueError(str(error)) from None
    if tuple(name.strip().lstrip("#") for name in head) != _HEAD:
        raise ValueError(f"its header is {','.join(head)[:80]}; expected {','.join(_HEAD)}")
    images: dict[str, Any] = {}
    for number, line in enumerate(lines, 1):
        if len(line) != len(_HEAD):
            raise ValueError(f"region {number} has {len(line)} fields, expected {len(_HEAD)}")
        name, size, _, _, _, _, _ = line
        attributes, shape, own = (parse_json(line[place].encode() or b"{}") for place in (2, 5, 6))
        image = {"filename": name, "size": size, "regions": [], "file_attributes": attributes}
        if shape:
            images.setdefault(name, image)["regions"].append({"shape_attributes": shape, "region_attributes": own})
        images.setdefault(name, image)
    return images


def _list_via(file: Document) -> Iterator[Listed]:
    """Lists the images; counts settings of a project as left out."""
    content = file.content
    file.leave_values(name for name in _PROJECT if name in content)
    if "project" in content:
        file.leave("values 'project' and 'config' of files of annotations")
        yield from _list_via3(file)
        return
    for image in content.get("_via_img_metadata", content).values():
        yield Listed(image["filename"], image)


def _list_via3(file: Document) -> Iterator[Listed]:
    """Lists the images of a VIA 3 project, with regions in the structure of VIA 2. Metadata without a shape give no
    region. Views of videos, sounds and several images are left out."""
    content = file.content
    attributes = content["attribute"]
    by_view: dict[int | str | None, list[Any]] = {}
    for metadata in content["metadata"].values():
        by_view.setdefault(parse_id(metadata["vid"]), []).append(metadata)
    for view, each in content["view"].items():
        files = [content["file"][str(parse_id(number))] for number in each["fid_list"]]
        if len(files) != 1 or files[0].get("type", 2) != 2:
            file.leave("views of videos, sounds or several images")
            continue
        own, regions = by_view.get(parse_id(view), []), []
        for metadata in own:
            values = {
                attributes[number]["aname"]: (attributes[number].get("options") or {}).get(value, value)
                for number, value in metadata["av"].items()
            }
            if metadata["xy"]:
                regions.append({"shape_attributes": _convert_shape(metadata["xy"]), "region_attributes": values})
        image = {"filename": files[0]["fname"], "file": files[0], "metadata": own, "regions": regions}
        yield Listed(files[0]["fname"], image)


def _convert_shape(numbers: Any) -> dict[str, Any]:
    """Converts a shape of VIA 3, its number and coordinates, to named values of VIA 2. Raises :class:`KeyError` for an
    unknown number, and :class:`ValueError` for a wrong number of coordinates."""
    kind, *values = numbers
    name, *keys = _VIA3_SHAPES[kind]
    named = (
        dict(zip(keys, values, strict=True)) if keys else {"all_points_x": values[::2], "all_points_y": values[1::2]}
    )
    return {"name": name, **named}


@document(
    "VIA: a JSON file of the VGG Image Annotator beside the images",
    _list_via,
    suffixes=(".json", ".csv"),
    parse=_parse_via,
    signature=rb'\A"?#?filename"?,"?file_size"?,|\A\s*\{\s*"project"\s*:\s*\{[^{}]*"(pid|creator)"\s*:|'
    rb'"_via_img_metadata"\s*:|"_via_settings"\s*:|\A\s*\{\s*"[^"]+"\s*:\s*\{(?=[^{]*"(size|fileref)"\s*:)[^{]*"filename"\s*:',
)
def via(image: Any, _: Picture) -> Parts:
    """Rectangles and polygons are objects, as is a shape of an unknown name. Circles and ellipses have their boxes.
    Points and polylines are points."""
    regions = image["regions"]
    for region in regions.values() if isinstance(regions, dict) else regions:
        shape, label = region["shape_attributes"], _find_class(region.get("region_attributes") or {})
        if shape["name"] == "rect":
            yield shapes.box(label, shapes.box_from_corner(*get_floats(shape, "x", "y", "width", "height")))
        elif shape["name"] in ("circle", "ellipse"):
            radii = to_floats(shape.get(name, shape.get("r")) for name in ("rx", "ry"))
            yield shapes.box(label, shapes.box_from_radii(*get_floats(shape, "cx", "cy"), *radii))
        elif shape["name"] == "point":
            yield Point(label, *get_floats(shape, "cx", "cy"))
        else:
            pairs = zip(to_floats(shape["all_points_x"]), to_floats(shape["all_points_y"]), strict=True)
            flat = [number for pair in pairs for number in pair]
            yield from shapes.points(label, flat) if shape["name"] == "polyline" else [shapes.polygon(label, flat)]


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

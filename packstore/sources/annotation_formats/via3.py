"""Converts projects of VIA 3 (https://www.robots.ox.ac.uk/~vgg/software/via/) to the structure of VIA 2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from packstore.sources.annotation_formats.ids import parse_id

_SHAPES: dict[int, tuple[str, ...]] = {
    1: ("point", "cx", "cy"),
    2: ("rect", "x", "y", "width", "height"),
    3: ("circle", "cx", "cy", "r"),
    4: ("ellipse", "cx", "cy", "rx", "ry"),
    5: ("polyline",),
    6: ("polyline",),
    7: ("polygon",),
}
"""Shapes of VIA 3 by number: their names in VIA 2, and the names of the coordinates that follow."""
_IMAGE = 2


def convert_to_via2(document: Any, ignored: Counter[str]) -> Iterator[Any]:
    """Yields the images of a VIA 3 project, with regions in the structure of VIA 2. ``file`` and ``metadata`` of an
    image keep the content of the project. Metadata without a shape give no region. Views of videos, sounds and several
    images are left out, and counted in ``ignored``."""
    names = {number: each["aname"] for number, each in document["attribute"].items()}
    options = {number: each.get("options") or {} for number, each in document["attribute"].items()}
    by_view: dict[int | str | None, list[Any]] = {}
    for metadata in document["metadata"].values():
        by_view.setdefault(parse_id(metadata["vid"]), []).append(metadata)
    for view, each in document["view"].items():
        files = [document["file"][str(parse_id(number))] for number in each["fid_list"]]
        if len(files) != 1 or files[0].get("type", _IMAGE) != _IMAGE:
            ignored["views of videos, sounds or several images"] += 1
            continue
        own = by_view.get(parse_id(view), [])
        regions = []
        for metadata in own:
            values = {names[number]: options[number].get(value, value) for number, value in metadata["av"].items()}
            if metadata["xy"]:
                regions.append({"shape_attributes": _convert_shape(metadata["xy"]), "region_attributes": values})
        yield {"filename": files[0]["fname"], "file": files[0], "metadata": own, "regions": regions}


def _convert_shape(numbers: Any) -> dict[str, Any]:
    """Converts a shape, its number and coordinates, to named values of VIA 2. Raises :class:`KeyError` for an unknown
    number, and :class:`ValueError` for a wrong number of coordinates."""
    kind, *values = numbers
    name, *keys = _SHAPES[kind]
    if keys:
        return {"name": name, **dict(zip(keys, values, strict=True))}
    return {"name": name, "all_points_x": values[::2], "all_points_y": values[1::2]}

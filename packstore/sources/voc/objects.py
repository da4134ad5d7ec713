"""What an XML file of Pascal VOC says of an image.

Boxes in its files count pixels from 1, and both corners belong to the object. Here the left edge of the first pixel is
0, so a box is ``(xmin - 1, ymin - 1, xmax, ymax)``: it covers the same pixels, and its width is their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from packstore.core.errors import SourceError, printable
from packstore.core.fields import Boxes, Field, Image, Json, Labels
from packstore.core.plainxml import load_xml
from packstore.sources.beside import parse_finite, read_whole
from packstore.sources.tree import Tree

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
"""The classes of Pascal VOC, numbered as in its development kit, from 0."""
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_MAX_CLASSES = 1 << 16


def annotation_fields(classes: Sequence[str]) -> dict[str, Field]:
    """The declarations of an image with the values of :func:`objects_of`."""
    return {
        "image": Image(),
        "boxes": Boxes(optional=True),
        "labels": Labels(classes, of="boxes", optional=True),
        "difficult": Labels(of="boxes", optional=True),
        "json": Json(optional=True),
    }


def class_list(tree: Tree, files: Iterable[str]) -> tuple[str, ...]:
    """The classes of annotations: those of Pascal VOC where all objects are of these; else their names, sorted. Raises
    :class:`SourceError` where there are too many."""
    found: set[str] = set()
    for file in files:
        try:
            document = load_xml(read_whole(tree, file))[1]
            found.update(name for name in map(_name, _list(document["object"])))
        except (SourceError, ValueError, KeyError, TypeError):
            continue  # it is missing, or a bad sample when its turn comes
        if len(found) > _MAX_CLASSES:
            raise SourceError(f"{tree.name()}: its annotations name more than {_MAX_CLASSES} classes")
    return CLASSES if found <= set(CLASSES) else tuple(sorted(found))


def objects_of(data: bytes) -> dict[str, Any]:
    """Boxes, labels and the whole of an annotation. Raises :class:`ValueError`."""
    root, document = load_xml(data)
    document = {} if document == "" else document  # <annotation/>: an image without objects
    if root != "annotation" or not isinstance(document, dict):
        raise ValueError(f"its annotation has the root {printable(root)!r} without content; expected 'annotation'")
    document["object"] = objects = _list(document.get("object", []))
    return {
        "boxes": [box_of(each) for each in objects],
        "labels": [_name(each) for each in objects],
        "difficult": [int(_scalar(each, "difficult", "0")) for each in objects],
        "json": {"annotation": document},
    }


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _scalar(value: Any, name: str, default: str | None = None) -> str:
    found = value.get(name, default) if isinstance(value, dict) else None
    if not isinstance(found, str):
        raise ValueError(f"an object of its annotation has {'several values' if found else 'no value'} of {name!r}")
    return found or default or found


def _name(value: Any) -> str:
    name = _scalar(value, "name")
    if not name:
        raise ValueError("an object of its annotation has an empty name")
    return name


def box_of(value: Mapping[str, Any]) -> list[float]:
    """The box of an ``object`` in pixels that count from 0. Raises :class:`ValueError`."""
    left, top, right, bottom = (parse_finite(_scalar(value.get("bndbox"), corner)) for corner in _CORNERS)
    return [left - 1, top - 1, right, bottom]

"""CVAT (https://docs.cvat.ai/docs/dataset_management/formats/format-cvat/): ``annotations.xml`` of images or a video.

A video's frames are images called by their numbers (``frame_000010``); tracks become objects of each frame, those that
are ``outside`` left in ``json`` alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from packstore.core.fields import Array, Field
from packstore.core.plainxml import load_xml
from packstore.sources.annotation_formats.documents import DocumentSource, Entry, document_kind
from packstore.sources.annotation_formats.objects import (
    Annotation,
    Sides,
    as_list,
    flatten,
    of_box,
    of_polygon,
    of_runs,
    real,
    reals,
    text_or_none,
    to_runs,
)
from packstore.sources.beside import join
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over

_SHAPES = ("box", "polygon", "polyline", "points", "ellipse", "mask", "cuboid", "skeleton")
_MAX_XML = 1 << 30
_MAX_PIXELS = 1 << 28


class CvatSource(DocumentSource):
    """Images that ``annotations.xml`` names; ``track`` is the number of an object's track, -1 for none."""

    kind = "cvat"
    title = "CVAT"
    names = re.compile(r".*\.xml", re.I)
    signature = re.compile(rb"\s*(<\?xml[^>]*>\s*)?<annotations>\s*<version>\s*1\.\d")
    further: ClassVar[Mapping[str, Field]] = {"track": Array("int64", ragged=True, optional=True)}
    per_object = ("track",)

    def load(self, data: bytes) -> Any:
        return load_xml(data, _MAX_XML)[1]

    def entries_of(self, file: str, document: Any) -> Iterator[Entry]:
        meta = document.get("meta") or {}
        self.ignored[f"the rest of the head of {file}"] += 1
        self._note_classes(meta)
        for image in as_list(document.get("image")):
            yield Entry(image["@name"], image, image.get("@subset"))
        tracks = as_list(document.get("track"))
        if tracks:
            yield from self._frames(file, tracks)

    def _note_classes(self, meta: Any) -> None:
        heads = [each for name in ("task", "project", "job") for each in as_list(meta.get(name))]
        labels = [each for head in heads for each in as_list((head.get("labels") or {}).get("label"))]
        self._listed = (*getattr(self, "_listed", ()), *(each["name"] for each in labels if each.get("name")))

    def class_order(self) -> Sequence[str]:
        return self._listed

    def _frames(self, file: str, tracks: list[Any]) -> Iterator[Entry]:
        """The frames of a video that are there as images, each with its shapes of all tracks."""
        shapes: dict[int, list[Any]] = {}
        for track in tracks:
            for kind in _SHAPES:
                for shape in as_list(track.get(kind)):
                    of_track = {"@track": track["@id"], "@label": track["@label"], "kind": kind}
                    shapes.setdefault(int(shape["@frame"]), []).append({**shape, **of_track})
        images: dict[int, str] = {}
        for folder, names in self.tree.folders(is_passed_over, file.rpartition("/")[0]):
            for name in names.ending(*IMAGE_SUFFIXES):
                digits = re.search(r"(\d{1,12})\.\w+$", name)
                if digits is not None and images.setdefault(int(digits[1]), join(folder, name)) != join(folder, name):
                    raise ValueError(f"two images have the number {int(digits[1])}, as frames of a video")
        missing = shapes.keys() - images.keys()
        if missing:
            self.ignored["frames of a video that are not there as images"] += len(missing)
        for number, image in sorted(images.items()):
            base = file.rpartition("/")[0]
            yield Entry(image[len(base) + 1 :] if base else image, {"@frame": number, "track": shapes.get(number, [])})

    def parse(self, raw: Any, sides: Sides) -> Annotation:
        found = Annotation(json=raw)
        found.tags = [each["@label"] for each in as_list(raw.get("tag"))]
        tracked = [(each["kind"], each) for each in raw.get("track", ()) if each.get("@outside") != "1"]
        single = [(name, each) for name in _SHAPES for each in as_list(raw.get(name))]
        for kind, shape in (*single, *tracked):
            self._add(found, kind, shape, raw)
        return found

    def _add(self, found: Annotation, kind: str, shape: Any, image: Any) -> None:
        label, more = text_or_none(shape.get("@label")), {}
        if "track" in image or "@track" in shape:
            more = {"track": int(shape.get("@track", -1))}
        degrees = real(shape.get("@rotation", 0))
        if kind == "box":
            box = reals(shape[f"@{side}"] for side in ("xtl", "ytl", "xbr", "ybr"))
            found.objects.append(of_box(label, box, degrees, **more))
        elif kind == "ellipse":
            x, y, rx, ry = reals(shape[f"@{name}"] for name in ("cx", "cy", "rx", "ry"))
            found.objects.append(of_box(label, [x - rx, y - ry, x + rx, y + ry], degrees, **more))
        elif kind == "mask":
            left, top, width, height = (int(real(shape[f"@{name}"])) for name in ("left", "top", "width", "height"))
            counts = _runs(shape["@rle"], left, top, width, height, int(image["@width"]), int(image["@height"]))
            size = [int(image["@height"]), int(image["@width"])]
            found.objects.append(of_runs(label, size, counts, [left, top, left + width, top + height], **more))
        elif kind == "cuboid":
            points = [n for name in _CUBOID for n in reals((shape[f"@x{name}"], shape[f"@y{name}"]))]
            found.objects.append(of_polygon(label, points, **more))
        elif kind == "skeleton":
            for point in as_list(shape.get("points")):
                self._add(found, "points", point, image)
        else:
            flat = flatten(point.split(",") for point in shape["@points"].split(";"))
            if kind == "polygon":
                found.objects.append(of_polygon(label, flat, **more))
            else:
                found.points += [(label, x, y) for x, y in zip(flat[::2], flat[1::2], strict=True)]


_CUBOID = ("tl1", "tr1", "br1", "bl1", "tl2", "tr2", "br2", "bl2")


def _runs(text: str, left: int, top: int, width: int, height: int, full_width: int, full_height: int) -> list[int]:
    """CVAT's run lengths, row by row of the mask's own box, as COCO's, column by column of the image. Raises
    :class:`ValueError` for runs that do not fit."""
    runs = [int(run) for run in text.split(",")]
    inside = left >= 0 and top >= 0 and left + width <= full_width and top + height <= full_height
    if not inside or width * height > _MAX_PIXELS or full_width * full_height > _MAX_PIXELS or min(runs) < 0:
        raise ValueError(f"found a mask of {width} x {height} pixels at {left}, {top}; expected one within the image")
    if sum(runs) != width * height:
        raise ValueError(f"found runs of {sum(runs)} pixels, expected {width * height}")
    own = np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(height, width)
    whole = np.zeros((full_height, full_width), bool)
    whole[top : top + height, left : left + width] = own
    return to_runs(whole)


KIND = document_kind(CvatSource, "CVAT: annotations.xml of images, or of the frames of a video")

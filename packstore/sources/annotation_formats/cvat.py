"""CVAT (https://docs.cvat.ai/docs/dataset_management/formats/format-cvat/): ``annotations.xml`` of images or a video.

The frames of a video are images with their numbers as names (``frame_000010``). Each track adds an object to its
frames; objects with the flag ``outside`` are in ``json`` alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from packstore.core.fields import Array, Field
from packstore.core.plainxml import load_xml
from packstore.core.run_lengths import encode_run_lengths
from packstore.sources.annotation_formats.documents import AnnotationEntry, DocumentSource, make_document_kind
from packstore.sources.annotation_formats.objects import (
    Annotation,
    SizeReader,
    as_list,
    flatten_points,
    nonempty_text,
    object_from_box,
    object_from_polygons,
    object_from_run_lengths,
    to_float,
    to_floats,
)
from packstore.sources.beside import join
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over

_SHAPES = ("box", "polygon", "polyline", "points", "ellipse", "mask", "cuboid", "skeleton")
_MAX_XML = 1 << 30
_MAX_PIXELS = 1 << 28


class CvatSource(DocumentSource):
    """Source of images, or frames of a video, of ``annotations.xml``. ``track`` is the number of an object's track, -1
    without a track. Shapes that are ``outside`` of the image are in ``json`` alone. Opening refuses two images with the
    number of one frame."""

    kind = "cvat"
    title = "CVAT"
    name_pattern = re.compile(r".*\.xml", re.I)
    signature = re.compile(rb"\s*(<\?xml[^>]*>\s*)?<annotations>\s*<version>\s*1\.\d")
    further_fields: ClassVar[Mapping[str, Field]] = {"track": Array("int64", ragged=True, optional=True)}
    per_object = ("track",)

    def parse_document(self, data: bytes) -> Any:
        """Parses XML, up to 1 GiB, to dictionaries and lists. Raises :class:`ValueError` for invalid or larger XML."""
        return load_xml(data, _MAX_XML)[1]

    def read_entries(self, file: str, document: Any) -> Iterator[AnnotationEntry]:
        """Yields an entry for each image and for each frame of a video. The split of an image is its subset.

        Adds the classes in the head to the listed ones. Counts the rest of the head as one value that is left out.
        Raises :class:`ValueError` if two images have the number of one frame.
        """
        meta = document.get("meta") or {}
        self.ignored[f"the rest of the head of {file}"] += 1
        self._read_classes(meta)
        for image in as_list(document.get("image")):
            yield AnnotationEntry(image["@name"], image, image.get("@subset"))
        tracks = as_list(document.get("track"))
        if tracks:
            yield from self._read_frames(file, tracks)

    def _read_classes(self, meta: Any) -> None:
        """Adds the labels in the head of a file to the listed classes."""
        heads = [each for name in ("task", "project", "job") for each in as_list(meta.get(name))]
        labels = [each for head in heads for each in as_list((head.get("labels") or {}).get("label"))]
        self.add_listed_classes(each["name"] for each in labels if each.get("name"))

    def _read_frames(self, file: str, tracks: list[Any]) -> Iterator[AnnotationEntry]:
        """Yields an entry for each image with a number in its name, from the folder of the file and below. The entry
        has the shapes of all tracks in the frame of this number.

        Counts frames without an image as left out. Raises :class:`ValueError` if two images have the number of one
        frame.
        """
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
                    raise ValueError(f"two images have the number {int(digits[1])}, which is that of one frame")
        missing = shapes.keys() - images.keys()
        if missing:
            self.ignored["frames of a video without an image"] += len(missing)
        for number, image in sorted(images.items()):
            base = file.rpartition("/")[0]
            yield AnnotationEntry(
                image[len(base) + 1 :] if base else image, {"@frame": number, "track": shapes.get(number, [])}
            )

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts tags, and shapes to objects or points. A shape of a track that is ``outside`` is no object; ``json``
        has the whole entry."""
        annotation = Annotation(json=raw)
        annotation.tags = [each["@label"] for each in as_list(raw.get("tag"))]
        tracked = [(each["kind"], each) for each in raw.get("track", ()) if each.get("@outside") != "1"]
        single = [(name, each) for name in _SHAPES for each in as_list(raw.get(name))]
        for kind, shape in (*single, *tracked):
            self._add_shape(annotation, kind, shape, raw)
        return annotation

    def _add_shape(self, annotation: Annotation, kind: str, shape: Any, image: Any) -> None:
        """Adds a shape of ``image`` to ``annotation``. ``kind`` is the name of the shape's element in the XML.

        - A shape with an area becomes an object, any other becomes points.
        - An ellipse becomes its box. A rotated box or ellipse becomes a polygon of four corners.
        - A cuboid becomes one polygon of its eight corners.
        - A skeleton becomes its points, with their own labels.
        """
        label = nonempty_text(shape.get("@label"))
        more: dict[str, Any] = {}
        if "track" in image or "@track" in shape:
            more = {"track": int(shape.get("@track", -1))}
        degrees = to_float(shape.get("@rotation", 0))
        if kind == "box":
            box = to_floats(shape[f"@{side}"] for side in ("xtl", "ytl", "xbr", "ybr"))
            annotation.objects.append(object_from_box(label, box, degrees, **more))
        elif kind == "ellipse":
            x, y, rx, ry = to_floats(shape[f"@{name}"] for name in ("cx", "cy", "rx", "ry"))
            annotation.objects.append(object_from_box(label, [x - rx, y - ry, x + rx, y + ry], degrees, **more))
        elif kind == "mask":
            left, top, width, height = (int(to_float(shape[f"@{name}"])) for name in ("left", "top", "width", "height"))
            counts = _expand_run_lengths(
                shape["@rle"], left, top, width, height, int(image["@width"]), int(image["@height"])
            )
            size = [int(image["@height"]), int(image["@width"])]
            annotation.objects.append(
                object_from_run_lengths(label, size, counts, [left, top, left + width, top + height], **more)
            )
        elif kind == "cuboid":
            points = [n for name in _CUBOID for n in to_floats((shape[f"@x{name}"], shape[f"@y{name}"]))]
            annotation.objects.append(object_from_polygons(label, points, **more))
        elif kind == "skeleton":
            for point in as_list(shape.get("points")):
                self._add_shape(annotation, "points", point, image)
        else:
            flat = flatten_points(point.split(",") for point in shape["@points"].split(";"))
            if kind == "polygon":
                annotation.objects.append(object_from_polygons(label, flat, **more))
            else:
                annotation.add_points(label, flat)


_CUBOID = ("tl1", "tr1", "br1", "bl1", "tl2", "tr2", "br2", "bl2")


def _expand_run_lengths(
    text: str, left: int, top: int, width: int, height: int, full_width: int, full_height: int
) -> list[int]:
    """Converts CVAT's run lengths of a box to COCO's of the whole image. CVAT's go row by row, COCO's column by column.
    Raises :class:`ValueError` for a box outside the image, too many pixels, and runs that do not fill the box."""
    runs = [int(run) for run in text.split(",")]
    inside = left >= 0 and top >= 0 and left + width <= full_width and top + height <= full_height
    if not inside or width * height > _MAX_PIXELS or full_width * full_height > _MAX_PIXELS or min(runs) < 0:
        raise ValueError(f"found a mask of {width} x {height} pixels at {left}, {top}; expected one within the image")
    if sum(runs) != width * height:
        raise ValueError(f"found runs of {sum(runs)} pixels, expected {width * height}")
    mask = np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(height, width)
    return encode_run_lengths(mask, (top, left), (full_height, full_width))


KIND = make_document_kind(CvatSource, "CVAT: annotations.xml of images, or of the frames of a video")

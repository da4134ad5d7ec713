"""Formats of videos as images of frames: CVAT, MOTChallenge and MOTS.

- CVAT (https://docs.cvat.ai/docs/dataset_management/formats/format-cvat/): ``annotations.xml`` of images, or of a video
  whose frames are images with their numbers at the end of their names (``frame_000010``).
- MOTChallenge (https://motchallenge.net): sequences of frames in ``img1`` with ``gt/gt.txt``. A line is frame, track,
  left, top, width, height, and then confidence, class, visibility or more. Coordinates count from 1.
- MOTS (https://www.vision.rwth-aachen.de/page/mots): masks of tracked objects. A line is frame, object, class, height
  and width of the image, and run lengths as COCO's string. The number of an object is 1000 times its class, plus its
  own.

  - MOTSChallenge: ``train/MOTS20-02/img1/000001.jpg`` and ``gt/gt.txt``.
  - KITTI MOTS: ``training/image_02/0002/000000.png``, ``instances_txt/0002.txt``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from packstore.core.column_types.segments import decode_run_lengths
from packstore.images.annotations import compute_run_lengths_box, encode_run_lengths
from packstore.sources.annotation_formats import parsing, shapes
from packstore.sources.annotation_formats.documents import document
from packstore.sources.annotation_formats.shapes import Document, Listed, Parts, Picture, Tag
from packstore.sources.beside import is_folder, join
from packstore.sources.listing import IMAGE_SUFFIXES, is_passed_over

_SHAPES = ("box", "polygon", "polyline", "points", "ellipse", "mask", "skeleton")
_MAX_PIXELS = 1 << 28


def _list_cvat(file: Document) -> Iterator[Listed]:
    """Lists the images, with their subsets as splits, and each frame of a video with the shapes of all tracks."""
    meta = file.content.get("meta") or {}
    heads = [each for name in ("task", "project", "job") for each in parsing.as_list(meta.get(name))]
    # The labels in the head are the classes, in their order.
    labels = [each for head in heads for each in parsing.as_list((head.get("labels") or {}).get("label"))]
    file.classes = dict(enumerate(each["name"] for each in labels if each.get("name")))
    yield from (Listed(each["@name"], each, each.get("@subset")) for each in parsing.as_list(file.content.get("image")))
    tracks = parsing.as_list(file.content.get("track"))
    drawn = (
        (int(shape["@frame"]), {**shape, "@track": track["@id"], "@label": track["@label"], "kind": kind})
        for track in tracks
        for kind in _SHAPES
        for shape in parsing.as_list(track.get(kind))
    )
    folders = file.tree.folders(is_passed_over, file.folder) if tracks else ()
    images = [join(folder, name) for folder, names in folders for name in names.ending(*IMAGE_SUFFIXES)]
    matches = file.match_frames(images, drawn, r"(?s).*?(\d{1,12})\.\w+")
    for image, number, found in sorted(matches, key=lambda match: match[1]):
        if number >= 0:
            yield Listed(image, {"@frame": number, "track": found})


@document(
    "CVAT: annotations.xml of images, or of the frames of a video",
    _list_cvat,
    suffixes=(".xml",),
    parse=parsing.parse_xml,
    signature=rb"\s*(<\?xml[^>]*>\s*)?<annotations>\s*<version>\s*1\.\d",
)
def cvat(image: Any, _: Picture) -> Parts:
    """Reads tags and shapes. Shapes of a track that are ``outside`` of the image are in ``json`` alone."""
    yield from (Tag(each["@label"]) for each in parsing.as_list(image.get("tag")))
    own = [(kind, shape) for kind in _SHAPES for shape in parsing.as_list(image.get(kind))]
    tracked = [(shape["kind"], shape) for shape in image.get("track", ()) if shape.get("@outside") != "1"]
    for kind, shape in own + tracked:
        yield from _read_cvat_shape(kind, shape, image)


def _read_cvat_shape(kind: str, shape: Any, image: Any) -> Parts:
    """Reads a shape of ``image``; ``kind`` is the name of its element in the XML."""
    label, degrees = parsing.nonempty_text(shape.get("@label")), parsing.to_float(shape.get("@rotation", 0))
    more: dict[str, Any] = {"track": int(shape["@track"])} if "@track" in shape else {}
    if kind == "box":
        yield shapes.box(label, parsing.get_floats(shape, "@xtl", "@ytl", "@xbr", "@ybr"), degrees, **more)
    elif kind == "ellipse":
        # No column holds ellipses, so an ellipse is kept as its box.
        corners = shapes.box_from_radii(*parsing.get_floats(shape, "@cx", "@cy", "@rx", "@ry"))
        yield shapes.box(label, corners, degrees, **more)
    elif kind == "mask":
        place = [*map(int, parsing.get_floats(shape, "@left", "@top", "@width", "@height"))]
        size = [int(image["@height"]), int(image["@width"])]
        mask = {"size": size, "counts": _expand_run_lengths(shape["@rle"], place, size)}
        yield shapes.mask(label, mask, shapes.box_from_corner(*place), **more)
    elif kind == "skeleton":
        # Each point of a skeleton has its own label.
        for point in parsing.as_list(shape.get("points")):
            yield from _read_cvat_shape("points", point, image)
    else:
        flat = parsing.flatten_points(point.split(",") for point in shape["@points"].split(";"))
        # Only polygons have an area. A cuboid stays in ``json`` alone.
        yield from shapes.outline(label, flat, kind == "polygon", **more)


def _expand_run_lengths(text: str, place: Sequence[int], size: Sequence[int]) -> list[int]:
    """Converts CVAT's run lengths of a box, row by row, to COCO's of the whole image, column by column."""
    (left, top, width, height), runs = place, [int(run) for run in text.split(",")]
    inside = left >= 0 and top >= 0 and left + width <= size[1] and top + height <= size[0]
    if not inside or width * height > _MAX_PIXELS or size[0] * size[1] > _MAX_PIXELS or min(runs) < 0:
        raise ValueError(f"found a mask of {width} x {height} pixels at {left}, {top}; expected one within the image")
    if sum(runs) != width * height:
        raise ValueError(f"found runs of {sum(runs)} pixels, expected {width * height}")
    mask = np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(height, width)
    return encode_run_lengths(mask, (top, left), (size[0], size[1]))


# Classes of MOT16, MOT17 and MOT20.
_MOT_CLASSES = (
    *("pedestrian", "person on vehicle", "car", "bicycle", "motorbike", "non motorized vehicle"),
    *("static person", "distractor", "occluder", "occluder on the ground", "occluder full", "reflection"),
)


def _list_mot(file: Document) -> Iterator[Listed]:
    """Lists the images of the sequence, with the numbers of each line."""
    sequence = file.folder.rpartition("/")[0]
    file.classes = dict(enumerate(file.read_lines(join(file.folder, "labels.txt")), 1))
    file.find(join(sequence, "seqinfo.ini"))
    file.expected.append(join(sequence, "det/det"))
    return file.list_frames(join(sequence, "img1"), ((values[0], values) for values in file.content))


@document(
    "MOTChallenge: sequences with img1 and gt/gt.txt",
    _list_mot,
    suffixes=(".txt",),
    names=r"gt\.txt",
    signature=rb"^\s*\d+,\s*-?\d+(,\s*-?\d+(\.\d+)?){4,8}\s*(\r?\n|$)",
    max_depth=4,
    parse=parsing.parse_each_line(partial(parsing.split_numbers, separator=",", counts=range(6, 11))),
    classes=_MOT_CLASSES,
)
def mot(lines: Any, picture: Picture) -> Parts:
    """Each line is an object with its track; coordinates count from 0. An object has no class if its line has no class
    number, or the number has no name. The confidence 0 marks an object to ignore."""
    names = picture.classes or dict(enumerate(_MOT_CLASSES, 1))
    for values in lines:
        corners = [each - 1 for each in shapes.box_from_corner(*values[2:6])]
        label = names.get(int(values[7])) if len(values) > 7 else None
        yield shapes.box(label, corners, crowd=len(values) > 6 and not values[6], track=int(values[1]))


_MOTS = {1: "car", 2: "pedestrian", 10: "ignored"}
_MOTS_FOLDERS = ("training/image_02/{}", "train/images/{}", "image_02/{}", "images/{}", "{}/img1", "{}")


def _list_mots(file: Document) -> Iterator[Listed]:
    """Lists the images of the sequence, with the lines of each; nothing if the folder of images is missing."""
    above, sequence = file.folder.rpartition("/")[0], file.path.rpartition("/")[2].removesuffix(".txt")
    file.find(join(file.path.removesuffix("/gt/gt.txt"), "seqinfo.ini"))
    file.expected.append(join(above, "instances/"))  # the same masks as images
    places = ["img1"] if sequence == "gt" else [place.format(sequence) for place in _MOTS_FOLDERS]
    folder = next((place for each in places if is_folder(file.tree, place := join(above, each))), None)
    return file.list_frames(folder, ((int(line.split(" ", 1)[0]), line) for line in file.content))


@document(
    "MOTS: masks of tracked objects, of MOTSChallenge and KITTI",
    _list_mots,
    suffixes=(".txt",),
    names=r"(gt|\d{4}|MOTS\d\d-\d\d)\.txt",
    signature=rb"\A\s*\d+ \d+ (1|2|10) [1-9]\d{0,4} [1-9]\d{0,4} [0-o]+ *(\r?\n|$)",
    max_depth=4,
    max_files=100,
    parse=parsing.parse_each_line(str.strip),
)
def mots(lines: Any, _: Picture) -> Parts:
    """Each line is an object with its run lengths, the box around them and its track. A class without a name has its
    number as name. Raises :class:`ValueError` for a line that does not have 6 valid values."""
    for line in lines:
        words = line.split(" ")
        if len(words) != 6:
            raise ValueError(f"a line of its objects has {len(words)} values, expected 6")
        track, number, height, width = map(int, words[1:5])
        corners = compute_run_lengths_box(decode_run_lengths(words[5].encode()), height, width)
        mask = {"size": (height, width), "counts": words[5]}
        label = _MOTS.get(number, str(number))
        yield shapes.mask(label, mask, corners, crowd=number == 10, track=track)

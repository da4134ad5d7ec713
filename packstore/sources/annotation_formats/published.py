"""Formats of published sets and of training code.

- BDD100K (https://doc.bdd100k.com/format.html): a JSON list of frames with labels; also Scalabel's format.
- CrowdHuman (https://www.crowdhuman.org): ``annotation_train.odgt``, a line of JSON for each image.
- DOTA (https://captain-whu.github.io/DOTA): ``images`` and ``labelTxt``, a line of four corners, class and difficulty.
- keras-yolo3, and Roboflow's exports: lists with an image and its boxes on each line: ``a.jpg 12,34,56,78,0 …``. A box
  is left, top, right, bottom and the number of its class, which ``_classes.txt`` or ``classes.txt`` names.
- KITTI (https://www.cvlibs.net/datasets/kitti/eval_object.php): ``image_2`` with ``label_2``. A line is class,
  truncated, occluded, alpha, left, top, right, bottom, size, position and angle in 3D, and sometimes a score.
- OpenMMLab (https://mmengine.readthedocs.io): ``metainfo`` and ``data_list``; ``img_path`` with ``instances`` of
  ``bbox`` and ``bbox_label``, ``polygon`` or ``mask``, ``text``; or ``gt_label`` of the image.
- SA-1B (https://ai.meta.com/datasets/segment-anything): a JSON file beside each image, with masks as run lengths.
- VisDrone (https://github.com/VisDrone/VisDrone-Dataset): ``images`` and ``annotations``, a line of left, top, width,
  height, score, class, truncation and occlusion.
- WIDER FACE (http://shuoyang1213.me/WIDERFACE): ``wider_face_split/wider_face_train_bbx_gt.txt`` with ``WIDER_train``.
  A face is left, top, width, height, and six numbers (blur, expression, illumination, invalid, occlusion, pose).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import starmap
from typing import Any

from packstore.core.fields import Text
from packstore.sources.annotation_formats import beside, parsing, shapes
from packstore.sources.annotation_formats.documents import document
from packstore.sources.annotation_formats.shapes import Document, Listed, Parts, Picture, Tag, Value
from packstore.sources.annotation_formats.source import FurtherFile
from packstore.sources.beside import join
from packstore.sources.listing import IMAGE_SUFFIXES


@document(
    "BDD100K: a JSON list of frames with labels",
    lambda file: file.list_items(file.content["frames"] if isinstance(file.content, dict) else file.content, "name"),
    signature=rb'(?s)^\s*(\[|\{\s*"frames"\s*:\s*\[)\s*\{(?=.*"name"\s*:)(?=.*"labels"\s*:)'
    rb'(?=.*"(box2d|poly2d|category)"\s*:)',
)
def bdd100k(frame: Any, _: Picture) -> Parts:
    """Each label is an object with its box, else its run lengths and the box of the whole image, else its closed
    polygons. Open lines, curves and attributes are in ``json`` alone."""
    for each in frame.get("labels") or ():
        label = parsing.nonempty_text(each["category"])
        crowd = parsing.is_flagged(each.get("attributes"), "crowd", "iscrowd", "ignore", "ignored")
        closed = [shape for shape in each.get("poly2d") or () if shape.get("closed", True)]
        if each.get("box2d"):
            yield shapes.box(label, parsing.get_floats(each["box2d"], "x1", "y1", "x2", "y2"), crowd=crowd)
        elif each.get("rle"):
            yield shapes.mask(label, each["rle"], crowd=crowd)
        elif closed and all(set(shape.get("types", "L")) <= {"L"} for shape in closed):
            polygons = (parsing.flatten_points(shape["vertices"]) for shape in closed)
            yield shapes.polygon(label, *polygons, crowd=crowd)


@document(
    "CrowdHuman: annotation_train.odgt with images",
    lambda file: (Listed(f"{image['ID']}.jpg", image) for image in file.content),
    suffixes=(".odgt",),
    parse=parsing.parse_json_lines,
    signature=rb'^\s*\{(?=[^\n]*"ID"\s*:)[^\n]*"gtboxes"\s*:',
)
def crowdhuman(image: Any, _: Picture) -> Parts:
    """Each person is an object with its full box (``fbox``); boxes of visible parts and heads are in ``json`` alone.
    The tag ``mask`` and the flag ``ignore`` mark regions to ignore."""
    for each in image["gtboxes"]:
        crowd = each["tag"] == "mask" or parsing.is_flagged(each.get("extra"), "ignore")
        yield shapes.box(parsing.nonempty_text(each["tag"]), shapes.box_from_corner(*each["fbox"]), crowd=crowd)


_DOTA_HEAD = re.compile(r"(?i)(imagesource|gsd):")


def _split_dota_line(line: str) -> list[str]:
    """Splits a line into its words: 9 or 10, or those of the head, such as ``gsd:0.1``."""
    words = line.split()
    if len(words) not in (9, 10) and not _DOTA_HEAD.match(words[0]):
        raise ValueError(f"found {len(words)} words, expected 9 or 10")
    return words


@beside(
    "DOTA: images with oriented boxes in labelTxt",
    folders=[("images", f"labelTxt{version}") for version in ("", "-v1.0", "-v1.5", "-v2.0")]
    + [("images", "annfiles")],
    patterns=("{stem}.txt",),
    signature=rb"(?i)^\s*((imagesource|gsd):[^\n]*\n\s*)*("
    rb"-?\d+(\.\d+)?([ \t]+-?\d+(\.\d+)?){7}[ \t]+[^\s\d]\S*[ \t]+\d[ \t]*(\r?\n|$)|$)",
    parse=parsing.parse_each_line(_split_dota_line),
)
def dota(lines: Any, _: Picture) -> Parts:
    """Each line of corners is an object with its class and difficulty, 0 if it is missing. Its box is the smallest
    around the corners. ``json`` has the lines of the head by name."""
    yield Value("json", dict("".join(words).split(":", 1) for words in lines if _DOTA_HEAD.match(words[0])) or None)
    for words in (words for words in lines if not _DOTA_HEAD.match(words[0])):
        yield shapes.polygon(words[8], parsing.to_floats(words[:8]), difficult=int(words[9]) if len(words) > 9 else 0)


_SUFFIXES = "|".join(map(re.escape, IMAGE_SUFFIXES))


def _parse_boxes_line(line: str) -> tuple[str, list[list[float]]]:
    """Parses a line to an image and its boxes of 5 numbers."""
    match = re.fullmatch(rf"(?i)(.+?(?:{_SUFFIXES}))((?:\s+[-\d.,e]+)*)\s*", line.strip())
    if match is None:
        raise ValueError(f"found {line[:60]!r}, expected an image and boxes x1,y1,x2,y2,class")
    return match[1], [parsing.to_floats(box.split(","), 5) for box in match[2].split()]


def _list_line_boxes(file: Document) -> Iterator[Listed]:
    """Lists the image of each line."""
    folders = dict.fromkeys((file.folder, file.folder.rpartition("/")[0]))
    # The file of class names is in the folder of the list, or one level above.
    paths = (join(folder, name) for folder in folders for name in ("_classes.txt", "classes.txt"))
    file.classes = dict(enumerate(next(filter(None, map(file.read_lines, paths)), ())))
    return starmap(Listed, file.content)


@document(
    "keras-yolo3: lists of lines with an image and its boxes",
    _list_line_boxes,
    suffixes=(".txt",),
    parse=parsing.parse_each_line(_parse_boxes_line),
    signature=rf"(?im)^[^\n]+?(?:{_SUFFIXES})(?:[ \t]+-?[\d.]+(?:,-?[\d.]+){{3}},\d+)+[ \t]*\r?$".encode(),
)
def line_boxes(boxes: Any, picture: Picture) -> Parts:
    """Each box is an object. A class without a name has its number as name."""
    for *corners, number in boxes:
        yield shapes.box(picture.name_class(number), corners)


@beside(
    "KITTI: image_2 with a file of objects for each image in label_2",
    folders=[("image_2", "label_2"), ("images", "labels"), ("image", "label"), ("data", "labels")],
    patterns=("{stem}.txt",),
    signature=rb"(?i)^\s*[A-Za-z_]\S*( -?\d+(\.\d+)?(e-?\d+)?){14,15}\s*($|\r?\n)",
    parse=parsing.parse_each_line(partial(parsing.split_numbers, separator=None, counts=(15, 16), names=1)),
    files=[FurtherFile("calib", ("../calib/{stem}.txt",), Text(optional=True), bytes.decode)],
)
def kitti(lines: Any, _: Picture) -> Parts:
    """Each line is an object with its class and 2D box. ``DontCare`` is a region to ignore."""
    for name, *numbers in lines:
        yield shapes.box(name, numbers[3:7], crowd=name == "DontCare")


def _list_openmmlab(file: Document) -> Iterator[Listed]:
    """Lists the images of ``data_list``."""
    known = ("classes", "CLASSES", "category", "categories")
    listed: list[Any] = next(filter(None, map(file.content["metainfo"].get, known)), [])
    # Classes are a list of names, or of ids with names.
    pairs = enumerate(listed) if isinstance(next(iter(listed), ""), str) else ((c["id"], c["name"]) for c in listed)
    file.classes = {parsing.parse_id(number): name for number, name in pairs}
    return file.list_items(file.content["data_list"], "img_path", "file_name")


@document(
    "OpenMMLab: a JSON file of metainfo and data_list with images",
    _list_openmmlab,
    signature=rb'(?s)\A\s*\{(?=.*"data_list"\s*:\s*\[).*"metainfo"\s*:',
)
def openmmlab(image: Any, picture: Picture) -> Parts:
    """Instances are objects, ``gt_label`` is tags. An object has its ``bbox``, or else the box around its polygons; a
    mask of run lengths replaces its polygon. An only instance with a text and no place gives the value ``text``."""
    yield from (Tag(str(picture.name_class(n))) for n in parsing.as_list(image.get("gt_label")))
    instances = parsing.as_list(image.get("instances"))
    if len(instances) == 1 and "text" in instances[0] and not {"bbox", "polygon"} & instances[0].keys():
        yield Value("text", instances[0]["text"])
        return
    for each in instances:
        label, mask, texts = picture.name_class(each.get("bbox_label")), each.get("mask"), {"texts": each.get("text")}
        outlines = [*([each["polygon"]] if each.get("polygon") else ()), *(mask if isinstance(mask, list) else ())]
        polygons = [parsing.to_floats(polygon) for polygon in outlines]
        corners = parsing.to_floats(each["bbox"], 4) if each.get("bbox") else shapes.bounding_box(*polygons)
        mask, crowd = mask if isinstance(mask, dict) else polygons or None, parsing.is_flagged(each, "ignore_flag")
        yield shapes.mask(label, mask, corners, crowd=crowd, **texts)


@beside(
    "SA-1B: a JSON file of masks beside each image",
    folders=[("", "")],
    signature=rb'(?s)\A(?=.*"image"\s*:\s*\{)(?=.*"annotations"\s*:\s*\[)(?!.*"shapes"\s*:)',
)
def sa1b(content: Any, _: Picture) -> Parts:
    """Each annotation is an object with its box and mask (run lengths or polygons), which are not checked. Objects have
    no class."""
    for each in content["annotations"]:
        yield shapes.mask(None, each["segmentation"], shapes.box_from_corner(*each["bbox"]))


_VISDRONE = (
    *("ignored regions", "pedestrian", "people", "bicycle", "car", "van", "truck", "tricycle", "awning-tricycle"),
    *("bus", "motor", "others"),
)


@beside(
    "VisDrone: images with annotations of eight numbers a line",
    folders=[("images", "annotations")],
    patterns=("{stem}.txt",),
    signature=rb"^\s*-?\d+(,-?\d+){7},?\s*(\r?\n|$)",
    parse=parsing.parse_each_line(partial(parsing.split_numbers, separator=",", counts=(8,))),
    classes=_VISDRONE,
)
def visdrone(lines: Any, _: Picture) -> Parts:
    """Each line is an object with its class and box. An object with the score 0, as ignored regions have it, is one to
    ignore."""
    names = dict(enumerate(_VISDRONE))
    for values in lines:
        box = shapes.box_from_corner(*values[:4])
        yield shapes.box(names[values[5]], box, crowd=not (values[4] and values[5]))


def _list_widerface(file: Document) -> Iterator[Listed]:
    """Lists the images with their faces."""
    split = "train" if "_train_" in file.path else "val"
    file.expected.append(join(file.folder, "wider_face_"))  # the same for MATLAB, and the list of the test set
    lines = iter(enumerate(map(str.strip, file.content), 1))
    for number, name in lines:
        if not name:
            continue
        if not name.lower().endswith(IMAGE_SUFFIXES):
            raise ValueError(f"line {number} is {name[:60]!r}; expected the name of an image")
        # Below the name is the number of faces, and a line for each; without faces, a line of zeros.
        count = int(next(lines, (0, "none"))[1])
        faces = [parsing.to_floats(next(lines, (0, "no line"))[1].split()) for _ in range(max(1, count))]
        if any(len(face) < 4 for face in faces) or (not count and any(faces[0])):
            raise ValueError(f"{name!r:.80}, line {number}: expected as many faces below it as it says")
        yield Listed(f"WIDER_{split}/images/{name}", {"event": name.split("/")[0], "faces": faces[:count]}, split)


@document(
    "WIDER FACE: wider_face_split with WIDER_train and WIDER_val",
    _list_widerface,
    suffixes=(".txt",),
    names=r"wider_face_(train|val)_bbx_gt\.txt",
    parse=parsing.split_lines,
    signature=rb"^\S[^\n]*/[^\n]+\.\w+\s*(\n\s*\d+\s*\n|\n\S[^\n]*/|$)",
)
def widerface(item: Any, _: Picture) -> Parts:
    """Each face is an object without a class; an invalid one is to be ignored. The tag is the event that the image
    shows, the name of its folder."""
    yield Tag(item["event"])
    yield Value("json", item["faces"])
    for face in item["faces"]:
        yield shapes.box(None, shapes.box_from_corner(*face[:4]), crowd=any(face[7:8]))

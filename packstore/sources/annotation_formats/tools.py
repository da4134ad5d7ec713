"""Formats of labelling tools: LabelMe, Create ML, Datumaro, dlib's imglab, FiftyOne, Label Studio, Supervisely, VIA and
VoTT.

- LabelMe (https://github.com/wkentaro/labelme): a file beside each image.
- Create ML (https://developer.apple.com/documentation/createml): a list of images; boxes by centre and size.
- Datumaro (https://open-edge-platform.github.io/datumaro): ``annotations/train.json`` with ``images/train``.
- dlib (https://github.com/davisking/dlib/tree/master/tools/imglab): XML of images with boxes and their parts.
- FiftyOne (https://docs.voxel51.com/user_guide/export_datasets.html): ``data`` with ``labels.json`` (classes, or boxes
  as fractions of the image's sides), or ``samples.json`` with any labels.
- Label Studio (https://labelstud.io/guide/export): JSON of tasks in percent of the image's sides.
- Supervisely (https://docs.supervisely.com/data-organization/00_ann_format_navi): ``img`` and ``ann``.
- VIA (https://www.robots.ox.ac.uk/~vgg/software/via/): regions in pixels, as JSON or as CSV of versions 1 and 2.
- VoTT (https://github.com/microsoft/VoTT): ``NAME-export.json``.
"""

from __future__ import annotations

import base64
import csv
import io
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

from packstore.images.annotations import decode_bitmap, encode_run_lengths
from packstore.images.sniff import MAX_PIXELS
from packstore.sources.annotation_formats import beside, parsing, shapes
from packstore.sources.annotation_formats.documents import document
from packstore.sources.annotation_formats.parsing import flatten_points, get_floats, nonempty_text, to_float, to_floats
from packstore.sources.annotation_formats.shapes import Document, Listed, Parts, Picture, Point, Tag, Value
from packstore.sources.beside import join
from packstore.sources.listing import IMAGE_SUFFIXES

_MAX_BITMAP = 64 << 20

_CORNER = ("x", "y", "width", "height")


@beside(
    "LabelMe: a JSON file with shapes beside each image",
    folders=[("", "")],
    signature=rb'"shapes"\s*:\s*\[|"imageData"\s*:\s*(null|"/9j|"iVBOR)',
    upright="jpeg",  # apply_exif_orientation in labelme/utils/image.py
)
def labelme(content: Any, _: Picture) -> Parts:
    """Shapes with an area are objects, lines and points are points, and true flags are tags.

    Circles, rectangles and masks have boxes. A rectangle or mask has two points, or four corners, of which the first
    and third count. The document itself is kept as ``json``, without its pixels."""
    yield Value("json", {name: value for name, value in content.items() if name != "imageData"})  # a copy of the image
    for shape in content["shapes"]:
        label, kind, flat = nonempty_text(shape["label"]), shape.get("shape_type"), flatten_points(shape["points"])
        if kind in ("rectangle", "mask"):
            corners = to_floats([*flat[:2], *flat[4:6]] if len(flat) > 4 else flat, 4)
            yield shapes.box(label, shapes.bounding_box(corners))
        elif kind == "circle":
            x, y, ex, ey = flat
            yield shapes.box(label, shapes.box_from_radii(x, y, *[math.hypot(ex - x, ey - y)] * 2))
        else:
            yield from shapes.outline(label, flat, kind not in ("point", "points", "line", "linestrip"))
    yield from (Tag(name) for name, value in (content.get("flags") or {}).items() if value is True)


@document(
    "Create ML: _annotations.createml.json beside the images",
    lambda file: file.list_items(file.content, "image", "imagefilename"),
    signature=rb'^\s*\[\s*\{(?=[^]]*"(image|imagefilename)"\s*:\s*")[^[]*"annotations?"\s*:\s*'
    rb'\[\s*(\]|\{\s*("(label|coordinates)"\s*:))',
)
def createml(image: Any, _: Picture) -> Parts:
    """Each annotation is an object with a box. An empty label gives no class."""
    for each in image.get("annotations", image.get("annotation")):
        corners = shapes.box_from_centre(*get_floats(each["coordinates"], *_CORNER))
        yield shapes.box(nonempty_text(each["label"]), corners)


@document(
    "dlib: an XML file of imglab with images",
    lambda file: file.list_items(parsing.as_list(file.content["images"]["image"]), "@file"),
    suffixes=(".xml",),
    parse=parsing.parse_xml,
    signature=rb"(?s)<dataset>.*<images>\s*<image\s[^>]*\bfile\s*=",
)
def imglab(image: Any, _: Picture) -> Parts:
    """Each box is an object, its parts are points. The flag ``ignore`` marks regions to ignore."""
    for each in parsing.as_list(image.get("box")):
        corners = shapes.box_from_corner(*get_floats(each, "@left", "@top", "@width", "@height"))
        more: dict[str, Any] = {"difficult": int(each["@difficult"])} if "@difficult" in each else {}
        yield shapes.box(nonempty_text(each.get("label")), corners, crowd=parsing.is_flagged(each, "@ignore"), **more)
        for part in parsing.as_list(each.get("part")):
            yield Point(part["@name"], *get_floats(part, "@x", "@y"))


def _list_datumaro(file: Document) -> Iterator[Listed]:
    """Lists the items, with the name of the file as their split."""
    content, split = file.content, PurePosixPath(file.path).stem
    labels = (content["categories"].get("label") or {}).get("labels", ())
    file.classes = dict(enumerate(each["name"] for each in labels))
    for item in content["items"]:
        media = item.get("image") or item.get("media") or {}
        # An item without a path has this name in Datumaro.
        yield Listed(media.get("path") or f"{item['id']}.jpg", item, "" if split == "default" else split)


@document(
    "Datumaro: annotations/*.json with images",
    _list_datumaro,
    signature=rb'(?s)^\s*\{(?=.*"(items|categories|dm_format_version|media_type)"\s*:).*'
    rb'("categories"\s*:\s*\{|"dm_format_version"\s*:)',
)
def datumaro(item: Any, picture: Picture) -> Parts:
    """Labels are tags, shapes with an area objects, points and lines points.

    An ellipse has its box. A mask without a box has the whole image as its box. An object with the attribute
    ``is_crowd`` is a crowd. Other annotations are in ``json`` alone.
    """
    for each in item["annotations"]:
        number, kind = each.get("label_id"), each["type"]
        label = None if number is None or number < 0 else picture.classes[number]
        more: dict[str, Any] = {"crowd": parsing.is_flagged(each.get("attributes"), "is_crowd")}
        if kind == "label" and label is not None:
            yield Tag(label)
        elif kind == "bbox":
            yield shapes.box(label, shapes.box_from_corner(*each["bbox"]), **more)
        elif kind == "rotated_bbox":
            *centre, degrees = to_floats(each.get("rbox") or each["bbox"], 5)
            yield shapes.box(label, shapes.box_from_centre(*centre), degrees, **more)
        elif kind == "ellipse":
            yield shapes.box(label, to_floats(each["points"], 4), **more)
        elif kind == "mask":
            corners = shapes.box_from_corner(*each["bbox"]) if each.get("bbox") else None
            yield shapes.mask(label, each["rle"], corners, **more)
        elif kind in ("polygon", "points", "polyline"):
            yield from shapes.outline(label, to_floats(each["points"]), kind == "polygon", **more)


def _list_fiftyone(file: Document) -> Iterator[Listed]:
    """Lists the images of ``samples.json`` or ``labels.json``."""
    file.find(join(file.folder, "metadata.json"))  # describes the fields of samples
    file.classes = dict(enumerate(map(str, file.content.get("classes") or ())))
    samples = file.content.get("samples", ())
    # FiftyOne keeps splits as tags. A sample with two such tags has no split.
    tags = [[t for t in each.get("tags") or () if t in ("train", "val", "validation", "test")] for each in samples]
    has_splits = any(len(each) == 1 for each in tags)
    for sample, own in zip(samples, tags, strict=True):
        yield Listed(sample["filepath"], sample, own[0] if len(own) == 1 else "" if has_splits else None)
    # ``labels.json`` names images without their suffixes.
    names = {name for folder in (join(file.folder, "data"), file.folder) for name in file.list_images(folder)}
    by_stem = {name.rpartition(".")[0]: name for name in names}
    if len(by_stem) < len(names) and "labels" in file.content:
        raise ValueError(f"two of its {len(names)} images have the same name without suffix: rename one")
    for stem, labels in file.content.get("labels", {}).items():
        yield Listed(by_stem.get(stem, stem), {"labels": labels})


@document(
    "FiftyOne: data with labels.json or samples.json",
    _list_fiftyone,
    names=r"(labels|samples)\.json",
    signature=rb'^\s*\{\s*("classes"\s*:\s*(null|\[[^]]*\])\s*,\s*)?"labels"\s*:\s*\{|^\s*\{\s*"samples"\s*:\s*\[\s*\{',
)
def fiftyone(item: Any, picture: Picture) -> Parts:
    """Reads all fields of a sample, or the labels of an image: classes are tags, boxes and closed shapes objects,
    keypoints points. Masks of detections, and open lines, are in ``json`` alone."""
    fields = item.values()
    if "filepath" not in item:
        yield Value("json", item["labels"])
        fields = [_name_label(each, picture) for each in parsing.as_list(item["labels"])]
    for value in fields:
        yield from _read_fiftyone_labels(value, picture)


def _name_label(label: Any, picture: Picture) -> dict[str, Any]:
    """Converts a label of ``labels.json``, an object or the number or name of a class, to a field of samples."""
    value = label if isinstance(label, Mapping) else {"label": label}
    kind = "Detection" if "bounding_box" in value else "Classification"
    return {"_cls": kind, **value, "label": picture.classes.get(value["label"], str(value["label"]))}


def _read_fiftyone_labels(value: Any, picture: Picture) -> Parts:
    """Reads a field with labels, whose coordinates are fractions of the image's sides; skips other fields."""
    name = str(value.get("_cls")) if isinstance(value, Mapping) else ""
    kind = name.removesuffix("s")
    if kind not in ("Classification", "Detection", "Polyline", "Keypoint"):
        return
    for each in [value] if name == kind else value[name.lower()]:
        # FiftyOne's importers of COCO and Open Images write these flags of crowds.
        label, crowd = nonempty_text(each.get("label")), parsing.is_flagged(each, "iscrowd", "IsGroupOf")
        if kind == "Classification" and label:
            yield Tag(label)
        elif kind == "Detection":
            place = to_floats(each["bounding_box"], 4)
            corners = shapes.box_from_corner(*_scale_points([place[:2], place[2:]], picture.size))
            yield shapes.box(label, corners, crowd=crowd)
        elif kind == "Polyline" and (each.get("closed") or each.get("filled")):
            yield shapes.polygon(label, *(_scale_points(shape, picture.size) for shape in each["points"]), crowd=crowd)
        elif kind == "Keypoint":
            # Points that are not seen are NaN.
            seen = [(x, y) for x, y in each["points"] if x == x and y == y]
            yield from shapes.outline(label, _scale_points(seen, picture.size), closed=False)


def _scale_points(points: Any, size: Sequence[float]) -> list[float]:
    """Multiplies points ``[[x, y], …]`` with width and height; returns ``x, y, …``."""
    return [n * side for point in points for n, side in zip(to_floats(point[:2], 2), size, strict=True)]


def _list_label_studio(file: Document) -> Iterator[Listed]:
    """Lists the tasks."""
    for task in file.content:
        if "data" not in task:
            raise ValueError("found an export as JSON-MIN: export the project as JSON")
        paths = (_path_from_url(value) for value in task["data"].values() if isinstance(value, str))
        named = [path for path in paths if path.lower().endswith(IMAGE_SUFFIXES)]
        if len(named) != 1:
            raise ValueError(f"task {task.get('id')!r:.40} names {len(named)} images, expected one")
        yield Listed(named[0], task)


def _path_from_url(name: str) -> str:
    """Returns the image's path in a URL of Label Studio's server (``/data/local-files/?d=a.jpg``), or any other path
    without its query."""
    served = re.search(r"/data/local-files/?\?(?:[^#]*&)?d=([^&#]+)", name)
    return unquote(served[1], errors="surrogateescape") if served is not None else re.split("[?#]", name)[0]


@document(
    "Label Studio: an export as JSON beside the images",
    _list_label_studio,
    signature=rb'(?s)^\s*\[\s*\{(?=.*("annotations"\s*:\s*\[|"annotation_id"\s*:))(?=.*("data"\s*:\s*\{|"annotation_id"\s*:))',
)
def label_studio(task: Any, _: Picture) -> Parts:
    """Reads the first annotation of a task that was not cancelled: choices are tags, shapes objects, points points.
    Other annotations and predictions are in ``json`` alone, as are texts, ratings, relations and brush masks."""
    made = [each for each in task.get("annotations", ()) if not each.get("was_cancelled")]
    for result in made[0]["result"] if made else ():
        value = result.get("value", {})
        yield from map(Tag, value.get("choices", []))
        if "points" in value or "x" in value:
            yield _read_shape(value, get_floats(result, "original_width", "original_height"))


def _read_shape(value: Any, size: Sequence[float]) -> shapes.AnnotatedObject | Point:
    """Reads a shape in percent of the image's ``size``, with the first of its labels."""
    named = next((name for name in value if name.endswith("labels")), "")
    label = value[named][0] if value.get(named) else None
    scale, degrees = [side / 100 for side in size], to_float(value.get("rotation", 0))
    if "points" in value:
        return shapes.polygon(label, _scale_points(value["points"], scale))
    x, y = _scale_points([get_floats(value, "x", "y")], scale)
    if "radiusX" in value:
        # No column holds ellipses, so an ellipse is kept as its box.
        radii = _scale_points([get_floats(value, "radiusX", "radiusY")], scale)
        return shapes.box(label, shapes.box_from_radii(x, y, *radii), degrees)
    if named == "keypointlabels" or "height" not in value:
        return Point(label, x, y)
    sides = _scale_points([get_floats(value, "width", "height")], scale)
    # Label Studio rotates about the top left corner.
    return shapes.box(label, shapes.box_from_corner(x, y, *sides), degrees, about=(x, y))


@beside(
    "Supervisely: img with annotations in ann",
    folders=[("img", "ann")],
    patterns=("{name}.json", "{stem}.json"),
    signature=rb'(?s)\A(?=.*"objects"\s*:\s*\[)(?=.*"size"\s*:\s*\{)',
)
def supervisely(content: Any, _: Picture) -> Parts:
    """Shapes and bitmaps are objects, points and lines points, and tags without a value tags. A bitmap becomes run
    lengths. Other geometries are in ``json`` alone."""
    for each in content["objects"]:
        label, kind = nonempty_text(each["classTitle"]), each.get("geometryType", "polygon")
        if kind == "bitmap":
            yield _read_bitmap(label, each["bitmap"], content["size"])
        elif kind in ("rectangle", "polygon", "point", "line"):
            outer = flatten_points(each["points"]["exterior"])
            holes = [flatten_points(hole) for hole in each["points"].get("interior", ())]
            if kind == "rectangle":
                yield shapes.box(label, shapes.bounding_box(outer))
            elif kind == "polygon" and holes:
                yield shapes.AnnotatedObject(label, shapes.bounding_box(outer), {"even_odd": [outer, *holes]}, {})
            else:
                yield from shapes.outline(label, outer, kind == "polygon")
    yield from (Tag(each["name"]) for each in content.get("tags", ()) if each.get("value") is None)


def _read_bitmap(label: str | None, bitmap: Mapping[str, Any], size: Mapping[str, Any]) -> shapes.AnnotatedObject:
    """Makes an object of a bitmap, a PNG compressed by zlib in base64, whose alpha or only channel is the mask."""
    packed, (left, top) = base64.b64decode(bitmap["data"], validate=True), map(int, bitmap["origin"])
    png = zlib.decompressobj().decompress(packed, _MAX_BITMAP)
    if len(png) < 24 or not png.startswith(b"\x89PNG\r\n\x1a\n"):
        raise ValueError("a bitmap of its annotation is no PNG file, or is cut off")
    width, height = int.from_bytes(png[16:20]), int.from_bytes(png[20:24])
    sides = int(size["height"]), int(size["width"])
    if width * height > MAX_PIXELS or sides[0] * sides[1] > MAX_PIXELS:
        raise ValueError(f"a bitmap of {width} x {height} pixels, more than {MAX_PIXELS:,}")
    # What lies beyond the image is cut off.
    shown = decode_bitmap(png)[max(0, -top) : max(0, sides[0] - top), max(0, -left) : max(0, sides[1] - left)]
    runs = {"size": [*sides], "counts": encode_run_lengths(shown, (max(0, top), max(0, left)), sides)}
    return shapes.mask(label, runs, [left, top, left + width, top + height])


_VIA_CLASS = re.compile(r"\s*(class|label|type|name|category|object)(_?(name|type|class|label))?\s*", re.I)


def _parse_via(data: bytes) -> Any:
    """Parses JSON or CSV of VIA; CSV gets the structure of the JSON export."""
    if data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[", b""):
        return parsing.parse_json(data)
    images: dict[str, Any] = {}
    for line in csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline="")):
        line = {name.strip().lstrip("#"): value for name, value in line.items()}
        attributes, shape, own = (
            parsing.parse_json(line[name].encode() or b"{}")
            for name in ("file_attributes", "region_shape_attributes", "region_attributes")
        )
        name, size = line["filename"], line["file_size"]
        image = {"filename": name, "size": size, "regions": [], "file_attributes": attributes}
        regions = images.setdefault(name, image)["regions"]
        # An image without regions has a line with an empty shape.
        regions += [{"shape_attributes": shape, "region_attributes": own}] if shape else []
    return images


def _list_via(file: Document) -> Iterator[Listed]:
    """Lists the images."""
    if "project" in file.content:
        raise ValueError("found a project of VIA 3, expected one of VIA 1 or 2, or an export as JSON or CSV")
    return file.list_items(file.content.get("_via_img_metadata", file.content).values(), "filename")


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
    Points and polylines are points. All attributes are in ``json``."""
    regions = image["regions"]
    for region in regions.values() if isinstance(regions, dict) else regions:
        shape, label = region["shape_attributes"], _find_class(region.get("region_attributes") or {})
        if shape["name"] == "rect":
            yield shapes.box(label, shapes.box_from_corner(*get_floats(shape, *_CORNER)))
        elif shape["name"] in ("circle", "ellipse"):
            radii = to_floats(shape.get(name, shape.get("r")) for name in ("rx", "ry"))
            yield shapes.box(label, shapes.box_from_radii(*get_floats(shape, "cx", "cy"), *radii))
        elif shape["name"] == "point":
            yield Point(label, *get_floats(shape, "cx", "cy"))
        else:
            flat = flatten_points(zip(shape["all_points_x"], shape["all_points_y"], strict=True))
            yield from shapes.outline(label, flat, shape["name"] != "polyline")


def _find_class(attributes: dict[str, Any]) -> str | None:
    """Returns the class of a region: its attribute called ``class`` or similar, or else its only attribute."""
    texts: dict[str, str] = {}
    for name, value in attributes.items():
        # A dict is a group of check boxes; it means a class if exactly one is checked.
        chosen = [key for key, on in value.items() if on] if isinstance(value, dict) else [value]
        if len(chosen) == 1 and isinstance(chosen[0], str) and chosen[0].strip():
            texts[name] = chosen[0].strip()
    named = [value for name, value in texts.items() if _VIA_CLASS.fullmatch(name)]
    return named[0] if named else next(iter(texts.values())) if len(texts) == 1 else None


def _list_vott(file: Document) -> Iterator[Listed]:
    """Lists the assets, and takes the project's tags as classes."""
    file.classes = dict(enumerate(each["name"] for each in file.content.get("tags") or ()))
    for asset in file.content["assets"].values():
        yield Listed(asset["asset"]["name"], asset)


@document(
    "VoTT: NAME-export.json beside the images",
    _list_vott,
    signature=rb'(?s)\A(?=.*"assets"\s*:\s*\{)(?=.*("visitedAssets"|"tags"|"videoSettings"|"regions")\s*:)',
)
def vott(asset: Any, _: Picture) -> Parts:
    """Each region is an object with its box. If its type is ``POLYGON``, or the box is missing, its polygon is used.
    The class is the first tag; all tags are in ``json``."""
    for region in asset.get("regions", ()):
        label, corners = next(iter(region.get("tags") or ()), None), region.get("boundingBox")
        if region.get("type", "RECTANGLE").upper() == "POLYGON" or not corners:
            yield shapes.polygon(label, [n for point in region["points"] for n in get_floats(point, "x", "y")])
        else:
            corners = shapes.box_from_corner(*get_floats(corners, "left", "top", "width", "height"))
            yield shapes.box(label, corners)

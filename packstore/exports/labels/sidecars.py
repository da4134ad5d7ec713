"""Formats with a file of labels beside each image: Pascal VOC, KITTI, LabelMe, YOLO, and folders of masks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from packstore.exports.base import BLOCK_BYTES, Record, safe_name
from packstore.exports.folder import make_distinct
from packstore.exports.labels import (
    LabelledImage,
    LabelledObject,
    LabelsExport,
    escape_xml,
    format_json,
    format_number,
    pair_coordinates,
)
from packstore.images.annotations import clip_ring
from packstore.images.masks import make_mask_file
from packstore.sources.yamltext import format_yaml_string
from packstore.stores.export_manifest import RecordLines

_DONT_CARE = "DontCare"
"""KITTI's class of regions to ignore."""
_UNKNOWN = "-1 -1 -1 -1000 -1000 -1000 -10"
"""KITTI's size, location and rotation in 3D, all unknown."""
_YOLO_SPLITS = {
    **dict.fromkeys(("valid", "validation", "dev"), "val"),
    **dict.fromkeys(("testing", "eval"), "test"),
    "training": "train",
}
_YOLO_OWN = ("names", "kpt_shape", "nc", "path")


class VocExport(LabelsExport):
    """Pascal VOC (http://host.robots.ox.ac.uk/pascal/VOC/): an XML file for each image, and lists of images by split.

    Boxes count pixels from 1, and both corners belong to the object, see
    :mod:`packstore.sources.annotation_formats.voc`. Polygons and classes of images are not written.
    """

    name = "voc"
    help = "Pascal VOC: JPEGImages, Annotations and ImageSets"
    images, label_folder, label_suffix = "JPEGImages", "Annotations", "xml"
    difficult = True

    def format_image(self, image: LabelledImage) -> str:
        """Returns the XML of an image, with boxes that count pixels from 1."""
        size = f"<width>{image.width}</width><height>{image.height}</height><depth>3</depth>"
        lines = ["<annotation>", "<folder>JPEGImages</folder>", f"<filename>{escape_xml(image.inner_path)}</filename>"]
        lines += [f"<size>{size}</size>", "<segmented>0</segmented>"]
        for obj in image.objects or ():
            left, top, right, bottom = obj.box
            corners = zip(("xmin", "ymin", "xmax", "ymax"), (left + 1, top + 1, right, bottom), strict=True)
            box = "".join(f"<{side}>{format_number(value)}</{side}>" for side, value in corners)
            lines.append(
                f"<object><name>{escape_xml(obj.name)}</name><pose>Unspecified</pose><truncated>0</truncated>"
                f"<difficult>{obj.difficult}</difficult><bndbox>{box}</bndbox></object>"
            )
        return "\n".join([*lines, "</annotation>", ""])

    def list_more_documents(self, rows: RecordLines) -> Mapping[str, Iterable[str]]:
        """Returns ``ImageSets/Main/train.txt`` …, the names of each split's images."""
        return {
            f"ImageSets/Main/{folder or 'train'}.txt": (
                f"{rows[number]['file'].partition('/')[2].rpartition('.')[0]}\n" for number in numbers
            )
            for folder, numbers in ((folder, range(start, stop)) for _, folder, start, stop in self.split_ranges)
        }


class KittiExport(LabelsExport):
    """KITTI's objects (https://www.cvlibs.net/datasets/kitti/eval_object.php): ``train/image_2`` and
    ``train/label_2``, a line for each object.

    Only boxes and their classes are written; other fields have the values of KITTI's own ``DontCare`` objects. A crowd
    region has the class ``DontCare``.
    """

    name = "kitti"
    help = "KITTI: image_2 and label_2"
    images, label_folder, label_suffix = "image_2", "label_2", "txt"
    crowds = True

    def losses(self) -> list[str]:
        """Returns the texts of the base. Puts a text first with the number of class names that are not one word, if
        there are any."""
        odd = [name for name, word in zip(self.object_classes, self._class_words, strict=True) if word != name]
        changed = f"{len(odd):,} class names: KITTI's are one word, so they are changed"
        return [*([changed] if odd and self.object_columns.boxes else []), *super().losses()]

    def image_path(self, record: Record) -> str:
        """Returns a path in ``image_2``, below the folder of the split if there is one."""
        path = self.record_paths(record)
        split, _, rest = path.partition("/") if record.split else ("", "", path)
        return f"{split}/{self.images}/{rest}" if split else f"{self.images}/{rest}"

    def format_image(self, image: LabelledImage) -> str:
        """Returns a line for each object."""
        return "".join(
            f"{self._class_word(obj)} -1 -1 -10 {' '.join(map(repr, obj.box))} {_UNKNOWN}\n"
            for obj in image.objects or ()
        )

    def _class_word(self, obj: LabelledObject) -> str:
        """Returns the class of an object as one word; ``_`` and its number if it has no name."""
        if obj.crowd:
            return _DONT_CARE
        return self._class_words[obj.label] if 0 <= obj.label < len(self._class_words) else f"_{obj.label}"

    @cached_property
    def _class_words(self) -> list[str]:
        """Returns class names as unique words that begin with a letter or ``_``."""
        words = (re.sub(r"\s", "_", name) for name in self.object_classes)
        return make_distinct([word if re.match("[A-Za-z_]", word) else f"_{word}" for word in words])


class LabelMeExport(LabelsExport):
    """LabelMe (https://github.com/wkentaro/labelme): a JSON file beside each image, with boxes and polygons in pixels.

    The class of an image is a flag. An object with exactly one valid polygon becomes a polygon, any other its box as a
    rectangle. An image without boxes and class gets no file.
    """

    name = "labelme"
    help = "LabelMe: a JSON file beside each image"
    tags = True
    segments = "polygons"
    upright_kinds = frozenset(("jpeg",))  # see LabelMeSource.annotation_frame

    def format_image(self, image: LabelledImage) -> str:
        """Returns the JSON of an image."""
        shapes: list[dict[str, Any]] = []
        for obj in image.objects or ():
            polygon = obj.polygon
            points = pair_coordinates(obj.box if polygon is None else polygon)
            kind = "rectangle" if polygon is None else "polygon"
            shape = {"label": obj.name, "points": points, "group_id": None}
            shapes.append(shape | {"shape_type": kind, "flags": {}})
        document = {
            "version": "5.4.1",
            "flags": {} if image.tag is None else {image.tag: True},
            "shapes": shapes,
            "imagePath": image.file.rpartition("/")[2],
            "imageData": None,
            "imageHeight": image.height,
            "imageWidth": image.width,
        }
        return format_json(document)


class YoloExport(LabelsExport):
    """YOLO (https://docs.ultralytics.com/datasets/): a folder of images, a label file for each image that has boxes,
    and ``data.yaml``. Boxes are in fractions of the image's sides.

    Boxes and polygons are clipped to the image, as readers expect; polygons in fractions stay as they are. Boxes
    outside the image are left out. An object with polygons is written as one polygon, unless it has keypoints. An image
    of unknown size gets no file.
    """

    name = "yolo"
    help = "YOLO: images, labels and data.yaml"
    keypoints = True
    segments = "rings"
    upright_kinds = frozenset(("jpeg", "tiff"))  # see YoloSource.annotation_frame

    def label_path(self, image: str) -> str:
        """Returns the path at which readers expect the label file: the last folder ``images`` becomes ``labels``."""
        before, _, after = f"/{image}".rpartition("/images/")
        return f"{before}/labels/{after.rpartition('.')[0]}.txt"[1:]

    def format_image(self, image: LabelledImage) -> str | None:
        """Returns a line for each object; None for an image of unknown size."""
        if not (image.width and image.height):
            return None
        return "".join(self._format_line(obj, image.width, image.height) for obj in image.objects or ())

    def list_more_documents(self, rows: RecordLines) -> Mapping[str, Iterable[str]]:
        """Returns ``data.yaml`` with splits, classes and the shape of keypoints.

        A split such as ``validation`` gets the usual name ``val``, unless another split has that name. Without a split
        ``val``, which readers require, the entry ``val`` repeats ``test``, else ``train``, else all images.
        """
        places: dict[str, str] = {}
        for name, folder in self.split_folders.items():
            called = _YOLO_SPLITS.get(name.lower(), f"{name}_" if name in _YOLO_OWN else name)
            places[name if called in places or called in self.split_folders else called] = f"images/{folder}"
        places = places or {"train": "images"}
        places.setdefault("val", places.get("test", places.get("train", "images")))  # readers require val
        text = [f"{format_yaml_string(name)}: {format_yaml_string(place)}" for name, place in places.items()]
        names_of_classes = enumerate(self.object_classes)
        text += ["names:", *(f"  {number}: {format_yaml_string(name)}" for number, name in names_of_classes)]
        if self.object_columns.shape:
            text.append(f"kpt_shape: {list(self.object_columns.shape)}")
        return {"data.yaml": (f"{line}\n" for line in text)}

    def _format_line(self, obj: LabelledObject, width: int, height: int) -> str:
        """Returns the line of an object, or ``""`` if its box is outside the image."""
        left, right = (min(max(value / width, 0.0), 1.0) for value in obj.box[::2])
        top, bottom = (min(max(value / height, 0.0), 1.0) for value in obj.box[1::2])
        if right <= left or bottom <= top:
            return ""
        # Only the box is clipped to the image.
        values = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]
        if obj.keypoints is not None:
            values += [v for x, y, *rest in obj.keypoints for v in (x / width, y / height, *rest)]
        elif (outline := obj.outline or self._scale_rings(obj.shape, width, height)) and sum(map(len, outline)) >= 6:
            values = join_rings(outline)  # a polygon replaces the box
        return " ".join([str(obj.label), *map(repr, values)]) + "\n"

    def _scale_rings(self, shape: Any, width: int, height: int) -> list[list[float]]:
        """Clips the rings of a shape in pixels to the image, and converts them to fractions; none of other shapes."""
        if not isinstance(shape, list):
            return []
        rings = [clip_ring(np.reshape(ring, (-1, 2)), (0, 0, height, width)) for ring in shape]
        return [(ring / (width, height)).ravel().tolist() for ring in rings if len(ring)]


def join_rings(rings: Sequence[list[float]]) -> list[float]:
    """Joins rings ``x, y, x, y …`` to one, by lines from the first point of the first to each other ring and back."""
    joined = list(rings[0])
    for ring in rings[1:]:
        joined += [*rings[0][:2], *ring, *ring[:2]]
    return joined if len(rings) == 1 else joined + rings[0][:2]


class MasksExport(LabelsExport):
    """A folder of images, and a folder of PNG masks for each column of masks: ``masks/train/a.png`` beside
    ``images/train/a.jpg``. Pixels are class numbers.

    Masks of 8 bits get the palette of Pascal VOC, so that any viewer shows classes in colours; values stay as they are.
    """

    name = "masks"
    help = "images and masks: PNG files with a palette"

    @property
    def _mask_folders(self) -> dict[str, str]:
        """Maps each column of masks to its folder: ``masks`` for ``mask``, else the name with an ``s``."""
        names = [column.name for column in self.columns if column.holds_masks]
        return {name: "masks" if name == "mask" else safe_name(f"{name}s") for name in names}

    def visible_columns(self) -> Sequence[str]:
        """Returns the columns of masks."""
        return [*self._mask_folders]

    def label_bytes(self) -> int:
        """Estimates the bytes of one record's masks, each with half a block of padding on disk."""
        sizes = [column.size_of(self.manifest.records) for column in self.columns if column.holds_masks]
        return BLOCK_BYTES // 2 * len(sizes) + sum(sizes) // max(1, self.manifest.records)

    def losses(self) -> Sequence[str]:
        """Returns a text on order and keys. Before it, texts on missing masks, and on masks that PNG cannot hold."""
        lost = [] if self._mask_folders else ["masks: the store has none"]
        dtypes = {self.manifest.column(name).dtype for name in self._mask_folders}
        if "int32" in dtypes:
            lost.append("masks with values below 0 or above 65,535: PNG cannot hold them")
        if "float32" in dtypes:
            lost.append("masks of floating point, such as depth: PNG cannot hold them")
        return [*lost, *super().losses()[-1:]]

    def write_labels(self, record: Record, image: str, size: tuple[int, int]) -> Mapping[str, str]:
        """Writes the masks of a record as PNG files. Skips missing masks and those that PNG cannot hold. Ignores
        ``size``.

        Returns:
            The path of each written file. The key of the first is ``beside``; the key of others is ``beside NAME`` with
            the mask's column.
        """
        paths: dict[str, str] = {}
        for name, folder in self._mask_folders.items():
            data = make_mask_file(record[name])
            if data is not None:
                path = f"{folder}/{image.partition('/')[2].rpartition('.')[0]}.png"
                self.write_file(path, data)
                paths[f"beside {name}" if paths else "beside"] = path
        return paths

"""Formats with a document of many images: COCO, CVAT, Datumaro, FiftyOne, Label Studio, CSV, Open Images.

An object becomes a polygon if it has exactly one and the format has polygons; else its box is written.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from packstore.exports.base import Record
from packstore.exports.labels import (
    LabelledImage,
    LabelledObject,
    LabelsExport,
    escape_xml,
    format_json,
    format_number,
    join_texts,
    pair_coordinates,
)
from packstore.stores.export_manifest import RecordLines

_OWN = ("id", "image_id", "bbox", "category_id", "keypoints", "num_keypoints")
"""Keys of an annotation that come from columns; the JSON column cannot override them."""


class CocoExport(LabelsExport):
    """A folder of images, and a file ``instances_*.json`` for each split. If the store has captions, also
    ``captions_*.json``.

    Images get ids from 1 through the whole store. Ids of objects and captions begin at 1 in each file. Areas and
    ``iscrowd`` come from a column ``json`` in the form of the source ``coco``. Objects whose boxes or keypoints are not
    finite are left out.
    """

    name = "coco"
    help = "COCO: images and annotations/instances_*.json"
    document = "annotations/{of}{split}.json"
    segments = "all"
    keypoints = True
    captions = True
    crowds = True

    def describe_hidden(self, name: str) -> str:
        """Describes a column that is not written. For the column ``json``, says which of its entries are written."""
        if name == self.object_columns.extra:
            return f"{name!r} (but area, iscrowd and other entries of its objects are written)"
        return super().describe_hidden(name)

    def label_bytes(self) -> int:
        """Estimates the bytes of JSON for an image."""
        return 100 + self.estimate_text((*self.visible_columns(), *filter(None, [self.object_columns.extra])))

    def format_documents(self, rows: RecordLines) -> Mapping[str, Iterable[str]]:
        """Returns an annotation file for each split, and a file of captions if the store has captions.

        Categories count from 1. Keypoints have numbers as names.
        """
        categories: list[dict[str, Any]] = [{"id": n + 1, "name": name} for n, name in enumerate(self.object_classes)]
        if self.object_columns.shape:
            points = [str(n) for n in range(self.object_columns.shape[0])]
            categories = [category | {"keypoints": points, "skeleton": []} for category in categories]
        files: dict[str, Iterable[str]] = {}
        listed = f',"categories":{format_json(categories)}'
        for _, folder, start, stop in self.split_ranges:
            split, images = f"_{folder}" if folder else "", range(start, stop)
            objects = self._read_annotations(rows, images) if self.object_columns.boxes else iter(())
            files[self.document.format(of="instances", split=split)] = self._format_file(rows, images, objects, listed)
            if self.captions_column is not None:
                texts = self._read_captions(self.captions_column, images)
                files[self.document.format(of="captions", split=split)] = self._format_file(rows, images, texts, "")
        return files

    def _format_file(
        self, rows: RecordLines, records: range, annotations: Iterator[dict[str, Any]], more: str
    ) -> Iterator[str]:
        """Yields the text of a file of annotations: the images ``records``, their ``annotations``, and ``more``."""
        yield '{"info":{"description":"exported by packstore"},"licenses":[],"images":['
        yield from join_texts(format_json(self._format_image(rows[number], number)) for number in records)
        yield '],"annotations":['
        yield from join_texts(map(format_json, annotations))
        yield f"]{more}}}\n"

    def _format_image(self, line: Mapping[str, Any], number: int) -> dict[str, Any]:
        """Returns the COCO entry of an image, from its record line."""
        name = line["file"].removeprefix("images/")
        # The name is relative to the folder of the split.
        name = name.partition("/")[2] if self.manifest.splits else name
        return {"id": number + 1, "file_name": name, "width": int(line["width"]), "height": int(line["height"])}

    def _read_annotations(self, rows: RecordLines, records: range) -> Iterator[dict[str, Any]]:
        """Yields the annotations of objects in ``records``, numbered from 1."""
        number = 0
        for record in records:
            size = int(rows[record]["width"]), int(rows[record]["height"])
            for obj in self.read_objects(partial(self.read_value, record), size) or ():  # only finite ones
                number += 1
                yield {"id": number, "image_id": record + 1, **_format_annotation(obj, *size)}

    def _read_captions(self, name: str, records: range) -> Iterator[dict[str, Any]]:
        """Yields the captions in column ``name`` of ``records``, numbered from 1."""
        number = 0
        for record in records:
            value = self.read_value(record, name)
            for caption in value if isinstance(value, list) else [value]:
                if isinstance(caption, str):
                    number += 1
                    yield {"id": number, "image_id": record + 1, "caption": caption}


def _format_annotation(obj: LabelledObject, image_width: int, image_height: int) -> dict[str, Any]:
    """Returns the annotation of an object, without ids."""
    left, top, width, height = obj.corner_and_size
    extra = obj.extra if isinstance(obj.extra, dict) else {}
    kept = {name: value for name, value in extra.items() if name not in _OWN}
    # ``area`` and ``iscrowd`` of the object's JSON win over these.
    annotation = {"area": width * height, "iscrowd": int(obj.crowd)} | kept
    if obj.shape is not None:
        annotation["segmentation"] = _format_shape(obj.shape, image_width, image_height)
    annotation |= {"category_id": obj.label + 1, "bbox": [left, top, width, height]}
    if obj.keypoints is not None:
        points = [[*point, 2] if len(point) == 2 else point for point in obj.keypoints]  # 2: visible
        annotation["keypoints"] = [value for point in points for value in point]
        annotation["num_keypoints"] = sum(point[2] > 0 for point in points)
    return annotation


def _format_shape(shape: Any, width: int, height: int) -> Any:
    """Returns a shape as COCO has it. Polygons with holes become run lengths: COCO joins all polygons of an object."""
    if isinstance(shape, list):
        return [[int(n) if n == int(n) else n for n in ring] for ring in shape]
    if "counts" in shape:
        return shape
    from packstore.images.segment_masks import encode_shape

    return encode_shape(shape, height, width)


_BOX = ["width", "height", "class", "xmin", "ymin", "xmax", "ymax"]
_OPEN_IMAGES = [
    *("ImageID", "Source", "LabelName", "Confidence", "XMin", "XMax", "YMin", "YMax"),
    *("IsOccluded", "IsTruncated", "IsGroupOf", "IsDepiction", "IsInside"),
]


class CvatExport(LabelsExport):
    """CVAT for images (https://docs.cvat.ai/docs/dataset_management/formats/format-cvat/): boxes, polygons and tags in
    one XML file; splits become subsets."""

    name = "cvat"
    help = "CVAT for images: images and annotations.xml"
    document = "annotations.xml"
    between = "\n"
    tail = "\n</annotations>\n"
    tags = True
    segments = "polygons"

    @property
    def head(self) -> str:
        """Beginning of the XML, with the class names of objects and images."""
        names = map(escape_xml, self.class_numbers)
        labels = "".join(f"<label><name>{name}</name><attributes></attributes></label>" for name in names)
        return (
            '<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n<version>1.1</version>\n'
            f"<meta><task><name>packstore</name><size>{self.manifest.records}</size><labels>{labels}</labels></task>"
            "</meta>\n"
        )

    def format_image(self, image: LabelledImage) -> str:
        """Returns the element ``<image>`` with its tag, boxes and polygons."""
        name = escape_xml(image.inner_path)
        subset = f' subset="{escape_xml(image.split)}"' if image.split else ""
        lines = [f'<image id="{image.number}" name="{name}"{subset} width="{image.width}" height="{image.height}">']
        if image.tag is not None:
            lines.append(f'<tag label="{escape_xml(image.tag)}" source="manual"></tag>')
        for obj in image.objects or ():
            known = f'label="{escape_xml(obj.name)}" source="manual" occluded="0"'
            polygon = obj.polygon
            if polygon is not None:
                points = ";".join(f"{format_number(x)},{format_number(y)}" for x, y in pair_coordinates(polygon))
                lines.append(f'<polygon {known} points="{points}" z_order="0"></polygon>')
            else:
                corners = zip(("xtl", "ytl", "xbr", "ybr"), map(format_number, obj.box), strict=True)
                box = " ".join(f'{side}="{value}"' for side, value in corners)
                lines.append(f'<box {known} {box} z_order="0"></box>')
        return "\n".join([*lines, "</image>"])


class DatumaroExport(LabelsExport):
    """Datumaro (https://open-edge-platform.github.io/datumaro): boxes, polygons and classes of images; a JSON document
    for each split, ``annotations/train.json`` with ``images/train``."""

    name = "datumaro"
    help = "Datumaro: images and annotations/*.json"
    document = "annotations/{split}.json"
    no_split = "default"
    tags = True
    segments = "polygons"
    crowds = True

    @property
    def head(self) -> str:
        """Beginning of the JSON, with the class names."""
        labels = [{"name": name, "parent": "", "attributes": []} for name in self.class_numbers]
        categories = {"label": {"labels": labels, "attributes": []}}
        facts = f'"dm_format_version":"1.0","media_type":2,"info":{{}},"categories":{format_json(categories)}'
        return f'{{{facts},"items":[\n'

    def format_image(self, image: LabelledImage) -> str:
        """Returns the item of an image."""
        rest: dict[str, Any] = {"attributes": {}, "group": 0}
        made = [self._format_object(obj, n) | rest for n, obj in enumerate(image.objects or ())]
        if self.object_columns.crowds:  # as Datumaro's converter from COCO writes it
            for entry, obj in zip(made, image.objects or (), strict=True):
                entry["attributes"] = {"is_crowd": obj.crowd}
        if image.tag is not None:
            made.append({"id": 0, "type": "label", "label_id": self.class_numbers[image.tag]} | rest)
        path = image.inner_path.partition("/")[2] if image.split else image.inner_path
        media = {"path": path, "size": [image.height, image.width]}
        return format_json({"id": path.rpartition(".")[0], "annotations": made, "attr": {}, "image": media})

    def _format_object(self, obj: LabelledObject, number: int) -> dict[str, Any]:
        """Returns the annotation of an object."""
        polygon = obj.polygon
        shape: dict[str, Any] = {"type": "bbox", "bbox": obj.corner_and_size}
        if polygon is not None:
            shape = {"type": "polygon", "points": polygon}
        return {"id": number, **shape, "label_id": self.class_numbers.get(obj.name), "z_order": 0}


class FiftyOneExport(LabelsExport):
    """FiftyOne (https://docs.voxel51.com/user_guide/export_datasets.html): detections, polylines (polygons) and
    classifications in ``samples.json``; splits are tags of samples.

    ``metadata.json`` has no version, so FiftyOne reads the folder as a ``FiftyOneDataset``, which can have any fields.
    """

    name = "fiftyone"
    help = "FiftyOne: data, samples.json and metadata.json"
    images = "data"
    document = "samples.json"
    head = '{"samples":[\n'
    tags = True
    segments = "polygons"
    crowds = True

    def list_more_documents(self, rows: RecordLines) -> Mapping[str, Iterable[str]]:
        """Returns ``metadata.json``. If the store has boxes, it has the class names of objects."""
        info = {"classes": self.object_classes} if self.object_columns.boxes else {}
        return {"metadata.json": [format_json({"media_type": "image", "info": info}) + "\n"]}

    def format_image(self, image: LabelledImage) -> str:
        """Returns the sample of an image, with coordinates as fractions of its sides."""
        sample: dict[str, Any] = {"filepath": image.file, "tags": [image.split] if image.split else []}
        if image.tag is not None:
            sample["ground_truth_class"] = {"_cls": "Classification", "label": image.tag}
        if image.objects is None:
            return format_json(sample)
        boxes: list[dict[str, Any]] = []
        shapes: list[dict[str, Any]] = []
        for obj in image.objects:
            polygon = obj.polygon
            # As FiftyOne's importer of COCO writes it.
            crowd = {"iscrowd": int(obj.crowd)} if self.object_columns.crowds else {}
            if polygon is None:
                box = image.scale(obj.corner_and_size)
                boxes.append({"_cls": "Detection", "label": obj.name, "bounding_box": box} | crowd)
            else:
                points = [pair_coordinates(image.scale(polygon))]
                line = {"_cls": "Polyline", "label": obj.name, "points": points, "closed": True, "filled": True}
                shapes.append(line | crowd)
        sample["ground_truth"] = {"_cls": "Detections", "detections": boxes}
        if shapes:
            sample["ground_truth_polygons"] = {"_cls": "Polylines", "polylines": shapes}
        return format_json(sample)


class LabelStudioExport(LabelsExport):
    """Label Studio (https://labelstud.io/guide/export): tasks for images that it serves from the export's folder, and
    its labelling configuration. Each split has a JSON file of tasks, with percentages of the image's sides."""

    name = "label_studio"
    help = "Label Studio: images, tasks and label_config.xml"
    document = "tasks_{split}.json"
    head, tail = "[", "]\n"
    tags = True
    segments = "polygons"

    def list_more_documents(self, rows: RecordLines) -> Mapping[str, Iterable[str]]:
        """Returns ``label_config.xml``, the labelling configuration with all class names."""
        labels = "".join(f'<Label value="{escape_xml(name)}"/>' for name in self.object_classes)
        lines = ["<View>", '<Image name="image" value="$image"/>']
        if self.object_columns.boxes:
            for kind, name in (("Rectangle", "box"), ("Polygon", "polygon")):
                lines.append(f'<{kind}Labels name="{name}" toName="image">{labels}</{kind}Labels>')
        if choices := "".join(f'<Choice value="{escape_xml(name)}"/>' for name in self.image_classes):
            lines.append(f'<Choices name="class" toName="image">{choices}</Choices>')
        return {"label_config.xml": ["\n".join([*lines, "</View>", ""])]}

    def format_image(self, image: LabelledImage) -> str:
        """Returns the task of an image, without annotation if it has neither boxes nor class."""
        annotated = image.objects is not None or image.tag is not None
        results = [_format_result(image, obj, n) for n, obj in enumerate(image.objects or ())]
        if image.tag is not None:
            value = {"choices": [image.tag]}
            results.append({"id": "c", "type": "choices", "from_name": "class", "to_name": "image", "value": value})
        number = image.number + 1
        made = [{"id": number, "was_cancelled": False, "ground_truth": False, "result": results}] if annotated else []
        served = f"/data/local-files/?d={quote(image.file, errors='surrogateescape')}"
        return format_json({"id": number, "annotations": made, "data": {"image": served}})


def _format_result(image: LabelledImage, obj: LabelledObject, number: int) -> dict[str, Any]:
    """Returns Label Studio's result for an object, in percent of the image's sides."""
    polygon = obj.polygon
    if polygon is None:
        kind = "rectanglelabels"
        sides = zip(("x", "y", "width", "height"), image.scale(obj.corner_and_size, 100), strict=True)
        value: dict[str, Any] = {**dict(sides), "rotation": 0}
    else:
        kind = "polygonlabels"
        value = {"points": pair_coordinates(image.scale(polygon, 100)), "closed": True}
    return {
        "id": f"r{number}",
        "type": kind,
        "from_name": "polygon" if polygon else "box",
        "to_name": "image",
        "original_width": image.width,
        "original_height": image.height,
        "image_rotation": 0,
        "value": value | {kind: [obj.name]},
    }


class CsvExport(LabelsExport):
    """``annotations.csv`` in the form that TensorFlow's object detection reads: a row for each object.

    If the store has no boxes, a row for each image with its class.
    """

    name = "csv"
    help = "images and annotations.csv, a row for each box or image"
    document = "annotations.csv"
    between, tail = "", ""
    tags = True

    @property
    def tag_column(self) -> str | None:
        """None if the store has boxes: a row then has the class of a box."""
        return None if self.object_columns.boxes else super().tag_column

    @property
    def head(self) -> str:
        """The names of the columns."""
        columns = ["filename", "split"] if self.manifest.splits else ["filename"]
        return _format_line([*columns, *(_BOX if self.object_columns.boxes else ["label"])])

    def format_image(self, image: LabelledImage) -> str:
        """Returns the rows of an image. An image without objects has empty cells."""
        first = [image.file, image.split] if self.manifest.splits else [image.file]
        if not self.object_columns.boxes:
            return _format_line([*first, image.tag or ""])
        size = [str(image.width), str(image.height)]
        rows = [[*size, each.name, *map(format_number, each.box)] for each in image.objects or ()]
        return "".join(_format_line([*first, *row]) for row in rows or [[*size, *[""] * 5]])


class OpenImagesExport(LabelsExport):
    """``train-annotations-bbox.csv`` and ``class-descriptions-boxable.csv``, with boxes as fractions of the sides.

    Source: https://storage.googleapis.com/openimages/web/download_v7.html. An ``ImageID`` is the path of an image below
    its split's folder, without suffix.
    """

    name = "open_images"
    help = "Open Images: images, annotations-bbox.csv and class descriptions"
    document = "{split}-annotations-bbox.csv"
    head = ",".join(_OPEN_IMAGES) + "\n"
    between, tail = "", ""
    crowds = True

    def image_path(self, record: Record) -> str:
        """Returns a path in the folder of the split; in ``images`` if the store has no splits."""
        return self.record_paths(record) if record.split else super().image_path(record)

    def format_image(self, image: LabelledImage) -> str:
        """Returns a line for each box; ``IsGroupOf`` is 1 for a crowd region."""
        name, lines = image.inner_path.rpartition(".")[0], []
        for obj in image.objects or ():
            left, top, right, bottom = image.scale(obj.box)
            corners = map(repr, [left, right, top, bottom])
            flags = ["0", "0", str(int(obj.crowd)), "0", "0"]
            lines.append(_format_line([name, "xclick", _class_identifier(obj.label), "1", *corners, *flags]))
        return "".join(lines)

    def list_more_documents(self, rows: RecordLines) -> Mapping[str, Iterable[str]]:
        """Returns ``class-descriptions-boxable.csv``, which maps class identifiers to names."""
        lines = (_format_line([_class_identifier(number), name]) for number, name in enumerate(self.object_classes))
        return {"class-descriptions-boxable.csv": lines}


def _class_identifier(number: int) -> str:
    """Returns the machine-readable identifier of a class, like ``/m/01g317`` in Open Images."""
    return f"/packstore/{number}"


def _format_line(cells: Sequence[str]) -> str:
    """Formats cells as a line of CSV."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()

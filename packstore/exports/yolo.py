"""YOLO (https://docs.ultralytics.com/datasets/): ``images/``, ``labels/`` and ``data.yaml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from packstore.exports.base import Record
from packstore.exports.names import safe_name
from packstore.exports.objects import LabelledObject, ObjectsExport
from packstore.exports.paths import make_distinct
from packstore.sources.yamltext import format_yaml_string
from packstore.stores.export_manifest import ExportManifest

_SPLITS = {"training": "train", "valid": "val", "validation": "val", "dev": "val", "testing": "test", "eval": "test"}
_OWN = ("names", "kpt_shape", "nc", "path")
_DESCRIPTION = "data.yaml"


class YoloExport(ObjectsExport):
    """A folder of images, a label file for each image that has boxes, and ``data.yaml``. Boxes are in fractions of the
    image's sides.

    Boxes are clipped to the image, as readers expect. Boxes outside the image are left out. An object with a polygon in
    a column ``polygons`` (JSON) is written as a polygon, unless it has keypoints.
    """

    name = "yolo"
    help = "YOLO: images, labels and data.yaml"
    extra = "polygons"
    upright_kinds = frozenset(("jpeg", "tiff"))  # see YoloSource.annotation_frame

    def visible_columns(self) -> Sequence[str]:
        """Returns the columns of boxes, labels, keypoints and polygons that the store has."""
        polygons = self.object_columns.extra
        return [*super().visible_columns(), *([] if polygons is None else [polygons])]

    def write_labels(self, record: Record, image: str, size: tuple[int, int]) -> Mapping[str, str]:
        """Writes the label file of an image and returns its path as ``{"beside": path}``. Creates its folder if needed.

        Without a value of boxes, and for an image of unknown size, writes nothing and returns an empty mapping.
        """
        objects = self.read_objects(record.__getitem__)
        if objects is None or not all(size):
            return {}
        path = label_path(image)
        lines = (line for obj in objects if (line := self._format_line(obj, *size)))
        (self.path / path).parent.mkdir(parents=True, exist_ok=True)
        self.write_export_file(path, "".join(lines).encode("ascii"))
        return {"beside": path}

    def finish(self, export_manifest: ExportManifest, lines: Path | None) -> ExportManifest:
        """Writes ``data.yaml`` with splits, classes and the shape of keypoints. Adds it to the export manifest. Writes
        the export manifest unless the export is bare.

        A split such as ``validation`` gets the usual name ``val``, unless another split has that name. Without a split
        ``val``, which readers require, the entry ``val`` repeats ``test``, else ``train``, else all images.
        """
        names = [split.name for split in self.manifest.splits]
        folders = make_distinct([safe_name(name) for name in names])
        places: dict[str, str] = {}
        for name, folder in zip(names, folders, strict=True):
            called = _SPLITS.get(name.lower(), f"{name}_" if name in _OWN else name)
            places[name if called in places or called in names else called] = f"images/{folder}"
        places = places or {"train": "images"}
        places.setdefault("val", places.get("test", places.get("train", "images")))  # readers require val
        text = [f"{format_yaml_string(name)}: {format_yaml_string(place)}" for name, place in places.items()]
        names_of_classes = enumerate(self.object_classes)
        text += ["names:", *(f"  {number}: {format_yaml_string(name)}" for number, name in names_of_classes)]
        if self.object_columns.shape:
            text.append(f"kpt_shape: {list(self.object_columns.shape)}")
        self.write_export_file(_DESCRIPTION, "".join(f"{line}\n" for line in text).encode("utf-8"))
        return super().finish(replace(export_manifest, files=(_DESCRIPTION,)), lines)

    def _format_line(self, obj: LabelledObject, width: int, height: int) -> str:
        """Returns the line of an object: class and box, and keypoints if it has them. Without keypoints, a polygon
        replaces the box.

        Clips only the box to the image. Returns ``""`` if the box is outside.
        """
        left, right = (min(max(value / width, 0.0), 1.0) for value in obj.box[::2])
        top, bottom = (min(max(value / height, 0.0), 1.0) for value in obj.box[1::2])
        if right <= left or bottom <= top:
            return ""
        values = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]
        if obj.keypoints is not None:
            values += [v for x, y, *rest in obj.keypoints for v in (x / width, y / height, *rest)]
        elif isinstance(obj.extra, list) and all(isinstance(value, (int, float)) for value in obj.extra):
            values = obj.extra
        return " ".join([str(obj.label), *map(repr, values)]) + "\n"


def label_path(image: str) -> str:
    """Returns the path at which readers expect an image's label file. In it, the last folder ``images`` becomes
    ``labels``."""
    before, _, after = f"/{image}".rpartition("/images/")
    return f"{before}/labels/{after.rpartition('.')[0]}.txt"[1:]

"""YOLO (https://docs.ultralytics.com/datasets/): ``images/``, ``labels/`` and ``data.yaml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from packstore.core.export_manifest import ExportManifest
from packstore.core.yamltext import yaml_text
from packstore.exports.base import Record
from packstore.exports.names import safe_name
from packstore.exports.objects import ObjectsExport, Thing
from packstore.exports.paths import distinct

_SPLITS = {"training": "train", "valid": "val", "validation": "val", "dev": "val", "testing": "test", "eval": "test"}
_OWN = ("names", "kpt_shape", "nc", "path")
_DESCRIPTION = "data.yaml"


class YoloExport(ObjectsExport):
    """A folder with a file of labels for each image that has boxes, in fractions of its sides.

    Boxes are cut at the edges of the image, as readers expect, and those that lie outside are left out. Objects with a
    polygon in a column ``polygons``, as the source ``yolo`` makes it, are polygons.
    """

    name = "yolo"
    help = "YOLO: images, labels and data.yaml"
    further = "polygons"

    def shown(self) -> Sequence[str]:
        polygons = self.things.further
        return [*super().shown(), *([] if polygons is None else [polygons])]

    def write_labels(self, record: Record, image: str, size: tuple[int, int]) -> Mapping[str, str]:
        things = self.things.of(record.__getitem__)
        if things is None or not all(size):
            return {}
        path = labels_beside(image)
        lines = (line for thing in things if (line := self._line(thing, *size)))
        (self.path / path).parent.mkdir(parents=True, exist_ok=True)
        self.write(path, "".join(lines).encode("ascii"))
        return {"beside": path}

    def finish(self, export_manifest: ExportManifest, lines: Path | None) -> ExportManifest:
        names = [split.name for split in self.manifest.splits]
        folders = distinct([safe_name(name) for name in names])
        places: dict[str, str] = {}
        for name, folder in zip(names, folders, strict=True):
            called = _SPLITS.get(name.lower(), f"{name}_" if name in _OWN else name)
            places[name if called in places or called in names else called] = f"images/{folder}"
        places = places or {"train": "images"}
        places.setdefault("val", places.get("test", places.get("train", "images")))  # readers ask for one
        text = [f"{yaml_text(name)}: {yaml_text(place)}" for name, place in places.items()]
        classes = self.things.names(self.most_label)
        text += ["names:", *(f"  {number}: {yaml_text(name)}" for number, name in enumerate(classes))]
        if self.things.shape:
            text.append(f"kpt_shape: {list(self.things.shape)}")
        self.write(_DESCRIPTION, "".join(f"{line}\n" for line in text).encode("utf-8"))
        return super().finish(replace(export_manifest, files=(_DESCRIPTION,)), lines)

    def _line(self, thing: Thing, width: int, height: int) -> str:
        """The line of an object; empty where nothing of it is on the image."""
        left, right = (min(max(value / width, 0.0), 1.0) for value in thing.box[::2])
        top, bottom = (min(max(value / height, 0.0), 1.0) for value in thing.box[1::2])
        if right <= left or bottom <= top:
            return ""
        values = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]
        if thing.keypoints is not None:
            values += [v for x, y, *rest in thing.keypoints for v in (x / width, y / height, *rest)]
        elif isinstance(thing.further, list) and all(isinstance(value, (int, float)) for value in thing.further):
            values = thing.further
        return " ".join([str(thing.label), *map(repr, values)]) + "\n"


def labels_beside(image: str) -> str:
    """The file of labels of an image, where readers look for it: its last folder called ``images`` becomes
    ``labels``."""
    before, _, after = f"/{image}".rpartition("/images/")
    return f"{before}/labels/{after.rpartition('.')[0]}.txt"[1:]

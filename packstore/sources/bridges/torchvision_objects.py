"""Datasets of torchvision with objects: what each says of an image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from packstore.sources.annotation_formats.objects import from_corner
from packstore.sources.bridges.items import AnnotatedItem
from packstore.sources.voc.objects import CLASSES, objects_of


def items_of(name: str, data: Any, split: str, root: Path) -> Iterator[AnnotatedItem]:
    """The images of a dataset with their annotations."""
    for path, raw in OBJECTS[name](data):
        yield AnnotatedItem(f"{split}/{relative_name(path, root)}".lstrip("/"), path, raw)


def relative_name(path: Path, root: Path) -> str:
    """The path of a file from ``root``; its name if it lies elsewhere."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name


def _coco(data: Any) -> Iterator[tuple[Path, Any]]:
    names = {number: each["name"] for number, each in sorted(data.coco.cats.items())}
    classes = [*names.values()]
    for number in data.ids:
        found = data.coco.imgToAnns[number]
        objects = [(names[a["category_id"]], from_corner(*a["bbox"]), a.get("segmentation") or None) for a in found]
        yield Path(data.root, data.coco.imgs[number]["file_name"]), (objects, found, classes)


def _kitti(data: Any) -> Iterator[tuple[Path, Any]]:
    for number, path in sorted(enumerate(data.images), key=lambda each: each[1]):  # they have the order of the disk
        found = data._parse_target(number) if data.train else None
        yield Path(path), None if found is None else ([(each["type"], each["bbox"]) for each in found], found)


def _voc(data: Any) -> Iterator[tuple[Path, Any]]:
    annotations = [objects_of(Path(file).read_bytes()) for file in data.annotations]
    own = {label for found in annotations for label in found["labels"]} <= set(CLASSES)
    for image, found in zip(data.images, annotations, strict=True):
        values = [{"difficult": each} for each in found["difficult"]]
        objects = zip(found["labels"], found["boxes"], [None] * len(values), values, strict=True)
        yield Path(image), ([*objects], found["json"], CLASSES if own else ())


def _wider_face(data: Any) -> Iterator[tuple[Path, Any]]:
    for each in data.img_info:
        annotations = each.get("annotations")
        found = None if annotations is None else {name: values.tolist() for name, values in annotations.items()}
        raw = None if found is None else ([(None, from_corner(*box)) for box in found["bbox"]], found)
        yield Path(each["img_path"]), raw


OBJECTS: Mapping[str, Callable[[Any], Iterator[tuple[Path, Any]]]] = {
    "CocoDetection": _coco,
    "Kitti": _kitti,
    "VOCDetection": _voc,
    "WIDERFace": _wider_face,
}
"""For datasets with objects: yields the path of each image, and its annotations as
:class:`packstore.sources.bridges.items.Objects` takes them."""

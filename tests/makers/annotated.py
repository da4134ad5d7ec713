"""Small datasets with labels beside their images, in the layouts in which they are published."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.makers.images import encode, picture

Files = dict[str, str | bytes]


def fill(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Writes files below ``root``."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def jpeg(seed: int, width: int = 16, height: int = 8) -> bytes:
    """A small JPEG file; another one for each seed."""
    return encode(picture(width=width, height=height, seed=seed), "JPEG")


def mask(seed: int, width: int = 16, height: int = 8, mode: str = "P") -> bytes:
    """A PNG file whose pixels are class numbers, 255 for none; with a palette, in gray (``L``) or in colour."""
    values = (np.arange(seed, seed + width * height) % 21).astype(np.uint8).reshape(height, width)
    values[0] = 255
    image = Image.fromarray(values)
    if mode == "P":
        image = image.copy()
        image.putpalette(list(range(256)) * 3)
    return encode(image if mode in "PL" else image.convert(mode), "PNG")


def voc_xml(name: str, *objects: tuple[str, tuple[float, ...], int]) -> str:
    """An annotation of Pascal VOC; each object has its class, its box as in the file, and whether it is difficult."""
    each = "".join(
        f"<object><name>{label}</name><pose>Left</pose><truncated>1</truncated><difficult>{difficult}</difficult>"
        f"<bndbox><xmin>{a}</xmin><ymin>{b}</ymin><xmax>{c}</xmax><ymax>{d}</ymax></bndbox></object>"
        for label, (a, b, c, d), difficult in objects
    )
    size = "<size><width>16</width><height>8</height><depth>3</depth></size>"
    return f"<annotation>\n<folder>VOC2012</folder><filename>{name}.jpg</filename>{size}{each}\n</annotation>\n"


def voc(root: Path, samples: int = 6) -> Path:
    """A development kit of Pascal VOC: sets train, val and trainval; two of three images have masks."""
    files: dict[str, str | bytes] = {}
    names = [f"2007_{n:06}" for n in range(samples)]
    for n, name in enumerate(names):
        base = "VOCdevkit/VOC2012"
        files[f"{base}/JPEGImages/{name}.jpg"] = jpeg(n)
        objects = [("cat", (1, 1, 16, 8), 0), ("tvmonitor", (2.5, 3, 4, 8), n % 2)][: n % 3]
        files[f"{base}/Annotations/{name}.xml"] = voc_xml(name, *objects)
        if n % 3:
            files[f"{base}/SegmentationClass/{name}.png"] = mask(n)
            files[f"{base}/SegmentationObject/{name}.png"] = mask(n + 1)
    sets = {"train": names[:-2], "val": names[-2:], "trainval": names}
    for split, chosen in sets.items():
        files[f"VOCdevkit/VOC2012/ImageSets/Main/{split}.txt"] = "".join(f"{name}\n" for name in chosen)
        files[f"VOCdevkit/VOC2012/ImageSets/Main/cat_{split}.txt"] = "".join(f"{name} -1\n" for name in chosen)
        masked = [name for name in chosen if names.index(name) % 3]
        files[f"VOCdevkit/VOC2012/ImageSets/Segmentation/{split}.txt"] = "".join(f"{name}\n" for name in masked)
    return fill(root, files)


CATS = [{"id": 18, "name": "dog", "supercategory": "animal"}, {"id": 3, "name": "car", "supercategory": "vehicle"}]
POINTS = {"id": 1, "name": "person", "keypoints": ["nose", "tail"], "skeleton": [[1, 2]]}


def coco_image(number: int) -> dict[str, Any]:
    """The entry of an image."""
    return {"id": number, "file_name": f"{number:012}.jpg", "width": 16, "height": 8, "license": 2}


def coco_object(number: int, image: int, **more: Any) -> dict[str, Any]:
    """The entry of an object."""
    polygon = [[1.5, 1.0, 6.0, 1.25, 4.0, 7.5]]
    found = {"id": number, "image_id": image, "category_id": 18, "bbox": [1.5, 1, 4.5, 6.5], "area": 14.5, "iscrowd": 0}
    return found | {"segmentation": polygon} | more


def coco(root: Path, samples: int = 6) -> Path:
    """COCO's layout: train2017 and val2017 with objects, keypoints and captions; one of three images has no object."""
    files: dict[str, str | bytes] = {}
    for split, numbers in (("train", range(samples - 2)), ("val", range(samples - 2, samples))):
        images = [coco_image(number) for number in reversed(numbers)]
        files |= {f"{split}2017/{number:012}.jpg": jpeg(number) for number in numbers}
        objects = [coco_object(10 * n, n) for n in numbers if n % 3]
        runs = {"size": [8, 16], "counts": [10, 20, 98]}
        objects += [coco_object(10 * n + 1, n, category_id=3, iscrowd=1, segmentation=runs) for n in numbers if n % 3]
        head = {"info": {"year": 2017}, "licenses": [{"id": 2, "name": "x"}], "images": images}
        instances = head | {"annotations": objects, "categories": CATS}
        people = [{**each, "keypoints": [1, 2, 2, 3.5, 4, 1], "num_keypoints": 2} for each in objects[:1]]
        captions = [
            {"id": 5 * n + k, "image_id": n, "caption": f"caption {k} of {n}"} for n in numbers for k in range(2)
        ]
        files[f"annotations/instances_{split}2017.json"] = json.dumps(instances)
        files[f"annotations/person_keypoints_{split}2017.json"] = json.dumps(
            head | {"annotations": people, "categories": [POINTS]}
        )
        files[f"annotations/captions_{split}2017.json"] = json.dumps(head | {"annotations": captions})
    return fill(root, files)


def yolo(root: Path, samples: int = 6) -> Path:
    """YOLO's layout: images/train and images/val with labels; one of three images has no file of labels."""
    names = "names:\n  0: cat\n  1: dog\n"
    files: dict[str, str | bytes] = {"data.yaml": f"path: ../set\ntrain: images/train\nval: images/val\n{names}"}
    for n in range(samples):
        split = "train" if n < samples - 2 else "val"
        files[f"images/{split}/{n:05}.jpg"] = jpeg(n)
        if n % 3:
            files[f"labels/{split}/{n:05}.txt"] = "1 0.5 0.5 0.25 0.5\n0 0.25 0.5 0.5 1\n" if n % 3 == 1 else ""
    return fill(root, files)


def without_export_manifest(root: Path) -> Path:
    """An export as others see it: without what packstore adds."""
    for name in ("packstore.json", "packstore.rows.jsonl"):
        (root / name).unlink()
    return root

"""Small sets that Datumaro writes, and what it reads of them: ``python -m tests.makers.parity tests/corpus/parity``.

It needs ``pip install datumaro`` (1.13 wrote those of the corpus).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FORMATS = {
    "coco_instances-boxes": "coco_instances", "coco_instances-polygons": "coco_instances",
    "coco_instances-masks": "coco_instances", "coco_panoptic-masks": "coco_panoptic", "cvat-boxes": "cvat",
    "cvat-polygons": "cvat", "datumaro-boxes": "datumaro", "datumaro-polygons": "datumaro",
    "mot_seq_gt-boxes": "mot_seq_gt", "yolo-boxes": "yolo",
    "voc_detection-boxes": "voc_detection",
    "voc_segmentation-masks": "voc_segmentation",
}  # fmt: skip
"""Datumaro's name of the format of each folder."""
LABELS = ("background", "cat", "dog")


def write(root: Path) -> None:
    """Writes all sets, and ``expected.json``."""
    for name, form in FORMATS.items():
        _make(name.rpartition("-")[2]).export(str(root / name), form, save_media=True)
    found = {name: read(root / name, form) for name, form in FORMATS.items()}
    (root / "expected.json").write_text(json.dumps(found, indent=1) + "\n")


def read(path: Path, form: str) -> dict[str, Any]:
    """What Datumaro reads of a set: for each image, by its name without folders and suffix, class and box of each
    object, and pixels of each class."""
    import datumaro

    dataset = datumaro.Dataset.import_from(str(path), {"mot_seq_gt": "mot_seq"}.get(form, form))
    names = [each.name for each in dataset.categories()[datumaro.AnnotationType.label]]
    found: dict[str, Any] = {}
    for item in dataset:
        own = found.setdefault(item.id.rpartition("/")[2], {"boxes": [], "pixels": {}})
        for each in item.annotations:
            if each.type in (datumaro.AnnotationType.bbox, datumaro.AnnotationType.polygon):
                left, top, width, height = each.get_bbox()
                box = [round(float(n), 3) for n in (left, top, left + width, top + height)]
                if [names[each.label], *box] not in own["boxes"]:  # of COCO it makes a box and a polygon of each object
                    own["boxes"].append([names[each.label], *box])
            elif each.type == datumaro.AnnotationType.mask and names[each.label] != LABELS[0]:
                count = own["pixels"].get(names[each.label], 0)
                own["pixels"][names[each.label]] = count + int(each.image.sum())
        own["boxes"].sort()
    return dict(sorted(found.items()))


def _make(kind: str) -> Any:
    import datumaro
    import numpy as np
    from datumaro.components.annotation import Bbox, LabelCategories, Mask, MaskCategories, Polygon
    from datumaro.components.media import Image

    items = []
    for n in range(4):
        pixels = np.kron(np.random.default_rng(n).integers(0, 256, (6, 8, 3), np.uint8), np.ones((4, 4, 1), np.uint8))
        first, second = 1 + n % 2, 2 - n % 2
        inner, outer = np.zeros((24, 32), bool), np.zeros((24, 32), bool)
        inner[2:10, 3 + n : 15] = outer[12:20, 4 : 20 + n] = True
        made = {
            "boxes": [Bbox(2 + n, 3, 10, 9, label=first), Bbox(14, 5, 8 + n, 12, label=second)],
            "polygons": [
                Polygon([2 + n, 3, 14, 4, 12, 15], label=first),
                Polygon([16, 5, 30, 6, 25, 20], label=second),
            ],
            "masks": [Mask(inner, label=first), Mask(outer, label=second)],
        }[kind][: 2 if kind == "masks" else 1 + n % 2]
        for number, each in enumerate(made, 1):
            each.id = each.group = number
        split = "train" if n < 3 else "val"
        name = f"{n + 1:06}"
        items.append(datumaro.DatasetItem(id=name, subset=split, media=Image.from_numpy(data=pixels), annotations=made))
    categories = {
        datumaro.AnnotationType.label: LabelCategories.from_iterable(LABELS),
        datumaro.AnnotationType.mask: MaskCategories.generate(len(LABELS)),
    }
    return datumaro.Dataset.from_iterable(items, categories=categories)


if __name__ == "__main__":
    write(Path(sys.argv[1]))

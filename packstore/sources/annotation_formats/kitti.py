"""KITTI's objects (https://www.cvlibs.net/datasets/kitti/eval_object.php): ``image_2`` and ``label_2``, a line each.

A line is class, truncated, occluded, alpha, left, top, right, bottom, three sizes, a place and an angle in 3D, and
sometimes a score: all are in ``json``, in their order.
"""

from __future__ import annotations

import re
from typing import Any

from packstore.sources.annotation_formats.objects import Annotation, Sides, full_lines, of_box, reals
from packstore.sources.annotation_formats.source import SidecarSource, annotated_kind

_NUMBERS = (14, 15)


class KittiSource(SidecarSource):
    """Images of KITTI's left camera with their labels; calibration and points of the laser are left."""

    kind = "kitti"
    title = "KITTI"
    folders = (("image_2", "label_2"), ("images", "labels"), ("image", "label"), ("data", "labels"))
    patterns = ("{stem}.txt",)
    signature = re.compile(rb"^\s*[A-Za-z_]\S*( -?\d+(\.\d+)?(e-?\d+)?){14,15}\s*($|\r?\n)", re.I)

    def parse(self, raw: Any, sides: Sides) -> Annotation:
        found = Annotation(json=[])
        for number, line in full_lines(raw):
            words = line.split()
            numbers = reals(words[1:])
            if len(numbers) not in _NUMBERS:
                raise ValueError(f"line {number} of its labels has {len(numbers)} numbers, expected 14 or 15")
            found.json.append([words[0], *numbers])
            found.objects.append(of_box(words[0], numbers[3:7]))
        return found


KIND = annotated_kind(KittiSource, "KITTI: image_2 with a file of objects for each image in label_2")

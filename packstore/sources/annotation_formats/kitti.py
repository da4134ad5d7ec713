"""KITTI objects (https://www.cvlibs.net/datasets/kitti/eval_object.php): ``image_2`` with ``label_2``, a line an
object.

A line is class, truncated, occluded, alpha, left, top, right, bottom, size, position and angle in 3D, and sometimes a
score. All are in ``json``, in their order.
"""

from __future__ import annotations

import re
from typing import Any

from packstore.sources.annotation_formats.objects import (
    Annotation,
    SizeReader,
    numbered_lines,
    object_from_box,
    to_floats,
)
from packstore.sources.annotation_formats.source import SidecarSource, make_sidecar_kind

_NUMBERS = (14, 15)


class KittiSource(SidecarSource):
    """Source of images of KITTI's left camera with their objects; calibration and laser points are left out."""

    kind = "kitti"
    title = "KITTI"
    folder_pairs = (("image_2", "label_2"), ("images", "labels"), ("image", "label"), ("data", "labels"))
    patterns = ("{stem}.txt",)
    signature = re.compile(rb"^\s*[A-Za-z_]\S*( -?\d+(\.\d+)?(e-?\d+)?){14,15}\s*($|\r?\n)", re.I)

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts each line to an object with its 2D box; all numbers go to ``json``. Raises :class:`ValueError` for
        any other number of them."""
        annotation = Annotation(json=[])
        for number, line in numbered_lines(raw):
            words = line.split()
            numbers = to_floats(words[1:])
            if len(numbers) not in _NUMBERS:
                raise ValueError(f"line {number} of its labels has {len(numbers)} numbers, expected 14 or 15")
            annotation.json.append([words[0], *numbers])
            annotation.objects.append(object_from_box(words[0], numbers[3:7]))
        return annotation


KIND = make_sidecar_kind(KittiSource, "KITTI: image_2 with a file of objects for each image in label_2")

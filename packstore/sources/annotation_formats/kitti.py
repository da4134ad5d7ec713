"""KITTI objects (https://www.cvlibs.net/datasets/kitti/eval_object.php): ``image_2`` with ``label_2``, a line an
object.

A line is class, truncated, occluded, alpha, left, top, right, bottom, size, position and angle in 3D, and sometimes a
score. All are in ``json``, in their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from packstore.core.fields import Field, Text
from packstore.sources.annotation_formats.objects import (
    Annotation,
    SizeReader,
    numbered_lines,
    object_from_box,
    to_floats,
)
from packstore.sources.annotation_formats.source import SidecarSource, make_sidecar_kind
from packstore.sources.beside import join
from packstore.sources.file_rows import FileRow, InTree

_NUMBERS = (14, 15)
DONT_CARE = "DontCare"
"""Class of regions to ignore."""


class KittiSource(SidecarSource):
    """Source of images of KITTI's left camera, with their objects and the texts of ``calib``. Laser points are left
    out."""

    kind = "kitti"
    title = "KITTI"
    folder_pairs = (("image_2", "label_2"), ("images", "labels"), ("image", "label"), ("data", "labels"))
    patterns = ("{stem}.txt",)
    signature = re.compile(rb"^\s*[A-Za-z_]\S*( -?\d+(\.\d+)?(e-?\d+)?){14,15}\s*($|\r?\n)", re.I)

    def fields(self) -> Mapping[str, Field]:
        """Declares ``calib`` as well, if a folder ``calib`` is beside ``image_2``."""
        calibrated = any(self._calibration_folder(each.images) for each in self._folders)
        return {**super().fields(), **({"calib": Text(optional=True)} if calibrated else {})}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of a split. If there is a folder ``calib``, the value ``calib`` is the file of the image's
        calibration, which may be missing."""
        for row in super().file_rows(split):
            images, _, name = row.file.rpartition("/")
            if folder := self._calibration_folder(images):
                calib = InTree(f"{folder}/{name.rpartition('.')[0]}.txt", optional=True)
                row = row._replace(values={**row.values, "calib": calib})
            yield row

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads an image with its objects. Decodes the image's calibration, if it exists. Raises :class:`ValueError`
        for an invalid annotation, and for a calibration that is not UTF-8."""
        values = dict(super().read_values(ref))
        if values.get("calib") is not None:
            values["calib"] = values["calib"].decode()
        return values

    def _calibration_folder(self, images: str) -> str:
        """Returns ``calib`` beside the folder ``images``. Returns ``""`` if it is not there, or ``images`` is not an
        ``image_2``."""
        above, _, name = images.rpartition("/")
        return join(above, "calib") if name == "image_2" and "calib" in self.tree.names(above).folders else ""

    def parse_annotation(self, raw: Any, read_size: SizeReader) -> Annotation:
        """Converts each line to an object with its class and 2D box. ``DontCare`` is a region to ignore. ``json`` has
        for each line a list of the class and all numbers. Raises :class:`ValueError` for a line that does not have 14
        or 15 numbers."""
        annotation = Annotation(json=[])
        for number, line in numbered_lines(raw):
            words = line.split()
            numbers = to_floats(words[1:])
            if len(numbers) not in _NUMBERS:
                raise ValueError(f"line {number} has {len(numbers)} numbers, expected 14 or 15")
            annotation.json.append([words[0], *numbers])
            annotation.objects.append(object_from_box(words[0], numbers[3:7], crowd=words[0] == DONT_CARE))
        return annotation


KIND = make_sidecar_kind(KittiSource, "KITTI: image_2 with a file of objects for each image in label_2")

"""CUB-200-2011 (https://www.vision.caltech.edu/datasets/cub_200_2011/): ``images.txt`` and tables beside it.

Keeps boxes, and the parts of each bird as keypoints with visibility; attributes are left out. Labels begin at 1 in the
files and at 0 here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from packstore.core.fields import Boxes, Field, Image, Keypoints, Label
from packstore.sources.file_rows import FileRow
from packstore.sources.named import NamedSource, make_named_kind
from packstore.sources.named.text_table import TextTable

_PARTS = "parts/part_locs.txt"
_MAX_PARTS = 1000


class Cub200(NamedSource):
    """Source of CUB's images with label and box, in the order of ``images.txt``. Attributes are left out.

    The column ``keypoints`` exists if both files of parts do. Listing the images raises :class:`SourceError` for one
    that a table of splits, labels or boxes lacks.
    """

    kind = "cub200"
    title = "CUB-200-2011"
    markers = ("images.txt|image_class_labels.txt", "bounding_boxes.txt|train_test_split.txt")
    required = (
        *("images.txt", "image_class_labels.txt", "classes.txt", "train_test_split.txt", "bounding_boxes.txt"),
        "images",
    )
    optional_files = (_PARTS, "parts/parts.txt")

    def splits(self) -> tuple[str, ...]:
        """Returns ``train`` and ``test``."""
        return ("train", "test")

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of image, label and box. Adds keypoints if the files of parts exist."""
        columns: dict[str, Field] = {"image": Image(), "label": Label(self._classes), "boxes": Boxes()}
        parts = {} if self._part_table is None else {"keypoints": Keypoints(3, of="boxes", points=self._part_count)}
        return columns | parts

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of a split: ``label`` from 0, ``boxes`` as corners, and ``keypoints`` if the files of parts
        exist.

        Raises :class:`SourceError` for an invalid line. Raises it also for an image that a table of splits, labels or
        boxes lacks.
        """
        wanted = {"train": "1", "test": "0"}[split]
        for line in self.read_table("images.txt", " "):
            image, file = line[0], " ".join(line[1:])
            chosen = _read_image_values(self._split_table, image, 1)[0]
            if chosen not in ("0", "1"):
                self._split_table.refuse_line([image, chosen], "0 or 1")
            if chosen != wanted:
                continue
            label = self._label_table.parse_int(_read_image_values(self._label_table, image, 1)[0], "a number", [image])
            if not 1 <= label <= len(self._classes):
                self._label_table.refuse_line([image, str(label)], f"a class from 1 to {len(self._classes)}")
            left, top, width, height = _parse_floats(self._box_table, _read_image_values(self._box_table, image, 4))
            values: dict[str, Any] = {"label": label - 1, "boxes": [[left, top, left + width, top + height]]}
            if self._part_table is not None:
                values["keypoints"] = [self._read_points(self._part_table, image)]
            yield FileRow(self.tree_path(f"images/{file}"), values)

    def _read_points(self, table: TextTable, image: str) -> list[list[float]]:
        """Returns (x, y, visibility) of each part of an image, in the order of ``parts.txt``.

        A part that is not listed has (0, 0, 0). Raises :class:`SourceError` for an invalid line.
        """
        points = [[0.0, 0.0, 0.0] for _ in range(self._part_count)]
        for line in table.find_lines(image):
            if len(line) != 5 or not 1 <= table.parse_int(line[1], "five numbers", line) <= len(points):
                table.refuse_line(line, f"an image, a part from 1 to {len(points)}, x, y and visibility")
            points[int(line[1]) - 1] = _parse_floats(table, line[2:])
        return points

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the lines of ``classes.txt``. The numbers in the lines are not used."""
        return tuple(" ".join(line[1:]) for line in self.read_table("classes.txt"))

    @cached_property
    def _split_table(self) -> TextTable:
        """Table with 1 for each training image, 0 for each test image."""
        return self.read_table("train_test_split.txt")

    @cached_property
    def _label_table(self) -> TextTable:
        """Table with the class of each image, from 1."""
        return self.read_table("image_class_labels.txt")

    @cached_property
    def _box_table(self) -> TextTable:
        """Table with the box of each image."""
        return self.read_table("bounding_boxes.txt")

    @cached_property
    def _part_table(self) -> TextTable | None:
        """Table with the parts of each image; None if one of the two files of parts is missing."""
        return self.read_table(_PARTS) if self.exists(_PARTS) and self.exists("parts/parts.txt") else None

    @cached_property
    def _part_count(self) -> int:
        """Number of parts that ``parts.txt`` names. Raises :class:`SourceError` for none or more than 1,000."""
        table = self.read_table("parts/parts.txt")
        count = sum(1 for _ in table)
        if not 1 <= count <= _MAX_PARTS:
            table.refuse_line([], f"1 to {_MAX_PARTS} parts")
        return count


def _read_image_values(table: TextTable, image: str, count: int) -> list[str]:
    """Returns the ``count`` values in the line of an image, as texts. Raises :class:`SourceError` if the line is
    missing, or has another number of values."""
    return table.require_line(image, count + 1, f"image {image} and {count} values")[1:]


def _parse_floats(table: TextTable, line: list[str]) -> list[float]:
    """Converts the fields of a line to numbers. Raises :class:`SourceError` if one is no number."""
    try:
        return [float(text) for text in line]
    except ValueError:
        table.refuse_line(line, "numbers")


KIND = make_named_kind(Cub200)

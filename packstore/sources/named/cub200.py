"""CUB-200-2011 (https://www.vision.caltech.edu/datasets/cub_200_2011/): ``images.txt`` and tables beside it.

Boxes, and the parts of the bird as its keypoints with visibility; attributes are not kept. Labels begin at 1 in the
files and at 0 here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from packstore.core.fields import Boxes, Field, Image, Keypoints, Label
from packstore.sources.named import NamedSource, named
from packstore.sources.named.tables import Table
from packstore.sources.rows import FileRow

_PARTS = "parts/part_locs.txt"
_MAX_PARTS = 1000


class Cub200(NamedSource):
    """Its images in the order of ``images.txt``."""

    kind = "cub200"
    title = "CUB-200-2011"
    signs = ("images.txt|image_class_labels.txt", "bounding_boxes.txt|train_test_split.txt")
    needs = (
        *("images.txt", "image_class_labels.txt", "classes.txt", "train_test_split.txt", "bounding_boxes.txt"),
        "images",
    )
    lists = (_PARTS, "parts/parts.txt")

    def splits(self) -> tuple[str, ...]:
        return ("train", "test")

    def fields(self) -> Mapping[str, Field]:
        found: dict[str, Field] = {"image": Image(), "label": Label(self._classes), "boxes": Boxes()}
        parts = {} if self._parts is None else {"keypoints": Keypoints(3, of="boxes", points=self._count)}
        return found | parts

    def file_rows(self, split: str) -> Iterator[FileRow]:
        wanted = {"train": "1", "test": "0"}[split]
        for line in self.table("images.txt", " "):
            image, file = line[0], " ".join(line[1:])
            chosen = self._of(self._splits, image, 1)[0]
            if chosen not in ("0", "1"):
                self._splits.refuse([image, chosen], "0 or 1")
            if chosen != wanted:
                continue
            label = self._labels.whole(self._of(self._labels, image, 1)[0], "a number", [image])
            if not 1 <= label <= len(self._classes):
                self._labels.refuse([image, str(label)], f"a class from 1 to {len(self._classes)}")
            left, top, width, height = _floats(self._boxes, self._of(self._boxes, image, 4))
            values: dict[str, Any] = {"label": label - 1, "boxes": [[left, top, left + width, top + height]]}
            if self._parts is not None:
                values["keypoints"] = [self._points(self._parts, image)]
            yield FileRow(self.at(f"images/{file}"), values)

    def _points(self, table: Table, image: str) -> list[list[float]]:
        found = [[0.0, 0.0, 0.0] for _ in range(self._count)]
        for line in table.all(image):
            if len(line) != 5 or not 1 <= table.whole(line[1], "five numbers", line) <= len(found):
                table.refuse(line, f"an image, a part from 1 to {len(found)}, x, y and visibility")
            found[int(line[1]) - 1] = _floats(table, line[2:])
        return found

    def _of(self, table: Table, image: str, count: int) -> list[str]:
        line = table.get(image)
        if line is None or len(line) != count + 1:
            table.refuse(line or [image], f"image {image} and {count} values")
        return line[1:]

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        return tuple(" ".join(line[1:]) for line in self.table("classes.txt"))

    @cached_property
    def _splits(self) -> Table:
        return self.table("train_test_split.txt")

    @cached_property
    def _labels(self) -> Table:
        return self.table("image_class_labels.txt")

    @cached_property
    def _boxes(self) -> Table:
        return self.table("bounding_boxes.txt")

    @cached_property
    def _parts(self) -> Table | None:
        return self.table(_PARTS) if self.has(_PARTS) and self.has("parts/parts.txt") else None

    @cached_property
    def _count(self) -> int:
        table = self.table("parts/parts.txt")
        count = sum(1 for _ in table)
        if not 1 <= count <= _MAX_PARTS:
            table.refuse([], f"1 to {_MAX_PARTS} parts")
        return count


def _floats(table: Table, line: list[str]) -> list[float]:
    try:
        return [float(text) for text in line]
    except ValueError:
        table.refuse(line, "numbers")


KIND = named(Cub200)

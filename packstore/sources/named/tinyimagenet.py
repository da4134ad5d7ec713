"""Tiny-ImageNet (http://cs231n.stanford.edu/tiny-imagenet-200.zip): ``train/WNID/images`` …, ``wnids.txt``.

Labels are the places of the wnids in their sorted list, as ``ImageFolder`` of ``train`` gives them; ``wnids.txt`` has
another order. Test images have no labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from packstore.core.fields import Boxes, Field, Image, Label
from packstore.sources.named import NamedSource, named
from packstore.sources.named.tables import Table
from packstore.sources.rows import FileRow

_TEST = "test/images"


class TinyImageNet(NamedSource):
    """Its images by name; those of ``val`` in the order of ``val_annotations.txt``."""

    kind = "tinyimagenet"
    title = "Tiny-ImageNet"
    signs = ("train", "val/val_annotations.txt")
    needs = ("wnids.txt", "val/images")

    def splits(self) -> tuple[str, ...]:
        return ("train", "val", "test") if self.has(_TEST) else ("train", "val")

    def fields(self) -> Mapping[str, Field]:
        optional = self.has(_TEST)
        return {"image": Image(), "label": Label(self._classes, optional=optional), "boxes": Boxes(optional=optional)}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        if split == "test":
            for image in self.images(_TEST):
                yield FileRow(image, {})
            return
        if split == "val":
            table, numbers = self.table("val/val_annotations.txt"), {name: n for n, name in enumerate(self._classes)}
            for line in table:
                if len(line) != 6 or line[1] not in numbers:
                    table.refuse(line, "an image, a class of wnids.txt, and four numbers")
                label, box = numbers[line[1]], _box(table, line[2:])
                yield FileRow(self.at(f"val/images/{line[0]}"), {"label": label, "boxes": [box]})
            return
        for number, name in enumerate(self._classes):
            table = self.table(f"train/{name}/{name}_boxes.txt")
            for image in self.images(f"train/{name}/images"):
                found = table.get(image.rpartition("/")[2])
                if found is None or len(found) != 5:
                    table.refuse(found or [], f"a box of {image.rpartition('/')[2]}")
                yield FileRow(image, {"label": number, "boxes": [_box(table, found[1:])]})

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        return tuple(sorted(line[0] for line in self.table("wnids.txt")))


def _box(table: Table, line: list[str]) -> list[float]:
    return [float(table.whole(text, "whole numbers", line)) for text in line]


KIND = named(TinyImageNet)

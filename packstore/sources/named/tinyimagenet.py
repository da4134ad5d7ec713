"""Tiny-ImageNet (http://cs231n.stanford.edu/tiny-imagenet-200.zip): ``train/WNID/images`` …, ``wnids.txt``.

A label is the index of a wnid in the sorted list, as ``ImageFolder`` numbers the folders of ``train``; ``wnids.txt``
has another order. Test images have no labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from packstore.core.fields import Boxes, Field, Image, Label
from packstore.sources.file_rows import FileRow
from packstore.sources.named import NamedSource, make_named_kind
from packstore.sources.named.text_table import TextTable

_TEST = "test/images"


class TinyImageNet(NamedSource):
    """Source of Tiny-ImageNet's images with label and box, in the order of names. Test images have neither.

    The images of ``val`` are in the order of ``val_annotations.txt``. The split ``test`` exists if its folder of images
    does.
    """

    kind = "tinyimagenet"
    title = "Tiny-ImageNet"
    markers = ("train", "val/val_annotations.txt")
    required = ("wnids.txt", "val/images")

    def splits(self) -> tuple[str, ...]:
        """Returns ``train``, ``val``, and ``test`` if the folder of test images exists."""
        return ("train", "val", "test") if self.exists(_TEST) else ("train", "val")

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of image, label and box. If there are test images, label and box are optional."""
        optional = self.exists(_TEST)
        return {"image": Image(), "label": Label(self._classes, optional=optional), "boxes": Boxes(optional=optional)}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of a split, with label and box. Test images have neither.

        Raises :class:`SourceError` for an invalid line, and for a training image without a box.
        """
        if split == "test":
            for image in self.list_images(_TEST):
                yield FileRow(image, {})
            return
        if split == "val":
            table = self.read_table("val/val_annotations.txt")
            numbers = {wnid: n for n, wnid in enumerate(self._classes)}
            for line in table:
                if len(line) != 6 or line[1] not in numbers:
                    table.refuse_line(line, "an image, a class of wnids.txt, and four numbers")
                label, box = numbers[line[1]], _parse_box(table, line[2:])
                yield FileRow(self.tree_path(f"val/images/{line[0]}"), {"label": label, "boxes": [box]})
            return
        for number, wnid in enumerate(self._classes):
            table = self.read_table(f"train/{wnid}/{wnid}_boxes.txt")
            for image in self.list_images(f"train/{wnid}/images"):
                name = image.rpartition("/")[2]
                line = table.require_line(name, 5, f"a box of {name}")
                yield FileRow(image, {"label": number, "boxes": [_parse_box(table, line[1:])]})

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        """Wnids, sorted."""
        return tuple(sorted(line[0] for line in self.read_table("wnids.txt")))


def _parse_box(table: TextTable, line: list[str]) -> list[float]:
    """Converts four fields to a box. Raises :class:`SourceError` if one is no whole number."""
    return [*map(float, table.parse_ints(line, "whole numbers", line))]


KIND = make_named_kind(TinyImageNet)

"""Describable Textures (https://www.robots.ox.ac.uk/~vgg/data/dtd/): ``images/CLASS/``, ``labels/train1.txt`` …

Of the ten partitions into splits it takes the first, as torchvision does unless told otherwise. ``labels`` has all
textures that an image shows, its class among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from packstore.core.errors import SourceError
from packstore.core.fields import Field, Image, Label, Labels
from packstore.sources.named import NamedSource, named
from packstore.sources.named.tables import Table
from packstore.sources.rows import FileRow

_JOINT = "labels/labels_joint_anno.txt"


class Dtd(NamedSource):
    """Its images in the order of the lists of partition 1."""

    kind = "dtd"
    title = "DTD"
    signs = ("images", "labels/train1.txt")
    needs = ("labels/val1.txt", "labels/test1.txt")
    lists = (_JOINT,)

    def splits(self) -> tuple[str, ...]:
        return ("train", "val", "test")

    def fields(self) -> Mapping[str, Field]:
        found: dict[str, Field] = {"image": Image(), "label": Label(self._classes)}
        return found | ({} if self._joint is None else {"labels": Labels(self._classes, of=False)})

    def file_rows(self, split: str) -> Iterator[FileRow]:
        numbers = {name: number for number, name in enumerate(self._classes)}
        for image in self._images(split):
            label = numbers[image.partition("/")[0]]
            if self._joint is None:
                yield FileRow(self.at(f"images/{image}"), {"label": label})
                continue
            line = self._joint.get(image) or [image, image.partition("/")[0]]
            if not numbers.keys() >= set(line[1:]):
                self._joint.refuse(line, "an image and names of classes")
            labels = [numbers[name] for name in line[1:]]
            yield FileRow(self.at(f"images/{image}"), {"label": label, "labels": labels})

    def _images(self, split: str) -> Iterator[str]:
        table = self.table(f"labels/{split}1.txt")
        for line in table:
            if len(line) != 1 or line[0].count("/") != 1:
                table.refuse(line, "an image as CLASS/FILE")
            yield line[0]

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        found = {split: {image.partition("/")[0] for image in self._images(split)} for split in self.splits()}
        all_of_them = sorted(set().union(*found.values()))
        for split, classes in found.items():
            if len(classes) != len(all_of_them):  # torchvision numbers those of each list alone
                raise SourceError(f"{self.tree.name(self.at('labels'))}: {split}1.txt has not all of the classes")
        return tuple(all_of_them)

    @cached_property
    def _joint(self) -> Table | None:
        return self.table(_JOINT) if self.has(_JOINT) else None


KIND = named(Dtd)

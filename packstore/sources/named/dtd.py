"""Describable Textures (https://www.robots.ox.ac.uk/~vgg/data/dtd/): ``images/CLASS/``, ``labels/train1.txt`` …

The splits are those of the first of ten partitions, torchvision's default. ``labels`` has all textures that an image
shows, its class included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from packstore.core.errors import SourceError
from packstore.core.fields import Field, Image, Label, Labels
from packstore.sources.file_rows import FileRow
from packstore.sources.named import NamedSource, make_named_kind
from packstore.sources.named.text_table import TextTable

_JOINT = "labels/labels_joint_anno.txt"


class Dtd(NamedSource):
    """Source of DTD's images with their class as ``label``, in the order of the lists of partition 1.

    If the joint list exists, ``labels`` has all textures of each image. Raises :class:`SourceError` if the lists of the
    splits do not have the same classes.
    """

    kind = "dtd"
    title = "DTD"
    markers = ("images", "labels/train1.txt")
    required = ("labels/val1.txt", "labels/test1.txt")
    optional_files = (_JOINT,)

    def splits(self) -> tuple[str, ...]:
        """Returns ``train``, ``val`` and ``test``."""
        return ("train", "val", "test")

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of image and label. Adds all labels if the joint list exists."""
        columns: dict[str, Field] = {"image": Image(), "label": Label(self._classes)}
        return columns | ({} if self._joint_table is None else {"labels": Labels(self._classes, of=False)})

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of a split with ``label``; with ``labels`` too if the joint list exists.

        If this list lacks an image, ``labels`` has only the image's class. Raises :class:`SourceError` for an invalid
        line.
        """
        numbers = {name: number for number, name in enumerate(self._classes)}
        for image in self._list_split(split):
            label = numbers[image.partition("/")[0]]
            if self._joint_table is None:
                yield FileRow(self.tree_path(f"images/{image}"), {"label": label})
                continue
            line = self._joint_table.find_line(image) or [image, image.partition("/")[0]]
            if not numbers.keys() >= set(line[1:]):
                self._joint_table.refuse_line(line, "an image and names of classes")
            labels = [numbers[name] for name in line[1:]]
            yield FileRow(self.tree_path(f"images/{image}"), {"label": label, "labels": labels})

    def _list_split(self, split: str) -> Iterator[str]:
        """Yields the images of a split, as ``CLASS/FILE``. Raises :class:`SourceError` for any other line."""
        table = self.read_table(f"labels/{split}1.txt")
        for line in table:
            if len(line) != 1 or line[0].count("/") != 1:
                table.refuse_line(line, "an image as CLASS/FILE")
            yield line[0]

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        """Class names, sorted. Raises :class:`SourceError` if the lists of the splits do not have the same classes."""
        by_split = {split: {image.partition("/")[0] for image in self._list_split(split)} for split in self.splits()}
        all_of_them = sorted(set().union(*by_split.values()))
        for split, classes in by_split.items():
            if len(classes) != len(all_of_them):  # then torchvision numbers the classes of each list on its own
                raise SourceError(f"{self.file_name('labels')}: {split}1.txt lacks some of the classes")
        return tuple(all_of_them)

    @cached_property
    def _joint_table(self) -> TextTable | None:
        """Table with all labels of each image; None if the file does not exist."""
        return self.read_table(_JOINT) if self.exists(_JOINT) else None


KIND = make_named_kind(Dtd)

"""ILSVRC as downloaded from Kaggle: ``ILSVRC/Data/CLS-LOC/{train,val,test}``, and tables beside ``ILSVRC``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from packstore.core.fields import Boxes, Field, Image, Label, Labels, Text
from packstore.sources.file_rows import FileRow
from packstore.sources.named import NamedSource, has_path
from packstore.sources.named.text_table import TextTable
from packstore.sources.tree import Tree

_ROOT = "ILSVRC/Data/CLS-LOC"
_NAMES = "LOC_synset_mapping.txt"
_SOLUTIONS = {"train": "LOC_train_solution.csv", "val": "LOC_val_solution.csv"}


class KaggleSource(NamedSource):
    """Source of Kaggle's ILSVRC, class by class. Boxes come from the tables; some images have none. Test images have no
    labels.

    Listing the images raises :class:`SourceError` for a validation image that the table lacks.
    """

    kind = "ilsvrc"
    title = "ILSVRC"
    markers = (f"{_ROOT}/train|{_ROOT}/val",)
    required = (_NAMES,)
    optional_files = tuple(_SOLUTIONS.values())

    @classmethod
    def find_missing(cls, tree: Tree, base: str) -> list[str]:
        """Lists missing files. If ``val`` exists, its labels are required, too."""
        unlabelled = has_path(tree, base, f"{_ROOT}/val") and not has_path(tree, base, _SOLUTIONS["val"])
        return [*super().find_missing(tree, base), *([_SOLUTIONS["val"]] if unlabelled else [])]

    def splits(self) -> tuple[str, ...]:
        """Returns those of ``train``, ``val`` and ``test`` that have a folder."""
        return tuple(split for split in ("train", "val", "test") if self.exists(f"{_ROOT}/{split}"))

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of image, label, class name, boxes and their labels. If there are test images, label and
        name are optional."""
        optional = "test" in self.splits()
        return {
            "image": Image(),
            "label": Label(tuple(self._names), optional=optional),
            "name": Text(optional=optional),
            "boxes": Boxes(optional=True),
            "labels": Labels(tuple(self._names), of="boxes", optional=True),
        }

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of a split, class by class. Yields test images, which have no values, in the order of names.

        Raises :class:`SourceError` for an invalid line of a table, and for a validation image without a class.
        """
        if split == "test":
            for image in self.list_images(f"{_ROOT}/test"):
                yield FileRow(image, {})
        elif split == "train":
            for number, wnid in enumerate(self._names):
                if self.exists(f"{_ROOT}/train/{wnid}"):
                    for image in self.list_images(f"{_ROOT}/train/{wnid}"):
                        yield self._make_row(split, image, number)
        else:
            images = [(self._find_label(image), image) for image in self.list_images(f"{_ROOT}/val")]
            for number, image in sorted(images):
                yield self._make_row(split, image, number)

    def _make_row(self, split: str, image: str, number: int) -> FileRow:
        """Makes the row of an image with ``label`` and ``name`` of its class.

        If the table has a line for the image, the row also has ``boxes`` and ``labels``. Raises :class:`SourceError`
        for an invalid line.
        """
        values: dict[str, Any] = {"label": number, "name": self._class_titles[number]}
        table = self._solution_tables[split]
        line = None if table is None else table.find_line(_stem(image))
        if table is None or line is None:
            return FileRow(image, values)
        parts = [] if len(line) != 2 else line[1].split()
        wnids, numbers = parts[::5], self._class_numbers
        if len(parts) % 5 or not parts or not numbers.keys() >= set(wnids):
            table.refuse_line(line, "an image, and a class and four numbers for each box")
        texts = [part for n, part in enumerate(parts) if n % 5]
        sides = [*map(float, table.parse_ints(texts, "whole numbers", line))]
        boxes = [sides[n : n + 4] for n in range(0, len(sides), 4)]
        return FileRow(image, values | {"boxes": boxes, "labels": [numbers[wnid] for wnid in wnids]})

    def _find_label(self, image: str) -> int:
        """Returns the class number of a validation image. Raises :class:`SourceError` if the table has no known
        class for the image."""
        table = self._solution_tables["val"]
        line = None if table is None else table.find_line(_stem(image))
        wnid = line[1].partition(" ")[0] if line is not None and len(line) == 2 else ""
        if table is not None and wnid not in self._class_numbers:
            table.refuse_line(line or [], f"{_stem(image)} and a class of {_NAMES}")
        return self._class_numbers[wnid]

    @cached_property
    def _class_numbers(self) -> dict[str, int]:
        """Class number by wnid."""
        return {wnid: number for number, wnid in enumerate(self._names)}

    @cached_property
    def _class_titles(self) -> tuple[str, ...]:
        """Names of the classes, by number."""
        return tuple(self._names.values())

    @cached_property
    def _names(self) -> dict[str, str]:
        """Names of the classes by wnid. The wnids are sorted."""
        return {line[0]: " ".join(line[1:]) for line in sorted(self.read_table(_NAMES))}

    @cached_property
    def _solution_tables(self) -> dict[str, TextTable | None]:
        """Table of labels and boxes by split; None for a table that does not exist."""
        files = {split: name for split, name in _SOLUTIONS.items() if self.exists(name)}
        return {split: self.read_table(files[split], ",", skip=1) if split in files else None for split in _SOLUTIONS}


def _stem(path: str) -> str:
    """Returns the file name in a path, without its suffix."""
    return path.rpartition("/")[2].rpartition(".")[0]

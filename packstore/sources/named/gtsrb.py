"""GTSRB (https://benchmark.ini.rub.de/): ``GTSRB/Training/00000/`` …, ``GTSRB/Final_Test/Images/``.

Boxes are those of the tables (``Roi``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from packstore.core.fields import Boxes, Field, Image, Label
from packstore.sources.named import NamedSource, holds, named
from packstore.sources.named.tables import Table
from packstore.sources.rows import FileRow
from packstore.sources.tree import Tree

_TRAIN = ("GTSRB/Training/", "Training/", "GTSRB/Final_Training/Images/", "")
_FIRST = "00000/GT-00000.csv"
_TEST = "GTSRB/Final_Test/Images|Final_Test/Images"
_TRUTH = "GT-final_test.csv|GTSRB/Final_Test/Images/GT-final_test.csv|Final_Test/Images/GT-final_test.csv"
_HEADER = ["Filename", "Width", "Height", "Roi.X1", "Roi.Y1", "Roi.X2", "Roi.Y2", "ClassId"]


class Gtsrb(NamedSource):
    """Its images by name for training, in the order of the table for testing."""

    kind = "gtsrb"
    title = "GTSRB"
    signs = ("|".join(folder + _FIRST for folder in _TRAIN),)
    lists = tuple(_TRUTH.split("|"))

    @classmethod
    def missing(cls, tree: Tree, base: str) -> list[str]:
        """Adds the labels of test images."""
        unlabelled = holds(tree, base, _TEST) and not holds(tree, base, _TRUTH)
        return [*super().missing(tree, base), *(["GT-final_test.csv"] if unlabelled else [])]

    def splits(self) -> tuple[str, ...]:
        return ("train", "test") if self.has(_TEST) else ("train",)

    def fields(self) -> Mapping[str, Field]:
        return {"image": Image(), "label": Label(self._classes), "boxes": Boxes()}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        if split == "test":
            yield from self._rows(f"{self._which(_TEST)}/", self._table(self._which(_TRUTH)))
            return
        for name in self._classes:
            folder = f"{self._train}{name}/"
            yield from self._rows(folder, self._table(f"{folder}GT-{name}.csv"))

    def _rows(self, folder: str, table: Table) -> Iterator[FileRow]:
        for line in table:
            if len(line) != len(_HEADER):
                table.refuse(line, ";".join(_HEADER))
            box = [float(table.whole(text, "numbers", line)) for text in line[3:7]]
            label = table.whole(line[7], "numbers", line)
            if not 0 <= label < len(self._classes):
                table.refuse(line, f"one of {len(self._classes)} classes")
            yield FileRow(self.at(folder + line[0]), {"label": label, "boxes": [box]})

    def _table(self, name: str) -> Table:
        header = next(iter(self.table(name, ";")), [])
        table = self.table(name, ";", skip=1)
        if header != _HEADER:
            table.refuse(header, ";".join(_HEADER))
        return table

    @cached_property
    def _train(self) -> str:
        return self._which(self.signs[0]).removesuffix(_FIRST)

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        folder = self.at(self._train.rstrip("/")) if self._train else self.base
        return tuple(sorted(self.tree.list(folder).directories))


KIND = named(Gtsrb)

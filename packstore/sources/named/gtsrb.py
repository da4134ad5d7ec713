"""GTSRB (https://benchmark.ini.rub.de/): ``GTSRB/Training/00000/`` …, ``GTSRB/Final_Test/Images/``.

Boxes are the columns ``Roi`` of the tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from packstore.core.fields import Boxes, Field, Image, Label
from packstore.sources.file_rows import FileRow
from packstore.sources.named import NamedSource, has_path, make_named_kind
from packstore.sources.named.text_table import TextTable
from packstore.sources.tree import Tree

_TRAIN = ("GTSRB/Training/", "Training/", "GTSRB/Final_Training/Images/", "")
_FIRST = "00000/GT-00000.csv"
_TEST = "GTSRB/Final_Test/Images|Final_Test/Images"
_TRUTH = "GT-final_test.csv|GTSRB/Final_Test/Images/GT-final_test.csv|Final_Test/Images/GT-final_test.csv"
_HEADER = ["Filename", "Width", "Height", "Roi.X1", "Roi.Y1", "Roi.X2", "Roi.Y2", "ClassId"]


class Gtsrb(NamedSource):
    """Source of GTSRB's images with label and box. Training images come class by class, in the order of their tables.

    Test images, if their folder exists, are in the order of their table. Opening raises :class:`SourceError` for a
    folder of test images without the table.
    """

    kind = "gtsrb"
    title = "GTSRB"
    markers = ("|".join(folder + _FIRST for folder in _TRAIN),)
    optional_files = tuple(_TRUTH.split("|"))

    @classmethod
    def find_missing(cls, tree: Tree, base: str) -> list[str]:
        """Lists missing files. If a folder of test images exists, their table is required, too."""
        unlabelled = has_path(tree, base, _TEST) and not has_path(tree, base, _TRUTH)
        return [*super().find_missing(tree, base), *(["GT-final_test.csv"] if unlabelled else [])]

    def splits(self) -> tuple[str, ...]:
        """Returns ``train``, and ``test`` if the folder of test images exists."""
        return ("train", "test") if self.exists(_TEST) else ("train",)

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of image, label and box."""
        return {"image": Image(), "label": Label(self._classes), "boxes": Boxes()}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields a row for each line of the tables of a split. Raises :class:`SourceError` for an invalid line."""
        if split == "test":
            yield from self._read_rows(
                f"{self.resolve_alternative(_TEST)}/", self._read_csv(self.resolve_alternative(_TRUTH))
            )
            return
        for name in self._classes:
            folder = f"{self._train_folder}{name}/"
            yield from self._read_rows(folder, self._read_csv(f"{folder}GT-{name}.csv"))

    def _read_rows(self, folder: str, table: TextTable) -> Iterator[FileRow]:
        """Yields a row for each line of a table of images in ``folder``. Raises :class:`SourceError` for an invalid
        line."""
        for line in table:
            if len(line) != len(_HEADER):
                table.refuse_line(line, ";".join(_HEADER))
            box = [*map(float, table.parse_ints(line[3:7], "whole numbers", line))]
            label = table.parse_int(line[7], "whole numbers", line)
            if not 0 <= label < len(self._classes):
                table.refuse_line(line, f"one of {len(self._classes)} classes")
            yield FileRow(self.tree_path(folder + line[0]), {"label": label, "boxes": [box]})

    def _read_csv(self, name: str) -> TextTable:
        """Reads a table without its header. Raises :class:`SourceError` for another header."""
        header = next(iter(self.read_table(name, ";")), [])
        table = self.read_table(name, ";", skip=1)
        if header != _HEADER:
            table.refuse_line(header, ";".join(_HEADER))
        return table

    @cached_property
    def _train_folder(self) -> str:
        """Folder of the training images, with a slash; ``""`` for the layout's own."""
        return self.resolve_alternative(self.markers[0]).removesuffix(_FIRST)

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        """Names of the folders of classes, sorted."""
        folder = self.tree_path(self._train_folder.rstrip("/")) if self._train_folder else self.base
        return tuple(sorted(self.tree.list(folder).directories))


KIND = make_named_kind(Gtsrb)

"""Stanford Cars: ``cars_train/``, ``cars_test/``, ``devkit/``, ``cars_test_annos_withlabels.mat``.

Labels begin at 1 in the files and at 0 here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from packstore.core.errors import SourceError
from packstore.core.fields import Boxes, Field, Image, Label
from packstore.sources.named import NamedSource, holds, named
from packstore.sources.named.mat import fields, number, texts
from packstore.sources.rows import FileRow
from packstore.sources.tree import Tree

_TEST = "cars_test_annos_withlabels.mat|devkit/cars_test_annos_withlabels.mat"
_FIELDS = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname")


class StanfordCars(NamedSource):
    """Its images in the order of the annotations. Without ``cars_test`` it has no such split."""

    kind = "stanfordcars"
    title = "Stanford Cars"
    signs = ("devkit/cars_meta.mat",)
    needs = ("devkit/cars_train_annos.mat", "cars_train")
    lists = ("cars_test_annos_withlabels.mat", "devkit/cars_test_annos_withlabels.mat")

    @classmethod
    def missing(cls, tree: Tree, base: str) -> list[str]:
        """Adds the labels of ``cars_test`` if that folder exists."""
        unlabelled = holds(tree, base, "cars_test") and not holds(tree, base, _TEST, sound=True)
        return [*super().missing(tree, base), *([_TEST.partition("|")[0]] if unlabelled else [])]

    def splits(self) -> tuple[str, ...]:
        return ("train", "test") if self.has("cars_test") else ("train",)

    def fields(self) -> Mapping[str, Field]:
        return {"image": Image(), "label": Label(self._classes), "boxes": Boxes()}

    def file_rows(self, split: str) -> Iterator[FileRow]:
        name, *columns = self._annotations[split]
        for *corners, label, image in zip(*columns, strict=True):
            if not isinstance(image, str):
                raise SourceError(f"{name} has {image!r:.80} where the name of an image is expected")
            its_class = number(name, label)
            if not 1 <= its_class <= len(self._classes):
                raise SourceError(f"{name} has class {its_class}; expected 1 to {len(self._classes)}")
            box = [float(number(name, corner)) for corner in corners]
            yield FileRow(self.at(f"cars_{split}/{image}"), {"label": its_class - 1, "boxes": [box]})

    @cached_property
    def _classes(self) -> tuple[str, ...]:
        return tuple(texts(*self.mat("devkit/cars_meta.mat", "class_names")))

    @cached_property
    def _annotations(self) -> dict[str, tuple[Any, ...]]:
        files = {"train": "devkit/cars_train_annos.mat", "test": self._which(_TEST)}
        found = {split: self.mat(files[split], "annotations") for split in self.splits()}
        return {split: (name, *fields(name, value, _FIELDS)) for split, (name, value) in found.items()}


KIND = named(StanfordCars)

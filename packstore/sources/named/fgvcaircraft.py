"""FGVC-Aircraft (https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/): ``data/images``, ``images_variant_train.txt`` …

``label`` is the variant, the finest of three levels; its family and manufacturer are columns, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from packstore.core.fields import Boxes, Field, Image, Label
from packstore.sources.named import NamedSource, find_base, named
from packstore.sources.named.tables import Table
from packstore.sources.rows import FileRow
from packstore.sources.tree import Tree

_LEVELS = {"label": ("variant", "variants.txt"), "family": ("family", "families.txt"),
           "manufacturer": ("manufacturer", "manufacturers.txt")}  # fmt: skip
_SPLITS = ("train", "val", "test")
_BOXES = "images_box.txt"


class FgvcAircraft(NamedSource):
    """Its images in the order of ``images_variant_train.txt``, ``…_val.txt`` and ``…_test.txt``."""

    kind = "fgvcaircraft"
    title = "FGVC-Aircraft"
    signs = ("images_variant_train.txt|images_variant_test.txt",)
    needs = (
        *(f"images_{level}_{split}.txt" for level, _ in _LEVELS.values() for split in _SPLITS),
        *(file for _, file in _LEVELS.values()),
        "images",
    )
    lists = (
        *(f"images_{level}_trainval.txt" for level, _ in _LEVELS.values()),
        *(f"images_{split}.txt" for split in (*_SPLITS, "trainval")),
        _BOXES,
    )

    @classmethod
    def find(cls, tree: Tree) -> str | None:
        """Finds the lists in ``data``, or at the top of a copy of that folder alone."""
        within = find_base(tree, tuple("|".join(f"data/{name}" for name in sign.split("|")) for sign in cls.signs))
        return find_base(tree, cls.signs) if within is None else f"{within}/data" if within else "data"

    def splits(self) -> tuple[str, ...]:
        return _SPLITS

    def fields(self) -> Mapping[str, Field]:
        found: dict[str, Field] = {"image": Image()}
        found |= {column: Label(tuple(names)) for column, names in self._names.items()}
        return found | ({"boxes": Boxes()} if self.has(_BOXES) else {})

    def file_rows(self, split: str) -> Iterator[FileRow]:
        tables = {column: self.table(f"images_{level}_{split}.txt") for column, (level, _) in _LEVELS.items()}
        for image, *_ in tables["label"]:
            values: dict[str, Any] = {column: self._class_in(table, column, image) for column, table in tables.items()}
            if self.has(_BOXES):
                values["boxes"] = [self._box_of(image)]
            yield FileRow(self.at(f"images/{image}.jpg"), values)

    def _class_in(self, table: Table, column: str, image: str) -> int:
        line = table.get(image) or [image]
        number = self._names[column].get(" ".join(line[1:]))
        if number is None:
            table.refuse(line, f"an image and a name of {_LEVELS[column][1]}")
        return number

    def _box_of(self, image: str) -> list[float]:
        table = self.table(_BOXES)
        line = table.get(image) or [image]
        if len(line) != 5:
            table.refuse(line, "an image and four numbers")
        return [float(table.whole(each, "an image and four whole numbers", line)) for each in line[1:]]

    @cached_property
    def _names(self) -> dict[str, dict[str, int]]:
        """Numbers of the classes by name, for each level, in the order of its list."""
        return {
            column: {name: n for n, name in enumerate(dict.fromkeys(" ".join(line) for line in self.table(file)))}
            for column, (_, file) in _LEVELS.items()
        }


KIND = named(FgvcAircraft)

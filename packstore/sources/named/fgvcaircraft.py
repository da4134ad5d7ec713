"""FGVC-Aircraft (https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/): ``data/images``, ``images_variant_train.txt`` …

``label`` is the variant, the finest of three levels; its family and manufacturer are columns, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from packstore.core.fields import Boxes, Field, Image, Label
from packstore.sources.file_rows import FileRow
from packstore.sources.named import NamedSource, find_marked_folder, make_named_kind
from packstore.sources.named.text_table import TextTable
from packstore.sources.tree import Tree

_LEVELS = {"label": ("variant", "variants.txt"), "family": ("family", "families.txt"),
           "manufacturer": ("manufacturer", "manufacturers.txt")}  # fmt: skip
_SPLITS = ("train", "val", "test")
_BOXES = "images_box.txt"


class FgvcAircraft(NamedSource):
    """Source of FGVC-Aircraft's images in the order of ``images_variant_train.txt``, ``…_val.txt`` and ``…_test.txt``.

    ``label`` is the variant. ``family`` and ``manufacturer`` are columns, and so are ``boxes`` if their list exists.
    Listing the images raises :class:`SourceError` for one that a list lacks.
    """

    kind = "fgvcaircraft"
    title = "FGVC-Aircraft"
    markers = ("images_variant_train.txt|images_variant_test.txt",)
    required = (
        *(f"images_{level}_{split}.txt" for level, _ in _LEVELS.values() for split in _SPLITS),
        *(file for _, file in _LEVELS.values()),
        "images",
    )
    optional_files = (
        *(f"images_{level}_trainval.txt" for level, _ in _LEVELS.values()),
        *(f"images_{split}.txt" for split in (*_SPLITS, "trainval")),
        _BOXES,
    )

    @classmethod
    def find_base(cls, tree: Tree) -> str | None:
        """Finds the folder with the markers: ``data`` within the published folder, or the given folder itself.
        Returns None if neither has them."""
        in_data = tuple("|".join(f"data/{name}" for name in marker.split("|")) for marker in cls.markers)
        within = find_marked_folder(tree, in_data)
        return find_marked_folder(tree, cls.markers) if within is None else f"{within}/data" if within else "data"

    def splits(self) -> tuple[str, ...]:
        """Returns ``train``, ``val`` and ``test``."""
        return _SPLITS

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of image, variant, family and manufacturer. Adds boxes if their list exists."""
        columns: dict[str, Field] = {"image": Image()}
        columns |= {column: Label(tuple(names)) for column, names in self._class_numbers.items()}
        return columns | ({"boxes": Boxes()} if self.exists(_BOXES) else {})

    def file_rows(self, split: str) -> Iterator[FileRow]:
        """Yields the rows of a split: variant, family and manufacturer as class numbers, and the box if its list
        exists.

        Raises :class:`SourceError` for an image that a list lacks, or lists with an unknown class name.
        """
        tables = {column: self.read_table(f"images_{level}_{split}.txt") for column, (level, _) in _LEVELS.items()}
        for image, *_ in tables["label"]:
            values: dict[str, Any] = {
                column: self._find_class_number(table, column, image) for column, table in tables.items()
            }
            if self.exists(_BOXES):
                values["boxes"] = [self._read_box(image)]
            yield FileRow(self.tree_path(f"images/{image}.jpg"), values)

    def _find_class_number(self, table: TextTable, column: str, image: str) -> int:
        """Returns the class number of an image in a column. Raises :class:`SourceError` if the table has no known
        class for the image."""
        line = table.find_line(image) or [image]
        number = self._class_numbers[column].get(" ".join(line[1:]))
        if number is None:
            table.refuse_line(line, f"an image and a name of {_LEVELS[column][1]}")
        return number

    def _read_box(self, image: str) -> list[float]:
        """Returns the box of an image as in the file, as four floats. Raises :class:`SourceError` if its line is
        missing or invalid."""
        table, expected = self.read_table(_BOXES), "an image and four whole numbers"
        line = table.require_line(image, 5, expected)
        return [*map(float, table.parse_ints(line[1:], expected, line))]

    @cached_property
    def _class_numbers(self) -> dict[str, dict[str, int]]:
        """Class numbers by name, for each of the three columns. Names are numbered in the order of their file; a
        repeated name counts once."""
        return {
            column: {name: n for n, name in enumerate(dict.fromkeys(" ".join(line) for line in self.read_table(file)))}
            for column, (_, file) in _LEVELS.items()
        }


KIND = make_named_kind(FgvcAircraft)

"""Reads tables whose cells are pixels: FER2013 (a column ``pixels``), MNIST as CSV, ``sign_mnist``, HAM10000's
``hmnist``.

A row is an image: a column ``pixels`` of numbers separated by blanks, or columns ``pixel0`` …, ``1x1`` …. Numbers are 0
to 255, row by row. A square number of them is a gray image; three times as many are red, green and blue of each pixel.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from packstore.core.errors import AmbiguousSourceError, Answer, SourceError, printable
from packstore.core.fields import Field, Image
from packstore.sources.archives import open_tree
from packstore.sources.archives.index import OpenFile
from packstore.sources.base import Certainty, Kind, SourceOptions
from packstore.sources.contents import list_contents, suffix_of
from packstore.sources.dataset import index_key
from packstore.sources.ignoring import ignore_paths
from packstore.sources.ledger import Claims
from packstore.sources.rows import Row
from packstore.sources.splits import find_split_of_file
from packstore.sources.table import TableSource
from packstore.sources.table.finding import Table, list_possible_tables
from packstore.sources.table.images import NamedRow
from packstore.sources.table.reading import read_cells
from packstore.sources.tree import Tree

_SUFFIXES = (".csv", ".tsv")
_START = 1 << 20
# Pixels of the smallest image, 8 x 8.
_LEAST = 64
_PIXEL = re.compile(r"(pixel|pix|px|p)[_ ]?\d+|\d+x\d+", re.I)
_NOTES = re.compile(r"(readme|licen[cs]e|.*class|.*label_?names|.*mapping)[^/]*", re.I)


@dataclass(slots=True)
class PixelTable(Table):
    """Table of pixels.

    Attributes:
        pixels: Columns of pixels, in order. If there is only one, each cell is an image.
    """

    image: str = "the pixels"
    pixels: list[str] = field(default_factory=list)


class PixelTableSource(TableSource):
    """Source of the rows of tables of pixels, in their order. Opening reads all rows and writes their pixels to a
    temporary file.

    Opening raises :class:`SourceError` for images that differ in size or are no squares. It raises
    :class:`AmbiguousSourceError` for several tables, unless they name different splits.
    """

    kind = "pixel_table"
    _tables: Sequence[PixelTable]

    def _find_tables(self, given: dict[str, list[str]]) -> Sequence[PixelTable]:
        """Finds the tables of pixels."""
        tables = find_pixel_tables(self.tree)
        if not tables:
            raise SourceError(
                f"{printable(str(self.path))} has no table of pixels: its first line names a column pixels, or columns "
                "pixel0, pixel1 … and a label"
            )
        splits, files = {table.split for table in tables}, [table.file for table in tables]
        if len(splits) < len(tables) or (len(splits) > 1 and "" in splits):
            raise AmbiguousSourceError(
                f"{self.tree.name()} has {len(files)} tables of pixels, {' and '.join(map(printable, files[:3]))}, "
                "whose names do not tell different splits: leave all but one out with --ignore",
                [Answer(ignore_paths(each for each in files if each != kept)) for kept in files[:8]],
            )
        return tables

    def _read_rows(self) -> Iterator[NamedRow]:
        """Yields each row without its pixels, which go to a temporary file."""
        self._size = images = 0
        with tempfile.TemporaryFile() as kept:
            for number, table in enumerate(self._tables):
                for place, cells in table.rows(self.tree):
                    texts = [cells.pop(name) for name in table.pixels]
                    try:
                        raw = bytes(map(int, texts[0].split() if len(texts) == 1 else texts))
                    except ValueError:
                        raise SourceError(f"{place}: a pixel is not a whole number from 0 to 255") from None
                    self._size = self._size or len(raw)
                    if len(raw) != self._size or find_square_shape(len(raw)) is None:
                        raise SourceError(
                            f"{place}: {len(raw):,} pixels, expected those of a square in gray or RGB, as many as in "
                            "the first row"
                        )
                    kept.write(raw)
                    yield NamedRow(str(images), number, place, cells)
                    images += 1
            kept.flush()
            self._pixels: OpenFile | None = OpenFile(os.dup(kept.fileno()))
        self.shape = find_square_shape(self._size) or (0, 0, 1)

    def fields(self) -> Mapping[str, Field]:
        """Returns the fields of the image and the other columns."""
        gray = self.shape is not None and self.shape[2] == 1
        return {**super().fields(), "image": Image("uint8", mode="L" if gray else "RGB")}

    def rows(self, split: str) -> Iterator[Row]:
        """Yields one row for each image of a split, with split and number as key."""
        for index, image in enumerate(self.images_of(split)):
            yield Row(index_key(split, index), image, self._size)

    def read_values(self, ref: Any) -> Mapping[str, Any]:
        """Reads the pixels of a row from the temporary file as ``image``, uint8 ``(H, W, C)``. Adds the row's other
        values.

        Raises :class:`ValueError` if the source is closed.
        """
        if self._pixels is None:
            raise ValueError("its source is closed")
        image = np.frombuffer(self._pixels.read(self._size, ref * self._size), np.uint8).reshape(self.shape or ())
        return {"image": image} | self._columns.build_values(self.listed.cells_of(ref), b"")

    def claim_row(self, claims: Claims, row: Row) -> None:
        """Claims nothing: the pixels are in the table."""

    def claim_files(self, claims: Claims) -> None:
        """Claims the tables of pixels as packed, and Kaggle's sample submissions as evidence."""
        super().claim_files(claims)
        for table in self._tables:
            claims.claim(table.file)

    def locate_row(self, ref: Any) -> None:
        """Returns None: pixels are texts in the table."""

    def close(self) -> None:
        """Closes the source. Pixels cannot be read afterwards."""
        self._pixels = None
        super().close()


def find_square_shape(count: int) -> tuple[int, int, int] | None:
    """Returns height, width and colours (1 or 3) of a square image of ``count`` numbers.

    Returns None if there is no such square, or it is smaller than 8 x 8.
    """
    for colours in (1, 3):
        side = math.isqrt(count // colours)
        if colours * side * side == count and side * side >= _LEAST:
            return side, side, colours
    return None


def find_pixel_tables(tree: Tree) -> list[PixelTable]:
    """Finds the tables whose first line names columns of pixels."""
    files = [file for file in list_possible_tables(tree) if suffix_of(file) in _SUFFIXES]
    return [table for file in files if (table := _examine_table(tree, file)) is not None]


def _examine_table(tree: Tree, file: str) -> PixelTable | None:
    """Recognises a table of pixels by its first lines, within 1 MiB; None for another table."""
    start = tree.first_bytes(file, _START)
    if b"pixel" not in start[:4096].lower() and start.split(b"\n", 1)[0].count(b",") < _LEAST:
        return None
    lines = read_cells(tree, file, start[: start.rfind(b"\n") + 1] or start)
    (_, first), (_, second) = next(lines, (0, [])), next(lines, (0, []))
    split = find_split_of_file(file)
    one = [name for name in first if name.lower() in ("pixels", "pixel", "image_pixels")]
    if len(one) == 1 and len(second) == len(first):
        is_image = len(second[first.index(one[0])].split()) >= _LEAST
        return PixelTable(file, True, split=split, pixels=one) if is_image else None
    many = [name for name in first if _PIXEL.fullmatch(name)]
    if len(many) >= _LEAST and find_square_shape(len(many)) is not None:
        return PixelTable(file, True, split=split, pixels=many)
    return None


def _recognise(path: Path, options: SourceOptions) -> Certainty:
    """Recognises tables of pixels in a folder without images."""
    tree = open_tree(path)
    if tree is None or (list_contents(tree).image_count and not options.named):
        return Certainty.NO
    try:
        files = {table.file for table in find_pixel_tables(tree)}
    except SourceError:
        return Certainty.NO
    others = (file.rpartition("/")[2] for file in list_possible_tables(tree) if file not in files)
    certainty = Certainty.CERTAIN if all(map(_NOTES.fullmatch, others)) else Certainty.PARTIAL
    return certainty if files else Certainty.NO


KIND = Kind(
    "pixel_table",
    "tables whose cells are pixels: FER2013, MNIST as CSV",
    _recognise,
    PixelTableSource,
    takes_columns=True,
    in_objects=True,
)

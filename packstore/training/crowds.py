"""Leaves out crowd regions, so that models do not learn from them, as torchvision's detection reference does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from packstore.core.columns import Column, find_crowd_column, from_stored
from packstore.core.manifest import Manifest
from packstore.stores.parts import Lens, Rows
from packstore.stores.records import Records

_LISTS = ("json", "segmentations", "polygons", "texts", "track")
"""Columns of sources that have an entry for each box, though their type does not say so. ``json`` may also be an object
with such a list ``annotations``, as COCO's."""


def leave_out_crowds(readers: Sequence[Records]) -> list[Records]:
    """Wraps readers of stores with a column of crowd regions, to leave these regions out. Returns other readers
    unchanged.

    If only some of the stores have such a column, hides it, so that the stores fit together.
    """
    found = [find_crowd_column(reader.manifest.columns) for reader in readers]
    kept = []
    for reader, crowds in zip(readers, found, strict=True):
        if crowds is None:
            kept.append(reader)
            continue
        manifest = reader.manifest
        if not all(found):
            names = (crowds[0].name, crowds[0].valid_name)
            manifest = replace(manifest, columns=tuple(c for c in manifest.columns if c.name not in names))
        kept.append(reader.through(partial(Crowdless, manifest=manifest, crowds=crowds[0], boxes=crowds[1])))
    return kept


class Crowdless(Lens):
    """Reads a store without its crowd regions.

    Leaves out their rows in boxes, in columns that describe these boxes, and in lists with an entry for each box. Keeps
    a value whose number of rows is not that of the boxes.
    """

    def __init__(self, rows: Rows, manifest: Manifest, crowds: Column, boxes: str) -> None:
        """``crowds`` is the store's column of crowd regions, and ``boxes`` the name of the column of their boxes."""
        super().__init__(rows, manifest)
        self._crowds = crowds
        self._columns = {
            column.name: column
            for column in rows.manifest.columns
            if boxes in (column.name, column.parallel)
            or column.name == crowds.name
            or (column.name in _LISTS and column.kind == "ragged")
        }

    def value(self, name: str, index: int) -> Any:
        """Returns a record's value without the rows of crowd regions."""
        value = self.rows.value(name, index)
        column, crowds = self._columns.get(name), self._crowds
        if column is None or (crowds.nullable and not self.rows.value(crowds.valid_name, index)):
            return value
        kept = np.asarray(from_stored(crowds, self.rows.value(crowds.name, index))) <= 0
        if kept.all():
            return value
        return column.traits.keep_rows(column, value, kept)

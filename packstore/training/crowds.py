"""Leaves crowd regions out of what a model learns from, as torchvision's detection reference does."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.column import Column, find_crowd_column
from packstore.core.columns import Buffer, from_stored
from packstore.core.errors import StoreError
from packstore.stores.base import Reader
from packstore.stores.delegating import DelegatingReader
from packstore.stores.unify import UnifiedReader

_LISTS = ("json", "segmentations", "polygons", "texts", "track")
"""Columns of sources that have an entry for each box, though their type does not say so. ``json`` may also be an object
with such a list ``annotations``, as COCO's."""


def leave_out_crowds(readers: Sequence[Reader]) -> list[Reader]:
    """Wraps readers of stores with a column of crowd regions, so that they leave these regions out. Returns other
    readers themselves. If only some of several stores have such a column, hides it: then they fit together."""
    found = [find_crowd_column(reader.manifest.columns) for reader in readers]
    kept = []
    for reader, crowds in zip(readers, found, strict=True):
        if crowds is not None:
            reader = CrowdlessReader(reader, *crowds)
        if crowds is not None and not all(found):
            names = (crowds[0].name, crowds[0].valid_name)
            columns = tuple(column for column in reader.manifest.columns if column.name not in names)
            reader = UnifiedReader(reader, replace(reader.manifest, columns=columns), None)
        kept.append(reader)
    return kept


class CrowdlessReader(DelegatingReader):
    """Reads a store without its crowd regions: without their rows in boxes, in columns that describe these boxes, and
    in lists with an entry for each box. A value that has another number of rows than boxes stays as it is."""

    def __init__(self, reader: Reader, crowds: Column, boxes: str) -> None:
        """``crowds`` is the store's column of crowd regions, and ``boxes`` the name of the column of their boxes."""
        super().__init__(reader)
        self.checks_records, self.converts_images = reader.checks_records, reader.converts_images
        self.has_image_array = reader.has_image_array
        self._crowds = crowds
        self._columns = {
            column.name: column
            for column in reader.manifest.columns
            if boxes in (column.name, column.parallel)
            or column.name == crowds.name
            or (column.name in _LISTS and column.kind == "ragged")
        }

    def value(self, name: str, index: int) -> Any:
        """Returns a record's value without the rows of crowd regions."""
        value = self._reader.value(name, index)
        column = self._columns.get(name)
        flags = self._crowds.name
        if column is None or not self._reader.has_value(flags, index):
            return value
        kept = np.asarray(from_stored(self._crowds, self._reader.value(flags, index))) <= 0
        if kept.all():
            return value
        if column.traits.is_object:
            return _filter_list(value, kept)
        if len(value) != len(kept) * column.record_nbytes:
            return value  # damaged, which the caller reports; or a column that only has the name
        return np.frombuffer(value, np.uint8).reshape(len(kept), -1)[kept].tobytes()

    @property
    def unchecked_reader(self) -> Reader:
        """The unchecked reader of the same store, with its crowd regions."""
        return self._reader.unchecked_reader

    def read(self, index: int) -> Buffer:
        return self._reader.read(index)

    def view(self, index: int) -> Buffer:
        return self._reader.view(index)

    def views(self, records: NDArray[np.int64]) -> Sequence[Buffer]:
        return self._reader.views(records)

    def read_stored_image(self, index: int) -> Buffer:
        return self._reader.read_stored_image(index)

    def will_need(self, index: int, view: Buffer) -> None:
        self._reader.will_need(index, view)

    def array(self, index: int) -> NDArray[Any]:
        return self._reader.array(index)

    def find_faults(self, records: NDArray[np.int64], names: Iterable[str]) -> dict[int, StoreError]:
        return self._reader.find_faults(records, names)

    def check_fields(self, index: int) -> None:
        self._reader.check_fields(index)

    def check_images(self, records: NDArray[np.int64], images: NDArray[Any]) -> None:
        self._reader.check_images(records, images)

    def verify_column(self, name: str) -> None:
        self._reader.verify_column(name)


def _filter_list(data: Buffer, kept: NDArray[np.bool_]) -> Buffer:
    """Removes entries from a list in JSON, or from the list ``annotations`` of an object. Returns ``data`` itself if
    there is no such list of the length of ``kept``."""
    try:
        value = json.loads(bytes(data))
    except (ValueError, RecursionError):
        return data  # the caller reports it
    entries = value.get("annotations") if isinstance(value, dict) else value
    if not isinstance(entries, list) or len(entries) != len(kept):
        return data
    entries[:] = compress(entries, kept.tolist())
    return json.dumps(value, ensure_ascii=False).encode("utf-8")

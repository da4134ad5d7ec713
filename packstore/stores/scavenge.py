"""Getting records out of a file of a store that does not open: its manifest, columns and images, found without it.

Each format does it in its own folder. HDF5 and ``.pth`` files are laid out as their manifest says, so from that, found
in the bytes and corrected where need be, follows where everything lies. LMDB's leaf pages say themselves what they
hold. Nothing here is proven: callers compare checksums. Memory is about 24 bytes a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE, OFFSET, Buffer, ColumnData, Ragged
from packstore.core.errors import PackstoreError, StoreError
from packstore.core.manifest import Column, Manifest
from packstore.stores.base import Reader
from packstore.stores.manifest_recovery import RecoveredManifest


@dataclass(slots=True)
class Scavenged:
    """What was found in one file.

    Attributes:
        found: Its manifest, or None.
        columns: Columns that are there, by name, each with as many values as the manifest has records.
        records: How many records it had, as far as that is known.
        images: Called with a record's number: what may be its image, the likeliest last.
        orphans: Called with the checksums of missing images: yields (checksum, image) for those that lie in the file
            although nothing left in it says where.
        alternatives: Of columns that may lie in several places, by name: called with a record's number, what may be
            its value. The column itself has the likeliest.
    """

    found: RecoveredManifest | None
    columns: Mapping[str, ColumnData]
    records: int
    images: Callable[[int], list[Buffer]]
    orphans: Callable[[set[int]], Iterator[tuple[int, Buffer]]]
    alternatives: Mapping[str, Callable[[int], list[Any]]] = field(default_factory=dict)


def no_orphans(_: set[int]) -> Iterator[tuple[int, Buffer]]:
    return iter(())


def scavenge_reader(reader: Reader) -> Scavenged:
    """What a damaged store holds that opens all the same."""
    columns: dict[str, ColumnData] = {}
    for column in reader.manifest.columns[1:]:
        try:
            columns[column.name] = reader.column(column.name)
        except (PackstoreError, KeyError):
            continue

    def images(record: int) -> list[Buffer]:
        try:
            return [reader.view(record)]
        except (PackstoreError, IndexError):
            return []

    return Scavenged(RecoveredManifest(reader.manifest, True, "intact"), columns, len(reader), images, no_orphans)


def scavenge_by_places(data: memoryview, found: RecoveredManifest, starts: Mapping[str, int]) -> Scavenged:
    """What a file holds whose arrays lie, whole, where its manifest says.

    Args:
        data: All bytes of the file.
        found: Its manifest.
        starts: Where each array of :func:`array_sizes` begins.
    """
    manifest = found.manifest
    arrays: dict[str, memoryview] = {}
    for name, size in array_sizes(manifest):
        if starts[name] + size <= len(data):
            arrays[name] = data[starts[name] : starts[name] + size]
    columns: dict[str, ColumnData] = {}
    for column in manifest.columns:
        parts = [arrays.get(name) for name in array_names(column)]
        if all(part is not None for part in parts):
            columns[column.name] = column_from_bytes(column, manifest.records, cast("list[memoryview]", parts))
    image = columns.pop("image", None)
    width = manifest.image.record_nbytes

    def images(record: int) -> list[Buffer]:
        if isinstance(image, Ragged):
            try:
                return [image[record]]
            except StoreError:
                return []
        if image is not None:
            return [image[record].reshape(-1).view(np.uint8).data]
        start = starts["image"] + record * width if "image" in starts else 0
        return [data[start : start + width]] if start and start + width <= len(data) else []  # the file ends early

    return Scavenged(found, columns, manifest.records, images, no_orphans)


def array_names(column: Column) -> list[str]:
    """The arrays in which a column is stored: one, or for a ragged one bytes and offsets."""
    return [column.name] if column.kind == "fixed" else [f"{column.name}/bytes", f"{column.name}/offsets"]


def array_sizes(manifest: Manifest) -> Iterator[tuple[str, int]]:
    """Name and bytes of each array that a file with this manifest holds, in the order in which they are written."""
    for column in manifest.columns:
        sizes = [column.nbytes, OFFSET.itemsize * (manifest.records + 1)]
        yield from zip(array_names(column), sizes, strict=False)


def column_from_bytes(column: Column, records: int, parts: list[memoryview]) -> ColumnData:
    """A column over the bytes of its arrays, see :func:`array_names`."""
    if column.kind == "ragged":
        data, offsets = _array(parts[0], np.dtype("u1"), (-1,)), _array(parts[1], OFFSET, (records + 1,))
        if (int(offsets[0]), int(offsets[-1])) != (0, len(data)):  # the manifest knows these two
            offsets = offsets.copy()
            offsets[0], offsets[-1] = 0, len(data)
        return Ragged(offsets, data)
    return _array(parts[0], NUMPY_DTYPE[column.dtype], (records, *column.shape))


def _array(raw: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    array: NDArray[Any] = np.frombuffer(raw, dtype) if len(raw) else np.empty(0, dtype)
    return array.reshape(shape)

"""Recovers manifest, columns and images from the file of a store that does not open.

Each format does this in its own folder. HDF5 and ``.pth``: the manifest is found in the bytes, corrected if need be,
and determines the offset of everything. LMDB: leaf pages identify their own content. Nothing here compares checksums of
records: callers do. Memory is about 24 bytes a record.
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
from packstore.stores.manifest_recovery import RecoveredManifest
from packstore.stores.parts import Rows


@dataclass(slots=True)
class ScavengedData:
    """Data recovered from one file.

    Attributes:
        recovered: Its manifest, or None.
        columns: Recovered columns by name, each with as many values as the manifest has records.
        records: Number of records, as far as known.
        images: Function of a record's number. Returns candidates for its image, the likeliest last.
        orphans: Function of the checksums of missing images. Yields (checksum, image) of each that is in the file
            although its entry is lost.
        alternatives: For columns that may have several copies, by name: function of a record's number. Returns
            candidates for its value. The column in ``columns`` has the likeliest.
    """

    recovered: RecoveredManifest | None
    columns: Mapping[str, ColumnData]
    records: int
    images: Callable[[int], list[Buffer]]
    orphans: Callable[[set[int]], Iterator[tuple[int, Buffer]]]
    alternatives: Mapping[str, Callable[[int], list[Any]]] = field(default_factory=dict)


def no_orphans(_: set[int]) -> Iterator[tuple[int, Buffer]]:
    """Yields nothing: the ``orphans`` of formats that find no images without an entry."""
    return iter(())


def scavenge_reader(reader: Rows) -> ScavengedData:
    """Returns the columns and images of a damaged store that still opens. Leaves out those that cannot be read."""
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

    return ScavengedData(RecoveredManifest(reader.manifest, True, "intact"), columns, len(reader), images, no_orphans)


def scavenge_arrays(data: memoryview, recovered: RecoveredManifest, starts: Mapping[str, int]) -> ScavengedData:
    """Recovers columns and images from a file, given the offsets of all its arrays.

    Leaves out arrays that reach past the end of the file. Of fixed images, only those past the end are missing.

    Args:
        data: All bytes of the file.
        recovered: Its manifest.
        starts: Offset of each array of :func:`list_array_sizes`.
    """
    manifest = recovered.manifest
    arrays: dict[str, memoryview] = {}
    for name, size in list_array_sizes(manifest):
        if starts[name] + size <= len(data):
            arrays[name] = data[starts[name] : starts[name] + size]
    columns: dict[str, ColumnData] = {}
    for column in manifest.columns:
        parts = [arrays.get(name) for name in array_names(column)]
        if all(part is not None for part in parts):
            columns[column.name] = view_column(column, manifest.records, cast("list[memoryview]", parts))
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

    return ScavengedData(recovered, columns, manifest.records, images, no_orphans)


def array_names(column: Column) -> list[str]:
    """Returns the names of the arrays of a column: ``label``, or if ragged ``key/bytes`` and ``key/offsets``."""
    return [column.name] if column.kind == "fixed" else [f"{column.name}/bytes", f"{column.name}/offsets"]


def list_array_sizes(manifest: Manifest) -> Iterator[tuple[str, int]]:
    """Yields name and bytes of each array in a file with this manifest, in the order of writing."""
    for column in manifest.columns:
        sizes = [column.nbytes, OFFSET.itemsize * (manifest.records + 1)]
        yield from zip(array_names(column), sizes, strict=False)


def view_column(column: Column, records: int, parts: list[memoryview]) -> ColumnData:
    """Returns a column as a view of the bytes of its arrays, see :func:`array_names`.

    If the first or last offset of a ragged column is wrong, corrects both in a copy of the offsets.
    """
    if column.kind == "ragged":
        data, offsets = _view_array(parts[0], np.dtype("u1"), (-1,)), _view_array(parts[1], OFFSET, (records + 1,))
        if (int(offsets[0]), int(offsets[-1])) != (0, len(data)):  # the manifest knows these two
            offsets = offsets.copy()
            offsets[0], offsets[-1] = 0, len(data)
        return Ragged(offsets, data)
    return _view_array(parts[0], NUMPY_DTYPE[column.dtype], (records, *column.shape))


def _view_array(raw: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Views bytes as an array of a dtype and shape."""
    array: NDArray[Any] = np.frombuffer(raw, dtype) if len(raw) else np.empty(0, dtype)
    return array.reshape(shape)

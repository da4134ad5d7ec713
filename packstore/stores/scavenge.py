"""What is left in a file of a store that does not open: its manifest, its columns and its images, found without it.

An HDF5 or ``.pth`` file of packstore is laid out as its manifest says, so once that is found (in the bytes, mended
where need be), the places of everything follow. An LMDB's leaf pages say themselves what they hold, whatever the pages
that lead to them say. Nothing here is proven: checksums are for whoever asks. Memory is about 24 bytes a record.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE, Buffer, ColumnData, Ragged
from packstore.core.errors import PackstoreError, StoreError, printable
from packstore.core.files import DATA_FILE, open_regular
from packstore.core.manifest import Column, Manifest
from packstore.stores.base import Reader
from packstore.stores.manifest_recovery import Found, find_manifest
from packstore.stores.pth.layout import content_start


@dataclass(slots=True)
class Wreck:
    """What was found in one file.

    Attributes:
        found: Its manifest, or None.
        columns: Columns that are there, by name, each with as many values as the manifest has records.
        records: How many records it had, as far as that is known.
        images: Called with a record's number: what may be its image, the likeliest last.
        orphans: Called with the checksums of images that are missing: those that lie in the file all the same, with
            nothing left that says where, as (checksum, image).
    """

    found: Found | None
    columns: Mapping[str, ColumnData]
    records: int
    images: Callable[[int], list[Buffer]]
    orphans: Callable[[set[int]], Iterator[tuple[int, Buffer]]]


def no_orphans(_: set[int]) -> Iterator[tuple[int, Buffer]]:
    return iter(())


def of_reader(reader: Reader) -> Wreck:
    """What a store holds that opens all the same."""
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

    return Wreck(Found(reader.manifest, True, "whole"), columns, len(reader), images, no_orphans)


def of_file(path: Path, hint: Found | None = None) -> Wreck:
    """What lies in the file (or the LMDB's directory) at ``path``, of whatever format it is.

    Args:
        path: The file of a store or a shard.
        hint: Its manifest, where that is known from elsewhere.

    Raises:
        StoreError: Nothing of a store can be found there; says what was missed.
    """
    file = path / DATA_FILE if path.is_dir() else path
    try:
        descriptor = open_regular(file)
        try:
            mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is empty"
        raise StoreError(f"{printable(str(file))} cannot be read: {reason}") from error
    data = memoryview(mapped)
    if path.is_dir():
        from packstore.stores.lmdb.scavenge import of_pages

        return of_pages(data, hint)
    found = hint or find_manifest(data)
    if found is None:
        raise StoreError(
            f"{printable(str(path))} holds no manifest that can be read, and without one nothing says where in it the "
            "records lie"
        )
    return _of_layout(data, found)


def _of_layout(data: memoryview, found: Found) -> Wreck:
    """HDF5 and ``.pth``: everything lies where a file with this manifest has it."""
    manifest = found.manifest
    places = _pth_places(manifest) if manifest.format == "pth" else _hdf5_places(manifest)
    columns: dict[str, ColumnData] = {}
    for column in manifest.columns:
        taken = [_taken(data, places, name) for name in _names(column)]
        if all(piece is not None for piece in taken):
            columns[column.name] = as_column(column, manifest.records, cast("list[memoryview]", taken))
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
        start = places["image"][0] + record * width if "image" in places else 0
        return [data[start : start + width]] if start and start + width <= len(data) else []  # the file ends early

    return Wreck(found, columns, manifest.records, images, no_orphans)


def as_column(column: Column, records: int, pieces: list[memoryview]) -> ColumnData:
    """A column over its bytes: the values, or for a ragged one its bytes and offsets."""
    if column.kind == "ragged":
        data, offsets = _array(pieces[0], np.dtype("u1"), (-1,)), _array(pieces[1], np.dtype("<i8"), (records + 1,))
        if (int(offsets[0]), int(offsets[-1])) != (0, len(data)):  # of these two the manifest knows what they were
            offsets = offsets.copy()
            offsets[0], offsets[-1] = 0, len(data)
        return Ragged(offsets, data)
    return _array(pieces[0], NUMPY_DTYPE[column.dtype], (records, *column.shape))


def _array(raw: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    array: NDArray[Any] = np.frombuffer(raw, dtype) if len(raw) else np.empty(0, dtype)
    return array.reshape(shape)


def _names(column: Column) -> list[str]:
    return [column.name] if column.kind == "fixed" else [f"{column.name}/bytes", f"{column.name}/offsets"]


def _taken(data: memoryview, places: Mapping[str, tuple[int, int]], name: str) -> memoryview | None:
    start, size = places[name]
    return data[start : start + size] if start + size <= len(data) else None


def sizes(manifest: Manifest) -> Iterator[tuple[str, int]]:
    """The arrays that a file with this manifest holds, by name, in the order in which they are written: their bytes."""
    for column in manifest.columns:
        if column.kind == "fixed":
            yield column.name, column.nbytes
        else:
            yield f"{column.name}/bytes", column.nbytes
            yield f"{column.name}/offsets", 8 * (manifest.records + 1)


def _pth_places(manifest: Manifest) -> dict[str, tuple[int, int]]:
    places: dict[str, tuple[int, int]] = {}
    position = 0
    for number, (name, size) in enumerate(sizes(manifest)):
        start = content_start(position, f"archive/data/{number}")
        places[name] = start, size
        position = start + size
    return places


def _hdf5_places(manifest: Manifest) -> dict[str, tuple[int, int]]:
    """HDF5 decides itself where datasets go, but always alike: it is asked, with a file of holes."""
    from packstore.stores.hdf5.store import dataset_places

    with tempfile.TemporaryFile() as file:
        starts = dataset_places(file, manifest)
    return {name: (starts[name], size) for name, size in sizes(manifest)}

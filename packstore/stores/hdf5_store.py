"""HDF5: plain contiguous datasets and the manifest as an attribute, read through a map of the file.

Layout: ``/image`` of shape ``(N, *shape)``, or ``/image/bytes`` (uint8) and ``/image/offsets`` (int64, N + 1) when
ragged; the same for every other column; the root attribute ``manifest`` is the JSON as a fixed-length string. bfloat16
columns are uint16 bit patterns with the attribute ``dtype = "bfloat16"``. The file is written for HDF5 1.8 and later:
its dense attribute storage takes manifests over 64 KiB, which the oldest layout refuses.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

import h5py
import numpy as np
from numpy.typing import NDArray

from packstore.errors import StoreError, printable
from packstore.manifest import Column, Manifest
from packstore.progress import ProgressCallback, no_progress
from packstore.stores.base import (
    NUMPY_DTYPE,
    Buffer,
    ColumnData,
    Problem,
    Ragged,
    Writer,
    parse_manifest,
    unreadable,
)
from packstore.stores.columns import OFFSET, OffsetSpool
from packstore.stores.files import beyond_standard_streams, drop, open_file, sync_file
from packstore.stores.mapped import MappedReader, check_column, check_offsets

PAYLOAD = 4096
"""Where the images begin in the file: the first aligned place after the headers of the root and ``/image``."""
_ALIGNMENT = 4096
_COPY_BYTES = 1 << 20
_H5PY_ERRORS = (OSError, RuntimeError, ValueError, KeyError, TypeError)
"""What h5py raises for files that are damaged."""


class Hdf5Writer(Writer):
    """Streams images to their final place, then puts the HDF5 structures around them.

    HDF5 must know a contiguous dataset's size when it makes it, and the number of records is not known before the end.
    So images go straight to offset 4096 of the file. :meth:`seal` lets h5py make the whole file anew without images
    (*skeleton*: the dataset is allocated but never filled, so it is a hole), makes sure that h5py put the images where
    they lie, and copies everything but the hole. Images are written once.
    """

    def __init__(self, path: Path, image: Column) -> None:
        super().__init__(path, image)
        self._file: IO[bytes] | None = open_file(path, "xb")
        self._file.seek(PAYLOAD)
        self._nbytes = 0
        self._ends = OffsetSpool(path.parent) if image.kind == "ragged" else None

    def append(self, images: Sequence[Buffer]) -> None:
        assert self._file is not None
        sizes = [len(image) for image in images]
        self._file.writelines(images)
        if self._ends is not None:
            self._ends.append(sizes)
        self._nbytes += sum(sizes)

    def suspend(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def seal(self, manifest: Manifest, columns: Mapping[str, ColumnData]) -> None:
        self.suspend()
        with beyond_standard_streams():
            skeleton = cast("IO[bytes]", tempfile.TemporaryFile(dir=self.path.parent))  # noqa: SIM115 - dropped below
        try:
            offset = self._write_skeleton(skeleton, manifest, columns)
            end = skeleton.seek(0, os.SEEK_END)
            self._file = open_file(self.path, "r+b")
            if self._nbytes == 0:
                offset = 0
            elif offset != PAYLOAD:
                _move(self._file, PAYLOAD, offset, self._nbytes)  # an h5py that allocates differently
            _copy(skeleton, self._file, 0, offset)
            _copy(skeleton, self._file, offset + self._nbytes, end)
            self._file.truncate(end)
            self.suspend()
        finally:
            drop(skeleton)
        self.abort()
        sync_file(self.path)

    def abort(self) -> None:
        if self._file is not None:
            drop(self._file)
            self._file = None
        if self._ends is not None:
            self._ends.close()

    def _write_skeleton(self, file: Any, manifest: Manifest, columns: Mapping[str, ColumnData]) -> int:
        """Writes the store without its images; returns where these belong."""
        with h5py.File(
            file, "w", libver=("v108", "v108"), alignment_threshold=_ALIGNMENT, alignment_interval=_ALIGNMENT
        ) as h5:
            if self._ends is None:
                image = _dataset(h5, "image", self.image.dtype, (manifest.records, *self.image.shape))
            else:
                group = h5.create_group("image", track_order=False)
                image = _dataset(group, "bytes", "uint8", (self._nbytes,))
                _fill(group, "offsets", "int64", self._ends.offsets())
            for name, data in columns.items():
                if isinstance(data, Ragged):
                    group = h5.create_group(name, track_order=False)
                    _fill(group, "bytes", "uint8", data.data)
                    _fill(group, "offsets", "int64", data.offsets)
                else:
                    _fill(h5, name, manifest.column(name).dtype, data)
            h5.attrs.create("manifest", np.bytes_(manifest.to_json().encode("ascii")))
            return int(image.id.get_offset() or 0)


class Hdf5Reader(MappedReader):
    """Reads an HDF5 store through a map: h5py finds the datasets at opening and is closed at once."""

    def __init__(self, path: Path) -> None:
        shown = printable(str(path))
        data: dict[str, ColumnData] = {}
        try:
            # h5py reads through the open file, so that headers and map are of one and the same file whatever happens
            # to its name; and HDF5 takes no lock on a file object.
            with path.open("rb") as file, h5py.File(file, "r") as h5:
                manifest = _manifest_of(h5, path)
                size = os.fstat(file.fileno()).st_size
                mapped = np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), np.uint8)
                for column in manifest.columns:
                    data[column.name] = _column(h5, column, mapped, shown)
                    check_column(column, manifest.records, data[column.name], shown)
        except _H5PY_ERRORS as error:
            raise _unreadable(path, error) from error
        super().__init__(path, manifest, data)

    def check_structure(self, *, quick: bool = False, progress: ProgressCallback = no_progress) -> Iterator[Problem]:
        for column in self.manifest.columns:
            yield from check_offsets(column.name, self.column(column.name))


def read_manifest(path: Path) -> Manifest:
    """The manifest of the HDF5 file at ``path``. Raises :class:`StoreError`."""
    try:
        with path.open("rb") as file, h5py.File(file, "r") as h5:
            return _manifest_of(h5, path)
    except _H5PY_ERRORS as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> StoreError:
    if isinstance(error, OSError) and error.errno is not None:  # the system's, not HDF5's
        return StoreError(f"{printable(str(path))} cannot be opened: {error.strerror or error}")
    short = "truncated file" in str(error)
    return unreadable(path, "HDF5", "the file is shorter than its header says" if short else error)


def _manifest_of(h5: Any, path: Path) -> Manifest:
    shown = printable(str(path))
    if "manifest" not in h5.attrs:
        raise StoreError(f"{shown} is an HDF5 file without a packstore manifest")
    text = h5.attrs["manifest"]
    if not isinstance(text, (bytes, str)):
        raise StoreError(f"{shown} is an HDF5 file whose manifest is no string")
    manifest = parse_manifest(text, path)
    if manifest.format != "hdf5" or manifest.shards:
        raise StoreError(f"{shown} is HDF5 with the manifest of another store ({manifest.format})")
    return manifest


def _column(h5: Any, column: Column, mapped: NDArray[np.uint8], shown: str) -> ColumnData:
    if column.kind == "fixed":
        return _array(h5, column.name, NUMPY_DTYPE[column.dtype], mapped, shown)
    data = _array(h5, f"{column.name}/bytes", np.dtype("u1"), mapped, shown)
    offsets = _array(h5, f"{column.name}/offsets", OFFSET, mapped, shown)
    if data.ndim != 1 or offsets.ndim != 1 or not len(offsets):
        raise StoreError(f"{shown}: column {column.name!r} has bytes {data.shape} and offsets {offsets.shape}")
    return Ragged(offsets, data)


def _array(h5: Any, name: str, dtype: np.dtype[Any], mapped: NDArray[np.uint8], shown: str) -> NDArray[Any]:
    """The dataset ``name`` as an array over the map. Raises :class:`StoreError` unless it lies plainly in this file."""
    group = h5
    for part in name.split("/"):
        if not isinstance(group, h5py.Group) or not isinstance(group.get(part, getlink=True), h5py.HardLink):
            raise StoreError(f"{shown} has no dataset {name!r} of its own")
        group = group[part]
    if not isinstance(group, h5py.Dataset):
        raise StoreError(f"{shown}: {name!r} is no dataset")
    properties = group.id.get_create_plist()
    if properties.get_layout() != h5py.h5d.CONTIGUOUS or properties.get_external_count() or properties.get_nfilters():
        raise StoreError(f"{shown}: dataset {name!r} is not plain and contiguous; packstore did not write it")
    if group.dtype != dtype:
        raise StoreError(f"{shown}: dataset {name!r} is {group.dtype}, not {dtype}")
    size, offset = group.size * dtype.itemsize, group.id.get_offset()
    if not size:
        return np.empty(group.shape, dtype)
    if offset is None or offset + size > len(mapped):
        raise StoreError(
            f"{shown} is truncated: dataset {name!r} ends at {(offset or 0) + size} of {len(mapped)} bytes"
        )
    array: NDArray[Any] = mapped[offset : offset + size].view(dtype).reshape(group.shape)
    return array


def _dataset(group: Any, name: str, dtype: str, shape: tuple[int, ...]) -> Any:
    """A contiguous dataset, allocated at once and never filled."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    properties.set_obj_track_times(False)  # the same input gives the same bytes
    kind = h5py.h5t.py_create(NUMPY_DTYPE[dtype])
    dataset = h5py.Dataset(
        h5py.h5d.create(group.id, name.encode("ascii"), kind, h5py.h5s.create_simple(shape), properties)
    )
    if dtype == "bfloat16":
        dataset.attrs.create("dtype", np.bytes_(b"bfloat16"))
    return dataset


def _fill(group: Any, name: str, dtype: str, data: NDArray[Any]) -> None:
    dataset = _dataset(group, name, dtype, data.shape)
    if data.size:
        dataset.write_direct(np.ascontiguousarray(data))


def _copy(source: IO[bytes], target: IO[bytes], start: int, stop: int) -> None:
    source.seek(start)
    target.seek(start)
    while start < stop:
        data = source.read(min(_COPY_BYTES, stop - start))
        target.write(data)
        start += len(data)


def _move(file: IO[bytes], source: int, target: int, size: int) -> None:
    """Moves ``size`` bytes within a file, from the end that does not overwrite what is still to be moved."""
    positions = range(0, size, _COPY_BYTES)
    for position in reversed(positions) if target > source else positions:
        file.seek(source + position)
        data = file.read(min(_COPY_BYTES, size - position))
        file.seek(target + position)
        file.write(data)


__all__ = ["Hdf5Reader", "Hdf5Writer", "read_manifest"]

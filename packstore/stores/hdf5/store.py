"""Writes HDF5 as plain contiguous datasets with the manifest as an attribute, and reads it through a map of the file.

Layout:

- A fixed column is a dataset, such as ``/image``, of shape ``(N, *shape)``.
- A ragged column is a group with ``bytes`` (uint8) and ``offsets`` (int64, N + 1), such as ``/image/bytes``.
- A bfloat16 column has uint16 bit patterns, and the attribute ``dtype = "bfloat16"``.
- The root attribute ``manifest`` is the JSON as a fixed-length string.

The file is written for HDF5 1.8 and later, whose dense attribute storage takes manifests over 64 KiB.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE, OFFSET, Buffer, Ragged, WholeColumn
from packstore.core.errors import StoreError, printable
from packstore.core.files import beyond_standard_streams, drop, open_file, reading
from packstore.core.manifest import Column, Manifest
from packstore.stores.builder.spools import OffsetSpool
from packstore.stores.format import FileWriter, parse_manifest, unreadable_error
from packstore.stores.hdf5.checked import Hdf5Error, UnsupportedHdf5Error
from packstore.stores.hdf5.file import Hdf5File, HeaderMessage
from packstore.stores.hdf5.output import FailureHidingFile
from packstore.stores.mapped import MappedPart, check_column

IMAGES_START = 4096
"""Offset of the images in the file: the first aligned one after the headers of the root and ``/image``."""
_ALIGNMENT = 4096
_COPY_BYTES = 1 << 20
Members = Mapping[str, int | None]
"""Names in a group and the addresses of their objects."""


class Hdf5Writer(FileWriter):
    """Writes images once, to their final place. :meth:`seal` writes the HDF5 structures around them.

    HDF5 creates a contiguous dataset only with its final size, and the number of records is known only at the end.
    Images therefore go to offset 4096 of the file. :meth:`seal` lets h5py write the *skeleton*: the same file with a
    hole for the images. If h5py puts the hole elsewhere, the images are moved there. Everything around the hole is
    copied into the file.
    """

    def __init__(self, path: Path, image: Column) -> None:
        """Creates the file. Raises :class:`FileExistsError` if there is one."""
        super().__init__(path, image)
        self._file: IO[bytes] | None = open_file(path, "xb")
        self._file.seek(IMAGES_START)
        self._nbytes = 0
        self._ends = OffsetSpool(path.parent) if image.kind == "ragged" else None

    def append(self, images: Sequence[Buffer]) -> None:
        """Writes the images at their final place in the file."""
        assert self._file is not None
        sizes = [len(image) for image in images]
        self._file.writelines(images)
        if self._ends is not None:
            self._ends.append(sizes)
        self._nbytes += sum(sizes)

    def suspend(self) -> None:
        """Closes the file. Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def seal(self, manifest: Manifest, columns: Mapping[str, WholeColumn]) -> None:
        """Writes columns and manifest with h5py to a temporary file, and copies that file's bytes around the images.

        Closes the files.
        """
        self.suspend()
        with beyond_standard_streams():
            skeleton = cast("IO[bytes]", tempfile.TemporaryFile(dir=self.path.parent, buffering=0))  # noqa: SIM115
        try:
            hiding = FailureHidingFile(skeleton)
            try:
                offset = self._write_skeleton(hiding, manifest, columns)
            finally:
                hiding.raise_failure()
            end = skeleton.seek(0, os.SEEK_END)
            self._file = open_file(self.path, "r+b")
            if self._nbytes == 0:
                offset = 0
            elif offset != IMAGES_START:
                _move_range(self._file, IMAGES_START, offset, self._nbytes)  # this h5py allocates differently
            _copy_range(skeleton, self._file, 0, offset)
            _copy_range(skeleton, self._file, offset + self._nbytes, end)
            self._file.truncate(end)
            self.suspend()
        finally:
            skeleton.close()
        self.abort()

    def abort(self) -> None:
        """Closes the files without flushing them."""
        if self._file is not None:
            drop(self._file)
            self._file = None
        if self._ends is not None:
            self._ends.close()

    def _write_skeleton(self, file: Any, manifest: Manifest, columns: Mapping[str, WholeColumn]) -> int:
        """Writes everything but the images to ``file`` with h5py. Returns the offset at which the images belong."""
        with _create_file(file) as h5:
            if self._ends is None:
                image = _create_dataset(h5, "image", self.image.dtype, (manifest.records, *self.image.shape))
            else:
                group = _create_group(h5, "image")
                image = _create_dataset(group, "bytes", "uint8", (self._nbytes,))
                _write_dataset(group, "offsets", "int64", self._ends.offsets())
            for name, data in columns.items():
                if isinstance(data, Ragged):
                    group = _create_group(h5, name)
                    _write_dataset(group, "bytes", "uint8", data.data)
                    _write_dataset(group, "offsets", "int64", data.offsets)
                else:
                    _write_dataset(h5, name, manifest.column(name).dtype, data)
            h5.attrs.create("manifest", np.bytes_(manifest.to_json().encode("ascii")))
            return int(image.id.get_offset() or 0)


class Hdf5Part(MappedPart):
    """An HDF5 file, read through a map of the file, without the library: see :mod:`packstore.stores.hdf5.file`.

    Opening raises :class:`StoreError` if the file or a column cannot be read, or does not fit the manifest. Of ragged
    offsets, opening checks only the first and the last; :meth:`faults` checks all.
    """

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        """``descriptor`` is an open file descriptor of the file, or None. The caller may close it afterwards."""
        shown = printable(str(path))
        hdf5, mapped = _map_file(path, descriptor)
        data: dict[str, WholeColumn] = {}
        with _raise_as_store_errors(path):
            root = hdf5.read_messages(hdf5.root)
            manifest = _read_stored_manifest(hdf5, root, path)
            members = hdf5.read_members(root)
            for column in manifest.container_columns:
                data[column.name] = _map_column(hdf5, members, column, manifest.records, mapped, shown)
                check_column(column, manifest.records, data[column.name], shown)
        super().__init__(path, manifest, data)


def read_manifest(path: Path) -> Manifest:
    """Reads the manifest of the HDF5 file at ``path``. Raises :class:`StoreError` for a missing or damaged one."""
    file, _ = _map_file(path)
    with _raise_as_store_errors(path):
        return _read_stored_manifest(file, file.read_messages(file.root), path)


def _map_file(path: Path, descriptor: int | None = None) -> tuple[Hdf5File, NDArray[np.uint8]]:
    """Maps a file and checks its superblock. Returns a reader of the file's objects, and the mapped bytes.

    Maps the open ``descriptor`` if it is not None. Raises :class:`StoreError` if mapping or checking fails.
    """
    try:
        with reading(path, descriptor) as opened:
            mapped = np.frombuffer(mmap.mmap(opened, 0, access=mmap.ACCESS_READ), np.uint8)
    except (OSError, ValueError) as error:  # ValueError: an empty file
        reason = getattr(error, "strerror", None) or error
        raise StoreError(f"{printable(str(path))} cannot be opened: {reason}") from error
    with _raise_as_store_errors(path):
        return Hdf5File(mapped.data), mapped


@contextmanager
def _raise_as_store_errors(path: Path) -> Iterator[None]:
    """Turns each :class:`Hdf5Error` in the context into :class:`StoreError` that names ``path``."""
    try:
        yield
    except UnsupportedHdf5Error as error:
        raise StoreError(
            f"{printable(str(path))} is HDF5 that packstore did not write: {printable(str(error))}"
        ) from None
    except Hdf5Error as error:
        raise unreadable_error(path, "HDF5", error) from None


def _read_stored_manifest(file: Hdf5File, root: list[HeaderMessage], path: Path) -> Manifest:
    """Reads the manifest in an HDF5 file. Raises :class:`StoreError` if it is missing, damaged, or describes another
    kind of store.
    """
    shown = printable(str(path))
    text = file.read_attribute(root, "manifest")
    if text is None:
        raise StoreError(f"{shown} is an HDF5 file without a packstore manifest")
    manifest = parse_manifest(text, path)
    if manifest.format != "hdf5" or manifest.shards:
        kind = f"{'sharded ' if manifest.shards else ''}{manifest.format}"
        raise StoreError(f"{shown} is HDF5, but its manifest describes a {kind} store")
    return manifest


def _map_column(
    file: Hdf5File, members: Members, column: Column, records: int, mapped: NDArray[np.uint8], shown: str
) -> WholeColumn:
    """Returns a column as views of the map. Raises :class:`StoreError` as :func:`_map_dataset` does.

    Raises :class:`Hdf5Error` for a damaged structure.
    """
    if column.kind == "fixed":
        wanted = NUMPY_DTYPE[column.dtype], (records, *column.shape)
        return _map_dataset(file, members, column.name, *wanted, mapped, shown)
    group = _find_dataset_address(members, column.name, shown)
    inside = {f"{column.name}/{name}": place for name, place in file.read_members(file.read_messages(group)).items()}
    data = _map_dataset(file, inside, f"{column.name}/bytes", np.dtype("u1"), (column.nbytes,), mapped, shown)
    offsets = _map_dataset(file, inside, f"{column.name}/offsets", OFFSET, (records + 1,), mapped, shown)
    return Ragged(offsets, data)


def _find_dataset_address(members: Members, name: str, shown: str) -> int:
    """Returns the address of the dataset or group ``name``.

    Raises :class:`StoreError` if the file lacks it, or has only a soft or external link.
    """
    address = members.get(name)
    if address is None:
        raise StoreError(f"{shown} has no dataset {name!r} of its own")
    return address


def _map_dataset(
    file: Hdf5File,
    members: Members,
    name: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    mapped: NDArray[np.uint8],
    shown: str,
) -> NDArray[Any]:
    """Returns the dataset ``name`` as a view of the map.

    Raises:
        StoreError: It is missing, has another dtype or shape, or is not contiguous within this file.
        Hdf5Error: Its structure is damaged.
    """
    address = _find_dataset_address(members, name, shown)
    try:
        extent = file.find_dataset(address)
    except UnsupportedHdf5Error as error:
        raise StoreError(
            f"{shown}: dataset {name!r} is not plain and contiguous ({error}); packstore did not write it"
        ) from None
    if (extent.dtype, extent.shape) != (dtype.str, shape):
        raise StoreError(f"{shown}: dataset {name!r} is {extent.dtype} {extent.shape}, not {dtype.str} {shape}")
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    if extent.address is None or extent.nbytes != size or extent.address + size > len(mapped):
        end = (extent.address or 0) + extent.nbytes
        raise StoreError(f"{shown} is truncated: dataset {name!r} of {size} bytes ends at {end} of {len(mapped)} bytes")
    array: NDArray[Any] = mapped[extent.address : extent.address + size].view(dtype).reshape(shape)
    return array


def compute_dataset_offsets(file: Any, manifest: Manifest) -> dict[str, int]:
    """Returns the offset in bytes of each dataset of a store with this manifest. Empty datasets have offset 0.

    The names are such as ``label``, ``key/bytes`` and ``key/offsets``. Lets h5py write an HDF5 file without data to
    ``file``, with holes for the datasets.
    """
    offsets: dict[str, int] = {}
    with _create_file(file) as h5:
        for column in manifest.container_columns:
            if column.kind == "fixed":
                datasets = [_create_dataset(h5, column.name, column.dtype, (manifest.records, *column.shape))]
            else:
                group = _create_group(h5, column.name)
                datasets = [_create_dataset(group, "bytes", "uint8", (column.nbytes,))]
                datasets.append(_create_dataset(group, "offsets", "int64", (manifest.records + 1,)))
            for dataset in datasets:
                offsets[dataset.name.lstrip("/")] = int(dataset.id.get_offset() or 0)
    return offsets


def _create_file(file: Any) -> Any:
    """Returns a new ``h5py.File`` that writes to ``file``, a Python file.

    Stores no times: the same input gives the same bytes.
    """
    import h5py  # only writing needs it

    # h5py.File of h5py 3.8 has no option for times.
    access, creation = h5py.h5p.create(h5py.h5p.FILE_ACCESS), h5py.h5p.create(h5py.h5p.FILE_CREATE)
    access.set_libver_bounds(h5py.h5f.LIBVER_V18, h5py.h5f.LIBVER_V18)
    access.set_alignment(_ALIGNMENT, _ALIGNMENT)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    access.set_fileobj_driver(h5py.h5fd.fileobj_driver, file)
    creation.set_obj_track_times(False)
    return h5py.File(h5py.h5f.create(b"packstore", h5py.h5f.ACC_TRUNC, fapl=access, fcpl=creation))


def _create_group(parent: Any, name: str) -> Any:
    """Creates a group that stores no times."""
    import h5py

    properties = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
    properties.set_obj_track_times(False)
    return h5py.Group(h5py.h5g.create(parent.id, name.encode("ascii"), gcpl=properties))


def _create_dataset(group: Any, name: str, dtype: str, shape: tuple[int, ...]) -> Any:
    """Creates a contiguous dataset, allocated but not filled, that stores no times. Marks bfloat16 by an attribute."""
    import h5py

    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    properties.set_obj_track_times(False)
    kind = h5py.h5t.py_create(NUMPY_DTYPE[dtype])
    dataset = h5py.Dataset(
        h5py.h5d.create(group.id, name.encode("ascii"), kind, h5py.h5s.create_simple(shape), properties)
    )
    if dtype == "bfloat16":
        dataset.attrs.create("dtype", np.bytes_(b"bfloat16"))
    return dataset


def _write_dataset(group: Any, name: str, dtype: str, data: NDArray[Any]) -> None:
    """Creates a dataset and writes its data."""
    dataset = _create_dataset(group, name, dtype, data.shape)
    if data.size:
        dataset.write_direct(np.ascontiguousarray(data))


def _copy_range(source: IO[bytes], target: IO[bytes], start: int, stop: int) -> None:
    """Copies the bytes from ``start`` to ``stop`` to the same place in another file. Raises :class:`OSError` if the
    source ends before."""
    source.seek(start)
    target.seek(start)
    while start < stop:
        data = source.read(min(_COPY_BYTES, stop - start))
        if not data:
            raise OSError(errno.EIO, f"the file ends at byte {start}, expected {stop}")
        target.write(data)
        start += len(data)


def _move_range(file: IO[bytes], source: int, target: int, size: int) -> None:
    """Moves ``size`` bytes of a file from offset ``source`` to ``target``. The two ranges may overlap."""
    positions = range(0, size, _COPY_BYTES)
    for position in reversed(positions) if target > source else positions:
        file.seek(source + position)
        data = file.read(min(_COPY_BYTES, size - position))
        file.seek(target + position)
        file.write(data)


__all__ = ["Hdf5Part", "Hdf5Writer", "read_manifest"]

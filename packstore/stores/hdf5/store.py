"""Writes HDF5 as plain contiguous datasets with the manifest as an attribute, and reads it through a map of the file.

Layout:

- A fixed column is a dataset, such as ``/image``, of shape ``(N, *shape)``.
- A ragged column is a group with ``bytes`` (uint8) and ``offsets`` (int64, N + 1), such as ``/image/bytes``.
- A bfloat16 column has uint16 bit patterns, and the attribute ``dtype = "bfloat16"``.
- The root attribute ``manifest`` is the JSON as a fixed-length string.

The file is written for HDF5 1.8 and later, whose dense attribute storage takes manifests over 64 KiB. Reading needs no
h5py.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE, Buffer, Ragged, WholeColumn
from packstore.core.errors import StoreError, printable
from packstore.core.files import beyond_standard_streams, drop, open_file, reading
from packstore.core.manifest import Column, Manifest
from packstore.stores.format import FileWriter, parse_own_manifest, unreadable_error
from packstore.stores.hdf5.file import Hdf5Error, Hdf5File, HeaderMessage, UnsupportedHdf5Error
from packstore.stores.parts import MappedPart, map_column
from packstore.stores.staged_columns import OffsetSpool, map_consecutive_images

if TYPE_CHECKING:
    from packstore.stores.scavenge import RecoveredManifest, ScavengedData

Members = Mapping[str, int | None]
"""Names in a group and the addresses of their objects."""


class Hdf5Part(MappedPart):
    """An HDF5 file, read through a map of the file, without the library: see :mod:`packstore.stores.hdf5.file`.

    Opening raises :class:`StoreError` if the file or a column cannot be read, or does not fit the manifest. Of ragged
    offsets, opening checks only the first and the last; :meth:`faults` checks all.
    """

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        """``descriptor`` is an open file descriptor of the file, or None. The caller may close it afterwards."""
        shown = printable(str(path))
        hdf5, mapped = _map_file(path, descriptor)
        with _raise_as_store_errors(path):
            root = hdf5.read_messages(hdf5.root)
            manifest = _read_stored_manifest(hdf5, root, path)
            members = hdf5.read_members(root)
            for column in manifest.columns:
                if column.kind == "ragged":
                    group = hdf5.read_messages(_find_dataset_address(members, column.name, shown))
                    members |= {f"{column.name}/{name}": at for name, at in hdf5.read_members(group).items()}
            map_array = partial(_map_dataset, hdf5, members, mapped, shown)
            data = {each.name: map_column(each, manifest.records, map_array) for each in manifest.container_columns}
        super().__init__(path, manifest, data)


def read_manifest(path: Path) -> Manifest:
    """Reads the manifest of the HDF5 file at ``path``. Raises :class:`StoreError` for a missing or damaged one."""
    file, _ = _map_file(path)
    with _raise_as_store_errors(path):
        return _read_stored_manifest(file, file.read_messages(file.root), path)


def _map_file(path: Path, descriptor: int | None = None) -> tuple[Hdf5File, NDArray[np.uint8]]:
    """Maps a file, or the open ``descriptor``, and returns a reader of its objects and the mapped bytes."""
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
    """Reads the manifest in an HDF5 file, or raises :class:`StoreError` if it is not a store's."""
    text = file.read_attribute(root, "manifest")
    if text is None:
        raise StoreError(f"{printable(str(path))} is an HDF5 file without a packstore manifest")
    return parse_own_manifest(text, path, "hdf5", "HDF5")


def _find_dataset_address(members: Members, name: str, shown: str) -> int:
    """Returns the address of the dataset or group ``name``, or raises :class:`StoreError`."""
    address = members.get(name)
    if address is None:  # missing, or only a soft or external link
        raise StoreError(f"{shown} has no dataset {name!r} of its own")
    return address


def _map_dataset(
    file: Hdf5File,
    members: Members,
    mapped: NDArray[np.uint8],
    shown: str,
    name: str,
    kind: str,
    shape: tuple[int, ...],
) -> NDArray[Any]:
    """Returns the dataset ``name`` as a view of the map, or raises :class:`StoreError` if it does not fit."""
    address, dtype = _find_dataset_address(members, name, shown), NUMPY_DTYPE[kind]
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
        return np.empty(shape, dtype)  # an empty dataset may have no address
    if extent.address is None or extent.nbytes != size or extent.address + size > len(mapped):
        end = (extent.address or 0) + extent.nbytes
        raise StoreError(f"{shown} is truncated: dataset {name!r} of {size} bytes ends at {end} of {len(mapped)} bytes")
    array: NDArray[Any] = mapped[extent.address : extent.address + size].view(dtype).reshape(shape)
    return array


IMAGES_START = 4096
"""Offset of the images in the file: the first aligned one after the headers of the root and ``/image``."""
_ALIGNMENT = 4096
_COPY_BYTES = 1 << 20


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
            self._ends.append(sizes, len(sizes))
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
        """Writes everything but the images to ``file``, and returns the offset where the images belong."""
        with _create_file(file) as h5:
            datasets = _create_datasets(h5, manifest)
            if self._ends is not None:
                _write_data(datasets["image/offsets"], self._ends.offsets())
            for name, data in columns.items():
                if isinstance(data, Ragged):
                    _write_data(datasets[f"{name}/bytes"], data.data)
                    _write_data(datasets[f"{name}/offsets"], data.offsets)
                else:
                    _write_data(datasets[name], data)
            h5.attrs.create("manifest", np.bytes_(manifest.to_json().encode("ascii")))
            return _find_offset(datasets[manifest.image.array_names[0]])


def open_partial_file(path: Path, sizes: NDArray[np.uint64]) -> Callable[[int], memoryview]:
    """Maps the file and returns a function that views an image. The images lie one after another in the file."""
    return map_consecutive_images(path, IMAGES_START, sizes)


def scavenge(_: Path, data: memoryview, recovered: RecoveredManifest | None) -> ScavengedData:
    """Recovers columns and images at the offsets that follow from the manifest ``recovered``, which is required.

    The HDF5 library always places datasets in the same way: an empty file of the same layout shows their offsets.
    """
    from packstore.stores.scavenge import scavenge_arrays

    assert recovered is not None
    with tempfile.TemporaryFile() as file, _create_file(file) as h5:
        datasets = _create_datasets(h5, recovered.manifest)
        return scavenge_arrays(data, recovered, {name: _find_offset(each) for name, each in datasets.items()})


def _create_datasets(h5: Any, manifest: Manifest) -> dict[str, Any]:
    """Creates the datasets of all columns without writing data, and returns them by :attr:`Column.array_names`."""
    datasets: dict[str, Any] = {}
    for column in manifest.container_columns:
        if column.kind == "fixed":
            datasets[column.name] = _create_dataset(h5, column.name, column.dtype, (manifest.records, *column.shape))
        else:
            group, (data, offsets) = _create_group(h5, column.name), column.array_names
            datasets[data] = _create_dataset(group, "bytes", "uint8", (column.nbytes,))
            datasets[offsets] = _create_dataset(group, "offsets", "int64", (manifest.records + 1,))
    return datasets


def _create_file(file: Any) -> Any:
    """Returns a new ``h5py.File`` that stores no times and writes to ``file``, a Python file."""
    import h5py  # only writing needs it

    # h5py.File of h5py 3.8 has no option for times.
    access, creation = h5py.h5p.create(h5py.h5p.FILE_ACCESS), h5py.h5p.create(h5py.h5p.FILE_CREATE)
    access.set_libver_bounds(h5py.h5f.LIBVER_V18, h5py.h5f.LIBVER_V18)
    access.set_alignment(_ALIGNMENT, _ALIGNMENT)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    access.set_fileobj_driver(h5py.h5fd.fileobj_driver, file)
    creation.set_obj_track_times(False)  # the same input gives the same bytes
    return h5py.File(h5py.h5f.create(b"packstore", h5py.h5f.ACC_TRUNC, fapl=access, fcpl=creation))


def _create_group(parent: Any, name: str) -> Any:
    """Creates a group that stores no times."""
    import h5py

    properties = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
    properties.set_obj_track_times(False)
    return h5py.Group(h5py.h5g.create(parent.id, name.encode("ascii"), gcpl=properties))


def _create_dataset(group: Any, name: str, dtype: str, shape: tuple[int, ...]) -> Any:
    """Creates a contiguous dataset, allocated but not filled, that stores no times."""
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
    # HDF5 has no such type: it is stored as another, marked by an attribute
    if dtype == "bfloat16":
        dataset.attrs.create("dtype", np.bytes_(b"bfloat16"))
    return dataset


def _write_data(dataset: Any, data: NDArray[Any]) -> None:
    """Writes all data of a dataset."""
    if data.size:
        dataset.write_direct(np.ascontiguousarray(data))


def _find_offset(dataset: Any) -> int:
    """Returns the offset of a dataset in its file; 0 if it is empty."""
    return int(dataset.id.get_offset() or 0)


def _copy_range(source: IO[bytes], target: IO[bytes], start: int, stop: int) -> None:
    """Copies the bytes from ``start`` to ``stop`` to the same place in another file."""
    source.seek(start)
    target.seek(start)
    while start < stop:
        data = source.read(min(_COPY_BYTES, stop - start))
        if not data:
            raise OSError(errno.EIO, f"the file ends at byte {start}, expected {stop}")
        target.write(data)
        start += len(data)


def _move_range(file: IO[bytes], source: int, target: int, size: int) -> None:
    """Moves ``size`` bytes of a file from offset ``source`` to ``target``."""
    positions = range(0, size, _COPY_BYTES)
    # the ranges may overlap: begins at the end that is free
    for position in reversed(positions) if target > source else positions:
        file.seek(source + position)
        data = file.read(min(_COPY_BYTES, size - position))
        file.seek(target + position)
        file.write(data)


class FailureHidingFile:
    """Wraps an unbuffered file for the HDF5 library, and hides failed writes from it. :meth:`raise_failure` raises the
    first.

    After a failed write, the library would fail to close the file. When its objects are freed, it would crash the
    process.

    The file may be closed before the library closes it: further calls do nothing, and return 0. If a signal interrupts
    h5py, the library closes its file only when Python collects the exception.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._failure: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return (lambda *_: 0) if self._file.closed else getattr(self._file, name)

    def raise_failure(self) -> None:
        """Raises the :class:`OSError` of the first failed write. Does nothing if no write has failed."""
        if self._failure is not None:
            raise self._failure

    def write(self, data: memoryview) -> int:
        """Writes ``data``, unless a write has failed. Always returns the size of ``data``."""
        self._call_unless_failed(self._write_all, data)
        return data.nbytes

    def truncate(self, nbytes: int) -> None:
        """Makes the file ``nbytes`` long, unless a write has failed."""
        self._call_unless_failed(self._file.truncate, nbytes)

    def flush(self) -> None:
        """Does nothing: the file has no buffer."""

    def _write_all(self, data: memoryview) -> None:
        """Writes ``data``, with several system calls if needed."""
        while data.nbytes:
            data = data[self._file.write(data) :]

    def _call_unless_failed(self, call: Callable[[Any], object], argument: Any) -> None:
        """Calls a method of the file unless an earlier call has failed, and never raises :class:`OSError`."""
        # does nothing if the file is closed: the library may close its own only later
        if self._failure is None and not self._file.closed:
            try:
                call(argument)
            except OSError as error:
                self._failure = error

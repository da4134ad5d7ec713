"""Reads HDF5 files of packstore through a map of the file; :mod:`packstore.stores.hdf5.writer` describes the layout."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import NUMPY_DTYPE
from packstore.core.errors import StoreError, printable
from packstore.core.files import reading
from packstore.core.manifest import Manifest
from packstore.stores.format import parse_own_manifest, unreadable_error
from packstore.stores.hdf5.file import Hdf5Error, Hdf5File, HeaderMessage, UnsupportedHdf5Error
from packstore.stores.parts import MappedPart, map_column

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

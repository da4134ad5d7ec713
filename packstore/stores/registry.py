"""The three formats by name: recognised by content, imported only when needed."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DestinationError, MissingStoreError, StoreError, printable
from packstore.core.files import DATA_FILE, LMDB_FILES, MANIFEST_FILE, SHARD
from packstore.core.manifest import Column, Manifest
from packstore.stores.base import Reader, Writer
from packstore.stores.builder.publish import ForeignError

SUFFIXES = {".lmdb": "lmdb", ".h5": "hdf5", ".hdf5": "hdf5", ".pth": "pth", ".pt": "pth"}
SHARD_SUFFIX = {"lmdb": "lmdb", "hdf5": "h5", "pth": "pth"}

_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_ZIP_SIGNATURE = b"PK\x03\x04"


def recognise(path: Path) -> str:
    """``lmdb``, ``hdf5``, ``pth`` or ``sharded``, from what lies there. Raises :class:`StoreError` otherwise."""
    shown = printable(str(path))
    try:
        if path.is_dir():
            if (path / DATA_FILE).is_file():
                return "lmdb"
            if (path / MANIFEST_FILE).is_file():
                return "sharded"
            raise StoreError(f"{shown} is a directory without {DATA_FILE} or {MANIFEST_FILE}, so it is not a store")
        if not path.exists():
            raise MissingStoreError(f"{shown} does not exist")
        if not path.is_file():
            raise StoreError(f"{shown} is neither a file nor a directory, so it is not a store")
        with path.open("rb") as file:
            start = file.read(8)
    except StoreError:  # of which one is a ValueError, too
        raise
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise StoreError(f"{shown} cannot be opened: {getattr(error, 'strerror', None) or error}") from None
    if start == _HDF5_SIGNATURE:
        return "hdf5"
    if start.startswith(_ZIP_SIGNATURE):
        return "pth"
    if path.name in (DATA_FILE, MANIFEST_FILE):
        raise StoreError(f"{shown} is part of a store; name the directory that it lies in")
    raise StoreError(f"{shown} is not a store: it begins with {start!r}" if start else f"{shown} is an empty file")


def open_reader(path: Path) -> Reader:
    """Opens a store of any format. Raises :class:`StoreError`."""
    kind = recognise(path)
    if kind == "sharded":
        from packstore.stores.sharded import ShardedReader

        return ShardedReader(path)
    return open_file_reader(kind, path)


def open_file_reader(format: str, path: Path, descriptor: int | None = None) -> Reader:
    """Opens a store that is one file, or a shard.

    Args:
        format: Of the store.
        path: Of the store.
        descriptor: Of its :func:`data_file` where the caller has opened that already; it may have no name any more.

    Raises:
        StoreError: It cannot be opened, or is not what it should be.
    """
    if format == "lmdb":
        from packstore.stores.lmdb.store import LmdbReader

        return LmdbReader(path, descriptor)
    if format == "hdf5":
        from packstore.stores.hdf5.store import Hdf5Reader

        return Hdf5Reader(path, descriptor)
    from packstore.stores.pth.store import PthReader

    return PthReader(path, descriptor)


def new_writer(format: str, path: Path, image: Column) -> Writer:
    """A writer of ``format`` to ``path``, which must not exist."""
    if format == "lmdb":
        from packstore.stores.lmdb.store import LmdbWriter

        return LmdbWriter(path, image)
    if format == "hdf5":
        from packstore.stores.hdf5.store import Hdf5Writer

        return Hdf5Writer(path, image)
    from packstore.stores.pth.store import PthWriter

    return PthWriter(path, image)


def partial_images(format: str, path: Path, sizes: NDArray[np.uint64]) -> Callable[[int], memoryview]:
    """The images of a file that a killed writer has left, as a function of their number in the file.

    Args:
        format: Of the file.
        path: The file; an LMDB's directory.
        sizes: ``uint64``, the size in bytes of each image that was given to the writer.

    Raises:
        StoreError: There is nothing to read. The function raises it too, for an image that is not there; whether
            what it returns is right is for a checksum to tell.
        OSError: The file cannot be opened.
    """
    if format == "lmdb":
        from packstore.stores.lmdb.store import partial_images

        return partial_images(path)
    if format == "hdf5":
        from packstore.stores.hdf5.store import PAYLOAD

        start = PAYLOAD
    else:
        from packstore.stores.pth.store import IMAGES_START

        start = IMAGES_START
    ends = start + np.cumsum(sizes.astype(np.int64))
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            raise StoreError(f"{printable(str(path))} is empty")
        mapped = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))

    def image(number: int) -> memoryview:
        end = int(ends[number])
        if end > size:
            raise StoreError(f"{printable(str(path))} ends after {size} bytes, before image {number}")
        return mapped[end - int(sizes[number]) : end]

    return image


def shard_name(format: str, number: int) -> str:
    """The name of a shard in its store's directory."""
    return f"shard-{number:05d}.{SHARD_SUFFIX[format]}"


def read_manifest(path: Path) -> Manifest:
    """The manifest of a store, without opening its data. Raises :class:`StoreError`."""
    kind = recognise(path)
    if kind == "lmdb":
        from packstore.stores.lmdb.store import read_manifest

        return read_manifest(path)
    if kind == "hdf5":
        from packstore.stores.hdf5.store import read_manifest

        return read_manifest(path)
    if kind == "pth":
        from packstore.stores.pth.store import read_manifest

        return read_manifest(path)
    from packstore.stores.sharded import read_manifest

    return read_manifest(path)


def data_file(format: str, path: Path) -> Path:
    """The file that holds the data of an unsharded store: the store itself, or an LMDB's ``data.mdb``."""
    return path / DATA_FILE if format == "lmdb" else path


def owned_files(path: Path) -> list[Path]:
    """All files of the store at ``path``, once it is certain that nothing else lies there.

    Raises:
        ForeignError: It is not a store.
        DestinationError: Its directory holds something that is not the store's.
    """
    shown = printable(str(path))
    try:
        sharded = bool(read_manifest(path).shards)
    except StoreError as error:
        raise ForeignError(f"{shown} is not a packstore store, so it is not replaced: {error}") from None
    if not path.is_dir():
        return [path]
    allowed = {MANIFEST_FILE} if sharded else set(LMDB_FILES)
    files: list[Path] = []
    for entry in sorted(path.iterdir()):
        shard = sharded and SHARD.fullmatch(entry.name) is not None
        if shard and entry.is_dir() and not entry.is_symlink():
            files += [_own(file, set(LMDB_FILES), shown) for file in sorted(entry.iterdir())]
        else:
            files.append(_own(entry, {entry.name} if shard else allowed, shown))
    return files


def _own(file: Path, allowed: set[str], shown: str) -> Path:
    if file.name not in allowed or file.is_symlink() or not file.is_file():
        raise DestinationError(
            f"{shown} also holds {printable(file.name)!r}, which is not the store's, so it is not replaced; "
            "move that away first"
        )
    return file

"""Stores: N records with a manifest in LMDB, HDF5 or ``.pth``. Importing this loads none of the three libraries."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from packstore.errors import StoreError, UsageError
from packstore.manifest import FORMATS, Column
from packstore.stores import formats
from packstore.stores.base import Buffer, ColumnData, Problem, Ragged, Reader, Writer
from packstore.stores.builder import StoreBuilder

__all__ = [
    "Buffer",
    "ColumnData",
    "Problem",
    "Ragged",
    "Reader",
    "StoreBuilder",
    "Writer",
    "create_store",
    "format_of",
    "is_store",
    "open_store",
]


def open_store(path: str | os.PathLike[str]) -> Reader:
    """Opens a store of any format, told by its content.

    Costs milliseconds whatever the number of records, and reads no image. Raises :class:`StoreError` that says what
    was found when there is no whole, valid packstore store.
    """
    return formats.open_reader(Path(path))


def is_store(path: str | os.PathLike[str]) -> bool:
    """Whether a packstore store of any format lies at ``path``: it has a valid manifest. Never raises for a path."""
    try:
        formats.read_manifest(Path(path))
    except StoreError:
        return False
    return True


def format_of(path: str | os.PathLike[str]) -> str | None:
    """The format that a name's suffix asks for (``.lmdb``; ``.h5``, ``.hdf5``; ``.pth``, ``.pt``), or None."""
    return formats.SUFFIXES.get(Path(path).suffix.lower())


def create_store(
    path: str | os.PathLike[str],
    *,
    format: str,
    encoding: str,
    columns: Sequence[Column],
    overwrite: bool = False,
    shard_size: int | None = None,
) -> StoreBuilder:
    """Begins a new store; nothing appears at ``path`` before :meth:`StoreBuilder.commit`.

    Args:
        path: The destination, in an existing directory.
        format: ``lmdb``, ``hdf5`` or ``pth``.
        encoding: What the image column holds.
        columns: All columns without size and digest: ``image`` first, then labels, ``key`` (ragged), ``checksum``
            (uint64) and, for raw pixels of varying size, ``shape`` (int32, ``(3,)``).
        overwrite: Replace a store at ``path``, once the new one is complete. Nothing else is ever replaced.
        shard_size: Bytes of images after which a new shard begins; ``path`` becomes a directory of shards. None for
            one file.

    Raises:
        UsageError: An unknown format.
        DestinationError: The destination exists, is foreign, or cannot be written.
        StoreError: Columns or a shard size that cannot be.
    """
    if format not in FORMATS:
        raise UsageError(f"unknown format {format!r}; formats: {', '.join(FORMATS)}")
    return StoreBuilder(
        Path(path), format=format, encoding=encoding, columns=columns, overwrite=overwrite, shard_size=shard_size
    )

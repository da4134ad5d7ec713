"""Stores: N records with a manifest in LMDB, HDF5, ``.pth`` or a plug-in. Importing this loads no format's library."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from packstore.core.errors import MissingStoreError, UsageError
from packstore.core.urls import location
from packstore.stores import opening
from packstore.stores.opening import format_of as format_of
from packstore.stores.parts import Problem as Problem
from packstore.stores.places import place_of
from packstore.stores.records import Records

if TYPE_CHECKING:
    from packstore.stores.build import StoreBuilder as StoreBuilder

Reader = Records
Checksums = Literal["auto", "always", "never"]
"""Checks of a record when it is read: those that cost little, all, or none."""


def __getattr__(name: str) -> Any:
    """Loads :class:`StoreBuilder` at its first use: who reads loads nothing that writes."""
    if name != "StoreBuilder":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from packstore.stores.build import StoreBuilder

    return StoreBuilder


def open_store(path: str | os.PathLike[str], checksums: Checksums = "never") -> Reader:
    """Opens a store of any format, recognised by its content.

    Takes milliseconds whatever the number of records, and reads no image.

    Args:
        path: The store, or its URL: ``s3://bucket/imagenet.lmdb``.
        checksums: Checks of records when they are read. The manifest is always checked.

            - ``"never"``: none
            - ``"always"``: all, see :class:`packstore.stores.proven.Proven`
            - ``"auto"``: those that cost little, see
              :class:`packstore.stores.proven.SparinglyProven`

    Raises:
        StoreError: There is no valid packstore store; the message says what is there.
        UsageError: Another value of ``checksums``, or an empty path.
    """
    check_checksums(checksums)
    place = location(path)
    try:
        return with_checksums(opening.open_reader(place), checksums)
    except MissingStoreError as error:
        writer = place_of(place).find_writer()
        if writer is None:
            raise
        raise MissingStoreError(f"{error} yet: {writer} is writing it; wait until that has ended") from None


def check_checksums(checksums: str) -> None:
    """Raises :class:`UsageError` for a value that is none of :data:`Checksums`."""
    if checksums not in ("auto", "always", "never"):
        raise UsageError(f"checksums should be 'auto', 'always' or 'never', got {checksums!r}")


def with_checksums(reader: Reader, checksums: Checksums) -> Reader:
    """Wraps an open store to check records when they are read. Returns the store itself for ``"never"``.

    ``checksums``: see :func:`open_store`; not checked here.
    """
    if checksums == "never":
        return reader
    from packstore.stores.proven import Proven, SparinglyProven

    return Records(reader.table, (Proven if checksums == "always" else SparinglyProven)(reader), reader)


def is_store(path: str | os.PathLike[str]) -> bool:
    """Returns whether a packstore store with a valid manifest is at a path or URL. Reads only the manifest.

    Returns False for an empty path and for anything that cannot be read. Raises :class:`UsageError` for a malformed
    URL, or if obstore is missing.
    """
    return bool(os.fspath(path)) and opening.holds_store(location(path))

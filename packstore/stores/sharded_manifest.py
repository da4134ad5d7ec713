"""Reads the manifest of a sharded store and the table of its shards, without opening a shard."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from packstore.core.errors import ManifestError, StoreError, printable
from packstore.core.files import MANIFEST_FILE, device_and_inode, open_regular
from packstore.core.manifest import MAX_JSON_BYTES, Manifest
from packstore.core.registry import FORMATS
from packstore.core.shards import ShardTable
from packstore.stores.base import parse_manifest


def read_sharded_manifest(path: Path) -> Manifest:
    """Reads the manifest and the table of shards of the sharded store at ``path``.

    Raises :class:`StoreError` if one of them is missing or damaged. Raises it also if the manifest names no shards, or
    shards with a suffix of another format.
    """
    file = path / MANIFEST_FILE
    shown = printable(str(path))
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise StoreError(f"{printable(str(file))} cannot be read: {error.strerror or error}") from error
    manifest = parse_manifest(text, file)
    if manifest.shards is None:
        raise StoreError(f"{shown} has a manifest that names no shards")
    suffix = FORMATS[manifest.format].suffixes[0]
    if manifest.shards.suffix != suffix:
        raise StoreError(f"{shown} has a manifest of shards that end with {manifest.shards.suffix!r}, not {suffix!r}")
    return dataclasses.replace(manifest, shards=read_table(path, manifest.shards))


def read_table(path: Path, table: ShardTable) -> ShardTable:
    """Reads the table's file in the sharded store at ``path``. Returns ``table`` with its rows.

    Raises :class:`StoreError` if the file is missing or has another digest.
    """
    file = path / table.file
    try:
        with os.fdopen(open_regular(file), "rb") as opened:
            data = opened.read(table.nbytes + 1)
    except OSError as error:
        raise StoreError(f"{printable(str(file))} cannot be read: {error.strerror or error}") from error
    try:
        return table.parse_rows(data)
    except ManifestError as error:
        raise ManifestError(f"{printable(str(file))}: {error}") from None


def manifest_identity(path: Path) -> tuple[int, int]:
    """Returns device and inode of the manifest's file, which change when a store is replaced.

    Raises :class:`StoreError` if there is no such file.
    """
    try:
        return device_and_inode(path / MANIFEST_FILE)
    except OSError as error:
        raise StoreError(f"{printable(str(path / MANIFEST_FILE))} cannot be read: {error.strerror or error}") from error

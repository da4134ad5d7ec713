"""Publishes a store that grows: adds shards beside the present ones, then replaces the manifest in one step.

A reader opens the old store or the new one, since the manifest names the table, and the table the shards. Until the
manifest is replaced, the store's directory holds files that it does not name. A marker file in the work directory lists
these files. After a kill, the next run removes them by :meth:`WorkDirectory.undo_interrupted_publish`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from packstore.core.errors import DestinationError, printable
from packstore.core.files import (
    MANIFEST_FILE,
    device_and_inode,
    sync_directory,
    sync_file_system,
    sync_tree,
    writing,
)
from packstore.core.manifest import Manifest
from packstore.core.registry import FORMATS
from packstore.stores.builder.assembly import ShardList, link_shards
from packstore.stores.builder.publish import exchange_paths
from packstore.stores.builder.read_back import write_manifest_and_table
from packstore.stores.builder.work_directory import GROWTH, STORE, WorkDirectory
from packstore.stores.opening import read_manifest
from packstore.stores.ownership import list_owned_files

_FSYNCED = 100
"""Most shards to sync one by one, milliseconds each; for more, the whole file system is synced once."""


def publish_growth(
    work: WorkDirectory,
    destination: Path,
    old: Manifest,
    new: Manifest,
    parts: ShardList,
    first_new: int,
    request: object = None,
) -> None:
    """Publishes ``new`` at ``destination`` in place of the store ``old``, in one step.

    Of a sharded store, removes the files that only the old one needed. Exchanges an unsharded store for a directory of
    shards. Afterwards the old store is in the work directory, which the caller removes.

    Args:
        work: The work directory of ``destination``.
        destination: The store.
        old: Its manifest.
        new: Its new manifest, with the table of all shards.
        parts: All shards of the new store.
        first_new: Number of the first shard that is not in the store yet. Not used if the store is one file.
        request: Plain JSON that :meth:`WorkDirectory.find_finished_growth` returns if this run is killed after it
            published.

    Raises:
        DestinationError: The store was changed meanwhile, has foreign files, or cannot be written. It is as before.
    """
    with writing(destination):
        staged = work.create_run() / STORE
        staged.mkdir()
        if old.shards is None:
            inode = device_and_inode(destination)
            link_shards(parts, staged, FORMATS[new.format])
            write_manifest_and_table(staged, new)
            _sync_files(staged, [entry.name for entry in staged.iterdir()])
            if device_and_inode(destination) != inode:
                raise _changed_error(destination)
            list_owned_files(destination)  # raises for foreign files, which would be removed with the old directory
            _refuse_changed(destination, old)
            note = {"sealed": new.digest, "added": [], "replaced": [], "request": request}
            (staged.parent / GROWTH).write_text(json.dumps(note), "ascii")
            exchange_paths(staged, destination)
            _sync_directory(destination.parent)
        else:
            write_manifest_and_table(staged, new)
            added = parts.take_shards(
                [i for i, number in enumerate(parts.rows["number"].tolist()) if number >= first_new]
            )
            _add_shards(work, staged, destination, old, new, added, request)


def _add_shards(
    work: WorkDirectory,
    staged: Path,
    destination: Path,
    old: Manifest,
    new: Manifest,
    added: ShardList,
    request: object,
) -> None:
    """Links new shards and their table into a sharded store, and replaces the store's manifest by the staged one.

    After that, removes the old table and the shards that the new manifest lacks. If a step fails, removes the added
    files instead. Raises :class:`DestinationError` if a file is in the way, or another process has changed the store.
    """
    assert old.shards is not None
    assert new.shards is not None
    numbers = set(added.rows["number"].tolist())
    table = zip(new.shards.names(), new.shards.table["number"].tolist(), strict=True)
    names = [name for name, number in table if number in numbers]
    remaining = set(new.shards.names())
    replaced = [old.shards.file, *(name for name in old.shards.names() if name not in remaining)]
    for name in (*names, new.shards.file):
        if os.path.lexists(destination / name):
            raise DestinationError(
                f"{printable(str(destination / name))} does not belong to the store; move it away first"
            )
    marker = staged.parent / GROWTH
    note = {"sealed": new.digest, "added": [*names, new.shards.file], "replaced": replaced, "request": request}
    marker.write_text(json.dumps(note), "ascii")
    sync_tree(staged.parent)
    try:
        link_shards(added, destination, FORMATS[new.format])
        (staged / new.shards.file).rename(destination / new.shards.file)
        _sync_files(destination, names)
        _refuse_changed(destination, old)
        (staged / MANIFEST_FILE).replace(destination / MANIFEST_FILE)
        _sync_directory(destination)
    finally:
        # Removes the old files, or the added ones if the manifest was not replaced: the present manifest decides.
        work.undo_interrupted_publish()


def _sync_files(directory: Path, names: list[str]) -> None:
    """Syncs the files ``names`` and ``directory`` to the disk. Syncs the whole file system for over 100 files."""
    if len(names) > _FSYNCED:
        sync_file_system(directory)
        return
    for name in names:
        sync_tree(directory / name)
    sync_directory(directory)


def _sync_directory(directory: Path) -> None:
    """Syncs the directory that has the new store's name. Tests replace this function to interrupt a publish."""
    sync_directory(directory)


def _refuse_changed(destination: Path, old: Manifest) -> None:
    """Raises :class:`DestinationError` if the store's manifest is not ``old`` any more."""
    if read_manifest(destination).digest != old.digest:
        raise _changed_error(destination)


def _changed_error(destination: Path) -> DestinationError:
    """Returns the error for a store that another process changed while records were appended."""
    return DestinationError(f"{printable(str(destination))} was changed by somebody else meanwhile; append again")

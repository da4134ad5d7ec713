"""Publishing a store that grows: shards beside those that are there, then one new manifest in the place of the old one.

A reader opens the old store or the new one, since the manifest names the table, and the table the shards. Until the
manifest is replaced, the store has files that it does not name; a note in the work directory says which, so that
whoever comes after a kill can take them away (see :meth:`WorkDirectory.undo_swap`).
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
from packstore.stores.builder.assembly import Parts, link_parts
from packstore.stores.builder.publish import exchange
from packstore.stores.builder.read_back import write_head
from packstore.stores.builder.work_directory import GROWTH, STORE, WorkDirectory
from packstore.stores.opening import read_manifest
from packstore.stores.ownership import owned_files

_FSYNCED = 100
"""Shards that are synced one by one, milliseconds each; for more of them, the whole file system is, once."""


def grow(
    work: WorkDirectory,
    destination: Path,
    old: Manifest,
    new: Manifest,
    parts: Parts,
    first_new: int,
    request: object = None,
) -> None:
    """Publishes ``new`` at ``destination``, where the store ``old`` lies.

    Args:
        work: The work directory of ``destination``.
        destination: The store, a directory of shards or a single file.
        old: Its manifest.
        new: The manifest that it is to have, with the table of all shards.
        parts: These shards.
        first_new: Those from this number on are not in the store yet.
        request: What :meth:`WorkDirectory.finished_growth` tells if this is killed when all but the cleaning is done.

    Raises:
        DestinationError: The store has changed meanwhile, or cannot be written; it is as it was.
    """
    with writing(destination):
        staged = work.new_run() / STORE
        staged.mkdir()
        if old.shards is None:
            inode = device_and_inode(destination)
            link_parts(parts, staged, FORMATS[new.format])
            write_head(staged, new)
            _sync(staged, [entry.name for entry in staged.iterdir()])
            if device_and_inode(destination) != inode:
                raise _changed(destination)
            owned_files(destination)  # what is not the store's would go with the old directory
            _refuse_changed(destination, old)
            told = {"sealed": new.digest, "added": [], "replaced": [], "request": request}
            (staged.parent / GROWTH).write_text(json.dumps(told), "ascii")
            exchange(staged, destination)
            _settle(destination.parent)
        else:
            write_head(staged, new)
            added = parts.take([i for i, number in enumerate(parts.rows["number"].tolist()) if number >= first_new])
            _add(work, staged, destination, old, new, added, request)


def _add(
    work: WorkDirectory, staged: Path, destination: Path, old: Manifest, new: Manifest, added: Parts, request: object
) -> None:
    assert old.shards is not None
    assert new.shards is not None
    numbers = set(added.rows["number"].tolist())
    table = zip(new.shards.names(), new.shards.table["number"].tolist(), strict=True)
    names = [name for name, number in table if number in numbers]
    remaining = set(new.shards.names())
    replaced = [old.shards.file, *(name for name in old.shards.names() if name not in remaining)]
    for name in (*names, new.shards.file):
        if os.path.lexists(destination / name):
            raise DestinationError(f"{printable(str(destination / name))} is not the store's; move it away first")
    marker = staged.parent / GROWTH
    told = {"sealed": new.digest, "added": [*names, new.shards.file], "replaced": replaced, "request": request}
    marker.write_text(json.dumps(told), "ascii")
    sync_tree(staged.parent)
    try:
        link_parts(added, destination, FORMATS[new.format])
        (staged / new.shards.file).rename(destination / new.shards.file)
        _sync(destination, names)
        _refuse_changed(destination, old)
        (staged / MANIFEST_FILE).replace(destination / MANIFEST_FILE)
        _settle(destination)
    finally:
        # Either way there is something that the store does not need: the manifest that is there says what.
        work.undo_swap()


def _sync(directory: Path, names: list[str]) -> None:
    """Makes shards durable that were put into ``directory``."""
    if len(names) > _FSYNCED:
        sync_file_system(directory)
        return
    for name in names:
        sync_tree(directory / name)
    sync_directory(directory)


def _settle(directory: Path) -> None:
    """Makes the new store durable, which has its name by now."""
    sync_directory(directory)


def _refuse_changed(destination: Path, old: Manifest) -> None:
    if read_manifest(destination).digest != old.digest:
        raise _changed(destination)


def _changed(destination: Path) -> DestinationError:
    return DestinationError(f"{printable(str(destination))} was changed by somebody else meanwhile; append again")

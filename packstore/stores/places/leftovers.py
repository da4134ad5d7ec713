"""Finds and removes leftovers of killed runs: work directories on this machine, and objects at a URL.

Of the objects at a URL, removes only those that packstore wrote and that no current version of the store needs. Shards
and tables have digits of their SHA-256 in their names. Notes of a conversion are JSON that contains its own SHA-256.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packstore.core.errors import DestinationError, ManifestError, MissingStoreError, printable
from packstore.core.files import writing
from packstore.core.plainjson import parse_with_digest
from packstore.objects import MissingObjectError, ObjectInfo, ObjectStore
from packstore.stores.places.work import (
    NAME,
    Owner,
    WorkDirectory,
    has_no_owner,
    is_held,
    list_needless_files,
    read_owner,
    work_path,
)
from packstore.stores.remote_objects import (
    SHARDS,
    TABLES,
    VERSIONS,
    WORK,
    hash_object,
    parse_digest,
    parse_version_number,
    read_version,
    shard_object_names,
    table_name,
)

GRACE_SECONDS = 7 * 86400.0
"""Seconds for which an unneeded object is kept: a run may be about to need it, or a reader may still read it."""

_RUN = re.compile(r"_work/(convert-[0-9a-f]{12})/(?:plan\.json|head\.json|done/\d{1,12}\.json)")
_TEMPORARY = re.compile(r"_work/(?:upload|probe)-[0-9a-f]{32}")
_MOST_JSON = 256 << 20


@dataclass(frozen=True, slots=True)
class Leftover:
    """A work directory that no process holds.

    Attributes:
        path: Path of the directory.
        destination: The store or export that was being written.
        owner: The process that wrote it. None if the directory is empty, or holds only an empty owner file.
        nbytes: Bytes on disk.
        in_store: Names of shards and tables that a killed append left in the store, and that the store does not need.
    """

    path: Path
    destination: Path
    owner: Owner | None
    nbytes: int
    in_store: tuple[str, ...] = ()


def find_leftovers(directory: Path) -> Iterator[Leftover]:
    """Yields the work directories directly in ``directory`` that packstore made and no process uses.

    Raises :class:`OSError` if the directory cannot be listed.
    """
    for path in sorted(directory.iterdir()):
        leftover = find_leftover(path)
        if leftover is not None:
            yield leftover


def find_leftover(path: Path) -> Leftover | None:
    """Returns the work directory at ``path`` if packstore made it and no process uses it, else None."""
    name = NAME.fullmatch(path.name)
    if name is None or path.is_symlink() or not path.is_dir():
        return None
    owner = read_owner(path)
    # Without an owner, the name must be one that work_path gives; a cut one stands for itself.
    destination = path.parent / (name[1] if owner is None else owner.destination)
    if work_path(destination) != path or is_held(path, owner):
        return None
    try:
        if owner is None and not has_no_owner(path):
            return None
    except (PermissionError, FileNotFoundError):  # another user's, or removed meanwhile
        return None
    nbytes = sum(p.lstat().st_blocks * 512 for p in path.rglob("*") if p.is_file())
    return Leftover(path, destination, owner, nbytes, list_needless_files(destination))


def remove_leftover(leftover: Leftover) -> None:
    """Removes a leftover work directory, after :meth:`WorkDirectory.undo_interrupted_publish`.

    Raises :class:`DestinationError` if the directory is in use or cannot be removed whole.
    """
    with writing(leftover.path):
        WorkDirectory(leftover.destination).remove()
    if leftover.path.exists():
        raise DestinationError(
            f"{printable(str(leftover.path))} also holds files that packstore did not write; they are left"
        )


@dataclass(frozen=True, slots=True)
class UnneededObjects:
    """Objects that a store at a URL does not need.

    Attributes:
        objects: Shards, tables, and notes of conversions.
        busy: Names of conversions that wrote within the grace period. They may need any shard.
        foreign: Names below ``_work/``, ``shards/`` and ``tables/`` that packstore does not give. These objects stay.
    """

    objects: tuple[ObjectInfo, ...]
    busy: tuple[str, ...]
    foreign: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all these objects together."""
        return sum(info.nbytes for info in self.objects)


def find_unneeded(objects: ObjectStore, now: float, grace_seconds: float = GRACE_SECONDS) -> UnneededObjects:
    """Lists objects that are older than the grace period and that no current version needs.

    A version is current if it is the newest, or was replaced within the grace period. Lists no shard while a conversion
    is busy. ``now`` is in seconds since 1970.

    Raises:
        MissingStoreError: There is no version, no busy conversion and no unneeded object.
        StoreError: A current version cannot be read, and may need any object.
    """
    versions = {parse_version_number(info.name): info.modified for info in objects.list(VERSIONS)}
    numbers = sorted(number for number in versions if number is not None)
    needed: set[str] = set()
    for number, following in itertools.zip_longest(numbers, numbers[1:]):
        if following is None or versions[following] > now - grace_seconds:
            table = read_version(objects, number).shard_table
            needed |= {table_name(table), *shard_object_names(table)}
    runs: dict[str, list[ObjectInfo]] = {}
    unneeded: list[ObjectInfo] = []
    foreign: list[ObjectInfo] = []
    for info in objects.list(WORK):
        run = _RUN.fullmatch(info.name)
        if run is not None:
            runs.setdefault(run[1], []).append(info)
        else:
            (unneeded if _TEMPORARY.fullmatch(info.name) else foreign).append(info)
    busy = [name for name, some in runs.items() if max(info.modified for info in some) > now - grace_seconds]
    unneeded += [info for name, some in runs.items() if name not in busy for info in some]
    for prefix in (TABLES, SHARDS):
        for info in objects.list(prefix):
            if parse_digest(info.name) is None:
                foreign.append(info)
            elif info.name not in needed and not (busy and prefix == SHARDS):
                unneeded.append(info)
    if not (numbers or unneeded or busy):
        raise MissingStoreError(f"{objects.url}: there is no store, nor any part of one")
    old = tuple(info for info in unneeded if info.modified < now - grace_seconds)
    return UnneededObjects(old, tuple(busy), tuple(info.name for info in foreign))


def remove_unneeded(
    objects: ObjectStore, chosen: UnneededObjects, now: float, grace_seconds: float = GRACE_SECONDS
) -> UnneededObjects:
    """Removes the chosen objects that are still unneeded and that packstore wrote. Reads each object to check that.

    Returns the removed objects. ``foreign`` of the result has the names of objects that packstore may not have written
    and that therefore stay. Raises the errors of :func:`find_unneeded`.
    """
    proven = [info for info in chosen.objects if _is_ours(objects, info)]
    still = {info.name for info in find_unneeded(objects, now, grace_seconds).objects}
    removed = tuple(info for info in proven if info.name in still)
    # Plans last: a plan identifies the receipts beside it.
    for last in (False, True):
        objects.delete([info.name for info in removed if info.name.endswith("/plan.json") == last])
    unproven = {info.name for info in chosen.objects} - {info.name for info in proven}
    return UnneededObjects(removed, chosen.busy, tuple(sorted(unproven)))


def _is_ours(objects: ObjectStore, info: ObjectInfo) -> bool:
    """Reads an object and returns whether packstore wrote it; False for a missing one."""
    digits = parse_digest(info.name)
    try:
        # shards and tables: the name has the digest of the content
        if digits is not None:
            return hash_object(objects, info.name).startswith(digits)
        if _TEMPORARY.fullmatch(info.name):  # a name of 32 random digits
            return True
        # any other object of packstore is JSON with its own digest
        if info.nbytes > _MOST_JSON:
            return False
        parse_with_digest(objects.get(info.name))
    except (MissingObjectError, ManifestError):  # another process has removed it, or another program wrote it
        return False
    return True

"""Finds and removes objects that a store at a URL does not need: of killed runs, and of replaced versions.

Removes only objects that packstore wrote. Shards and tables have digits of their SHA-256 in their names. All notes of a
conversion are JSON that contains its own SHA-256.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from packstore.core.errors import ManifestError, MissingStoreError
from packstore.core.plainjson import parse_with_digest
from packstore.objects import MissingObjectError, ObjectInfo, ObjectStore
from packstore.stores.remote.head import read_version
from packstore.stores.remote.names import (
    SHARDS,
    TABLES,
    VERSIONS,
    WORK,
    parse_digest,
    parse_version_number,
    shard_object_names,
    table_name,
)
from packstore.stores.remote.transfer import hash_object

GRACE_SECONDS = 7 * 86400.0
"""Seconds for which an unneeded object is kept: a run may be about to need it, or a reader may still read it."""

_RUN = re.compile(r"_work/(convert-[0-9a-f]{12})/(?:plan\.json|head\.json|done/\d{1,12}\.json)")
_TEMPORARY = re.compile(r"_work/(?:upload|probe)-[0-9a-f]{32}")
_MOST_JSON = 256 << 20


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
            table = read_version(objects, number).shards
            assert table is not None
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
    """Reads an object and returns whether packstore wrote it.

    - Shards and tables: the name has the digest of the content.
    - Unfinished uploads and probes: the name alone decides.
    - Others: the content is JSON of up to 256 MiB with its own digest.
    - A missing object: False.
    """
    digits = parse_digest(info.name)
    try:
        if digits is not None:
            return hash_object(objects, info.name).startswith(digits)
        if _TEMPORARY.fullmatch(info.name):  # a name of 32 random digits
            return True
        return info.nbytes <= _MOST_JSON and _has_own_digest(objects.get(info.name))
    except MissingObjectError:
        return False  # another process has removed it


def _has_own_digest(data: bytes) -> bool:
    """Returns whether ``data`` is JSON that :func:`packstore.core.plainjson.encode_with_digest` has written."""
    try:
        parse_with_digest(data)
    except ManifestError:
        return False
    return True

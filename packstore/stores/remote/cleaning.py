"""Objects that a store at a URL does not need: of killed runs, and of versions that were replaced.

Only what proves to be packstore's is removed: shards and tables have the beginning of their SHA-256 in their names, and
whatever a conversion notes is JSON with its own SHA-256 in it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from dataclasses import dataclass

from packstore.core.errors import MissingStoreError
from packstore.core.plainjson import sha256_json
from packstore.objects import MissingObjectError, ObjectInfo, ObjectStore
from packstore.stores.remote.head import read_version
from packstore.stores.remote.names import (
    SHARDS,
    TABLES,
    VERSIONS,
    WORK,
    digest_in,
    shard_objects,
    table_name,
    version_number,
)

GRACE_SECONDS = 7 * 86400.0
"""How long an object stays that no version names: a run may be about to name it, or a reader may be reading it."""

_RUN = re.compile(r"_work/(convert-[0-9a-f]{12})/(?:plan\.json|head\.json|done/\d{1,12}\.json)")
_PASSING = re.compile(r"_work/(?:upload|probe)-[0-9a-f]{32}")
_MOST_JSON = 256 << 20


@dataclass(frozen=True, slots=True)
class Needless:
    """What a store at a URL does not need.

    Attributes:
        objects: Shards, tables, and notes of conversions.
        busy: Conversions that were at work within the grace period: while there is one, no shard is needless.
        foreign: Names below ``_work/``, ``shards/`` and ``tables/`` that packstore does not give; they stay.
    """

    objects: tuple[ObjectInfo, ...]
    busy: tuple[str, ...]
    foreign: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        return sum(info.nbytes for info in self.objects)


def find_needless(objects: ObjectStore, now: float, grace_seconds: float = GRACE_SECONDS) -> Needless:
    """What neither the newest version names nor one that was replaced within the grace period, and is older than that.

    ``now`` is in seconds since 1970. Raises :class:`MissingStoreError` where packstore has put nothing, and
    :class:`StoreError` for a version that cannot be read: it may need anything."""
    versions = {version_number(info.name): info.modified for info in objects.list(VERSIONS)}
    numbers = sorted(number for number in versions if number is not None)
    needed: set[str] = set()
    for number, following in itertools.zip_longest(numbers, numbers[1:]):
        if following is None or versions[following] > now - grace_seconds:
            table = read_version(objects, number).shards
            assert table is not None
            needed |= {table_name(table), *shard_objects(table)}
    runs: dict[str, list[ObjectInfo]] = {}
    found: list[ObjectInfo] = []
    foreign: list[ObjectInfo] = []
    for info in objects.list(WORK):
        run = _RUN.fullmatch(info.name)
        if run is not None:
            runs.setdefault(run[1], []).append(info)
        else:
            (found if _PASSING.fullmatch(info.name) else foreign).append(info)
    busy = [name for name, some in runs.items() if max(info.modified for info in some) > now - grace_seconds]
    found += [info for name, some in runs.items() if name not in busy for info in some]
    for prefix in (TABLES, SHARDS):
        for info in objects.list(prefix):
            if digest_in(info.name) is None:
                foreign.append(info)
            elif info.name not in needed and not (busy and prefix == SHARDS):
                found.append(info)
    if not (numbers or found or busy):
        raise MissingStoreError(f"{objects.url}: there is no store, and nothing of one")
    old = tuple(info for info in found if info.modified < now - grace_seconds)
    return Needless(old, tuple(busy), tuple(info.name for info in foreign))


def remove_needless(
    objects: ObjectStore, chosen: Needless, now: float, grace_seconds: float = GRACE_SECONDS
) -> Needless:
    """Removes what :func:`find_needless` found and still finds, as far as it proves to be packstore's.

    Returns what was removed; ``foreign`` are names of what did not prove to be."""
    proven = [info for info in chosen.objects if _is_ours(objects, info)]
    still = {info.name for info in find_needless(objects, now, grace_seconds).objects}
    removed = tuple(info for info in proven if info.name in still)
    # Plans last: as long as one is there, the receipts beside it are known for what they are.
    for last in (False, True):
        objects.delete([info.name for info in removed if info.name.endswith("/plan.json") == last])
    unproven = {info.name for info in chosen.objects} - {info.name for info in proven}
    return Needless(removed, chosen.busy, tuple(sorted(unproven)))


def _is_ours(objects: ObjectStore, info: ObjectInfo) -> bool:
    """Whether an object holds what packstore puts under its name."""
    digits = digest_in(info.name)
    try:
        if digits is not None:
            hashed = hashlib.sha256()
            for data in objects.stream(info.name):
                hashed.update(data)
            return hashed.hexdigest().startswith(digits)
        if _PASSING.fullmatch(info.name):  # a name of 32 random digits
            return True
        return info.nbytes <= _MOST_JSON and _is_sealed(objects.get(info.name))
    except MissingObjectError:
        return False  # another has removed it


def _is_sealed(data: bytes) -> bool:
    try:
        plain = json.loads(data)
        return bool(plain.pop("digest") == sha256_json(plain))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False

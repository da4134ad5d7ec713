"""Repairs a store at a URL: replaces its damaged shards in place.

A shard is named by its SHA-256: only the bytes that it had can replace it, and readers of the store never see anything
else.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from packstore.checking.repair_report import RepairReport
from packstore.core.checksums import file_digest
from packstore.core.errors import DestinationError, MissingStoreError, PackstoreError, StoreError
from packstore.core.progress import Progress, ProgressCallback
from packstore.core.registry import FORMATS
from packstore.core.shards import Shard
from packstore.core.urls import ShardPlace, UrlPath
from packstore.objects import MissingObjectError, ObjectStore, open_objects
from packstore.stores.base import Problem
from packstore.stores.builder.assembly import list_shards
from packstore.stores.opening import open_reader
from packstore.stores.remote.head import read_head
from packstore.stores.remote.names import shard_object_name
from packstore.stores.remote.publish import open_shard_file, upload_shard

Repair = Callable[[Path, Path], RepairReport]
"""Writes an undamaged store, its second argument, from a damaged one, its first."""


def repair_at_url(url: UrlPath, source: Path, repair: Repair, progress: ProgressCallback) -> RepairReport:
    """Reads all shards of the store at ``url``, and uploads replacements for damaged and missing ones. Reports
    progress.

    If ``source`` is a store with the same shard, takes the shard from there. Otherwise ``repair`` rebuilds the shard
    from its undamaged records. Shards that could not be replaced are lost in the report.

    Raises:
        DestinationError: The URL is read only, or holds a copy of a local store.
        StoreError: There is no store, or its head is damaged.
    """
    objects = open_objects(url)
    if not objects.can_write:
        raise DestinationError(f"{objects.url} is read only: repair the store at a URL that can be written")
    try:
        manifest = read_head(objects).manifest
    except MissingStoreError:
        raise DestinationError(
            f"{objects.url} holds no store that packstore published there: repair the local store that it is a copy of"
        ) from None
    table = manifest.shards
    assert table is not None
    damaged, done_bytes = [], 0
    for number, shard in enumerate(table):
        if not _is_shard_intact(objects, shard):
            damaged.append((int(table.starts[number]), shard))
        done_bytes += shard.nbytes
        progress(Progress("verify", number + 1, len(table), done_bytes))
    known = _locate_shards(source)
    replaced: list[Problem] = []
    lost: list[Problem] = []
    for first, shard in damaged:
        with ExitStack() as stack:
            try:
                if shard.digest in known:
                    file = stack.enter_context(open_shard_file(known[shard.digest], shard, manifest.format))
                    fixed = [Problem("taken whole from another store", shard=shard.name)]
                else:
                    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="packstore-")))
                    file, fixed = _rebuild_shard(objects, shard, manifest.format, repair, folder)
                upload_shard(objects, shard, file)
            except PackstoreError as error:
                lost.append(Problem(f"{shard.records:,} records: {error}", shard=shard.name))
            else:
                at = [None if each.record is None else first + each.record for each in fixed]
                replaced += [replace(each, record=record) for each, record in zip(fixed, at, strict=True)]
    bad = sum(shard.records for _, shard in damaged)
    return RepairReport(
        url,
        url if damaged and not lost else None,
        len(damaged),
        manifest.records - bad,
        tuple(replaced),
        tuple(lost),
        bool(damaged) and not lost,
    )


def _is_shard_intact(objects: ObjectStore, shard: Shard) -> bool:
    """Reads the object of a shard; returns whether it has the right size and SHA-256. False if it is missing."""
    digest, nbytes = hashlib.sha256(), 0
    try:
        for piece in objects.stream(shard_object_name(shard)):
            digest.update(piece)
            nbytes += len(piece)
    except MissingObjectError:
        return False
    return (nbytes, digest.hexdigest()) == (shard.nbytes, shard.digest)


def _locate_shards(source: Path) -> dict[str, ShardPlace]:
    """Returns the path or URL of each shard of the store at ``source``, by digest.

    Empty if there is no store, or a store that cannot be opened or has no shards.
    """
    try:
        with open_reader(source) as reader:
            table = reader.manifest.shards
            places = [] if table is None else list_shards(source, reader.manifest, reader.part_places()).places
            return {shard.digest: place for shard, place in zip(table or (), places, strict=True)}
    except StoreError:
        return {}


def _rebuild_shard(
    objects: ObjectStore, shard: Shard, format: str, repair: Repair, folder: Path
) -> tuple[Path, list[Problem]]:
    """Downloads a damaged shard into ``folder`` and repairs it there. Returns the rebuilt data file, and the records
    that were replaced.

    Raises the errors of ``repair``, and :class:`StoreError` in these cases:
    - The shard is missing.
    - Records are lost.
    - The rebuilt file has other bytes than the shard had.
    """
    again = "packstore convert SOURCE URL --overwrite packs the store again"
    broken, whole = folder / shard.name, folder / f"whole-{shard.name}"
    file = FORMATS[format].data_file(broken)
    file.parent.mkdir(exist_ok=True)
    try:
        with file.open("wb") as target:
            target.writelines(objects.stream(shard_object_name(shard)))
    except MissingObjectError:
        raise StoreError(f"it is missing, and the source is not a store that has it; {again}") from None
    report = repair(broken, whole)
    if report.lost:
        raise StoreError(f"{len(report.lost):,} of its records are lost, the first: {report.lost[0].what}")
    made = FORMATS[format].data_file(whole)
    if report.destination is None or file_digest(made) != (shard.nbytes, shard.digest):
        raise StoreError(
            f"it was rebuilt, but not with the same bytes, perhaps because libraries have other versions; {again}"
        )
    return made, [replace(each, shard=shard.name) for each in report.replaced]

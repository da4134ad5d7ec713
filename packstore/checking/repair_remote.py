"""Repairs a store at a URL: replaces its damaged shards in place.

A shard is named by its SHA-256: only the bytes that it had can replace it, and readers of the store never see anything
else.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packstore.checking.options import RepairOptions
from packstore.checking.repack import repack_shards
from packstore.checking.repair_report import RepairReport, ShardCounts
from packstore.core.checksums import file_digest
from packstore.core.errors import DestinationError, MissingStoreError, PackstoreError, StoreError
from packstore.core.files import writing
from packstore.core.manifest import Manifest
from packstore.core.progress import Progress, ProgressCallback
from packstore.core.registry import FORMATS
from packstore.core.shards import Shard
from packstore.core.urls import ShardPlace, UrlPath
from packstore.objects import MissingObjectError, ObjectStore, open_objects
from packstore.stores.base import Problem
from packstore.stores.builder.assembly import list_shards
from packstore.stores.keys import hash_keys
from packstore.stores.opening import open_reader
from packstore.stores.places.remote import open_shard_file, upload_shard
from packstore.stores.remote.head import read_head
from packstore.stores.remote.objects import shard_object_name
from packstore.stores.remote.opening import reopen_remote

Repair = Callable[[Path, Path], RepairReport]
"""Writes an undamaged store, its second argument, from a damaged one, its first."""


def repair_at_url(
    url: UrlPath, source: Path, options: RepairOptions, repair: Repair, progress: ProgressCallback
) -> RepairReport:
    """Reads all shards of the store at ``url``, and uploads replacements for damaged and missing ones. Reports
    progress.

    - If ``source`` is a store with the same shard, takes the shard from there.
    - If the shard opens, ``repair`` rebuilds it from its undamaged records.
    - Otherwise packs it again from ``source``.

    Shards that could not be replaced are lost in the report.

    Raises:
        DestinationError: The URL is read only, or holds a copy of a local store.
        StoreError: There is no store, or its head is damaged.
    """
    objects = open_objects(url)
    if not objects.can_write:
        raise DestinationError(f"{objects.url} is read only: repair the store at a URL that can be written")
    try:
        head = read_head(objects)
    except MissingStoreError:
        raise DestinationError(
            f"{objects.url} holds no store that packstore published there: repair the local store that it is a copy of"
        ) from None
    table = head.manifest.shards
    assert table is not None
    damaged, done_bytes = [], 0
    for number, shard in enumerate(table):
        if not _is_shard_intact(objects, shard):
            damaged.append(number)
        done_bytes += shard.nbytes
        progress(Progress("verify", number + 1, len(table), done_bytes))
    shards = _ShardRepairs(objects, head.manifest)
    with tempfile.TemporaryDirectory(prefix="packstore-") as folder:
        gone = shards.rebuild(damaged, _locate_shards(source), repair, Path(folder))
        if gone:
            with reopen_remote(url, head) as reader:
                packed = repack_shards(reader, gone, shards.lost_keys, source, options, Path(folder), progress)
                shards.repack(gone, packed)
    lost_records = sum(table[number].records for number in shards.lost)
    bad = sum(table[number].records for number in damaged)
    return RepairReport(
        url,
        url if damaged and not shards.lost else None,
        len(damaged),
        head.manifest.records - bad,
        tuple(shards.replaced),
        tuple(shards.lost.values()),
        bool(damaged) and not shards.lost,
        ShardCounts(len(damaged) - len(shards.lost), len(shards.lost), lost_records),
    )


class _ShardRepairs:
    """Replaces shards of a store at a URL, and notes what was replaced and what was lost.

    Attributes:
        replaced: Replaced records of rebuilt shards, and whole shards.
        lost: By number, why a shard could not be replaced.
        lost_keys: By number, hashes of the keys of lost shards that still have keys.
    """

    def __init__(self, objects: ObjectStore, manifest: Manifest) -> None:
        assert manifest.shards is not None
        self._objects = objects
        self._format = manifest.format
        self._table = manifest.shards
        self.replaced: list[Problem] = []
        self.lost: dict[int, Problem] = {}
        self.lost_keys: dict[int, NDArray[np.uint64]] = {}

    def rebuild(
        self, damaged: Sequence[int], known: Mapping[str, ShardPlace], repair: Repair, folder: Path
    ) -> list[int]:
        """Replaces the damaged shards that are in ``known``, and rebuilds those that open.

        Returns the numbers of the others, of which nothing is left.
        """
        gone = []
        for number in damaged:
            shard = self._table[number]
            with self._noting_loss([number]), ExitStack() as stack:
                if shard.digest in known:
                    file = stack.enter_context(open_shard_file(known[shard.digest], shard, self._format))
                    fixed = [Problem("taken whole from another store", shard=shard.name)]
                else:
                    own = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
                    broken = _download_broken(self._objects, shard, self._format, own)
                    if broken is None:
                        gone.append(number)
                        continue
                    # If its keys are damaged, too, repack_shards names it as the shard that cannot be read.
                    with suppress(StoreError), open_reader(broken) as reader:
                        self.lost_keys[number] = hash_keys([reader])
                    file, fixed = _rebuild_shard(broken, shard, self._format, repair)
                upload_shard(self._objects, shard, file)
                self.lost_keys.pop(number, None)
                first = int(self._table.starts[number])
                at = [None if each.record is None else first + each.record for each in fixed]
                self.replaced += [replace(each, record=record) for each, record in zip(fixed, at, strict=True)]
        return gone

    def repack(self, gone: Sequence[int], packed: Iterator[Path]) -> None:
        """Uploads the shards ``gone`` from ``packed``, which packs them again one after the other."""
        waiting = deque(gone)
        with self._noting_loss(waiting):
            for path in packed:
                number = waiting.popleft()
                with self._noting_loss([number]):
                    shard, file = self._table[number], FORMATS[self._format].data_file(path)
                    _refuse_other_bytes(file, shard, "packed again from the source")
                    upload_shard(self._objects, shard, file)
                    self.replaced.append(Problem("packed again from the source", shard=shard.name))

    @contextmanager
    def _noting_loss(self, numbers: Iterable[int]) -> Iterator[None]:
        """Notes the shards ``numbers`` as lost if the block raises a :class:`PackstoreError`."""
        try:
            yield
        except PackstoreError as error:
            for number in numbers:
                shard = self._table[number]
                self.lost[number] = Problem(f"{shard.records:,} records: {error}", shard=shard.name)


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


def _download_broken(objects: ObjectStore, shard: Shard, format: str, folder: Path) -> Path | None:
    """Downloads a damaged shard into ``folder``, and returns its path. Returns None if it is missing or does not open.

    Raises :class:`DestinationError` if it cannot be written.
    """
    broken = folder / shard.name
    file = FORMATS[format].data_file(broken)
    with writing(file):
        file.parent.mkdir(exist_ok=True)
        try:
            with file.open("wb") as target:
                target.writelines(objects.stream(shard_object_name(shard)))
        except MissingObjectError:
            return None
    try:
        open_reader(broken).close()
    except StoreError:
        return None
    return broken


def _rebuild_shard(broken: Path, shard: Shard, format: str, repair: Repair) -> tuple[Path, list[Problem]]:
    """Repairs the damaged shard at ``broken``. Returns the rebuilt data file, and the records that were replaced.

    Raises the errors of ``repair``, and :class:`StoreError` if records are lost, or if the rebuilt file has other bytes
    than the shard had.
    """
    whole = broken.with_name(f"whole-{shard.name}")
    report = repair(broken, whole)
    if report.lost:
        raise StoreError(f"{len(report.lost):,} of its records are lost, the first: {report.lost[0].what}")
    made = FORMATS[format].data_file(whole)
    _refuse_other_bytes(None if report.destination is None else made, shard, "rebuilt")
    return made, [replace(each, shard=shard.name) for each in report.replaced]


def _refuse_other_bytes(made: Path | None, shard: Shard, how: str) -> None:
    """Raises :class:`StoreError` if a shard that was made again is not the one in the store's table."""
    if made is None or file_digest(made) != (shard.nbytes, shard.digest):
        raise StoreError(
            f"it was {how}, but not with the same bytes: the source has changed, or libraries have other versions"
        )

"""Commits a run: publishes its shards as the next version of a store."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from packstore.core.errors import StoreError
from packstore.core.manifest import Manifest
from packstore.core.registry import FORMATS
from packstore.core.shards import Shard, shards_to_rows
from packstore.core.tally import sum_tallies
from packstore.objects import ObjectStore
from packstore.packing.distribute.cluster_run import ClusterRun, TaskReceipt, select_receipts_with_records, sum_counts
from packstore.packing.plan import Plan
from packstore.packing.run import Run
from packstore.stores.base import encode_manifest
from packstore.stores.builder.assembly import ShardList, build_sharded_manifest
from packstore.stores.builder.spools import refuse_duplicates
from packstore.stores.format import Format
from packstore.stores.places.remote import publish_version, upload_shard
from packstore.stores.remote.objects import shard_object_name, shard_object_names


def commit_run(plan: Plan, run: ClusterRun, receipts: Sequence[TaskReceipt], previous: int) -> Manifest:
    """Publishes the shards in the receipts as version ``previous + 1`` of the store. Returns its manifest.

    First writes the manifest to ``head.json``. Closes gaps in the shards' numbers: uploads shards under their new
    numbers, and in the end deletes the old objects.

    Raises:
        StoreError: There are no records, two records have the same key, or a shard no longer exists.
        LostRaceError: Somebody else has published another store meanwhile.
    """
    filled, objects = select_receipts_with_records(receipts), run.objects
    _refuse_duplicates(filled, FORMATS[plan.format], objects)
    shards = _renumber_shards(filled, objects)
    manifest = _build_manifest(plan, receipts, filled, shards)
    assert manifest.shards is not None
    objects.put(run.head_name, encode_manifest(manifest))
    publish_version(objects, manifest, previous)
    names = set(shard_object_names(manifest.shards))
    uploaded = [shard_object_name(receipt.shard) for receipt in filled if receipt.shard is not None]
    objects.delete([name for name in uploaded if name not in names])
    return manifest


def _build_manifest(
    plan: Plan, receipts: Sequence[TaskReceipt], filled: Sequence[TaskReceipt], shards: Sequence[Shard]
) -> Manifest:
    """Builds the manifest of the store from the plan and the receipts.

    Its options include the sums of the receipts' counts. Its skipped samples come from the source, if that is a store,
    and from the receipts.
    """
    run = Run(plan)
    # If the source is a store, its columns have the sizes and digests of all its records.
    columns = [replace(column, nbytes=0, digest=None, hides_boxes=None) for column in run.columns]
    nbytes = sum_counts(receipt.columns for receipt in filled)
    image = replace(columns[0], nbytes=sum(shard.image_nbytes for shard in shards))
    tally, store = sum_tallies(receipt.tally for receipt in receipts), plan.survey.store
    skipped = [*(store.skipped if store else ()), *tally.skipped]
    base = Manifest(plan.format, plan.encode.encoding, 0, tuple(columns), **run.facts)
    parts = ShardList(
        shards_to_rows(shards), [""] * len(shards), [((receipt.split, receipt.records),) for receipt in filled]
    )
    others = [
        replace(column, nbytes=nbytes[column.name], hides_boxes=_find_hidden_boxes(filled, column.name))
        for column in columns[1:]
    ]
    options = {**base.options, **tally.counted}
    return build_sharded_manifest(base, parts, [image, *others], options=options, skipped=skipped)


def _find_hidden_boxes(filled: Sequence[TaskReceipt], name: str) -> bool | None:
    """Returns :attr:`Column.hides_boxes` of a column in all shards."""
    facts = [receipt.hidden_boxes.get(name) for receipt in filled]
    return True if True in facts else None if None in facts else False


def _renumber_shards(filled: Sequence[TaskReceipt], objects: ObjectStore) -> list[Shard]:
    """Returns the shards with consecutive numbers. A number is missing if all samples of a task were skipped.

    Downloads shards whose number changes, and uploads them under the new number. Deletes nothing.
    """
    shards = []
    for number, receipt in enumerate(filled):
        assert receipt.shard is not None
        shard = receipt.shard
        if number != receipt.number:
            _, _, suffix = shard.name.partition(".")
            shard = replace(shard, name=f"shard-{number:05d}.{suffix}")
            with tempfile.NamedTemporaryFile(prefix="packstore-") as copy:
                copy.writelines(objects.stream(shard_object_name(receipt.shard)))
                copy.flush()
                upload_shard(objects, shard, Path(copy.name))
        shards.append(shard)
    return shards


class _RemoteKeys:
    """Keys of the receipts' shards, by record number. Fetches a whole shard for a key, and remembers the last shard's
    keys."""

    def __init__(self, filled: Sequence[TaskReceipt], format: Format, objects: ObjectStore) -> None:
        self._filled, self._format, self._objects = filled, format, objects
        self._ends = np.cumsum([receipt.records for receipt in filled])
        self._held: tuple[int, list[bytes]] = -1, []

    def __getitem__(self, record: int) -> bytes:
        place = int(np.searchsorted(self._ends, record, "right"))
        if self._held[0] != place:
            self._held = place, self._fetch_keys(place)
        return self._held[1][record - int(self._ends[place]) + self._filled[place].records]

    def _fetch_keys(self, place: int) -> list[bytes]:
        """Downloads a shard to a temporary file and returns its keys."""
        shard = self._filled[place].shard
        assert shard is not None
        with tempfile.TemporaryFile() as file:
            file.writelines(self._objects.stream(shard_object_name(shard)))
            file.flush()
            with closing(self._format.open(Path(shard.name), file.fileno())) as part:
                return [bytes(key) for key in part.ragged_column("key")]


def _refuse_duplicates(filled: Sequence[TaskReceipt], format: Format, objects: ObjectStore) -> None:
    """Raises :class:`StoreError` if there are no records, or if two records have the same key, both of which it names.

    Its memory is bounded: key hashes go to a file, and keys are fetched only if hashes are equal.
    """
    records = sum(receipt.records for receipt in filled)
    if not records:
        raise StoreError("no records to put into the store")
    with tempfile.TemporaryFile() as file:
        for receipt in filled:
            file.write(receipt.key_hashes().tobytes())
        file.flush()
        hashes = np.memmap(file, np.dtype("<u8"), "r", shape=(records,))
        refuse_duplicates(_RemoteKeys(filled, format, objects), hashes)

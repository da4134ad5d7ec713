"""Grows a store: joins its shards, which keep their numbers, with new ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from packstore.core.column import join_hidden_boxes
from packstore.core.errors import printable
from packstore.core.manifest import Column, Manifest, Skipped
from packstore.core.progress import ProgressCallback
from packstore.packing.composing import Composition, CopiedRecords, LinkedShards, Piece, sum_linked_columns
from packstore.packing.options import AppendOptions
from packstore.packing.plan import Plan
from packstore.packing.recorded_options import drop_record_counts, record_counts
from packstore.sources.base import Source
from packstore.stores.builder.assembly import ShardList, build_sharded_manifest
from packstore.stores.opening import open_reader
from packstore.stores.places.remote import LostRaceError
from packstore.stores.unify import join_answers


@dataclass(frozen=True, slots=True)
class AppendPlan:
    """Plan of an append.

    Attributes:
        store: The store.
        manifest: Its manifest.
        columns: Its columns after the append, with all classes.
        source: The opened source.
        linked: Shards of a store to link, with their splits in this store; None to copy records or convert samples.
        conversion: Plan of the conversion; None if shards are linked, if records of a store with equal columns are
            copied, or if there is nothing to add.
        left_out: Keys of samples that are left out because the store has them.
        added: Number of records by split, bad samples included.
        duplicates: Number of samples that are left out because the store has their keys.
        estimate_bytes: Estimated growth of the store on disk.
        options: The options.
        request: Source and options, by which the same command is recognised when it runs again.
        split_of: Maps a split of the source to the split of the store.
    """

    store: Path
    manifest: Manifest
    columns: tuple[Column, ...]
    source: Source
    linked: ShardList | None
    conversion: Plan | None
    left_out: frozenset[str]
    added: Mapping[str, int]
    duplicates: int
    estimate_bytes: int
    options: AppendOptions
    request: Mapping[str, Any]
    split_of: Callable[[str], str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class AddedShards:
    """Shards to add to a store, packed or linked.

    Attributes:
        parts: The shards.
        manifest: Manifest of the store that has the shards.
        origin: Manifest of the store that their records come from; for converted samples, ``manifest``.
        skipped: Bad samples left out by policy.
    """

    parts: ShardList
    manifest: Manifest
    origin: Manifest
    skipped: tuple[Skipped, ...]


def join_shards(
    plan: AppendPlan, own: ShardList, added: ShardList, path: Path, progress: ProgressCallback
) -> tuple[ShardList, int]:
    """Lists the store's shards ``own`` and the added ones, which get the next numbers. Keeps each split together.

    If the order demands it, rewrites each shard with several splits as one shard per split, in a store at ``path``.
    Raises :class:`LostRaceError` if the store has changed before that. Also returns the number of rewritten records.
    """
    order = [split.name for split in plan.manifest.splits]
    parts, rewritten = _add_shards(own, added).group_by_split(order), 0
    if parts is None:
        own, rewritten = _split_mixed_shards(plan, own, path, progress)
        parts = _add_shards(own, added).group_by_split(order)
        assert parts is not None
    return parts, rewritten


def build_grown_manifest(plan: AppendPlan, parts: ShardList, added: AddedShards) -> Manifest:
    """Builds the manifest of the store with all shards ``parts``, of which ``added`` are new.

    Joins options, skipped samples and versions. Adds up counts of records if all records of the source are added.
    """
    manifest, origin = plan.manifest, added.origin
    shards = LinkedShards(added.parts, "", added.manifest)
    nbytes = sum_linked_columns(plan.columns, [shards])
    options = {**manifest.options, **join_answers([(str(plan.store), manifest), (str(plan.source.path), origin)])}
    whole = shards.count == origin.records  # else nobody has counted its part
    for name, count in record_counts(origin).items() if whole else ():
        options[name] = int(options.get(name) or 0) + count
    return build_sharded_manifest(
        manifest,
        parts,
        [
            replace(
                column,
                nbytes=column.nbytes + nbytes[column.name],
                hides_boxes=join_hidden_boxes((column, added.manifest.column(column.name))),
            )
            for column in plan.columns
        ],
        options=options,
        skipped=(*manifest.skipped, *added.skipped),
        versions=_merge_versions(manifest, origin),
    )


def next_number(shards: ShardList) -> int:
    """Returns the number after the highest of some shards, at least one."""
    return int(shards.rows["number"].max()) + 1


def _add_shards(own: ShardList, added: ShardList) -> ShardList:
    """Joins two lists. The added shards get the next numbers."""
    first = next_number(own)
    return own + added.renumber(range(first, first + len(added)))


def _split_mixed_shards(
    plan: AppendPlan, own: ShardList, path: Path, progress: ProgressCallback
) -> tuple[ShardList, int]:
    """Copies the records of each shard with several splits to one shard per split, in a store at ``path``.

    Returns the list of the store's shards with the new ones in place, and the number of copied records. Raises
    :class:`LostRaceError` if the store has changed.
    """
    manifest = plan.manifest
    with open_reader(plan.store) as reader:
        if reader.manifest.digest != manifest.digest:
            raise LostRaceError(f"{printable(str(plan.store))} was changed by somebody else meanwhile; append again")
        pieces: list[Piece] = []
        start = 0
        for number, runs in enumerate(own.runs):
            if len(runs) == 1:
                pieces.append(LinkedShards(own.take_shards([number]), runs[0][0], manifest))
            for name, count in runs:
                if len(runs) > 1:
                    pieces.append(CopiedRecords(reader, np.arange(start, start + count), name, cut=True))
                start += count
        base = replace(manifest, options=drop_record_counts(manifest), skipped=())
        composition = Composition(plan.store, base, manifest.columns, tuple(pieces), True, None, False)
        parts, _ = composition.make_shards(path, progress, first=next_number(own))
    return parts, composition.copied_count


def _merge_versions(manifest: Manifest, other: Manifest) -> dict[str, str]:
    """Joins the libraries' versions of two manifests. Different versions of one library are separated by commas."""
    versions = dict(manifest.versions)
    for name, version in other.versions.items():
        known = versions.setdefault(name, version).split(", ")
        if version not in known:
            versions[name] = ", ".join([*known, version])
    return versions

"""Describes a loader for its ``repr``, and its store in ``state_dict()``; checks if a state fits a loader."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from itertools import accumulate, islice
from typing import Any

import torch

from packstore.core.errors import UsageError
from packstore.core.proof import join_records_digests
from packstore.core.shards import ShardTable
from packstore.training.augment.steps import repr_on_one_line
from packstore.training.dataset import PackedDataset
from packstore.training.loader.epochs import Epochs
from packstore.training.loader.options import LoaderOptions

VERSION = 2
_SHOWN_OTHERWISE = ("sampler", "shuffle", "indices", "resident", "rank", "world_size", "dtype")


def describe_options(options: LoaderOptions, epochs: Epochs, records: int, dtype: torch.dtype) -> Iterator[str]:
    """Yields lines on the order and the images, and on each option that is not the default.

    ``records``: number of records of the dataset. ``dtype``: that of the images.
    """
    if epochs.subset_digest is not None:
        yield f"records: {epochs.order.length:,} of {records:,}"
    if options.sampler is None:
        yield f"shuffle: {epochs.shuffle or False}"
    else:
        yield f"sampler: {type(options.sampler).__name__}"
    yield f"images: {dtype}"
    for each in fields(options):
        value = getattr(options, each.name)
        if each.name not in _SHOWN_OTHERWISE and value is not None and (each.default is None or value != each.default):
            yield f"{each.name}: {repr_on_one_line(value)}"


def describe_records(dataset: PackedDataset) -> dict[str, Any]:
    """Returns the number of the dataset's records (``count``) and their ``digest``.

    A store without digests per shard has one digest, of all records. For a split of it, ``digest`` is None."""
    manifest = dataset.manifest
    if manifest.shards is not None and manifest.shards.rows is not None:
        parts = _list_shard_digests(dataset, manifest.shards)
        digest: str | None = join_records_digests(parts)
    else:
        digest = manifest.records_digest if len(dataset) == manifest.records else None
    return {"count": len(dataset), "digest": digest}


def check_state(state: Any, identity: Mapping[str, Any], dataset: PackedDataset) -> None:
    """Raises :class:`UsageError` unless ``state`` is valid, of this version, and of a loader of the same ``identity``.

    ``identity``: dataset, order and options. The text names the difference."""
    given = "load_state_dict takes what a loader's state_dict() gave"
    advice = "look under which name the checkpoint has it, or begin without one"
    if not isinstance(state, Mapping):
        raise UsageError(f"{given}, got {type(state).__name__}; {advice}")
    if not state:
        raise UsageError(
            f"{given}, and this dict is empty: the checkpoint was saved without it. Save loader.state_dict(); to begin "
            "without a state, do not call load_state_dict"
        )
    if "version" in state and state["version"] != VERSION:
        raise UsageError(f"the loader's state has version {state['version']!r}, expected {VERSION}")
    wanted = ("version", "epoch", "records", *(name for name, own in identity.items() if own is not None))
    if missing := [name for name in wanted if name not in state]:
        raise UsageError(f"{given}; this dict has {_list_some(state)}, and lacks {_list_some(missing)}: {advice}")
    whole = ("epoch", "records")
    if not all(isinstance(state.get(name), int) and state[name] >= 0 for name in whole):
        found = ", ".join(f"{name} {state.get(name)!r}" for name in whole)
        raise UsageError(f"the loader's state should have whole numbers as epoch and records, and has {found}")
    if state.get("dataset") != identity["dataset"] and state.get("split") == identity["split"]:
        raise UsageError(_describe_other_dataset(state, dataset))
    for name, own in identity.items():
        if state.get(name) != own:
            raise UsageError(f"the loader's state has {name} {state.get(name)!r}, this loader {own!r}")


def _list_some(names: Collection[Any]) -> str:
    """Lists the first six names."""
    return ", ".join([*map(str, islice(names, 6)), *(["…"] if len(names) > 6 else [])])


def _describe_other_dataset(state: Mapping[str, Any], dataset: PackedDataset) -> str:
    """Returns the error text for a state of another dataset. It says if the store has only grown since the state was
    saved."""
    where = f"{dataset.path}" + (f", split {dataset.split}" if dataset.split else "")
    before = state.get("store")
    if isinstance(before, Mapping) and _begins_with(dataset, before.get("count"), before.get("digest")):
        grown = f"{before['count']:,} records then, {len(dataset):,} now"
        return (
            f"the loader's state has dataset {state.get('dataset')!r}: {where} has grown since ({grown}), and orders "
            "its records anew; finish the epoch with a copy of the store as it was, or begin the next one: "
            f"loader.set_epoch({state['epoch'] + 1})"
        )
    return (
        f"the loader's state has dataset {state.get('dataset')!r}, and {where} is another one, "
        f"{dataset.manifest.dataset_digest!r}: it does not begin with the records of that; open the store that the "
        "state is of"
    )


def _begins_with(dataset: PackedDataset, count: Any, digest: Any) -> bool:
    """Tells if the dataset's first shards contain exactly ``count`` records with this digest. False if that is
    unknown."""
    table = dataset.manifest.shards
    if table is None or table.rows is None or digest is None:
        return False
    parts = _list_shard_digests(dataset, table)
    ends = list(accumulate(records for _, records in parts))
    return count in ends and join_records_digests(parts[: ends.index(count) + 1]) == digest


def _list_shard_digests(dataset: PackedDataset, table: ShardTable) -> list[tuple[str, int]]:
    """Lists the shards in the dataset's split: the digest and the number of the records of each."""
    chosen = dataset.reader.split(dataset.split)
    starts = table.starts.tolist()
    return [
        (shard.records_digest, shard.records)
        for start, shard in zip(starts, table, strict=False)
        if chosen.start <= start < chosen.stop
    ]

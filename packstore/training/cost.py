"""Computes from a store's table what reading it at a URL costs: requests and bytes, which providers charge for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packstore.core.manifest import Manifest
from packstore.training.lanes import SHARDS_A_WINDOW, Lanes, ShardReads, cache_room, find_fitting_window

LISTED = 1000
"""Maximum number of objects that one list request returns, with all providers."""
_OPENING = 3
"""Number of requests that open a store: list its versions, get head and table."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of an operation on all nodes together.

    Attributes:
        what: Name of the operation.
        requests: Number of requests; an expected value if records are read in random order.
        nbytes: Bytes fetched from the object store.
    """

    what: str
    requests: int
    nbytes: int


def compute_costs(manifest: Manifest, nbytes: int, budget: int, nodes: int = 1, batch_size: int = 256) -> list[Cost]:
    """Computes the requests and bytes of reading a store whose shards are at a URL.

    The cost of a full shuffle is an estimate for a store larger than the cache: each record that is not cached fetches
    a whole shard.
    Lanes use the order and window of a loader with one rank per node.

    Args:
        manifest: Manifest of the store, with its table. A single file counts as one shard.
        nbytes: Size of a store that is a single file; ignored for a store of shards.
        budget: Bytes of each node's cache.
        nodes: Number of machines that read the store, each with its own cache and an equal part of the records.
        batch_size: Records per batch on each node.

    Returns:
        A cost for each operation:

        - Opening.
        - Epochs in lanes and in full shuffle. If the store fits the cache, the first epoch and a later epoch.
        - Quick and full verification, by one machine.
    """
    table = manifest.shards
    shards, total = (1, nbytes) if table is None else (len(table), int(table.table["nbytes"].sum()))
    head = len(manifest.to_json()) + (0 if table is None else table.nbytes)
    costs = [Cost("open", _OPENING * nodes, head * nodes)]
    if total <= budget:
        costs.append(Cost("first epoch, in lanes, cache empty", shards, total))
        costs.append(Cost("first epoch, full shuffle, cache empty", shards * nodes, total * nodes))
        if nodes == 1:
            costs.append(Cost("each epoch after that", 0, 0))
        else:
            costs.append(Cost("each epoch after that, full shuffle", 0, 0))
            costs.append(Cost("each epoch after that, in lanes, at most", shards, total))
    else:
        held = budget * shards // total
        missed = manifest.records * (shards - held) // shards
        costs.append(_epoch_in_lanes(manifest, nbytes, budget, nodes, batch_size))
        costs.append(Cost("epoch in full shuffle, about", missed, missed * (total // shards)))
    pages = -(-shards // LISTED)
    costs.append(Cost("verify --quick", _OPENING + pages, head))
    costs.append(Cost("verify, cache empty", _OPENING + pages + shards, head + total))
    return costs


def _epoch_in_lanes(manifest: Manifest, nbytes: int, budget: int, nodes: int, batch_size: int) -> Cost:
    """Simulates the fetches of the first epoch in lanes on all nodes, for a store that exceeds the cache."""
    table = manifest.shards
    if table is None:
        # The file does not fit the cache: each record fetches it again.
        return Cost("epoch in lanes", manifest.records, manifest.records * nbytes)
    sizes = table.table["nbytes"].astype(np.int64)
    starts, count, room = table.starts[:-1], manifest.records, cache_room(budget)
    window = SHARDS_A_WINDOW

    def reads(window: int, node: int = 0) -> ShardReads:
        return Lanes(starts, count, batch_size * nodes, window, 0).list_shard_reads(0, node, nodes)

    # One node takes the largest window that fits its cache.
    if nodes == 1:
        window = find_fitting_window(reads, sizes, room)
    fetched = [number for node in range(nodes) for number in _simulate_fetches(reads(window, node), sizes, room)]
    return Cost(f"epoch in lanes, window {window}", len(fetched), int(sizes[fetched].sum()))


def _simulate_fetches(reads: ShardReads, sizes: NDArray[np.int64], room: int) -> list[int]:
    """Returns the numbers of the shards that a node with a cache of ``room`` bytes fetches, in order."""
    fetched: list[int] = []
    for number in reads.shards.tolist():
        # A second read needs no fetch if the shard fits together with all shards fetched after it. The cache is first
        # in, first out, so a read without a fetch renews nothing.
        since = fetched[len(fetched) - fetched[::-1].index(number) :] if number in fetched else None
        if since is None or int(sizes[since].sum()) + int(sizes[number]) > room:
            fetched.append(number)
    return fetched

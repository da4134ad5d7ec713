"""What reading a store at a URL costs, computed from its table: requests and bytes, which is what providers count."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packstore.core.manifest import Manifest
from packstore.training.lanes import SHARDS_A_WINDOW, Lanes, Reads, cache_room, fitting_window

LISTED = 1000
"""Objects that one request lists, with all providers."""
_OPENING = 3
"""Requests that open a store: they list its versions, and get a head and a table."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What something costs on all nodes together.

    Attributes:
        what: In words.
        requests: How many requests; an expected number where records are read in a random order.
        nbytes: Bytes that come from the object store.
    """

    what: str
    requests: int
    nbytes: int


def costs(manifest: Manifest, nbytes: int, budget: int, nodes: int = 1, batch_size: int = 256) -> list[Cost]:
    """The costs of a store whose shards lie at a URL.

    Args:
        manifest: Of the store, with its table; one of a single file is one shard.
        nbytes: What the store takes, where it is a single file.
        budget: Bytes of the cache of each node.
        nodes: How many machines read the store, each with a cache of its own and an equal part of the records.
        batch_size: Records a batch, of each node.

    Where the store does not fit into a cache, a record is a hit as often as shards fit into it, in a full shuffle: each
    other read fetches a whole shard. In lanes, the order and the window are those of a loader with one rank a node.
    """
    table = manifest.shards
    shards, total = (1, nbytes) if table is None else (len(table), int(table.table["nbytes"].sum()))
    head = len(manifest.to_json()) + (0 if table is None else table.nbytes)
    found = [Cost("open", _OPENING * nodes, head * nodes)]
    if total <= budget:
        found.append(Cost("first epoch, in lanes, cache empty", shards, total))
        found.append(Cost("first epoch, full shuffle, cache empty", shards * nodes, total * nodes))
        if nodes == 1:
            found.append(Cost("each epoch after that", 0, 0))
        else:
            found.append(Cost("each epoch after that, full shuffle", 0, 0))
            found.append(Cost("each epoch after that, in lanes, at most", shards, total))
    else:
        held = budget * shards // total
        missed = manifest.records * (shards - held) // shards
        found.append(_epoch_in_lanes(manifest, nbytes, budget, nodes, batch_size))
        found.append(Cost("epoch in full shuffle, about", missed, missed * (total // shards)))
    pages = -(-shards // LISTED)
    found.append(Cost("verify --quick", _OPENING + pages, head))
    found.append(Cost("verify, cache empty", _OPENING + pages + shards, head + total))
    return found


def _epoch_in_lanes(manifest: Manifest, nbytes: int, budget: int, nodes: int, batch_size: int) -> Cost:
    """Replays the reads of the first epoch on each node."""
    table = manifest.shards
    if table is None:
        return Cost("epoch in lanes", manifest.records, manifest.records * nbytes)  # larger than the cache
    sizes = table.table["nbytes"].astype(np.int64)
    starts, count, room = table.starts[:-1], manifest.records, cache_room(budget)
    window = SHARDS_A_WINDOW

    def reads(window: int, node: int = 0) -> Reads:
        return Lanes(starts, count, batch_size * nodes, window, 0).reads(0, node, nodes)

    if nodes == 1:
        window = fitting_window(reads, sizes, room)
    fetched = [number for node in range(nodes) for number in _fetched(reads(window, node), sizes, room)]
    return Cost(f"epoch in lanes, window {window}", len(fetched), int(sizes[fetched].sum()))


def _fetched(reads: Reads, sizes: NDArray[np.int64], room: int) -> list[int]:
    """The shards that a node fetches, in order. One that two lanes share is there still if less than the room was
    fetched in between."""
    fetched: list[int] = []
    for number in reads.shards.tolist():
        since = fetched[len(fetched) - fetched[::-1].index(number) :] if number in fetched else None
        if since is None or int(sizes[since].sum()) + int(sizes[number]) > room:
            fetched.append(number)
    return fetched

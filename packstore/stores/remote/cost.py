"""What reading a store at a URL costs, computed from its table: requests and bytes, which is what providers count."""

from __future__ import annotations

from dataclasses import dataclass

from packstore.core.manifest import Manifest

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


def costs(manifest: Manifest, nbytes: int, budget: int, nodes: int = 1) -> list[Cost]:
    """The costs of a store whose shards lie at a URL.

    Args:
        manifest: Of the store, with its table; one of a single file is one shard.
        nbytes: What the store takes, where it is a single file.
        budget: Bytes of the cache of each node.
        nodes: How many machines read the store, each with a cache of its own and an equal part of the records.

    Where the store does not fit into a cache, a record is a hit as often as shards fit into it, in a full shuffle: each
    other read fetches a whole shard. In lanes each shard is fetched by one node, once an epoch.
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
        found.append(Cost("epoch in lanes", shards, total))
        found.append(Cost("epoch in full shuffle, about", missed, missed * (total // shards)))
    pages = -(-shards // LISTED)
    found.append(Cost("verify --quick", _OPENING + pages, head))
    found.append(Cost("verify, cache empty", _OPENING + pages + shards, head + total))
    return found

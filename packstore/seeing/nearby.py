"""Finds the records that are on this machine: those of a remote store are not fetched unless the user asks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import CacheError, PackstoreError, UnreachableError
from packstore.stores.base import Reader


def find_parts_within(reader: Reader, start: int, stop: int) -> range:
    """Returns the numbers of the store's parts (shards) that hold records from ``start`` to ``stop - 1``.
    Empty for an empty range."""
    if start >= stop:
        return range(0)
    first, last = np.searchsorted(reader.table.starts, (start, stop - 1), "right").tolist()
    return range(first - 1, last)


def spread_local_records(reader: Reader, start: int, stop: int, most: int) -> NDArray[np.int64]:
    """Returns at most ``most`` record numbers from ``start`` to ``stop - 1``, evenly spread, ascending. Takes only
    records on this machine; empty if there are none."""
    parts = find_parts_within(reader, start, stop)
    edges = np.clip([*reader.table.starts[parts.start : parts.stop].tolist(), stop], start, stop)
    here = [
        range(*ends)
        for ends, there in zip(pairwise(edges.tolist()), reader.table.are_local(parts), strict=True)
        if there
    ]
    ends = np.cumsum([0, *map(len, here)])
    count = int(ends[-1])
    places = np.unique(np.linspace(0, count - 1, min(most, count)).astype(np.int64))
    which = np.searchsorted(ends, places, "right") - 1
    first = np.array([records.start for records in here], np.int64)
    numbers: NDArray[np.int64] = first[which] + places - ends[which] if count else places
    return numbers


def is_damage(error: PackstoreError) -> bool:
    """Tells if an error means damage. False if data cannot be fetched or cached now."""
    return not isinstance(error, (UnreachableError, CacheError))

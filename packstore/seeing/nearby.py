"""What of a store lies on this machine: of a store at a URL, only that is read unasked."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import CacheError, PackstoreError, UnreachableError
from packstore.stores.base import Reader


def parts_within(reader: Reader, start: int, stop: int) -> range:
    """The numbers of the parts of a store that hold some of the records ``start`` to ``stop - 1``."""
    if start >= stop:
        return range(0)
    first, last = np.searchsorted(reader.part_starts, (start, stop - 1), "right").tolist()
    return range(first - 1, last)


def spread_at_hand(reader: Reader, start: int, stop: int, most: int) -> NDArray[np.int64]:
    """At most ``most`` of the records ``start`` to ``stop - 1``, ascending, spread over those on this machine."""
    parts = parts_within(reader, start, stop)
    edges = np.clip([*reader.part_starts[parts.start : parts.stop].tolist(), stop], start, stop)
    here = [range(*ends) for ends, there in zip(pairwise(edges.tolist()), reader.at_hand(parts), strict=True) if there]
    ends = np.cumsum([0, *map(len, here)])
    count = int(ends[-1])
    places = np.unique(np.linspace(0, count - 1, min(most, count)).astype(np.int64))
    which = np.searchsorted(ends, places, "right") - 1
    first = np.array([records.start for records in here], np.int64)
    found: NDArray[np.int64] = first[which] + places - ends[which] if count else places
    return found


def is_damage(error: PackstoreError) -> bool:
    """Whether an error says that something is damaged, and not that it cannot be fetched now."""
    return not isinstance(error, (UnreachableError, CacheError))

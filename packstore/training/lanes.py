"""Shuffles in lanes, for shards that must be fetched: each node reads its own shards, whole and once.

Every epoch deals the shards anew: in random order, one after another, they form a deck of all records. The deck is cut
into lanes of equal length, and each global batch takes equally many records from every lane. A rank takes a contiguous
part of the batch, that of some lanes; so ranks read different shards, except for a shard at the border of two lanes,
and the number of ranks does not change a global batch.

The deck is also cut into windows of a few whole shards. Records are shuffled within their window, so a lane finishes
the shards of a window before it enters the next.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.training.permutation import DECK, permute, permute_within

SHARDS_A_WINDOW = 64
"""Default number of shards that are shuffled together, over all ranks, if the cache has room for them."""
_SHARE = 0.75  # of the cache's budget: it has other users, too
_FEW = 12  # even a store of few shards has so many lanes: so many nodes can share it, and may read a shard twice
_SHARDS_A_LANE = 4  # a lane's cut falls into a shard, which is fetched for both sides: at most a quarter more


class ShardReads(NamedTuple):
    """Shards that a rank reads in an epoch, ordered by the first batch that needs each.

    Attributes:
        shards: int64 ``(n,)``: their numbers. A shard that two lanes share may occur twice.
        first: int64 ``(n,)``: first batch that may need each shard.
        last: int64 ``(n,)``: last batch that may need each shard.
    """

    shards: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Deck:
    """Sequence of an epoch's records, shard after shard in random order, divided into windows.

    Attributes:
        shards: Indices of the shards in order, without empty shards.
        starts: Position in the deck at which each shard begins.
        stops: Position at which each shard ends.
        edges: Positions at which windows begin, and the end of the last window.
    """

    epoch: int
    shards: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    edges: NDArray[np.int64]


class Lanes:
    """Order of an epoch's records in lanes, for all ranks.

    The shards, in random order, are cut into lanes of equal length. Each batch takes equally many records from every
    lane. The number of lanes divides the global batch, and has many divisors itself, to suit many numbers of ranks.

    Attributes:
        starts: First record of each non-empty shard.
        lanes: Number of lanes: at most ``window``, at most one for each shard, and at most 12 or a quarter of the
            shards, whichever is more.
        depth: Shards per window of a lane: ``window`` divided by the lanes, at least one.
    """

    def __init__(self, starts: NDArray[np.int64], count: int, global_batch_size: int, window: int, seed: int) -> None:
        """
        Args:
            starts: The first record of each shard, ascending from 0; a shard may be empty.
            count: Number of records.
            global_batch_size: Records of a full batch, over all ranks.
            window: Shards that are mixed at a time, over all lanes.
            seed: Any integer.
        """
        sizes = np.diff(starts, append=count)
        self._numbers = np.flatnonzero(sizes)
        self.starts, self._sizes = starts[self._numbers], sizes[self._numbers]
        self._count, self._batch, self._seed = count, global_batch_size, seed
        shards = len(self._numbers)
        most = min(window, shards, max(_FEW, shards // _SHARDS_A_LANE))
        self.lanes = _most_divisible(global_batch_size, most)
        self.depth = max(1, window // self.lanes)
        self._cuts = -(-np.arange(self.lanes + 1, dtype=np.int64) * count // self.lanes)
        self._share = global_batch_size // self.lanes  # records of a lane in a batch
        full = count // global_batch_size
        rests = np.diff(self._cuts) - full * self._share  # records of each lane after the last full batch
        self._rest_starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(rests)])
        self._latest: _Deck | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the cached deck."""
        return self.__dict__ | {"_latest": None}

    def records_at(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Computes the records at ``positions`` of the epoch's sequence over all ranks, int64 of the same shape."""
        deck = self._compute_deck(epoch)
        places = self._map_to_deck(positions)
        windows = np.searchsorted(deck.edges, places, "right") - 1
        starts = deck.edges[windows]
        sizes = deck.edges[windows + 1] - starts
        places = starts + permute_within(places - starts, windows, sizes, self._seed, epoch)
        at = np.searchsorted(deck.stops, places, "right")
        records: NDArray[np.int64] = self.starts[deck.shards[at]] + places - deck.starts[at]
        return records

    def list_shard_reads(self, epoch: int, rank: int, world_size: int) -> ShardReads:
        """Lists the shards that a rank reads in an epoch, and the batches that need them.

        If fewer records than ranks remain after the last full batch, they are added to it. Shards for these records may
        be missing here, and be in the list of another rank.
        """
        deck = self._compute_deck(epoch)
        batch = self._batch // world_size
        lanes = rank * batch // self._share, -(-(rank + 1) * batch // self._share)
        begin, end = np.searchsorted(deck.edges, self._cuts[[*lanes]])
        starts, stops = deck.edges[begin:end], deck.edges[begin + 1 : end + 1]
        lane_starts = self._cuts[np.searchsorted(self._cuts, starts, "right") - 1]
        at = np.searchsorted(deck.stops, starts, "right")
        counts = np.searchsorted(deck.stops, stops - 1, "right") + 1 - at
        which = np.repeat(np.arange(len(at)), counts)
        inside = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        first = ((starts - lane_starts) // self._share)[which]
        last = ((stops - 1 - lane_starts) // self._share)[which]
        order = np.argsort(first, kind="stable")
        numbers = self._numbers[deck.shards[at[which] + inside]]
        return ShardReads(numbers[order], first[order], last[order])

    def _map_to_deck(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Maps positions in the epoch's sequence of batches to positions in the deck, without shuffling."""
        number, offset = np.divmod(positions, self._batch)
        lane, inside = np.divmod(offset, self._share)
        full = self._count // self._batch
        in_rest = number >= full
        # The last batch is shorter: each lane gives what remains of it.
        if in_rest.any():
            lane[in_rest] = np.searchsorted(self._rest_starts, offset[in_rest], "right") - 1
            inside[in_rest] = offset[in_rest] - self._rest_starts[lane[in_rest]]
        places: NDArray[np.int64] = self._cuts[lane] + number * self._share + inside
        return places

    def _compute_deck(self, epoch: int) -> _Deck:
        """Shuffles the shards of an epoch into a deck, and divides the deck into windows."""
        deck = self._latest  # cached: for 20,000 shards it takes a millisecond
        if deck is None or deck.epoch != epoch:
            shards = permute(np.arange(len(self._sizes)), len(self._sizes), self._seed, epoch, DECK)
            stops = np.cumsum(self._sizes[shards])
            starts = stops - self._sizes[shards]
            # Two sorted lists, merged in 0.2 ms; np.union1d would take 3.
            edges = np.sort(np.concatenate([starts[:: self.depth], self._cuts]), kind="stable")
            edges = edges[np.diff(edges, prepend=-1) > 0]
            self._latest = deck = _Deck(epoch, shards, starts, stops, edges)
        return deck


def list_sequential_shard_reads(starts: NDArray[np.int64], count: int, batch_size: int) -> ShardReads:
    """Lists the shards of ``count`` records in their stored order, and the batches that need each.

    Args:
        starts: The first record of each shard, ascending from 0. A shard may be empty.
        count: Number of records.
        batch_size: Records per batch.
    """
    stops = np.append(starts[1:], count)
    numbers = np.flatnonzero(stops > starts)
    return ShardReads(numbers, starts[numbers] // batch_size, (stops[numbers] - 1) // batch_size)


def max_bytes_needed(reads: ShardReads, sizes: NDArray[np.int64]) -> int:
    """Computes the largest number of bytes of shards that batches need at the same time.

    A shard that two lanes need at the same time counts once.
    """
    order = np.lexsort((reads.first, reads.shards))
    shards, first, last = (column[order].astype(np.int64) for column in reads)
    beyond = int(last.max(initial=0)) + 2
    before = np.maximum.accumulate(shards * beyond + last)[:-1] - shards[1:] * beyond  # negative for another shard
    first[1:] = np.maximum(first[1:], before + 1)
    counted = first <= last
    bytes_of = sizes[shards[counted]]
    change = np.zeros(beyond, np.int64)
    np.add.at(change, first[counted], bytes_of)
    np.add.at(change, last[counted] + 1, -bytes_of)
    return int(np.cumsum(change).max())


def cache_room(budget: int) -> int:
    """Returns how many bytes of the cache one rank's shards may take.

    That is three quarters of ``budget``, divided by the number of ranks on this machine. torchrun sets the number as
    ``LOCAL_WORLD_SIZE``; it is 1 without.
    """
    return int(budget * _SHARE) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def find_fitting_window(reads_of: Callable[[int], ShardReads], sizes: NDArray[np.int64], room: int) -> int:
    """Halves the window of :data:`SHARDS_A_WINDOW` shards until the shards that batches need fit into ``room``.

    Returns 1 if no window fits. For a single rank: several ranks would need equal caches to agree on the order.

    Args:
        reads_of: Returns the shards that an epoch with a given window reads.
        sizes: Bytes of each shard.
        room: Maximum bytes of shards in the cache at a time.
    """
    window = SHARDS_A_WINDOW
    while window > 1 and max_bytes_needed(reads_of(window), sizes) > room:
        window //= 2
    return window


def group_by_shard(
    records: NDArray[np.int64], starts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sorts entries by the shard of their record, for :class:`Lanes` over a part of a store. Keeps the order in a
    shard.

    Args:
        records: The record of each entry, ``(n,)``.
        starts: The first record of each shard, ascending from 0.

    Returns:
        Indices of the entries in their new order, ``(n,)``, and the position of each shard's first entry.
    """
    shards = np.searchsorted(starts, records, "right") - 1
    order = np.argsort(shards, kind="stable")
    return order, np.searchsorted(shards[order], np.arange(len(starts)))


def _most_divisible(number: int, most: int) -> int:
    """Returns the divisor of ``number`` up to ``most`` with the most divisors, the largest of several."""
    divisors = (d for d in range(1, most + 1) if number % d == 0)
    return max(divisors, key=lambda d: (sum(d % n == 0 for n in range(1, d + 1)), d))

"""Mixes several stores in an epoch by exact shares, computed position by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.training.lanes import SHARDS_A_WINDOW, Lanes, ShardReads, list_sequential_shard_reads
from packstore.training.permutation import MIXTURE, permute_within

_WINDOW = 1024
"""Minimum length of a window, within which stores come in random order."""


class FetchedShards(NamedTuple):
    """Shards of one store of a mixture, which are fetched whole.

    Attributes:
        first_part: Number of the first shard among the shards of all stores. The others follow.
        starts: First record of each shard, from 0. A shard may be empty.
    """

    first_part: int
    starts: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Mixture:
    """Epoch that draws a fixed number of records from each of several stores.

    The positions of an epoch are divided into windows. Each window contains every store's share, rounded. Any part of
    an epoch has the wanted shares to within two records at each end. Within a window, stores come in random order.

    All records of a store are drawn before any is repeated. With ``shuffle``, their order is random. An epoch continues
    where the previous epoch stopped.

    A store whose shards must be fetched is read shard by shard. With ``shuffle``, its shards come in random order, and
    its records are shuffled within windows of several shards.

    Attributes:
        sizes: Number of records of each store, in the order of the dataset.
        draws: Number of records of each store in an epoch.
        fetched: Shards of the stores that are read shard by shard, by number of the store.
    """

    sizes: tuple[int, ...]
    draws: tuple[int, ...]
    fetched: Mapping[int, FetchedShards] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of records of an epoch."""
        return sum(self.draws)

    @cached_property
    def _window_records(self) -> int:
        """Number of records of a window: at least 1,024, and enough to contain each store."""
        return max(_WINDOW, -(-self.count // min(self.draws)))

    def ids_at(
        self, positions: NDArray[np.int64], seed: int, epoch: int, shuffle: bool, shards: int = SHARDS_A_WINDOW
    ) -> NDArray[np.int64]:
        """Computes the records at ``positions`` of an epoch, counted over all stores.

        Returns ids, as :func:`packstore.training.random_draws.with_occurrences` does.

        Without ``shuffle``, each store's records come in stored order, and stores take turns alike in each epoch.

        ``shards``: number of shards of a fetched store that are mixed at a time.
        """
        window, total = self._window_records, self.count
        numbers = positions // window
        first = np.minimum(numbers * window, total)
        turn = (seed, epoch) if shuffle else (0, 0)
        # Which place of its window comes at each position, and the store to which the place belongs.
        places = permute_within(positions - first, numbers, np.minimum(window, total - first), *turn, MIXTURE)

        windows, which = np.unique(numbers, return_inverse=True)
        starts = windows * window
        before = self._count_draws_before(starts)
        within = self._count_draws_before(starts + window) - before
        stores = np.zeros(len(positions), np.int64)
        for store in range(1, len(self.sizes)):
            stores += places >= within[which, store]
        drawn = np.diff(before, axis=1)[which, stores] + places - within[which, stores]

        result = np.empty_like(positions)
        begin = 0
        for store, (size, draws) in enumerate(zip(self.sizes, self.draws, strict=True)):
            rows = np.flatnonzero(stores == store)
            # Epochs continue: the number of the pass over the store, and the place in it.
            turns, local = np.divmod(epoch * draws + drawn[rows], size)
            if shuffle and store in self.fetched:
                for turn in np.unique(turns).tolist():
                    chosen = turns == turn
                    local[chosen] = self._lane_of_store(store, seed, shards).records_at(turn, local[chosen])
            elif shuffle and len(rows):
                all_of = np.full(len(rows), size, np.int64)
                local = permute_within(local, turns, all_of, seed, 0, MIXTURE - 1 - store)
            result[rows] = begin + local + (turns - epoch * draws // size << 32)
            begin += size
        return result

    def list_shard_reads(
        self, seed: int, epoch: int, shuffle: bool, global_batch_size: int, shards: int = SHARDS_A_WINDOW
    ) -> ShardReads | None:
        """Lists the shards of :attr:`fetched` stores that an epoch reads, and the batches that may need them.

        Returns None without such stores. The list is the same for all ranks, because ranks do not divide a store by
        shards.
        """
        reads = [
            self._list_store_reads(store, seed, epoch, shuffle, global_batch_size, shards) for store in self.fetched
        ]
        if not reads:
            return None
        parts, first, last = (np.concatenate(columns) for columns in zip(*reads, strict=True))
        order = np.argsort(first, kind="stable")
        return ShardReads(parts[order], first[order], last[order])

    def _list_store_reads(
        self, store: int, seed: int, epoch: int, shuffle: bool, global_batch_size: int, shards: int
    ) -> tuple[NDArray[np.int64], ...]:
        """Lists the shards of a store that an epoch reads, with the first and last batch that may need each."""
        size, draws, (first_part, starts) = self.sizes[store], self.draws[store], self.fetched[store]
        parts, first, last = [], [], []
        # A shard is listed once for each pass over the store.
        for turn in range(epoch * draws // size, ((epoch + 1) * draws - 1) // size + 1):
            lanes = self._lane_of_store(store, seed, shards)
            each = lanes.list_shard_reads(turn, 0, 1) if shuffle else list_sequential_shard_reads(starts, size, 1)
            begin = turn * size - epoch * draws  # its first draw in the epoch
            used = (each.last + begin >= 0) & (each.first + begin < draws)
            parts.append(each.shards[used] + first_part)
            first.append(np.maximum(each.first[used] + begin, 0))
            last.append(np.minimum(each.last[used] + begin, draws - 1))
        # A draw may be anywhere in its window.
        edges = np.arange(0, self.count, self._window_records)
        drawn = np.diff(self._count_draws_before(edges), axis=1)[:, store]
        begins = edges[np.searchsorted(drawn, np.concatenate(first), "right") - 1]
        ends = edges[np.searchsorted(drawn, np.concatenate(last), "right") - 1] + self._window_records - 1
        final = max(0, self.count // global_batch_size - 1), (self.count - 1) // global_batch_size
        return (
            np.concatenate(parts),
            np.minimum(begins // global_batch_size, final[0]),  # a short tail may join the last full batch
            np.minimum(ends // global_batch_size, final[1]),
        )

    def _count_draws_before(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Counts the draws from the first 0, 1, … stores before each of ``positions``: ``(n, stores + 1)``."""
        total = self.count
        exact = np.minimum(positions, total)[:, None] * np.cumsum([0, *self.draws])
        # Rounded: a window, which begins at each position, has its shares to within one record.
        rounded: NDArray[np.int64] = (exact + total // 2) // total
        return rounded

    def _lane_of_store(self, store: int, seed: int, shards: int) -> Lanes:
        """Returns the order of a store's records by its shards, as a single lane."""
        if (store, seed, shards) not in self._lane_cache:
            own = (seed << 8) + store + 1  # stores of equal shards come in different orders
            lanes = Lanes(self.fetched[store].starts, self.sizes[store], 1, shards, own)
            self._lane_cache[store, seed, shards] = lanes
        return self._lane_cache[store, seed, shards]

    @cached_property
    def _lane_cache(self) -> dict[tuple[int, int, int], Lanes]:
        """Orders that :meth:`_lane_of_store` has made, by store, seed and number of shards."""
        return {}


def apportion(weights: Sequence[float], count: int) -> tuple[int, ...]:
    """Divides ``count`` records among stores in the ratio of ``weights``.

    Rounds by the largest remainders. If these are equal, the first store gets the record.

    Raises :class:`UsageError` if a store would get none.
    """
    exact = [Fraction(weight) for weight in weights]
    quotas = [weight * count / sum(exact) for weight in exact]
    parts = [int(quota) for quota in quotas]
    order = sorted(range(len(parts)), key=lambda i: (parts[i] - quotas[i], i))
    for i in order[: count - sum(parts)]:
        parts[i] += 1
    if min(parts) < 1:
        raise UsageError(
            f"an epoch of {count:,} records has none of a store with a share of "
            f"{float(quotas[parts.index(min(parts))] / count):.3g}; raise its weight or epoch="
        )
    return tuple(parts)

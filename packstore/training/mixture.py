"""Shares of several stores in an epoch: exact, and worked out position by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.training.permutation import MIXTURE, permute_within

_WINDOW = 1024
"""Positions within which stores come in random order; more where one of them comes more seldom."""


@dataclass(frozen=True, eq=False)
class Mixture:
    """An epoch that draws so many records of each of several stores.

    Positions are parted into windows. Each has of every store its share, rounded, so that any part of an epoch has the
    wanted shares but for two records at each end; within a window the stores come in random order. A store is gone
    through in random order, whole, before any of its records comes again, and an epoch goes on where the one before
    stopped.

    Attributes:
        sizes: Records of each store, one after another in the dataset.
        draws: How many of them an epoch has.
    """

    sizes: tuple[int, ...]
    draws: tuple[int, ...]

    @property
    def count(self) -> int:
        """Records of an epoch."""
        return sum(self.draws)

    @cached_property
    def _window(self) -> int:
        # So long that no store's rounded share of a window is less than nothing.
        return max(_WINDOW, -(-self.count // min(self.draws)))

    def ids(self, positions: NDArray[np.int64], seed: int, epoch: int, shuffle: bool) -> NDArray[np.int64]:
        """The records at ``positions`` of an epoch, each in [0, :attr:`count`): ids as of
        :func:`packstore.training.random_draws.with_occurrences`."""
        window, total = self._window, self.count
        numbers = positions // window
        first = np.minimum(numbers * window, total)
        turn = (seed, epoch) if shuffle else (0, 0)
        places = permute_within(positions - first, numbers, np.minimum(window, total - first), *turn, MIXTURE)

        windows, which = np.unique(numbers, return_inverse=True)
        starts = windows * window
        ends = np.cumsum([0, *self.draws])
        before = (starts[:, None] * ends + total // 2) // total
        within = (np.minimum(starts + window, total)[:, None] * ends + total // 2) // total - before
        stores = np.zeros(len(positions), np.int64)
        for store in range(1, len(self.sizes)):
            stores += places >= within[which, store]
        drawn = np.diff(before, axis=1)[which, stores] + places - within[which, stores]

        result = np.empty_like(positions)
        begin = 0
        for store, (size, draws) in enumerate(zip(self.sizes, self.draws, strict=True)):
            rows = np.flatnonzero(stores == store)
            turns, local = np.divmod(epoch * draws + drawn[rows], size)
            if shuffle and len(rows):
                all_of = np.full(len(rows), size, np.int64)
                local = permute_within(local, turns, all_of, seed, 0, MIXTURE - 1 - store)
            result[rows] = begin + local + (turns - epoch * draws // size << 32)
            begin += size
        return result


def shared_out(weights: Sequence[float], count: int) -> tuple[int, ...]:
    """Whole numbers that are in the ratio of ``weights`` and add up to ``count``, by the largest remainders.

    Raises :class:`UsageError` where one would be 0."""
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

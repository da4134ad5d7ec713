"""Repeated augmentation: an order in which every record comes several times, augmented otherwise each time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from packstore.core.arguments import whole_number
from packstore.training.random_draws import Draws


class RASampler:
    """Indices of a dataset in random order, each ``repeats`` times in turn, for ``sampler=`` of a loader.

    An epoch has as many items as the dataset, so it shows ``1 / repeats`` of the records (Hoffer et al., "Augment your
    batch", 2019; DeiT, ``samplers.py``). The loader draws for each repetition by itself. All ranks may have the same
    sampler: the loader shares out what it gives.

    Args:
        dataset: Anything with a length.
        repeats: How often a record comes.
        seed: The order is a function of it and the epoch.

    Raises:
        UsageError: ``repeats`` is not positive.
    """

    def __init__(self, dataset: Any, repeats: int = 3, seed: int = 0) -> None:
        self.length = len(dataset)
        self.repeats = whole_number("repeats", repeats)
        self.seed = whole_number("seed", seed, None)
        self.epoch = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        draws = Draws(self.seed, self.epoch, np.arange(self.length))
        order = np.argsort(draws.bits(0), kind="stable")[: -(-self.length // self.repeats)]
        yield from np.repeat(order, self.repeats)[: self.length].tolist()

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration the one of ``epoch``."""
        self.epoch = epoch

"""Repeated augmentation: an order in which every record occurs several times, with different augmentation."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import numpy as np

from packstore.core.errors import UsageError
from packstore.core.options import show_value, whole_number
from packstore.training.arguments import KnownArguments
from packstore.training.random_draws import Draws


class RASampler(KnownArguments):
    """Yields indices of a dataset in random order, each ``repeats`` times in a row.

    For ``sampler=`` of a loader. An epoch has as many items as the dataset, and shows ``1 / repeats`` of the records.
    The loader augments each repetition differently, and divides the indices among ranks. Give each rank a
    sampler with the same arguments.

    Source: Hoffer et al., "Augment your batch", 2019; DeiT, ``samplers.py``.

    Args:
        dataset: Anything with a length.
        repeats: Number of repetitions of a record.
        seed: Seed of the order, which also depends on the epoch.

    Raises:
        UsageError: ``dataset`` has no length. ``repeats`` is not a positive whole number, or ``seed`` not a whole
            number.
    """

    def __init__(self, dataset: Any, repeats: int = 3, seed: int = 0) -> None:
        if not isinstance(dataset, Sized):
            raise UsageError(f"RASampler takes a dataset, got {show_value(dataset)}")
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
        """Sets the epoch, which determines the order of the next iteration."""
        self.epoch = epoch

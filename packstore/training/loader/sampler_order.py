"""The order of records that a user's sampler gives, divided among ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import index
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.training.lanes import ShardReads
from packstore.training.loader.options import parse_indices
from packstore.training.order import Order
from packstore.training.random_draws import OccurrenceCounter

_DRAWN_AT_ONCE = 4096  # records that are drawn ahead of the batches: the sampler may be endless


@dataclass(frozen=True, eq=False)
class SamplerOrder:
    """Order of what a sampler yields: indices of a dataset, one a record. Has the interface of :class:`Order`.

    A sampler without a length has no known number of batches: all its batches count as full, until it ends.

    Attributes:
        ranks: Divides what the sampler yields among ranks. Its own length is the dataset's.
        sampler: The user's sampler.
        subset: Records that the sampler's indices stand for; None if they are the records themselves.
        records: Number of the dataset's records.
        replicas: Number of ranks among which the sampler itself divides its records.
        batches: Number of batches of the latest epoch once that has ended, in a list; else empty.
    """

    ranks: Order
    sampler: Any
    subset: NDArray[np.int64] | None
    records: int
    replicas: int = 1
    batches: list[int] = field(default_factory=list)

    at_once: ClassVar[int] = _DRAWN_AT_ONCE
    on_device: ClassVar[bool] = False
    window = lanes = None

    @property
    def length(self) -> int:
        """Number of indices that the sampler may yield."""
        return self.ranks.length

    @property
    def world_size(self) -> int:
        """Number of ranks that divide what the sampler yields."""
        return self.ranks.world_size

    @property
    def global_batch_size(self) -> int:
        """Number of records of a full batch, over all ranks."""
        return self.ranks.global_batch_size * self.replicas

    @property
    def has_length(self) -> bool:
        """False for a sampler without a length."""
        return isinstance(self.sampler, Sized)

    def with_ranks(self, rank: int, world_size: int, window: int | None) -> SamplerOrder:
        """Returns the order for other ranks. ``window`` is unused."""
        return replace(self, ranks=replace(self.ranks, rank=rank, world_size=world_size), batches=[])

    def check(self, given: bool) -> None:
        """Raises :class:`UsageError` for a sampler without a seeded generator, if several ranks divide its records.

        ``given``: the user gives the ranks."""
        if not given and self.world_size > 1 and getattr(self.sampler, "generator", self.sampler) is None:
            name = type(self.sampler).__name__
            raise UsageError(
                f"{name} has no seed: each of the {self.world_size} ranks would draw another order, and take its part "
                f"of that; give all ranks the same one: {name}(..., generator=torch.Generator().manual_seed(0))"
            )

    def count_batches(self) -> int:
        """Returns the number of batches of an epoch. Raises :class:`TypeError` for a sampler without a length."""
        return self._of_length(len(self.sampler)).count_batches()

    def count_rank_records(self) -> int:
        """Returns the number of records of an epoch on this rank. Raises :class:`TypeError` for a sampler without a
        length."""
        return self._of_length(len(self.sampler)).count_rank_records()

    def count_records(self, batches: int) -> int:
        """Returns the number of records in the first ``batches`` batches of an epoch, over all ranks."""
        if not self.has_length:
            return batches * self.global_batch_size
        return self._of_length(len(self.sampler)).count_records(batches) * self.replicas

    def batches_before(self, position: int) -> int:
        """Returns how many batches contain the first ``position`` records of an epoch, over all ranks. Rounds up; down
        for a sampler without a length."""
        if not self.has_length:
            return position // self.replicas // self.ranks.global_batch_size
        return self._of_length(len(self.sampler)).batches_before(position // self.replicas)

    def ends_after(self, batches: int) -> bool:
        """Tells if an epoch has no batch after its first ``batches``.

        For a sampler without a length, that is known of the latest epoch, from its last batch on."""
        return batches >= self.count_batches() if self.has_length else [batches] == self.batches

    def list_shard_reads(self, epoch: int) -> ShardReads | None:
        """Returns None: a sampler does not follow shards."""
        return None

    def iterate_groups(self, epoch: int, first: int, images: int) -> Iterator[tuple[NDArray[np.int64], list[int]]]:
        """Yields ids as :meth:`Order.iterate_groups`, from the split's first record. Draws the batches before
        ``first``, too.

        Takes indices only a few batches ahead, since the sampler may be endless.

        Raises :class:`UsageError` for anything but indices of the dataset, and if an epoch has no batches."""
        occurrences = OccurrenceCounter(self.records)
        at_once, whole = max(1, images // self.ranks.batch_size), self.ranks.global_batch_size
        drawn, held = iter(self.sampler), np.empty(0, np.int64)
        wanted = (at_once + 1) * whole  # one batch more, since the last full batch may get the remaining records
        ended, before = False, 0
        while not ended:
            held = np.concatenate([held, self._draw_ids(drawn, wanted - len(held), occurrences, not len(held))])
            ended = len(held) < wanted
            order = self._of_length(len(held))
            if ended:
                order.check(given=True)
            count = order.count_batches() if ended else at_once
            before += count
            if ended:
                self.batches[:] = [before]
            bounds = [order.batch_bounds(number) for number in range(max(first, 0), count)]
            if bounds:
                yield held[order.join_positions(bounds)], [end - begin for begin, end in bounds]
            held, first = held[count * whole :], first - count

    def _of_length(self, length: int) -> Order:
        """Returns the order of ``length`` records as the sampler gives them, divided among ranks."""
        return replace(self.ranks, length=length, shuffle=False, block=None, shards=None)

    def _draw_ids(
        self, drawn: Iterator[Any], count: int, occurrences: OccurrenceCounter, needed: bool
    ) -> NDArray[np.int64]:
        """Takes up to ``count`` indices from ``drawn``, the sampler's iterator, and makes ids of them."""
        entries: list[Any] = list(islice(drawn, count))
        # An exhausted sampler gives none; with ``needed`` that is an error.
        if not entries and not needed:
            return np.empty(0, np.int64)
        try:
            records = np.fromiter(map(index, entries), np.int64, len(entries))
        except TypeError as error:
            batch = next((entry for entry in entries if isinstance(entry, list | tuple)), None)
            advice = "" if batch is None else "; it gives batches: pass the sampler within, and batch_size="
            raise UsageError(f"sampler should give one whole number after another: {error}{advice}") from error
        # Refuses anything but indices of the dataset.
        items = parse_indices(records, self.length, "what sampler gives")
        return occurrences.make_ids(items if self.subset is None else self.subset[items])

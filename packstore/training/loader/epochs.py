"""Computes the records of a loader's batches, as ids, epoch by epoch.

The lower 32 bits of an id are the record number. The upper bits count the record's earlier occurrences in the epoch
(see :func:`with_occurrences`). A repeated record therefore gets different crops.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence, Sized
from dataclasses import replace
from functools import cached_property
from itertools import islice
from numbers import Integral
from operator import index
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.training.dataset import PackedDataset
from packstore.training.lanes import (
    SHARDS_A_WINDOW,
    ShardReads,
    cache_room,
    find_fitting_window,
    group_by_shard,
    list_sequential_shard_reads,
)
from packstore.training.loader.options import LoaderOptions, parse_indices, resolve_ranks
from packstore.training.order import Order
from packstore.training.random_draws import MASK, OccurrenceCounter, with_occurrences

_ORDERED_AT_ONCE = 65536  # records whose places are worked out at once: 256 take 47 µs, 16,384 0.3 ms, these 0.6 ms
_DRAWN_AT_ONCE = 4096  # records that are drawn from a sampler ahead of the batches: it may be endless


class Epochs:
    """Computes the batches of every epoch on one rank, as ids of records.

    They come from an order or from the user's sampler. A sampler is read some 4,096 records ahead.

    Attributes:
        first_record: Number of the split's first record in the store.
        shuffle: ``"lanes"``, ``"full"`` (with ``block``, too), or None for no shuffling.
        order: Order of the latest epoch, for the ranks that there were when the epoch began. With a sampler, its length
            is the dataset's, not the epoch's.
        mixture: Shares of the stores, for a :class:`packstore.Mix`; else None.
        generator_state: Hexadecimal state of the sampler's generator at the beginning of that epoch; None without.

    Raises:
        UsageError: ``window`` for an order that has none. Sampler, indices, ``block`` or lanes with a
            :class:`packstore.Mix`, which decides on the order. An epoch without batches. A sampler without a seeded
            generator, on several ranks. From the sampler, anything but indices of the dataset.
    """

    def __init__(
        self, dataset: PackedDataset, batch_size: int, options: LoaderOptions, part: NDArray[np.int64] | None = None
    ) -> None:
        """
        Args:
            dataset: The dataset.
            batch_size: Images per batch and rank.
            options: Options of the loader.
            part: Indices of the items to which ``options.indices`` and the sampler refer; None for all.
        """
        self._options = options
        self.first_record = dataset.reader.split(dataset.split).start
        self._records = len(dataset)
        self._sampler = options.sampler
        self._part = self._subset = part
        if options.indices is not None:
            chosen = parse_indices(options.indices, len(dataset) if part is None else len(part))
            self._subset = chosen if part is None else part[chosen]
        self._subset_ids = None if self._subset is None else with_occurrences(self._subset)
        # A permutation of all records would fetch every shard again and again.
        is_remote = options.block is None and dataset.reader.table.cache is not None
        self.mixture = dataset._resolve_mixture(options.shuffle)
        by_shards = options.shuffle is True and is_remote
        lanes = options.shuffle == "lanes" or (by_shards and self.mixture is None)
        self.shuffle = "lanes" if lanes else "full" if options.shuffle else None
        if options.window is not None and not lanes and not by_shards and options.block is None:
            raise UsageError("window is of shuffle='lanes' or of block: add one of them, or leave it out")
        self._shards = shards = np.clip(dataset.reader.table.starts - self.first_record, 0, self._records)
        if lanes and self._subset is not None and self._subset_ids is not None:
            chosen, shards = group_by_shard(self._subset, shards)
            self._subset_ids = self._subset_ids[chosen]
        given = self._sampler, self._subset, options.block
        if self.mixture is not None and (lanes or any(option is not None for option in given)):
            raise UsageError(
                "a Mix decides on the order: leave out sampler, indices, Subset, block and shuffle='lanes'"
            )
        count = len(dataset) if self._subset is None else len(self._subset)
        in_turn = is_remote and not options.shuffle and self._subset is None and self.mixture is None
        self.order = Order(
            length=count,
            batch_size=batch_size,
            seed=options.seed,
            shuffle=bool(options.shuffle),
            drop_last=options.drop_last,
            block=options.block,
            shards=shards if lanes or in_turn else None,
            window=options.window,
            mixture=self.mixture,
        )
        self._fits_cache = options.window is None and is_remote and (lanes or by_shards)
        self._dataset, self._order_of_one = dataset, self.order
        self._sampler_epoch = getattr(self._sampler, "epoch", None)
        self._drawn_batches: int | None = None  # of the latest epoch of a sampler, once that has ended
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Updates the order for the next epoch by the current rank and world size. Remembers the state of the sampler's
        generator.

        Raises:
            UsageError: Without a sampler the epoch would have no batches; or ranks would draw different records from
                the sampler.
        """
        self.order = self._current_order()
        self._drawn_batches = None
        generator = self._sampler_generator
        self.generator_state = None if generator is None else bytes(generator.get_state().tolist()).hex()
        if self._sampler is None:
            _refuse_empty(self.order)
        elif self._options.rank is None and self.order.world_size > 1:
            _refuse_unseeded(self._sampler, self.order.world_size)

    def restore_generator(self, state: str | None) -> None:
        """Sets the sampler's generator and :attr:`generator_state` to ``state``, so that the sampler draws that epoch
        again. Does nothing if either is None. Raises :class:`UsageError` for an invalid state."""
        if self._sampler_generator is None or state is None:
            return
        try:
            self._sampler_generator.set_state(torch.tensor(list(bytes.fromhex(state)), dtype=torch.uint8, device="cpu"))
        except (RuntimeError, TypeError, ValueError) as error:
            raise UsageError(f"the loader's state has a generator that torch refuses: {error}") from error
        self.generator_state = state

    def finish_generator(self) -> None:
        """Advances the sampler's generator, if there is one, by the draws of an epoch. Remembers its state."""
        sampler: Any = self._sampler
        if self._sampler_generator is not None:
            # One more than its length, since torch's samplers draw once more at their end.
            deque(islice(sampler, len(sampler) + 1 if isinstance(sampler, Sized) else None), maxlen=0)
            self.begin_epoch()

    def skip_epochs(self, count: int) -> None:
        """Advances the sampler's generator, if there is one, by the draws of ``count`` epochs, which are not loaded.

        Does nothing for a sampler that has ``set_epoch``, or no length."""
        if self.has_length and not hasattr(self._sampler, "set_epoch"):
            for _ in range(count):
                self.finish_generator()

    @property
    def _sampler_generator(self) -> torch.Generator | None:
        """Torch generator in the sampler's attribute ``generator``; None if it has none."""
        generator = getattr(self._sampler, "generator", None)
        return generator if isinstance(generator, torch.Generator) else None

    def _current_order(self) -> Order:
        """Returns the order with the current rank and world size.

        If the sampler itself divides its records among ranks, these are 0 and 1. With a world size of 1, the order's
        window fits the cache."""
        rank, world_size = (0, 1) if self._sampler_divides else resolve_ranks(self._options)
        # Several ranks must agree, though their caches may differ.
        window = self._fitting_window if world_size == 1 else self._options.window
        return replace(self.order, rank=rank, world_size=world_size, window=window)

    @cached_property
    def _fitting_window(self) -> int | None:
        """Window for a single rank; None for the default.

        It is the user's if given. If the cache has less room than the default takes, it has fewer shards."""
        table = self._dataset.reader.table
        if not self._fits_cache or table.cache is None:
            return self._options.window
        room = cache_room(table.cache.budget)
        window = find_fitting_window(self._order_of_one.list_first_epoch_reads, table.part_nbytes, room)
        return None if window == SHARDS_A_WINDOW else window

    @property
    def _sampler_divides(self) -> bool:
        """True if the sampler gives each rank its own records, as ``DistributedSampler`` does. False if the user gives
        ``rank``."""
        return self._options.rank is None and hasattr(self._sampler, "num_replicas") and hasattr(self._sampler, "rank")

    @property
    def _sampler_ranks(self) -> int:
        """Number of ranks among which the sampler divides its records."""
        return int(self._sampler.num_replicas) if self._sampler_divides else 1  # type: ignore[union-attr]

    @property
    def global_batch_size(self) -> int:
        """Number of records of a full batch, over all ranks."""
        return self.order.global_batch_size * self._sampler_ranks

    def take_epoch_of_sampler(self) -> int | None:
        """Returns the epoch that the user has set in the sampler since the last call, and remembers it.

        Returns None if the user has set none, or the sampler has no ``set_epoch``."""
        epoch = getattr(self._sampler, "epoch", None)
        if not hasattr(self._sampler, "set_epoch") or not isinstance(epoch, Integral) or epoch == self._sampler_epoch:
            return None
        self._sampler_epoch = epoch
        return epoch if isinstance(epoch, int) else index(epoch)

    def set_epoch_of_sampler(self, epoch: int) -> None:
        """Calls the sampler's ``set_epoch``, if it has that method. :meth:`take_epoch_of_sampler` then ignores this
        epoch."""
        set_epoch = getattr(self._sampler, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
            self._sampler_epoch = getattr(self._sampler, "epoch", None)

    def count_batches(self) -> int:
        """Returns the number of batches of an epoch with the current ranks. Raises :class:`TypeError` for a sampler
        without a length."""
        order = self._current_order()
        return (order if self._sampler is None else _sampler_order(order, len(self._sampler))).count_batches()  # type: ignore[arg-type]

    def count_records(self, batches: int) -> int:
        """Returns the number of records in the first ``batches`` batches of an epoch, over all ranks. For a sampler
        without a length, all batches count as full."""
        order = self._order_with_length()
        whole = batches * self.order.global_batch_size if order is None else order.count_records(batches)
        return whole * self._sampler_ranks

    def batches_before(self, position: int) -> int:
        """Returns the number of batches that contain the first ``position`` records of an epoch, rounded up.

        ``position`` counts the records of all ranks. For a sampler without a length, the number is rounded down."""
        order, position = self._order_with_length(), position // self._sampler_ranks
        return position // self.order.global_batch_size if order is None else order.batches_before(position)

    def ends_after(self, batches: int) -> bool:
        """Tells if an epoch has no batch after its first ``batches``.

        For a sampler without a length, that is known of the latest epoch, from its last batch on."""
        order = self._order_with_length()
        return batches == self._drawn_batches if order is None else batches >= order.count_batches()

    @property
    def items(self) -> Sequence[int]:
        """Indices of all items of an epoch. Empty with a sampler, which draws them later."""
        if self._sampler is not None:
            return ()
        return range(self._records) if self._subset is None else self._subset  # type: ignore[return-value]

    @property
    def subset_digest(self) -> str | None:
        """SHA-256 of the chosen indices; None for all."""
        return None if self._subset is None else hashlib.sha256(self._subset.tobytes()).hexdigest()

    def list_shard_reads(self, epoch: int) -> ShardReads | None:
        """Lists the shards that this rank reads in an epoch. Returns None with a sampler, and for an order that does
        not follow shards."""
        return None if self._sampler is not None else self.order.list_shard_reads(epoch)

    def list_sequential_reads(self, step: int) -> ShardReads:
        """Lists the shards of the split, with batches of ``step`` records in their stored order."""
        return list_sequential_shard_reads(self._shards, self._records, step)

    @property
    def shards_digest(self) -> str | None:
        """SHA-256 of the numbers of the shards' first records, if the order depends on them; else None."""
        lanes, mixture = self.order.lanes, self.mixture
        starts = [] if lanes is None else [lanes.starts]
        if mixture is not None and self.order.shuffle:
            starts = [shards.starts for shards in mixture.fetched.values()]
        return hashlib.sha256(b"".join(each.tobytes() for each in starts)).hexdigest() if starts else None

    def _order_with_length(self) -> Order | None:
        """Returns the order of an epoch with its length, or None for a sampler without a length."""
        if self._sampler is None:
            return self.order
        return _sampler_order(self.order, len(self._sampler)) if isinstance(self._sampler, Sized) else None

    def iterate_batches(self, epoch: int, first: int) -> Iterator[NDArray[np.int64]]:
        """Yields the ids of each batch's records on this rank, from batch ``first`` of the epoch on."""
        at_once = _ORDERED_AT_ONCE if self._sampler is None else _DRAWN_AT_ONCE
        for ids, sizes in self.iterate_groups(epoch, first, at_once):
            offset = 0
            for size in sizes:
                yield ids[offset : offset + size]
                offset += size

    @property
    def has_length(self) -> bool:
        """False with a sampler without a length: the number of batches is unknown."""
        return self._sampler is None or isinstance(self._sampler, Sized)

    def iterate_indices(self, epoch: int, first: int = 0) -> Iterator[list[int]]:
        """Yields the indices of each batch on this rank, from batch ``first`` of the epoch on: those of the dataset, or
        of the ``Subset`` that the loader was given. Draws from the sampler, if there is one."""
        sorter = None if self._part is None else np.argsort(self._part, kind="stable")
        for ids in self.iterate_batches(epoch, first):
            indices = (ids & MASK) - self.first_record
            if self._part is not None and sorter is not None:
                indices = sorter[np.searchsorted(self._part, indices, sorter=sorter)]
            yield indices.tolist()

    def count_rank_records(self) -> int:
        """Returns the number of records of an epoch on this rank. Raises :class:`TypeError` for a sampler without a
        length."""
        order = self._current_order()
        order = order if self._sampler is None else _sampler_order(order, len(self._sampler))  # type: ignore[arg-type]
        last = order.count_batches() - 1
        start, stop = order.batch_bounds(last)
        return last * order.batch_size + stop - start

    def iterate_groups(self, epoch: int, first: int, images: int) -> Iterator[tuple[NDArray[np.int64], list[int]]]:
        """Yields groups of consecutive batches: the ids, and the size of each batch.

        A group has about ``images`` records, but at least one batch. With a sampler, reads and raises as
        :meth:`_iterate_sampler_groups`."""
        if self._sampler is not None:
            yield from self._iterate_sampler_groups(epoch, first, images)
            return
        order, indices = self.order, self._subset_ids
        count = order.count_batches()
        at_once = max(1, images // order.batch_size)
        for start in range(first, count, at_once):
            bounds = [order.batch_bounds(number) for number in range(start, min(start + at_once, count))]
            positions = order.records_at(epoch, _batch_positions(order, bounds))
            ids = (positions if indices is None else indices[positions]) + self.first_record
            yield ids, [end - begin for begin, end in bounds]

    def _iterate_sampler_groups(
        self, epoch: int, first: int, images: int
    ) -> Iterator[tuple[NDArray[np.int64], list[int]]]:
        """Does :meth:`iterate_groups` with a sampler. Sets the sampler's epoch.

        Takes indices only a few batches ahead, since the sampler may be endless. Draws those before batch ``first``,
        too.

        Raises :class:`UsageError` for anything but indices of the dataset, and if an epoch has no batches."""
        self.set_epoch_of_sampler(epoch)
        of_ranks, occurrences = self.order, OccurrenceCounter(self._records)
        at_once, whole = max(1, images // of_ranks.batch_size), of_ranks.global_batch_size
        drawn, held = iter(self._sampler), np.empty(0, np.int64)  # type: ignore[arg-type]
        wanted = (at_once + 1) * whole  # one batch more, since the last full batch may get the remaining records
        ended, before = False, 0
        while not ended:
            held = np.concatenate([held, self._draw_ids(drawn, wanted - len(held), occurrences, not len(held))])
            ended = len(held) < wanted
            order = _sampler_order(of_ranks, len(held))
            if ended:
                _refuse_empty(order)
            count = order.count_batches() if ended else at_once
            before += count
            if ended:
                self._drawn_batches = before
            bounds = [order.batch_bounds(number) for number in range(max(first, 0), count)]
            if bounds:
                yield held[_batch_positions(order, bounds)] + self.first_record, [end - begin for begin, end in bounds]
            held, first = held[count * whole :], first - count

    def _draw_ids(
        self, drawn: Iterator[Any], count: int, occurrences: OccurrenceCounter, needed: bool
    ) -> NDArray[np.int64]:
        """Takes up to ``count`` indices from ``drawn``, the sampler's iterator, and makes ids of them.

        ``occurrences`` counts each record. An exhausted sampler gives an empty array, or with ``needed`` a
        :class:`UsageError`. Anything but indices of the dataset raises it, too."""
        entries: list[Any] = list(islice(drawn, count))
        if not entries and not needed:
            return np.empty(0, np.int64)
        try:
            records = np.fromiter(map(index, entries), np.int64, len(entries))
        except TypeError as error:
            batch = next((entry for entry in entries if isinstance(entry, list | tuple)), None)
            advice = "" if batch is None else "; it gives batches: pass the sampler within, and batch_size="
            raise UsageError(f"sampler should give one whole number after another: {error}{advice}") from error
        items = parse_indices(records, self.order.length, "what sampler gives")
        return occurrences.make_ids(items if self._subset is None else self._subset[items])

    def iterate_groups_on(
        self, device: torch.device, epoch: int, first: int, images: int, numbers: bool
    ) -> Iterator[tuple[torch.Tensor, NDArray[np.int64], list[int]]]:
        """Yields groups as :meth:`iterate_groups`, each preceded by a tensor of the same ids on ``device``.

        The tensor is int64, and counts records from the split's first.

        A device other than the CPU computes the order itself, unless there is a sampler or the host needs the ids. The
        host then neither computes nor copies the order while batches are gathered.

        Args:
            device: Device of the tensor.
            epoch: Number of the epoch.
            first: Number of the first batch.
            images: As for :meth:`iterate_groups`.
            numbers: The host needs the ids, too. If False, the array of ids may be empty.
        """
        if device.type == "cpu" or numbers or self._sampler is not None:
            for ids, sizes in self.iterate_groups(epoch, first, images):
                yield torch.from_numpy(ids - self.first_record).to(device, non_blocking=True), ids, sizes
            return
        order, indices = self.order, self._subset_ids
        bounds = [order.batch_bounds(number) for number in range(first, order.count_batches())]
        if not bounds:
            return
        if order.world_size == 1:
            positions = torch.arange(bounds[0][0], bounds[-1][1], device=device)
        else:
            positions = torch.from_numpy(np.concatenate([np.arange(*pair) for pair in bounds])).to(device)
        places = order.records_at(epoch, positions)
        if indices is not None:
            places = torch.from_numpy(indices).to(device)[places]
        at_once = max(1, images // order.batch_size)
        offset, none = 0, np.empty(0, np.int64)
        for start in range(0, len(bounds), at_once):
            sizes = [end - begin for begin, end in bounds[start : start + at_once]]
            yield places[offset : offset + sum(sizes)], none, sizes
            offset += sum(sizes)


def _sampler_order(order: Order, length: int) -> Order:
    """Returns the order of ``length`` records as a sampler gives them, divided among ranks as in ``order``."""
    return replace(order, length=length, shuffle=False, block=None, shards=None)


def _batch_positions(order: Order, bounds: list[tuple[int, int]]) -> NDArray[np.int64]:
    """Joins the positions of consecutive batches, given as start and stop."""
    if order.world_size == 1:  # one batch begins where another ends
        return np.arange(bounds[0][0], bounds[-1][1])
    return np.concatenate([np.arange(*pair) for pair in bounds])


def _refuse_unseeded(sampler: Any, world_size: int) -> None:
    """Raises :class:`UsageError` for a sampler whose ``generator`` is None: each process would draw another order."""
    if getattr(sampler, "generator", sampler) is None:
        name = type(sampler).__name__
        raise UsageError(
            f"{name} has no seed: each of the {world_size} ranks would draw another order, and take its part of that; "
            f"give all ranks the same one: {name}(..., generator=torch.Generator().manual_seed(0))"
        )


def _refuse_empty(order: Order) -> None:
    """Raises :class:`UsageError` if an epoch of this order has no batches."""
    if not order.count_batches():
        raise UsageError(
            f"an epoch has no batches: {order.count:,} records, a global batch of {order.global_batch_size:,} "
            f"({order.batch_size:,} on each of {order.world_size:,} ranks){' and drop_last' if order.drop_last else ''}"
        )

"""Computes the records of a loader's batches, as ids, epoch by epoch.

The lower 32 bits of an id are the record number. The upper bits count the record's earlier occurrences in the epoch
(see :func:`with_occurrences`). A repeated record therefore gets different crops.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Iterator, Sequence, Sized
from functools import cached_property
from itertools import islice
from numbers import Integral
from operator import index
from typing import TYPE_CHECKING, Any

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
from packstore.training.loader.options import LoaderOptions, parse_indices
from packstore.training.order import Order
from packstore.training.random_draws import MASK, with_occurrences

if TYPE_CHECKING:
    from packstore.training.loader.sampler_order import SamplerOrder


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
        order = Order(
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
        self._dataset, self._order_of_one = dataset, order
        self._sampler_epoch = getattr(self._sampler, "epoch", None)
        self.order: Order | SamplerOrder = order
        if options.sampler is not None:
            from packstore.training.loader.sampler_order import SamplerOrder

            replicas = int(options.sampler.num_replicas) if self._sampler_divides else 1  # type: ignore[attr-defined]
            self.order = SamplerOrder(order, options.sampler, self._subset, self._records, replicas)
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Updates the order for the next epoch by the current rank and world size. Remembers the state of the sampler's
        generator.

        Raises:
            UsageError: Without a sampler the epoch would have no batches; or ranks would draw different records from
                the sampler.
        """
        self.order = self._current_order()
        generator = self._sampler_generator
        self.generator_state = None if generator is None else bytes(generator.get_state().tolist()).hex()
        self.order.check(given=self._options.rank is not None)

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
        if self.order.has_length and not hasattr(self._sampler, "set_epoch"):
            for _ in range(count):
                self.finish_generator()

    @property
    def _sampler_generator(self) -> torch.Generator | None:
        """Torch generator in the sampler's attribute ``generator``; None if it has none."""
        generator = getattr(self._sampler, "generator", None)
        return generator if isinstance(generator, torch.Generator) else None

    def _current_order(self) -> Order | SamplerOrder:
        """Returns the order with the current rank and world size."""
        # A sampler that divides its records itself leaves nothing to divide.
        rank, world_size = (0, 1) if self._sampler_divides else resolve_ranks(self._options)
        # Several ranks must agree, though their caches may differ.
        window = self._fitting_window if world_size == 1 else self._options.window
        return self.order.with_ranks(rank, world_size, window)

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
        return self._current_order().count_batches()

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

    def list_sequential_reads(self, step: int) -> ShardReads:
        """Lists the shards of the split, with batches of ``step`` records in their stored order."""
        return list_sequential_shard_reads(self._shards, self._records, step)

    @property
    def shards_digest(self) -> str | None:
        """SHA-256 of the numbers of the shards' first records, if the order depends on them; else None."""
        lanes, mixture = self.order.lanes, self.mixture
        starts = [] if lanes is None else [lanes.starts]
        if mixture is not None and self.shuffle:
            starts = [shards.starts for shards in mixture.fetched.values()]
        return hashlib.sha256(b"".join(each.tobytes() for each in starts)).hexdigest() if starts else None

    def iterate_batches(self, epoch: int, first: int) -> Iterator[NDArray[np.int64]]:
        """Yields the ids of each batch's records on this rank, from batch ``first`` of the epoch on."""
        for ids, sizes in self.iterate_groups(epoch, first, self.order.at_once):
            offset = 0
            for size in sizes:
                yield ids[offset : offset + size]
                offset += size

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
        return self._current_order().count_rank_records()

    def iterate_groups(self, epoch: int, first: int, images: int) -> Iterator[tuple[NDArray[np.int64], list[int]]]:
        """Yields groups of consecutive batches: the ids, and the size of each batch.

        A group has about ``images`` records, but at least one batch. Sets the sampler's epoch, and raises as
        :meth:`SamplerOrder.iterate_groups`."""
        self.set_epoch_of_sampler(epoch)
        indices = self._subset_ids if self.order.on_device else None
        for records, sizes in self.order.iterate_groups(epoch, first, images):
            yield (records if indices is None else indices[records]) + self.first_record, sizes

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
        order, indices = self.order, self._subset_ids
        if device.type == "cpu" or numbers or not isinstance(order, Order):
            for ids, sizes in self.iterate_groups(epoch, first, images):
                yield torch.from_numpy(ids - self.first_record).to(device, non_blocking=True), ids, sizes
            return
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


def resolve_ranks(options: LoaderOptions) -> tuple[int, int]:
    """Returns ``(rank, world size)`` of this process.

    They come from the first of these that has them:

    - the options;
    - ``torch.distributed``, if it is initialised;
    - torchrun's ``RANK`` and ``WORLD_SIZE``, if both are set;
    - ``(0, 1)``.

    Raises :class:`UsageError` if the rank is not below the world size, or a variable is no number.
    """
    if options.rank is not None and options.world_size is not None:
        if not 0 <= options.rank < options.world_size:
            raise UsageError(f"rank should be from 0 to {options.world_size - 1}, got {options.rank}")
        return options.rank, options.world_size
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    texts = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]
    if not all(texts):  # Lightning sets WORLD_SIZE alone before it starts the other ranks
        return 0, 1
    if not all(text.isdecimal() for text in texts) or int(texts[0]) >= int(texts[1]):
        raise UsageError(
            f"the environment has RANK={texts[0]!r} and WORLD_SIZE={texts[1]!r}, which is no rank of several: unset "
            "them, or say rank= and world_size="
        )
    return int(texts[0]), int(texts[1])

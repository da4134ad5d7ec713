"""The record numbers of a loader's batches, epoch by epoch.

They come as ids: the record number, and in the bits from 32 on how often an epoch's list had the record before (see
:func:`with_occurrences`), so that a record that is drawn twice gets two crops.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from operator import index

import numpy as np
import torch
from numpy.typing import NDArray

from packstore.core.errors import UsageError
from packstore.stores.remote.reader import RemoteReader
from packstore.training.dataset import PackedDataset
from packstore.training.lanes import Reads, cache_room, fitting_window, grouped, reads_in_sequence
from packstore.training.loader.options import LoaderOptions, as_indices
from packstore.training.order import Order
from packstore.training.random_draws import with_occurrences

_ORDERED_AT_ONCE = 65536  # records whose places are worked out at once: 256 take 47 µs, 16,384 0.3 ms, these 0.6 ms


class Epochs:
    """The batches of every epoch on one rank, as ids of records.

    Attributes:
        first_record: Number of the split's first record in the store.
        shuffle: The way of shuffling, apart from ``block``; None for none.
        order: The order of an epoch without a sampler.
    """

    def __init__(
        self, dataset: PackedDataset, batch_size: int, options: LoaderOptions, rank: int, world_size: int
    ) -> None:
        self.first_record = dataset.reader.split(dataset.split).start
        self._records = len(dataset)
        self._sampler = options.sampler
        self._subset = None if options.indices is None else as_indices(options.indices, len(dataset))
        self._subset_ids = None if self._subset is None else with_occurrences(self._subset)
        # A permutation of all records would fetch every shard again and again.
        fetched = isinstance(dataset.reader.unchecked, RemoteReader) and options.block is None
        lanes = options.shuffle == "lanes" or (options.shuffle is True and fetched)
        self.shuffle = "lanes" if lanes else "full" if options.shuffle else None
        if options.window is not None and not lanes and options.block is None:
            raise UsageError("window is of shuffle='lanes' or of block: add one of them, or leave it out")
        self._shards = shards = np.clip(dataset.reader.part_starts - self.first_record, 0, self._records)
        if lanes and self._subset is not None and self._subset_ids is not None:
            chosen, shards = grouped(self._subset, shards)
            self._subset_ids = self._subset_ids[chosen]
        count = len(dataset) if self._subset is None else len(self._subset)
        window = options.window
        remote, table = dataset.reader.unchecked, dataset.manifest.shards
        if lanes and window is None and world_size == 1 and isinstance(remote, RemoteReader) and table is not None:
            sizes = table.table["nbytes"].astype(np.int64)
            room = cache_room(remote.cache.budget)
            window = fitting_window(shards, count, batch_size, options.seed, sizes, room)
        self.order = Order(
            length=count,
            batch_size=batch_size,
            seed=options.seed,
            shuffle=bool(options.shuffle),
            drop_last=options.drop_last,
            rank=rank,
            world_size=world_size,
            block=options.block,
            shards=shards if lanes or (fetched and not options.shuffle and self._subset is None) else None,
            window=window,
        )

        if self._sampler is None:
            _refuse_empty(self.order)

    def count(self) -> int:
        """Batches of an epoch. Raises :class:`TypeError` for a sampler without a length."""
        return self._counted().batches()

    def position(self, batches: int) -> int:
        """How many records of an epoch its first ``batches`` batches have, over all ranks."""
        order = self._counted_order()
        return batches * self.order.global_batch_size if order is None else order.position(batches)

    def batches_before(self, position: int) -> int:
        """The batches that have the first ``position`` records of an epoch, over all ranks."""
        order = self._counted_order()
        return position // self.order.global_batch_size if order is None else order.batches_before(position)

    @property
    def subset_digest(self) -> str | None:
        """SHA-256 of the indices that were chosen, or None for all."""
        return None if self._subset is None else hashlib.sha256(self._subset.tobytes()).hexdigest()

    def reads(self, epoch: int) -> Reads | None:
        """The shards that this rank reads; None where that is not known."""
        return None if self._sampler is not None else self.order.reads(epoch)

    def reads_of_all(self, step: int) -> Reads:
        """The shards of the split, where its records come one after another, ``step`` at a time."""
        return reads_in_sequence(self._shards, self._records, step)

    @property
    def shards_digest(self) -> str | None:
        """SHA-256 of where shards begin, if the order goes by them; else None."""
        lanes = self.order.lanes
        return None if lanes is None else hashlib.sha256(lanes.starts.tobytes()).hexdigest()

    def _counted(self) -> Order:
        if self._sampler is None:
            return self.order
        return self._sampler_order(len(self._sampler))  # type: ignore[arg-type]

    def _counted_order(self) -> Order | None:
        """The order of an epoch, as far as its length tells; None for a sampler that has none."""
        return self._counted() if self._sampler is None or hasattr(self._sampler, "__len__") else None

    def batches(self, epoch: int, first: int) -> Iterator[NDArray[np.int64]]:
        """Ids of each batch's records, from batch ``first`` on."""
        for ids, sizes in self.groups(epoch, first, _ORDERED_AT_ONCE):
            offset = 0
            for size in sizes:
                yield ids[offset : offset + size]
                offset += size

    def groups(self, epoch: int, first: int, images: int) -> Iterator[tuple[NDArray[np.int64], list[int]]]:
        """Groups of batches with about ``images`` records each: their ids, and the size of each batch."""
        order, numbered, indices = self._of(epoch)
        count = order.batches(numbered)
        at_once = max(1, images // order.batch_size)
        for start in range(first, count, at_once):
            bounds = [order.bounds(number) for number in range(start, min(start + at_once, count))]
            if order.world_size == 1:  # one batch begins where another ends
                places = np.arange(bounds[0][0], bounds[-1][1])
            else:
                places = np.concatenate([np.arange(*pair) for pair in bounds])
            positions = order.sequence(numbered, places)
            ids = (positions if indices is None else indices[positions]) + self.first_record
            yield ids, [end - begin for begin, end in bounds]

    def groups_on(
        self, device: torch.device, epoch: int, first: int, images: int, numbers: bool
    ) -> Iterator[tuple[torch.Tensor, NDArray[np.int64], list[int]]]:
        """:meth:`groups`, led by the places of their records in the split, as ids: int64 on ``device``.

        The order of an epoch is worked out on the device where that is not the CPU, so that the host neither computes
        nor copies it while batches are gathered.

        Args:
            device: Where the places are wanted.
            epoch: Number of the epoch.
            first: Number of the first batch.
            images: As for :meth:`groups`.
            numbers: Whether the host needs the ids; if not, they may be empty.
        """
        if device.type == "cpu" or numbers:
            for ids, sizes in self.groups(epoch, first, images):
                yield torch.from_numpy(ids - self.first_record).to(device, non_blocking=True), ids, sizes
            return
        order, numbered, indices = self._of(epoch)
        bounds = [order.bounds(number) for number in range(first, order.batches(numbered))]
        if not bounds:
            return
        if order.world_size == 1:
            positions = torch.arange(bounds[0][0], bounds[-1][1], device=device)
        else:
            positions = torch.from_numpy(np.concatenate([np.arange(*pair) for pair in bounds])).to(device)
        places = order.sequence(numbered, positions)
        if indices is not None:
            places = torch.from_numpy(indices).to(device)[places]
        at_once = max(1, images // order.batch_size)
        offset, none = 0, np.empty(0, np.int64)
        for start in range(0, len(bounds), at_once):
            sizes = [end - begin for begin, end in bounds[start : start + at_once]]
            yield places[offset : offset + sum(sizes)], none, sizes
            offset += sum(sizes)

    def _sampler_order(self, length: int) -> Order:
        return replace(self.order, length=length, shuffle=False, block=None, shards=None)

    def _of(self, epoch: int) -> tuple[Order, int, NDArray[np.int64] | None]:
        """The order of an epoch, the number by which that knows the epoch, and the ids of what it orders."""
        sampler = self._sampler
        if sampler is None:
            return self.order, epoch, self._subset_ids
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        try:
            drawn = np.fromiter(map(index, sampler), np.int64)
        except TypeError as error:
            raise UsageError(f"sampler should give one whole number after another: {error}") from error
        drawn = as_indices(drawn, self._records, "what sampler gives")
        order = self._sampler_order(len(drawn))
        _refuse_empty(order)
        return order, 0, with_occurrences(drawn)


def _refuse_empty(order: Order) -> None:
    if not order.batches():
        raise UsageError(
            f"an epoch has no batches: {order.count:,} records, a global batch of {order.global_batch_size:,} "
            f"({order.batch_size:,} on each of {order.world_size:,} ranks){' and drop_last' if order.drop_last else ''}"
        )

"""Uses several stores as one dataset: concatenated, or mixed by weights."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from packstore.core.errors import UsageError
from packstore.core.options import check_numbers, refuse_numbers, whole_number
from packstore.core.urls import location
from packstore.stores import Reader
from packstore.stores.lenses import JoinedTable, join_stores, unify_encodings
from packstore.training.crowds import leave_out_crowds
from packstore.training.dataset import PackedDataset, open_checked
from packstore.training.mixture import FetchedShards, Mixture, apportion

if TYPE_CHECKING:
    from packstore.stores.remote_objects import RemoteHead

_Path = str | os.PathLike[str]


class ConcatDataset(PackedDataset):
    """Dataset over the concatenated records of several stores. See :func:`concat`, also for errors.

    Its ``path`` is the stores' paths, joined by " + ".
    """

    def __init__(self, stores: Sequence[_Path], split: str | None = None, **options: Any) -> None:
        if isinstance(stores, str | os.PathLike) or not isinstance(stores, Sequence):
            raise UsageError(f"stores should be a list of paths, got {stores!r}")
        if not stores:
            raise UsageError("stores should name one store or more, got none")
        self._heads: tuple[RemoteHead | None, ...] = (None,) * len(stores)
        super().__init__(cast("_Path", stores), split, **options)

    def _resolve_path(self, path: Sequence[_Path]) -> Path:
        """Sets :attr:`paths` to the stores' absolute paths, and returns them joined by `` + ``."""
        self.paths = tuple(location(each).absolute() for each in path)
        return Path(" + ".join(map(str, self.paths)))

    def _open(self, head: RemoteHead | None = None) -> Reader:
        """Opens all stores and joins them."""
        with ExitStack() as opened:
            readers = [
                opened.enter_context(open_checked(path, self.checksums, known))
                for path, known in zip(self.paths, self._heads, strict=True)
            ]
            kept = readers if self.keep_crowds else leave_out_crowds(readers)
            joined = join_stores(unify_encodings(kept))
            opened.pop_all()
        # Later calls open remote stores at these versions, even if the stores have grown; ``head`` is not needed.
        self._heads = tuple(reader.table.head for reader in readers)
        return joined


def concat(stores: Sequence[_Path], split: str | None = None, **options: Any) -> PackedDataset:
    """Opens several stores as one dataset, with the records of one store after the other. Writes nothing.

    The stores need the same columns, as for :func:`packstore.merge`, and images of one mode. Two kinds of different
    encodings fit together:

    - Image files and 8-bit pixels. The pixels are read as netpbm files, which ``output="bytes"`` returns.
    - Floating point images of one size and normalisation. They are read as float32.

    Classes are matched by name. ``ds.classes`` lists the classes of the first store, followed by new classes of the
    others. Splits are matched by name, too: ``split="train"`` takes the records of this split from each store that has
    the split.

    Args:
        stores: Paths or URLs of stores of any formats. If one is at a URL, a loader's ``shuffle=True`` means lanes.
        split: The split to use, see :class:`packstore.PackedDataset`.
        **options: Options of :class:`packstore.PackedDataset`.

    Raises:
        StoreError: A store does not open, or the stores differ in columns, or their images in mode or normalisation.
        UsageError: ``stores`` is no list of paths, or empty. Also as for :class:`packstore.PackedDataset`.
    """
    return ConcatDataset(stores, split, **options)


class Mix(ConcatDataset):
    """Mixes several stores by weights into one training set: ``Mix({"photos.lmdb": 3, "drawings.lmdb": 1},
    "train")``.

    As a dataset it is :func:`packstore.concat` of the stores. A :class:`packstore.PackedLoader` draws from it:

    - An epoch contains each store's share, rounded to a record. So does any part of an epoch, to within two records at
      each end.
    - All records of a store are drawn before any is repeated. Their order is random with ``shuffle=True``.
    - An epoch continues where the previous epoch stopped.
    - A record that is repeated in an epoch gets two crops.
    - Batches depend only on seed and epoch. They are the same for any number of ranks, and can be resumed at any batch.
    - A store at a URL is read shard by shard. Its shards come in random order, and its records are shuffled within the
      loader's ``window`` of shards. ``shuffle="full"`` reads it in fully random order instead.

    Args:
        weights: Weight of each store by its path or URL, any positive number. Only their ratio counts. In a list of
            paths, each store's weight is its number of records.
        split: The split to use, see :class:`packstore.PackedDataset`.
        temperature: Weights become ``weight ** (1 / temperature)``: 1 keeps them, larger values even them out.
        epoch: Number of records of an epoch; None for all records of the stores.
        **options: Options of :class:`packstore.PackedDataset`.

    Attributes:
        draws: Number of records of each store in an epoch.

    Raises:
        StoreError: A store does not open, or the stores do not fit together, as for :func:`packstore.concat`.
        UsageError: Weights or a temperature that are not positive. A store without records in the split. An epoch in
            which a store gets no record. Also as for :func:`packstore.concat`.
    """

    def __init__(
        self,
        weights: Mapping[Any, float] | Sequence[_Path],
        split: str | None = None,
        *,
        temperature: float = 1.0,
        epoch: int | None = None,
        **options: Any,
    ) -> None:
        check_numbers("temperature", temperature, texts=False)
        given = weights if isinstance(weights, Mapping) else None
        if given is None:
            refuse_numbers("weights", weights, "weights by store, or a list of stores")
        check_numbers("weights", [*(given or {}).values()], texts=False)
        if not _is_positive(temperature):
            raise UsageError(f"temperature should be a positive number, got {temperature!r}")
        wrong = [weight for weight in (given or {}).values() if not _is_positive(weight)]
        if wrong:
            raise UsageError(f"weights should be positive numbers, got {wrong[0]!r}; leave out stores of weight 0")
        super().__init__([*weights] if isinstance(weights, Mapping) else weights, split, **options)
        sizes = self._store_sizes()
        if not all(sizes):
            raise UsageError(f"{self.paths[sizes.index(0)]} has no records in the split; leave it out of the mixture")
        shares: list[Any] = [*sizes] if given is None else [Fraction(weight) for weight in given.values()]
        if temperature != 1:
            shares = [float(share / max(shares)) ** (1 / temperature) for share in shares]  # at most 1: no overflow
        count = sum(sizes) if epoch is None else whole_number("epoch", epoch)
        self.mixture = Mixture(tuple(sizes), apportion(shares, count))

    @property
    def draws(self) -> tuple[int, ...]:
        return self.mixture.draws

    def _resolve_mixture(self, shuffle: bool | str) -> Mixture:
        """Returns the order in which an epoch draws from the stores."""
        table = self.reader.table
        assert isinstance(table, JoinedTable)
        if shuffle == "full":
            return self.mixture
        # Shards of remote stores are fetched whole, so their records are drawn shard by shard.
        chosen, parts, fetched = self.reader.split(self.split), table.starts, {}
        ranges = [run for run in table.ranges if chosen.start <= run.start < chosen.stop]
        for number, run in enumerate(ranges):
            if table.stores[run.store].cache is not None:
                first, stop = np.searchsorted(parts, [run.start, run.start + run.length]).tolist()
                fetched[number] = FetchedShards(first, parts[first:stop] - run.start)
        return replace(self.mixture, fetched=fetched)

    def _store_sizes(self) -> list[int]:
        """Counts the records of the split in each store."""
        table = self.reader.table
        assert isinstance(table, JoinedTable)
        sizes = [0] * len(self.paths)
        for run in table.ranges:
            if self._start <= run.start < self._start + self._length:
                sizes[run.store] += run.length
        return sizes


def _is_positive(number: Any) -> bool:
    """Tells if a value is a number above 0."""
    return isinstance(number, int | float | Fraction) and number > 0

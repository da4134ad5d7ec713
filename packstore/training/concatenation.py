"""Uses several stores as one dataset: concatenated, or mixed by weights."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from packstore.core.arguments import whole_number
from packstore.core.errors import UsageError
from packstore.core.files import refuse_empty
from packstore.core.urls import location
from packstore.stores.base import Reader
from packstore.stores.concatenation import ConcatReader
from packstore.stores.remote.head import RemoteHead
from packstore.stores.remote.reader import RemoteReader
from packstore.stores.unify import unify_encodings
from packstore.training.dataset import PackedDataset, open_checked, remote_head
from packstore.training.mixture import FetchedShards, Mixture, apportion

_Path = str | os.PathLike[str]


class ConcatDataset(PackedDataset):
    """Dataset over the concatenated records of several stores; see :func:`concat`, also for errors. Its ``path`` is the
    stores' paths, joined by " + "."""

    def __init__(self, stores: Sequence[_Path], split: str | None = None, **options: Any) -> None:
        if isinstance(stores, str | os.PathLike) or not isinstance(stores, Sequence):
            raise UsageError(f"stores should be a list of paths, got {stores!r}")
        if not stores:
            raise UsageError("stores should name one store or more, got none")
        refuse_empty(*stores)
        self.paths = tuple(location(path).absolute() for path in stores)
        self._heads: tuple[RemoteHead | None, ...] = (None,) * len(self.paths)
        super().__init__(self.paths[0], split, **options)
        self.path = Path(" + ".join(map(str, self.paths)))

    def _open(self, head: RemoteHead | None = None) -> Reader:
        """Opens all stores, each remote one at the version that was opened first, and joins them; ignores ``head``.
        Raises :class:`StoreError` if one does not open or they do not go together."""
        with ExitStack() as opened:
            readers = [
                opened.enter_context(open_checked(path, self.checksums, known))
                for path, known in zip(self.paths, self._heads, strict=True)
            ]
            joined = ConcatReader(unify_encodings(readers))
            opened.pop_all()
        self._heads = tuple(map(remote_head, readers))
        return joined


def concat(stores: Sequence[_Path], split: str | None = None, **options: Any) -> PackedDataset:
    """Opens several stores as one dataset, the records of the first, then those of the second; writes nothing.

    The stores need the same columns, as for :func:`packstore.merge`, and images of one mode. Image files and 8-bit
    pixels go together: pixels are then read as netpbm files (``output="bytes"`` returns these). So do floating point
    images of one size and normalisation, which are then read as float32. Classes are matched by name: first the classes
    of the first store, then new ones of the others; ``ds.classes`` lists them. Splits are matched by name too:
    ``split="train"`` takes the records of this split from each store that has it.

    Args:
        stores: Paths or URLs of stores of any formats. If one is at a URL, a loader's ``shuffle=True`` means lanes.
        split: The split to use, see :class:`packstore.PackedDataset`.
        **options: Options of :class:`packstore.PackedDataset`.

    Raises:
        StoreError: A store does not open, or the stores differ in columns, or their images in mode or normalisation.
        UsageError: As for :class:`packstore.PackedDataset`; ``stores`` is no list of paths, or empty.
    """
    return ConcatDataset(stores, split, **options)


class Mix(ConcatDataset):
    """Mixes several stores by weights into one training set: ``Mix({"photos.lmdb": 3, "drawings.lmdb": 1},
    "train")``.

    As a dataset it is :func:`packstore.concat` of the stores. A :class:`packstore.PackedLoader` draws from it: an epoch
    contains exactly each store's share, rounded to a record, and any part of the epoch does too, to within two records
    at each end. All records of a store are drawn, in random order with ``shuffle=True``, before any is repeated; an
    epoch continues where the previous one stopped. Batches depend only on seed and epoch: they are the same for any
    number of ranks, and can be resumed at any batch. A record that is repeated in an epoch gets two crops. A store at a
    URL is read shard by shard, unless ``shuffle="full"``: shards in random order, records shuffled within the loader's
    ``window`` of shards.

    Args:
        weights: Weight of each store by its path or URL: any positive number; only the ratio counts. In a list of
            paths, each store's weight is its number of records.
        split: The split to use, see :class:`packstore.PackedDataset`.
        temperature: Weights become ``weight ** (1 / temperature)``: 1 keeps them, larger values even them out.
        epoch: Number of records of an epoch; None for all records of the stores.
        **options: Options of :class:`packstore.PackedDataset`.

    Attributes:
        draws: Number of records of each store in an epoch.

    Raises:
        StoreError: A store does not open, or the stores do not go together, as for :func:`packstore.concat`.
        UsageError: Weights or a temperature that are not positive; a store without records in the split, or none in an
            epoch.
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
        given = weights if isinstance(weights, Mapping) else None
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
            shares = [float(share) ** (1 / temperature) for share in shares]
        count = sum(sizes) if epoch is None else whole_number("epoch", epoch)
        self.mixture = Mixture(tuple(sizes), apportion(shares, count))

    @property
    def draws(self) -> tuple[int, ...]:
        return self.mixture.draws

    def _store_sizes(self) -> list[int]:
        """Counts the records of the split in each store."""
        reader = self.reader
        assert isinstance(reader, ConcatReader)
        sizes = [0] * len(self.paths)
        for store, start, length in reader.ranges:
            if self._start <= start < self._start + self._length:
                sizes[store] += length
        return sizes


def resolve_mixture(mix: Mix, shuffle: bool | str) -> Mixture:
    """Returns the order in which an epoch of ``mix`` draws from its stores.

    Unless ``shuffle`` is ``"full"``, records of a remote store are drawn shard by shard, since shards are fetched
    whole."""
    joined = mix.reader.unchecked_reader
    assert isinstance(joined, ConcatReader)
    if shuffle == "full":
        return mix.mixture
    chosen, parts, fetched = mix.reader.split(mix.split), joined.part_starts, {}
    ranges = [each for each in joined.ranges if chosen.start <= each[1] < chosen.stop]
    for number, (store, start, length) in enumerate(ranges):
        if isinstance(joined.stores[store], RemoteReader):
            first, stop = np.searchsorted(parts, [start, start + length]).tolist()
            fetched[number] = FetchedShards(first, parts[first:stop] - start)
    return replace(mix.mixture, fetched=fetched)


def _is_positive(number: Any) -> bool:
    """Tells if a value is a finite number above 0; a bool is none."""
    return (
        isinstance(number, int | float | Fraction) and not isinstance(number, bool) and isfinite(number) and number > 0
    )

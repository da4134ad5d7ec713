"""What frameworks read from a ``DataLoader``, and what accelerate reads, for :class:`packstore.PackedLoader`."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler, Subset

from packstore.training.items import EpochBatch
from packstore.training.loader.epochs import Epochs
from packstore.training.loader.options import LoaderOptions


class EpochSampler(Sampler[int]):
    """Dataset indices of the next epoch on this rank. ``set_epoch`` is the loader's."""

    # Iterating over it, or over the batches below, does not begin an epoch of the loader.

    def __init__(self, loader: LoaderParts) -> None:
        super().__init__(loader.dataset)  # type: ignore[call-arg]  # of the classes below
        self._loader = loader

    def __iter__(self) -> Iterator[int]:
        for batch in self._loader._epochs.iterate_indices(self._loader._find_next_epoch()):
            yield from batch

    def __len__(self) -> int:
        return self._loader._epochs.count_rank_records()

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration of the loader, see :meth:`packstore.PackedLoader.set_epoch`."""
        self._loader.set_epoch(epoch)


class ShuffledEpoch(EpochSampler, RandomSampler):
    """Sampler of a loader that shuffles. Frameworks ask for its class to learn that."""


class OrderedEpoch(EpochSampler, SequentialSampler):
    """Sampler of a loader that does not shuffle."""


class EpochSubset(Subset[Any]):
    """A ``Subset`` whose batches a ``DataLoader`` may load by the loader's ``batch_sampler``."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return indices.load() if isinstance(indices, EpochBatch) else super().__getitems__(indices)


class EpochBatches(BatchSampler):
    """Batches of the next epoch on this rank: ``loader.batch_sampler``.

    A ``DataLoader`` made of the loader's ``dataset``, ``batch_sampler`` and ``collate_fn``, as accelerate makes one to
    skip batches, gives the loader's own batches. Batches that it skips are not loaded. Always begins with the first
    batch of the epoch.
    """

    def __init__(self, loader: LoaderParts) -> None:
        self._loader = loader
        self.batch_size = loader.batch_size
        self.drop_last = loader.drop_last

    @property
    def sampler(self) -> EpochSampler:  # type: ignore[override]
        """Sampler whose ``set_epoch`` is the loader's, also if the user's sampler has none."""
        return _make_sampler(self._loader)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration of the loader, see :meth:`packstore.PackedLoader.set_epoch`."""
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[EpochBatch]:  # type: ignore[override]
        reading = _Reading(self._loader)
        for number in range(len(self)) if self._loader._epochs.order.has_length else count():
            yield EpochBatch(partial(reading.load, number), partial(reading.list_indices, number))


class _Reading:
    """Loads the batches of the loader's next epoch by their numbers: one iteration, as long as they come in order."""

    def __init__(self, loader: LoaderParts) -> None:
        self.loader = loader
        self.epoch = loader._find_next_epoch()
        self._items: Iterator[Any] = iter(())
        self._next = -1

    def load(self, number: int) -> Any:
        """Loads batch ``number`` of the epoch."""
        if number != self._next:
            self._items = self.loader._iterate_from(self.epoch, number)
        self._next = number + 1
        return next(self._items)

    def list_indices(self, number: int) -> list[int]:
        """Computes the dataset indices of batch ``number``."""
        return next(self.loader._epochs.iterate_indices(self.epoch, number))


def _make_sampler(loader: LoaderParts) -> EpochSampler:
    """Makes the sampler of a loader, of the class that tells if it shuffles."""
    return ShuffledEpoch(loader) if loader.options.shuffle else OrderedEpoch(loader)


def _keep_batch(batch: Any) -> Any:
    """Returns ``batch``, which the loader has collated already."""
    return batch


class LoaderParts(ABC):
    """The attributes of a ``DataLoader``. No worker processes, nothing to pin, nothing to collate.

    Attributes:
        generator: A generator from which a ``DataLoader`` that copies it may draw, instead of torch's own. It decides
            on nothing.
    """

    dataset: Any
    options: LoaderOptions
    batch_size: int
    _epochs: Epochs

    num_workers = 0
    pin_memory = False
    pin_memory_device = ""
    timeout = 0.0
    worker_init_fn = None
    multiprocessing_context = None
    prefetch_factor = None
    persistent_workers = False
    in_order = True

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def set_epoch(self, epoch: int) -> None: ...

    @abstractmethod
    def _find_next_epoch(self) -> int: ...

    @abstractmethod
    def _iterate_from(self, epoch: int, first: int) -> Iterator[Any]: ...

    @property
    def drop_last(self) -> bool:
        """True if a last batch that is not full is dropped."""
        return self.options.drop_last

    @property
    def collate_fn(self) -> Callable[[Any], Any]:
        """Function for a ``DataLoader`` made of the loader's parts: keeps each batch as it is."""
        return _keep_batch

    @property
    def generator(self) -> torch.Generator:
        return torch.Generator()

    @property
    def sampler(self) -> Iterable[int]:
        """The user's sampler, or else the order of the next epoch on this rank. As with torch's loader,
        ``loader.sampler.set_epoch`` sets the next epoch. If it is another epoch, a state that was loaded before no
        longer counts."""
        return _make_sampler(self) if self.options.sampler is None else self.options.sampler

    @property
    def batch_sampler(self) -> EpochBatches:
        """Batches of the next epoch on this rank, see :class:`EpochBatches`."""
        return EpochBatches(self)


class RunningEpoch:
    """An epoch, with the attributes that accelerate asks of a loader.

    Attributes:
        end_of_dataloader: The latest batch is the last one.
        remainder: Number of records that were added to fill the last batch.
    """

    end_of_dataloader = False
    remainder = 0


@contextmanager
def announce_epoch() -> Iterator[RunningEpoch | None]:
    """Announces an epoch to accelerate while the body runs. Gives None if no ``Accelerator`` was made."""
    # So ``Accelerator.accumulate`` takes a step after an epoch's last batch, whatever number of batches is left.
    states = sys.modules["accelerate.state"]
    if not states.GradientState._shared_state:
        yield None
        return
    state, epoch = states.GradientState(), RunningEpoch()
    state._add_dataloader(epoch)
    try:
        yield epoch
    finally:
        state._remove_dataloader(epoch)

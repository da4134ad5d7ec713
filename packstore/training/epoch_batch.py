"""``EpochBatch``: a batch of a loader's epoch, to be loaded when a ``DataLoader`` asks the dataset for it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any


class EpochBatch(Sequence[int]):
    """Dataset indices of a loader's batch. ``PackedDataset`` loads the batch itself where it is given one of these."""

    @abstractmethod
    def load(self) -> Any:
        """Loads the batch, with the loader's augmentation. Raises :class:`StopIteration` if the epoch has none left."""

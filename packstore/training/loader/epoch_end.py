"""Tells accelerate's ``GradientState`` when an epoch ends, as the loaders that accelerate makes do.

``Accelerator.accumulate`` then takes a step after the last batch of an epoch, whatever number of batches is left.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


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
    states = sys.modules.get("accelerate.state")
    if states is None or not states.GradientState._shared_state:
        yield None
        return
    state, epoch = states.GradientState(), RunningEpoch()
    state._add_dataloader(epoch)
    try:
        yield epoch
    finally:
        state._remove_dataloader(epoch)

"""Records of shards that cannot be opened, which ``on_error="skip"`` leaves out."""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import StoreError, UnreachableError
from packstore.stores import Reader

_log = logging.getLogger("packstore")


def find_lost_records(reader: Reader, records: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Opens the shards of ``records``; returns bool ``(n,)``, True for records whose shard cannot be opened.

    Logs a warning for each such shard. Raises :class:`UnreachableError` if the network fails."""
    parts = reader.table.find(records)
    lost = []
    for part in np.unique(parts).tolist():
        try:
            reader.table.open(part)
        except UnreachableError:
            raise
        except StoreError as error:
            lost.append(part)
            _log.warning("skipped: %s records: %s", int((parts == part).sum()), error)
    is_lost: NDArray[np.bool_] = np.isin(parts, lost)
    return is_lost

"""Faults of values that an audit reports."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class RowFaults(NamedTuple):
    """Faulty rows of one kind.

    Attributes:
        kind: Kind of the findings, a key of :attr:`ColumnType.faults`.
        rows: bool ``(n,)``: which rows are faulty.
        depends_on_size: The fault depends on the size of the image. Its finding then states the size.
    """

    kind: str
    rows: NDArray[np.bool_]
    depends_on_size: bool = False

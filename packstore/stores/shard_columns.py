"""Columns of shards: concatenates their values, and compares their declarations with those of the store."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.columns import ColumnData, Ragged
from packstore.core.manifest import Column


def concatenate_column(column: Column, values: Iterable[ColumnData], copy: bool) -> ColumnData:
    """Concatenates a column's values of several shards to read-only arrays. Does not join those of a single shard.

    ``copy``: copy the values of each shard before the next one is read. Arrays of a shard would keep its file open.
    """
    parts = [_copy_column_values(part) for part in values] if copy else [*values]
    if len(parts) == 1:
        return parts[0]
    if column.kind == "fixed":
        joined: NDArray[Any] = np.concatenate([p[:] for p in parts if not isinstance(p, Ragged)])
        joined.flags.writeable = False
        return joined
    ragged = [p for p in parts if isinstance(p, Ragged)]
    bases = [0, *itertools.accumulate(len(p.data) for p in ragged)]
    offsets = np.concatenate(
        [np.zeros(1, np.int64), *(p.offsets[1:] + base for p, base in zip(ragged, bases, strict=False))]
    )
    data = np.concatenate([p.data for p in ragged])
    offsets.flags.writeable = data.flags.writeable = False
    return Ragged(offsets, data)


def _copy_column_values(values: ColumnData) -> ColumnData:
    """Copies a column's values into memory."""
    if isinstance(values, Ragged):
        return Ragged(values.offsets.copy(), values.data.copy())
    return values[:].copy() if isinstance(values, np.ndarray) else values[:]


def columns_match(shard: Sequence[Column], whole: Sequence[Column]) -> bool:
    """Returns whether a shard's columns are declared like those of its store.

    The shard may lack the last classes, which later shards added.
    """
    if len(shard) != len(whole):
        return False
    for mine, column in zip(shard, whole, strict=True):
        classes = mine.classes
        if classes is not None and column.classes is not None and column.classes[: len(classes)] == classes:
            classes = column.classes
        if dataclasses.replace(mine, classes=classes).declaration != column.declaration:
            return False
    return True

"""The checksum of a record's fields: what tells a damaged label or key by its record, as ``checksum`` does an image.

The digest of a whole column says that a byte in it is wrong, not whose. So a store also has the fixed ``uint64`` column
``row_checksum``: the XXH3-64 of a record's row, which is, for every column but ``image``, ``checksum`` and
``row_checksum`` and in the manifest's order, the record's bytes of a fixed column, or of a ragged one the XXH3-64 of
the value as eight bytes, little-endian.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from packstore.core.columns import Buffer
from packstore.core.manifest import Column

ROW_CHECKSUM = Column("row_checksum", "fixed", "uint64")
_OUTSIDE = ("image", "checksum", ROW_CHECKSUM.name)


def row_columns(columns: Iterable[Column]) -> list[Column]:
    """The columns of which a row consists, in their order."""
    return [column for column in columns if column.name not in _OUTSIDE]


def value_hashes(values: Iterable[Buffer], count: int) -> NDArray[np.uint64]:
    """The XXH3-64 of each of ``count`` values."""
    return np.fromiter(map(xxh3_64_intdigest, values), np.uint64, count)


def row_checksums(columns: Sequence[Column], values: Mapping[str, NDArray[Any]], count: int) -> NDArray[np.uint64]:
    """The checksums of some records' rows.

    Args:
        columns: All columns of the store.
        values: By name, of each column in :func:`row_columns`: for a fixed one the values, ``(count, *column.shape)``
            in the column's dtype; for a ragged one their :func:`value_hashes`.
        count: How many records.

    Returns:
        ``uint64``, shape ``(count,)``.
    """
    parts = []
    for column in row_columns(columns):
        array = values[column.name]
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        parts.append(little.reshape(count, -1).view(np.uint8) if little.size else np.empty((count, 0), np.uint8))
    if not parts:
        return np.full(count, xxh3_64_intdigest(b""), np.uint64)
    rows = np.concatenate(parts, axis=1)
    width, data = rows.shape[1], rows.tobytes()
    return value_hashes((data[i * width : (i + 1) * width] for i in range(count)), count)

"""Columns in memory: the numpy dtype of each column dtype, and ragged values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import StoreError

Buffer = bytes | bytearray | memoryview
"""Bytes of one record."""

NUMPY_DTYPE: dict[str, np.dtype[Any]] = {
    "uint8": np.dtype("u1"),
    "int32": np.dtype("<i4"),
    "int64": np.dtype("<i8"),
    "uint64": np.dtype("<u8"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),  # numpy has no bfloat16: its bit patterns
    "float32": np.dtype("<f4"),
}
"""The numpy dtype in which a column dtype is read and written."""


OFFSET = np.dtype("<i8")
"""The numpy dtype of a ragged column's offsets."""


@dataclass(frozen=True, slots=True)
class Ragged(Sequence[memoryview]):
    """A ragged column: value ``i`` is ``data[offsets[i]:offsets[i + 1]]``.

    Attributes:
        offsets: ``int64``, shape ``(N + 1,)``, from 0, not decreasing.
        data: ``uint8``, shape ``(offsets[-1],)``.
    """

    offsets: NDArray[np.int64]
    data: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: Any) -> Any:
        """The bytes of value ``index`` (an integer, not negative) as a memoryview; no copy."""
        start, stop = int(self.offsets[index]), int(self.offsets[index + 1])
        if not 0 <= start <= stop <= len(self.data):
            raise StoreError(f"offsets of value {index} are out of range: {start}, {stop} of {len(self.data)} bytes")
        return self.data[start:stop].data


ColumnData = NDArray[Any] | Ragged
"""All values of a column: an array of shape ``(N, *column.shape)``, or :class:`Ragged`."""


ImageData = bytes | memoryview | NDArray[Any]
"""An image as a source gives it: the bytes of an image file, or an array: uint8 ``(H, W, 3)`` RGB, or out of a store of
floats ``(3, H, W)`` in that store's dtype."""

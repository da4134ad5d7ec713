"""Forms of values: stored, and in batches; bytes of their elements."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Buffer = bytes | bytearray | memoryview
"""Bytes of one record."""

Form = Literal["file", "files", "text", "bytes", "numbers"]
"""The form of stored values: an image file, several of them, UTF-8, other bytes, or numbers."""

Collation = Literal["stack", "rows", "objects", "planes", "images", "image_lists"]
"""Collation of the values of a batch in a loader.

- ``stack``: numbers of one shape become one tensor.
- ``rows``: any number of rows a record become a list of tensors, a padded tensor, or a multi-hot tensor of classes.
- ``objects``: Python objects become a list.
- ``planes``: arrays and mask files on the pixels of the main image become one tensor; if they differ in shape, a list
  or a padded tensor.
- ``images``: images are decoded and augmented like the main image, and become one tensor.
- ``image_lists``: lists of images are decoded, and become a list of lists.
"""

ITEM_SIZE = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}
"""Bytes of one element by dtype name, for all dtypes that a column may have. Stored values are little-endian."""
NUMPY_DTYPE: dict[str, np.dtype[Any]] = {
    "bool": np.dtype("?"),
    "int8": np.dtype("i1"),
    "int16": np.dtype("<i2"),
    "int32": np.dtype("<i4"),
    "int64": np.dtype("<i8"),
    "uint8": np.dtype("u1"),
    "uint16": np.dtype("<u2"),
    "uint32": np.dtype("<u4"),
    "uint64": np.dtype("<u8"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),  # numpy has no bfloat16: its bit patterns
    "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"),
}
"""The numpy dtype of each column dtype."""


def bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounds each value to the nearest bfloat16 (ties to even), as a bit pattern.

    Too large values become infinite. NaN becomes the quiet NaN.
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    # The carry of rounding would turn some NaN into infinity or negative zero.
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)

"""The numpy dtype of each column dtype, and the bits of bfloat16, which numpy lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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

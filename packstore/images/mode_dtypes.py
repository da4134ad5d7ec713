"""Converts arrays to the dtypes of image modes, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DecodeError

EXACT = {"uint8": "uint8", "bool": "uint8", "int8": "int16", "uint16": "uint16", "int16": "int16", "int32": "int32",
         "float16": "float32", "float32": "float32"}  # fmt: skip
"""Dtype of a mode that can represent every value of a dtype."""
_IF_SMALL = {"uint32": "int32", "int64": "int32", "uint64": "int32", "float64": "float32"}
"""Dtype of a mode that can represent small values of a dtype; each value is compared after the conversion."""


def find_mode_dtype(dtype: np.dtype[Any]) -> str | None:
    """Returns the dtype of a mode that can represent values of ``dtype``. Returns None if no mode has one.

    For integers of 32 bits without sign or of 64 bits, and for float64, it represents small values only."""
    name = dtype.newbyteorder("=").name
    return EXACT.get(name) or _IF_SMALL.get(name)


def to_mode_dtype(array: NDArray[Any], what: str) -> NDArray[Any]:
    """Converts an array to the dtype of a mode; True becomes 255.

    Raises :class:`DecodeError` if a value would change, or no mode fits. ``what``: subject of the error text."""
    name, target = array.dtype.newbyteorder("=").name, find_mode_dtype(array.dtype)
    if target is None:
        raise DecodeError(f"{what} of {name} values, which packstore does not read")
    values = array.astype(target)
    if name not in EXACT and not np.array_equal(values, array, equal_nan=target == "float32"):
        raise DecodeError(f"{what} of {name} values that {target} does not hold; write it as {target} first")
    return values * 255 if name == "bool" else values

"""The types of pixels that hold arrays of other types, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import DecodeError

EXACT = {"uint8": "uint8", "bool": "uint8", "int8": "int16", "uint16": "uint16", "int16": "int16", "int32": "int32",
         "float16": "float32", "float32": "float32"}  # fmt: skip
"""The dtype of a mode that holds every value of a dtype."""
_IF_SMALL = {"uint32": "int32", "int64": "int32", "uint64": "int32", "float64": "float32"}
"""The dtype of a mode that may hold the values of a dtype; each is compared."""


def mode_dtype(dtype: np.dtype[Any]) -> str | None:
    """The dtype of the mode that holds values of a dtype, or may hold them; None if there is none."""
    name = dtype.newbyteorder("=").name
    return EXACT.get(name) or _IF_SMALL.get(name)


def hold_values(array: NDArray[Any], what: str) -> NDArray[Any]:
    """Returns values in the dtype of a mode. Raises :class:`DecodeError` if none holds them all."""
    name, target = array.dtype.newbyteorder("=").name, mode_dtype(array.dtype)
    if target is None:
        raise DecodeError(f"{what} of {name} values, which packstore does not read")
    values = array.astype(target)
    if name not in EXACT and not np.array_equal(values, array, equal_nan=target == "float32"):
        raise DecodeError(f"{what} of {name} values that {target} does not hold; write it as {target} first")
    return values * 255 if name == "bool" else values

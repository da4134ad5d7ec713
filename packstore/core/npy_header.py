"""Header of numpy's ``.npy`` files (NEP 1), parsed by numpy; nothing is unpickled."""

from __future__ import annotations

import io
import tokenize
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np


class NpyHeader(NamedTuple):
    """Header of an array.

    Attributes:
        shape: Shape of the array.
        is_fortran: Whether its first axis is the fastest.
        dtype: Its dtype, which may be the dtype of Python objects.
        size: Bytes of the header, after which the values begin.
    """

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]
    size: int


def parse_npy_header(start: bytes) -> NpyHeader:
    """Parses the header at the beginning of an ``.npy`` file.

    Raises :class:`ValueError` if the header is damaged, cut off, or of a version other than 1 and 2.
    """
    from numpy.lib import format as npy

    stream = io.BytesIO(start)
    try:
        version = npy.read_magic(stream)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
        if read is None:
            raise ValueError(f"version {version} of the format, expected 1 or 2")
        shape, is_fortran, dtype = read(stream)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise ValueError(
            f"is no array of numpy's: {' '.join(str(error).partition(chr(10))[0].split())[:200]}"
        ) from None
    return NpyHeader(shape, is_fortran, dtype, stream.tell())

"""Reads the header of ``.npy`` (NEP 1, version 1.0, ``numpy.lib.format``): the container of a whole column in an LMDB.

numpy parses this header as Python source, and raises nearly any exception for damaged text. In CPython 3.11 its parsing
occasionally fails while another thread parses Python ("AST constructor recursion depth mismatch"). This module parses
the header itself.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

HEADER_BYTES = 1024
"""Most bytes of the header of an array of numbers."""

_MAGIC = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(
    rb"\{ *'descr': *'([<>|=]?[biufc]\d{1,2})', *'fortran_order': *(True|False),"
    rb" *'shape': *\(((?:\d{1,18}, *)*(?:\d{1,18})?)\),? *\} *".replace(b" ", rb"[ \t\n\f\r]")  # Python's white space
)


def read_header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Parses a header: returns shape, True for Fortran order, dtype, and the offset of the array's data.

    ``head``: the first :data:`HEADER_BYTES` of the file. Raises :class:`ValueError` if they are not the header of an
    array of numbers.
    """
    if head[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it does not begin like .npy version 1.0")
    start = len(_MAGIC) + 2
    stop = start + int.from_bytes(head[len(_MAGIC) : start], "little")
    match = _HEADER.fullmatch(head[start:stop]) if stop <= len(head) else None
    if match is None:
        raise ValueError("its text does not describe an array of numbers")
    shape = tuple(int(length) for length in match[3].replace(b",", b" ").split())
    try:
        dtype = np.dtype(match[1].decode("ascii"))
    except TypeError as error:
        raise ValueError(str(error)) from None
    return shape, match[2] == b"True", dtype, stop

"""The ``.npy`` container of a column in an LMDB: a header in text, then the array's bytes.

The format is NEP 1, version 1.0 (``numpy.lib.format``). numpy parses the header as Python source. That is not done
here: it needs no such thing, damaged text makes it raise nearly anything, and in CPython 3.11 it fails now and then
when another thread parses Python at the same moment ("AST constructor recursion depth mismatch").
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

HEADER_BYTES = 1024
"""No header of an array of numbers is longer."""

_MAGIC = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(
    rb"\{ *'descr': *'([<>|=]?[biufc]\d{1,2})', *'fortran_order': *(True|False),"
    rb" *'shape': *\(((?:\d{1,18}, *)*(?:\d{1,18})?)\),? *\} *".replace(b" ", rb"[ \t\n\f\r]")  # Python's white space
)


def read_header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """What the first :data:`HEADER_BYTES` of an array say: its shape, whether it is in Fortran order, its dtype, and
    where its bytes begin. Raises ValueError where they are no header."""
    if head[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it does not begin as .npy of version 1.0 does")
    start = len(_MAGIC) + 2
    stop = start + int.from_bytes(head[len(_MAGIC) : start], "little")
    match = _HEADER.fullmatch(head[start:stop]) if stop <= len(head) else None
    if match is None:
        raise ValueError("its text is not that of an array of numbers")
    shape = tuple(int(length) for length in match[3].replace(b",", b" ").split())
    try:
        dtype = np.dtype(match[1].decode("ascii"))
    except TypeError as error:
        raise ValueError(str(error)) from None
    return shape, match[2] == b"True", dtype, stop

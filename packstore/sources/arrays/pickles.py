"""Reads pickles of CIFAR and of downsampled ImageNet without running anything from them.

A pickle is a program that calls any function it can name; :mod:`packstore.stores.pth.pickle_machine` interprets it. It
can name numpy's array and dtype constructors, which are stand-ins that only store their arguments. So numpy itself sees
nothing but bytes of a checked length.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import printable
from packstore.sources.arrays.stored import ArrayInfo, OpenArrays, StoredArray
from packstore.stores.pth.pickle_machine import PickleError, StandIn, interpret_plain_pickle

_MAX_OPERATIONS = 2_000_000  # CIFAR-100's train takes 250,000
# Largest part of a pickle that is copied out of it; larger parts are pixels.
_MAX_COPY = 1 << 16
_TYPES = ("uint8", "int32", "int64", "float64", "u1", "i4", "i8", "f8")


class BatchError(ValueError):
    """Error for a damaged batch, or a pickle that needs more than arrays."""


def parse_dict(data: bytes) -> dict[str, Any]:
    """Parses a dictionary from the bytes of a pickle, and executes nothing. Keys that are bytes become texts.

    Raises :class:`BatchError` for a damaged pickle, one of more than 2,000,000 operations, one that names functions
    other than numpy's for arrays, and one of another object than a dictionary.
    """
    try:
        content = interpret_plain_pickle(data, _FUNCTIONS, _MAX_OPERATIONS)
    except PickleError as error:
        raise BatchError(printable(str(error))) from None
    if type(content) is not dict:
        raise BatchError(f"a pickle of {type(content).__name__}, expected a dictionary")
    return {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in content.items()}


def build_array(value: Any) -> NDArray[Any]:
    """Builds the array of a value from :func:`parse_dict`, read-only if the pickle has its bytes. A list of integers
    becomes an int64 array. Raises :class:`BatchError` for any other value, and an array whose parts do not fit."""
    if isinstance(value, list) and all(type(item) is int for item in value):
        try:
            return np.array(value, np.int64)
        except OverflowError:
            raise BatchError("an integer beyond 64 bits") from None
    data, shape, dtype, fortran = check_array(value)
    try:
        return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
    except (TypeError, ValueError):  # a span, or no bytes in a shape that is too large for numpy
        raise BatchError(f"an array of the shape {shape}") from None


def check_array(value: Any) -> tuple[Any, tuple[int, ...], np.dtype[Any], bool]:
    """Returns bytes, or the :class:`Span` for them, shape, dtype and order (True: Fortran's) of an array. Raises
    :class:`BatchError` for any other value, more than four axes, and another number of bytes."""
    if not isinstance(value, _Array):
        raise BatchError(f"found {type(value).__name__}, expected an array or a list of integers")
    state: Any = value.state if isinstance(value.state, tuple) and len(value.state) == 5 else (None,) * 5
    _, shape, kind, fortran, data = state
    sizes = isinstance(shape, tuple) and len(shape) <= 4 and all(type(n) is int and 0 <= n < 1 << 63 for n in shape)
    if not isinstance(kind, _DType) or not isinstance(data, (bytes, Span)) or not sizes:
        raise BatchError("an array that is not of plain numbers with one to four axes")
    size = data.size if isinstance(data, Span) else len(data)
    if math.prod(shape) * kind.dtype.itemsize != size:
        raise BatchError(f"an array of shape {shape} and dtype {kind.dtype} with {size} bytes")
    return data, shape, kind.dtype, bool(fortran)


class Span(NamedTuple):
    """Range of a long byte string in a pickle file. It stands for the string, which is not read."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Length of the string in bytes."""
        return self.stop - self.start

    def decode(self, *_: Any) -> str:
        """Raises :class:`BatchError`: no text is so long."""
        raise BatchError(f"a text of {self.size} bytes: write it again with Python 3")


class _MappedPickle(mmap.mmap):
    """Memory-mapped pickle. A slice of more than 64 KiB is not copied: it becomes a :class:`Span`, its place in the
    file."""

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice) and key.stop - key.start > _MAX_COPY:
            return Span(key.start, key.stop)
        return super().__getitem__(key)


def open_pickle(opened: OpenArrays, path: Path) -> None:
    """Adds the arrays ``data`` and ``labels`` of a dictionary in a pickle. The bytes of ``data`` stay in the file.
    Raises :class:`BatchError` for another content, and for ``data`` that the pickle has in Fortran's order."""
    with path.open("rb") as file, _MappedPickle(file.fileno(), 0, access=mmap.ACCESS_READ) as program:
        batch = parse_dict(cast(bytes, program))
        data, shape, dtype, fortran = check_array(batch.get("data"))
        offset = data.start if isinstance(data, Span) else program.find(data)
        if offset < 0 or fortran:
            raise BatchError("its pixels are not plain bytes of the file in C order: write it again with Python 3")
    opened.arrays["data"] = StoredArray(ArrayInfo("data", shape, dtype), opened.open_plain(path), offset)
    opened.add("labels", build_array(batch.get("labels")))


class _DType(StandIn):
    """Stand-in for ``numpy.dtype``, of one of four dtypes; raises :class:`BatchError` for any other."""

    __slots__ = ("dtype",)

    def __init__(self, name: Any, align: Any = False, copy: Any = True) -> None:
        text = name.decode("latin-1") if isinstance(name, bytes) else name if isinstance(name, str) else ""
        if text.lstrip("<|=") not in _TYPES:
            raise BatchError(f"an array of dtype {text[:40]!r}, expected uint8, int32, int64 or float64")
        self.dtype = np.dtype(text.lstrip("<|="))

    def set_state(self, state: Any) -> None:
        """Takes the byte order from ``(version, byte order, subarray, names, fields, …)``."""
        plain = isinstance(state, tuple) and len(state) >= 8 and state[2:5] == (None, None, None)
        order = state[1] if plain else None
        order = order.decode("latin-1") if isinstance(order, bytes) else order
        if order not in ("<", ">", "|", "="):
            raise BatchError("a dtype with fields or without byte order")
        self.dtype = self.dtype.newbyteorder(">" if order == ">" else "<")


class _Array(StandIn):
    """Stand-in for ``numpy.ndarray``: stores ``(version, shape, dtype, Fortran order, bytes)`` unchecked."""

    __slots__ = ("state",)

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def set_state(self, state: Any) -> None:
        self.state = state


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    """Stand-in for ``numpy.core.numeric._frombuffer``, by which numpy pickles in protocol 5."""
    return _Array((1, shape, dtype, order in ("F", b"F"), data))


# Functions that a pickle may name: stand-ins that execute nothing from it.
_FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): lambda: _Array(),
    ("numpy", "dtype"): _DType,
    ("__builtin__", "bytes"): lambda: b"",  # an empty byte string that Python 3 pickles for Python 2
    **{(f"numpy.{core}.multiarray", "_reconstruct"): lambda *_: _Array() for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")},
}

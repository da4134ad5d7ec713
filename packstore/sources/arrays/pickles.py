"""Reads pickles of CIFAR and of downsampled ImageNet without running anything from them.

A pickle is a program that calls any function it can name; :mod:`packstore.core.pickle_machine` interprets it. Here it
can name numpy's array and dtype constructors, which are stand-ins that only store their arguments, and
``_codecs.encode``, by which Python 3 writes bytes for Python 2. So numpy itself sees nothing but bytes of a checked
length.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from packstore.core.errors import printable
from packstore.core.pickle_machine import PickleError, StandIn, UnsupportedPickleError, interpret_pickle
from packstore.sources.arrays.stored import ArrayInfo, OpenArrays, StoredArray, read_at

_MAX_OPERATIONS = 2_000_000  # CIFAR-100's train takes 250,000
_MAX_COPY = 1 << 16
"""Largest part of a pickle that is copied out of it; larger parts are pixels."""
_TYPES = {"uint8": "u1", "int32": "i4", "int64": "i8", "float64": "f8"}
_CORES = ("core", "_core")
_DTYPES = _TYPES | {short: short for short in _TYPES.values()}


class BatchError(ValueError):
    """Error for a damaged batch, or a pickle that needs more than arrays."""


def parse_dict(data: bytes) -> dict[str, Any]:
    """Parses a dictionary from the bytes of a pickle, and executes nothing. Keys that are bytes become texts.

    Raises :class:`BatchError` for one of these pickles:

    - It is damaged, or has more than 2,000,000 operations.
    - It names functions other than numpy's for arrays.
    - It holds another object than a dictionary.
    """
    names = _allowed_globals(len(data))

    def find(module: str, name: str) -> Callable[..., Any]:
        if (module, name) not in names:
            asked = printable(f"{module[:60]}.{name[:60]}")
            raise UnsupportedPickleError(f"a pickle that asks for {asked}, which no dataset needs")
        return names[module, name]

    try:
        content = interpret_pickle(data, find, _MAX_OPERATIONS)
    except PickleError as error:
        raise BatchError(str(error)) from None
    if type(content) is not dict:
        raise BatchError(f"a pickle of {type(content).__name__}, expected a dictionary")
    return {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in content.items()}


def build_array(value: Any) -> NDArray[Any]:
    """Builds the array of a value from :func:`parse_dict`, read-only if the pickle has its bytes. A list of integers
    becomes an int64 array. Raises :class:`BatchError` for any other value, and an array whose parts do not fit."""
    if isinstance(value, _ArrayParts):
        return value.build()
    if isinstance(value, list) and all(type(item) is int for item in value):
        try:
            return np.array(value, np.int64)
        except OverflowError:
            raise BatchError("an integer beyond 64 bits") from None
    raise BatchError(f"found {type(value).__name__}, expected an array or a list of integers")


def find_array_bytes(value: Any) -> tuple[Any, tuple[int, ...], np.dtype[Any]]:
    """Returns bytes, shape and dtype of an array in C order; a :class:`Span` may stand for the bytes. Raises
    :class:`BatchError` for an array in Fortran's order, and for any other value."""
    if not isinstance(value, _ArrayParts):
        raise BatchError(f"found {type(value).__name__}, expected an array")
    dtype = value.validate_dtype()
    if value.fortran:
        raise BatchError("an array in Fortran's order")
    return value.data, value.shape, dtype


def parse_name_list(value: Any) -> tuple[str, ...]:
    """Converts a list of texts, or of UTF-8 bytes, to names. Raises :class:`BatchError` for any other value."""
    if not isinstance(value, list) or not all(isinstance(item, (bytes, str)) for item in value):
        raise BatchError(f"found {type(value).__name__}, expected a list of names")
    try:
        return tuple(item.decode("utf-8") if isinstance(item, bytes) else item for item in value)
    except UnicodeDecodeError as error:
        raise BatchError(f"a name that is not UTF-8: {error.object[:40]!r}") from None


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
        raise BatchError(f"a text of {self.size} bytes")


class _MappedPickle(mmap.mmap):
    """Memory-mapped pickle. A slice of more than 64 KiB is not copied: it becomes a :class:`Span`, its place in the
    file."""

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice) and key.stop - key.start > _MAX_COPY:
            return Span(key.start, key.stop)
        return super().__getitem__(key)


class OpenPickle(OpenArrays):
    """Arrays ``data`` and ``labels`` of a dictionary in a pickle. The bytes of ``data`` stay in the file.

    Opening raises :class:`BatchError` for another content, and for ``data`` that the pickle has as text or in Fortran's
    order.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        with path.open("rb") as file, _MappedPickle(file.fileno(), 0, access=mmap.ACCESS_READ) as program, self:
            batch = parse_dict(cast(bytes, program))
            data, shape, dtype = find_array_bytes(batch.get("data"))
            offset = data.start if isinstance(data, Span) else program.find(data)
            if offset < 0:
                raise BatchError("its pixels are not plain bytes of the file: write it again with Python 3")
            read = partial(read_at, self.open_descriptor(path))
            self.arrays["data"] = StoredArray(ArrayInfo("data", shape, dtype), read, offset)
            self.add("labels", build_array(batch.get("labels")))


class _DType(StandIn):
    """Stand-in for ``numpy.dtype``: stores its name and byte order. Making one raises :class:`BatchError` for dtypes
    other than uint8, int32, int64 and float64."""

    __slots__ = ("name", "order")

    def __init__(self, name: Any) -> None:
        text = name.decode("latin-1") if isinstance(name, bytes) and len(name) < 40 else name
        if not isinstance(text, str) or len(text) >= 40:
            raise BatchError("a dtype that is not a name")
        self.name = _DTYPES.get(text.lstrip("<|="))
        self.order = "<"
        if self.name is None:
            raise BatchError(f"an array of dtype {text!r}, expected {', '.join(_DTYPES)}")

    def set_state(self, state: Any) -> None:
        """Takes the byte order from ``(version, byte order, subarray, names, fields, size, alignment, flags)``. Raises
        :class:`BatchError` for a dtype with fields or without a byte order."""
        plain = isinstance(state, tuple) and len(state) >= 8 and state[2:5] == (None, None, None)
        if not plain or state[1] not in ("<", ">", "|", "=", b"<", b">", b"|", b"="):
            raise BatchError("a dtype with fields or without byte order")
        self.order = ">" if state[1] in (">", b">") else "<"


class _ArrayParts(StandIn):
    """Stand-in for ``numpy.ndarray``: stores the parts of an array until :meth:`build` checks them."""

    __slots__ = ("data", "dtype", "fortran", "shape")

    def __init__(self) -> None:
        self.shape: Any = None
        self.dtype: Any = None
        self.fortran: Any = False
        self.data: Any = None

    def set_state(self, state: Any) -> None:
        """Stores ``(version, shape, dtype, Fortran order, bytes)``. Raises :class:`BatchError` for any other state."""
        if not isinstance(state, tuple) or len(state) != 5:
            raise BatchError("an array whose state is not (version, shape, dtype, order, bytes)")
        _, self.shape, self.dtype, self.fortran, self.data = state

    def build(self) -> NDArray[Any]:
        """Builds the array, read-only. Raises :class:`BatchError` if its parts do not fit, or its bytes were not
        read."""
        made = self.validate_dtype()
        if not isinstance(self.data, bytes):
            raise BatchError("an array that is not of plain numbers")
        flat: NDArray[Any] = np.frombuffer(self.data, made)
        try:
            return flat.reshape(self.shape, order="F" if self.fortran else "C")
        except ValueError:  # no bytes, in a shape that is too large for numpy
            raise BatchError(f"an array of the shape {self.shape}") from None

    def validate_dtype(self) -> np.dtype[Any]:
        """Checks that shape, dtype and number of bytes fit; returns the dtype. Raises :class:`BatchError` if they do
        not, or for more than four axes."""
        dtype, shape, data = self.dtype, self.shape, self.data
        if not isinstance(dtype, _DType) or not isinstance(data, (bytes, Span)):
            raise BatchError("an array that is not of plain numbers")
        sizes = isinstance(shape, tuple) and all(type(n) is int and 0 <= n < 1 << 63 for n in shape)
        if not sizes or len(shape) > 4:
            raise BatchError("an array whose shape is not one to four numbers")
        made = np.dtype(f"{dtype.order}{dtype.name}")
        size = data.size if isinstance(data, Span) else len(data)
        if math.prod(shape) * made.itemsize != size:
            raise BatchError(f"an array of shape {shape} and dtype {made} with {size} bytes")
        return made


def _frombuffer(data: Any, dtype: Any, shape: Any, order: Any) -> _ArrayParts:
    """Stand-in for ``numpy.core.numeric._frombuffer``, by which numpy pickles in protocol 5: makes an array of the
    arguments, unchecked."""
    array = _ArrayParts()
    array.set_state((1, shape, dtype, order in ("F", b"F"), data))
    return array


def _refuse_ndarray(*_: Any) -> None:
    """Stand-in for ``numpy.ndarray``: raises :class:`BatchError`."""
    raise BatchError("an array made without bytes")


class _Encode:
    """Stand-in for ``_codecs.encode``: encodes Latin-1, up to as many bytes in all as the pickle has. Raises
    :class:`BatchError` for more, for another encoding, and for characters beyond Latin-1.

    A pickle has each byte string once. Only a hostile one encodes a text again and again, to fill the memory.
    """

    def __init__(self, size_bytes: int) -> None:
        self._left = size_bytes

    def __call__(self, text: Any, encoding: Any = "latin1") -> bytes:
        known = type(encoding) in (str, bytes) and encoding in ("latin1", "latin-1", b"latin1", b"latin-1")
        if not isinstance(text, str) or not known:
            raise BatchError("a call of _codecs.encode that does not make bytes")
        self._left -= len(text)
        if self._left < 0:
            raise BatchError("a pickle that makes more bytes than it holds")
        try:
            return text.encode("latin-1")
        except UnicodeEncodeError:
            raise BatchError("a call of _codecs.encode that does not make bytes") from None


def _allowed_globals(size_bytes: int) -> dict[tuple[str, str], Callable[..., Any]]:
    """Returns the functions that a pickle of ``size_bytes`` may name: stand-ins that execute nothing from it."""
    return {
        ("numpy", "ndarray"): _refuse_ndarray,
        ("numpy", "dtype"): lambda name, align=False, copy=True: _DType(name),
        ("__builtin__", "bytes"): lambda: b"",  # an empty byte string that Python 3 pickles for Python 2
        ("_codecs", "encode"): _Encode(size_bytes),
        **{(f"numpy.{core}.multiarray", "_reconstruct"): lambda kind, shape, code: _ArrayParts() for core in _CORES},
        **{(f"numpy.{core}.numeric", "_frombuffer"): _frombuffer for core in _CORES},
    }

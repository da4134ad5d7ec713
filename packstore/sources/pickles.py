"""Reads CIFAR's pickles without running anything from them.

A pickle is a program that calls whatever it can name. Here it can name numpy's array and dtype constructors, which are
stand-ins that only note what they are given, and ``_codecs.encode``, with which Python 3 writes bytes for Python 2. So
numpy itself sees nothing but bytes of a checked length, and no object of the program's own making.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

_DTYPES = {"u1": "u1", "uint8": "u1", "i4": "i4", "int32": "i4", "i8": "i8", "int64": "i8"}


class BatchError(pickle.UnpicklingError):
    """A file of a batch that is broken, or a pickle that asks for more than arrays."""


def load_mapping(file: IO[bytes]) -> dict[str, Any]:
    """The dictionary that a pickle of any protocol holds, with text keys; the byte strings of Python 2 stay bytes.

    Arrays in it are to be taken out by :func:`array_of`. Raises :class:`BatchError` for everything else: other
    globals, a broken or truncated pickle, another object than a dictionary. Executes nothing.
    """
    try:
        found = _Unpickler(file, encoding="bytes").load()
    except BatchError:
        raise
    except Exception as error:  # a hostile program can raise anything; whatever it is, the pickle is no good
        raise BatchError(f"a broken pickle ({type(error).__name__}: {error})") from None
    if type(found) is not dict:
        raise BatchError(f"a pickle of {type(found).__name__}, expected a dictionary")
    return {key.decode("latin-1") if isinstance(key, bytes) else str(key): value for key, value in found.items()}


def array_of(value: Any) -> NDArray[Any]:
    """The array that a value of :func:`load_mapping` stands for (uint8, int32 or int64, read-only where possible), or
    the int64 array of a list of integers. Raises :class:`BatchError` for anything else."""
    if isinstance(value, _Array):
        return value.build()
    if isinstance(value, list) and all(type(item) is int for item in value):
        try:
            return np.array(value, np.int64)
        except OverflowError:
            raise BatchError("an integer beyond 64 bits") from None
    raise BatchError(f"{type(value).__name__} where an array or a list of integers is expected")


def names_of(value: Any) -> tuple[str, ...]:
    """A list of names, from bytes or text. Raises :class:`BatchError` for anything else."""
    if not isinstance(value, list) or not all(isinstance(item, (bytes, str)) for item in value):
        raise BatchError(f"{type(value).__name__} where a list of names is expected")
    try:
        return tuple(item.decode("utf-8") if isinstance(item, bytes) else item for item in value)
    except UnicodeDecodeError as error:
        raise BatchError(f"a name that is not UTF-8: {error.object!r}") from None


class _DType:
    """Stands for ``numpy.dtype``: keeps its name and byte order."""

    __slots__ = ("name", "order")

    def __init__(self, name: Any) -> None:
        text = name.decode("latin-1") if isinstance(name, bytes) else name
        if not isinstance(text, str):
            raise BatchError("a dtype that is not a name")
        self.name = _DTYPES.get(text.lstrip("<|="))
        self.order = "<"
        if self.name is None:
            raise BatchError(f"an array of dtype {text!r:.40}, expected {', '.join(_DTYPES)}")

    def __setstate__(self, state: Any) -> None:
        """``(version, byte order, subarray, names, fields, size, alignment, flags)``."""
        plain = isinstance(state, tuple) and len(state) >= 8 and state[2:5] == (None, None, None)
        if not plain or state[1] not in ("<", ">", "|", "=", b"<", b">", b"|", b"="):
            raise BatchError("a dtype with fields or without byte order")
        self.order = ">" if state[1] in (">", b">") else "<"


class _Array:
    """Stands for ``numpy.ndarray``: keeps what the array is to be made of until :meth:`build` checks it."""

    __slots__ = ("data", "dtype", "fortran", "shape")

    def __init__(self) -> None:
        self.shape: Any = None
        self.dtype: Any = None
        self.fortran: Any = False
        self.data: Any = None

    def __setstate__(self, state: Any) -> None:
        """``(version, shape, dtype, Fortran order, bytes)``."""
        if not isinstance(state, tuple) or len(state) != 5:
            raise BatchError("an array whose state is not (version, shape, dtype, order, bytes)")
        _, self.shape, self.dtype, self.fortran, self.data = state

    def build(self) -> NDArray[Any]:
        dtype, shape, data = self.dtype, self.shape, self.data
        if not isinstance(dtype, _DType) or not isinstance(data, (bytes, bytearray)):
            raise BatchError("an array that is not of plain numbers")
        if not isinstance(shape, tuple) or len(shape) > 4 or not all(type(n) is int and n >= 0 for n in shape):
            raise BatchError(f"an array of the shape {shape!r:.60}")
        made = np.dtype(f"{dtype.order}{dtype.name}")
        if math.prod(shape) * made.itemsize != len(data):
            raise BatchError(f"an array of shape {shape!r:.60} and dtype {made} with {len(data)} bytes")
        flat: NDArray[Any] = np.frombuffer(data, made)
        return flat.reshape(shape, order="F" if self.fortran else "C")


class _Global:
    """What a pickle gets for a name: callable, with no attributes that it could change."""

    __slots__ = ("_call",)
    _call: Callable[..., Any]

    def __init__(self, call: Callable[..., Any]) -> None:
        object.__setattr__(self, "_call", call)

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __setattr__(self, name: str, value: Any) -> None:
        raise BatchError(f"an attempt to set {name!r:.40} of a function")

    def __setstate__(self, state: Any) -> None:
        raise BatchError("an attempt to change a function")


def _reconstruct(kind: Any, shape: Any, typecode: Any) -> _Array:
    return _Array()


def _frombuffer(data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    """How numpy pickles with protocol 5."""
    array = _Array()
    array.__setstate__((1, shape, dtype, order in ("F", b"F"), data))
    return array


def _dtype(name: Any, align: Any = False, copy: Any = True) -> _DType:
    return _DType(name)


def _ndarray(*_: Any) -> None:
    raise BatchError("an array made without bytes")


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1", b"latin1", b"latin-1"):
        raise BatchError("a call of _codecs.encode that does not make bytes")
    return text.encode("latin-1")


_GLOBALS = {
    ("numpy", "ndarray"): _Global(_ndarray),
    ("numpy", "dtype"): _Global(_dtype),
    ("_codecs", "encode"): _Global(_encode),
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Global(_reconstruct) for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _Global(_frombuffer) for core in ("core", "_core")},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        try:
            return _GLOBALS[module, name]
        except KeyError:
            raise BatchError(f"a pickle that asks for {module}.{name}, which a dataset has no need of") from None

"""Reads the pickle inside a ``.pth`` without torch and without running anything: it only describes the objects.

:mod:`.pickle_machine` interprets it. A name becomes a :class:`Global`. Torch's usual call for a plain tensor becomes a
:class:`SavedTensor`, and any other call a :class:`Call`. A stranger's file can neither execute anything nor crash the
process by deep nesting, as it could inside torch.
"""

from __future__ import annotations

import math
import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packstore.stores.pth.pickle_machine import StandIn, UnsupportedPickleError, interpret_pickle

_MAX_OPERATIONS = 200_000
"""Most operations of a pickle; bounds the time (about a microsecond each). A column takes about 60."""
_MAX_RANK = 64


class _Described(StandIn):
    """Description of an object that is never made. Ignores the object's state and items."""

    __slots__ = ()

    def set_state(self, state: Any) -> None:
        """Ignores the state."""

    def set_items(self, items: list[Any]) -> None:
        """Ignores the items."""


@dataclass(frozen=True, slots=True)
class Call(_Described):
    """Result of a call to ``name``, a function that packstore does not know."""

    name: str


@dataclass(frozen=True, slots=True)
class Storage(_Described):
    """Storage of type ``kind`` (``ByteStorage`` …) in the zip entry ``data/KEY``."""

    kind: str
    key: str


@dataclass(frozen=True, slots=True)
class SavedTensor(_Described):
    """A strided view of a storage: a plain tensor without gradient. Offset and strides are in elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Global(_Described):
    """A name in the pickle: ``module.name``. Calling it describes the result, and calls nothing."""

    name: str

    def __call__(self, *arguments: Any) -> SavedTensor | Call:
        """Describes the result: a plain tensor of up to 64 dimensions that torch rebuilds, else a :class:`Call`."""
        match self.name, arguments:
            case (
                "torch._utils._rebuild_tensor_v2",
                (Storage() as storage, int(offset), tuple(shape), tuple(stride), False, _),
            ) if max(len(shape), len(stride)) <= _MAX_RANK and all(type(n) is int for n in shape + stride):
                return SavedTensor(storage, offset, shape, stride)
        return Call(self.name)


def unpickle(data: bytes) -> Any:
    """Returns the object in the pickle ``data``. Calls nothing.

    The object consists of dicts, lists, tuples, strings, numbers, and descriptions such as :class:`SavedTensor`.
    Raises :class:`PickleError` for a damaged pickle, an unsupported one, or one of more
    than 200,000 operations.
    """
    return interpret_pickle(data, lambda module, name: Global(f"{module}.{name}"), _MAX_OPERATIONS, _parse_storage)


def _parse_storage(persistent_id: Any) -> Storage:
    """Returns the storage that torch's persistent id names."""
    match persistent_id:
        case ("storage", Global(name), str(key), str(), int()):
            return Storage(name.removeprefix("torch."), key)
    raise UnsupportedPickleError("a pickle with a persistent id that is not a storage")


STORAGE = {
    "bool": "BoolStorage",
    "int8": "CharStorage",
    "int16": "ShortStorage",
    "int32": "IntStorage",
    "int64": "LongStorage",
    "uint8": "ByteStorage",
    "uint16": "ShortStorage",  # the same bits; also in the next two lines
    "uint32": "IntStorage",
    "uint64": "LongStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
}
"""Torch's storage class for each column dtype."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A contiguous CPU tensor over the whole of storage ``key``."""

    key: str
    dtype: str
    shape: tuple[int, ...]


def dump_dict(content: Mapping[str, Any]) -> bytes:
    """Pickles ``content`` in protocol 2. Its values are ``str``, :class:`Tensor` or such dicts."""
    return pickle.PROTO + b"\x02" + _dump_value(content) + pickle.STOP


def _dump_value(value: Any) -> bytes:
    """Pickles a dict, tensor, tuple, string, False or integer."""
    if isinstance(value, Mapping):
        return (
            pickle.EMPTY_DICT
            + pickle.MARK
            + b"".join(_dump_value(k) + _dump_value(v) for k, v in value.items())
            + pickle.SETITEMS
        )
    if isinstance(value, Tensor):
        return _dump_tensor(value)
    if isinstance(value, tuple):
        return pickle.MARK + b"".join(map(_dump_value, value)) + pickle.TUPLE
    if isinstance(value, str):
        raw = value.encode("utf-8")
        return pickle.BINUNICODE + struct.pack("<I", len(raw)) + raw
    if value is False:
        return pickle.NEWFALSE
    raw = pickle.encode_long(int(value))
    return pickle.LONG1 + bytes([len(raw)]) + raw


def _dump_tensor(tensor: Tensor) -> bytes:
    """Pickles a tensor as the call that torch makes to rebuild it."""
    storage = (
        pickle.MARK
        + _dump_value("storage")
        + _dump_global("torch", STORAGE[tensor.dtype])
        + _dump_value(tensor.key)
        + _dump_value("cpu")
        + _dump_value(math.prod(tensor.shape))
        + pickle.TUPLE
        + pickle.BINPERSID
    )
    strides = tuple(math.prod(tensor.shape[i + 1 :]) for i in range(len(tensor.shape)))
    no_hooks = _dump_global("collections", "OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE
    arguments = (
        pickle.MARK
        + storage
        + _dump_value(0)
        + _dump_value(tensor.shape)
        + _dump_value(strides)
        + _dump_value(False)
        + no_hooks
    )
    return _dump_global("torch._utils", "_rebuild_tensor_v2") + arguments + pickle.TUPLE + pickle.REDUCE


def _dump_global(module: str, name: str) -> bytes:
    """Pickles a reference to a name of a module."""
    return pickle.GLOBAL + f"{module}\n{name}\n".encode("ascii")

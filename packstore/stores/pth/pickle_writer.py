"""Writes the pickle inside a ``.pth`` without torch: a dict of strings, tensors and nested dicts of these.

torch writes a tensor as ``torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad,
backward_hooks)``, with the storage as a persistent id ``("storage", torch.<Dtype>Storage, key, "cpu", numel)``
(``torch/serialization.py``). The ``weights_only`` unpickler accepts exactly these.
"""

from __future__ import annotations

import math
import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class _StorageType(NamedTuple):
    """Torch's name of a storage class, and the dtype of its tensors."""

    name: str
    dtype: str


STORAGE = {
    "bool": _StorageType("BoolStorage", "bool"),
    "int8": _StorageType("CharStorage", "int8"),
    "int16": _StorageType("ShortStorage", "int16"),
    "int32": _StorageType("IntStorage", "int32"),
    "int64": _StorageType("LongStorage", "int64"),
    "uint8": _StorageType("ByteStorage", "uint8"),
    "uint16": _StorageType("ShortStorage", "int16"),  # the same bits; also in the next two lines
    "uint32": _StorageType("IntStorage", "int32"),
    "uint64": _StorageType("LongStorage", "int64"),
    "float16": _StorageType("HalfStorage", "float16"),
    "bfloat16": _StorageType("BFloat16Storage", "bfloat16"),
    "float32": _StorageType("FloatStorage", "float32"),
    "float64": _StorageType("DoubleStorage", "float64"),
}
"""Storage class and dtype of torch for each column dtype."""


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
        + _dump_global("torch", STORAGE[tensor.dtype].name)
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

"""Reads the pickle inside a ``.pth`` without torch and without running anything: it only describes the objects.

:mod:`.pickle_machine` interprets it. A name becomes a :class:`Global`. Torch's usual call for a plain tensor becomes a
:class:`SavedTensor`, and any other call a :class:`Call`. A stranger's file can neither execute anything nor crash the
process by deep nesting, as it could inside torch.
"""

from __future__ import annotations

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
    """Storage of ``numel`` elements of type ``kind`` (``ByteStorage`` …) in the zip entry ``data/KEY``."""

    kind: str
    key: str
    numel: int


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
    """Returns the storage that torch's persistent id names. Raises :class:`UnsupportedPickleError` for any other id."""
    match persistent_id:
        case ("storage", Global(name), str(key), str(), int(numel)):
            return Storage(name.removeprefix("torch."), key, numel)
    raise UnsupportedPickleError("a pickle with a persistent id that is not a storage")

"""Reads the pickle inside a ``.pth`` without torch and without running anything: it only describes what it names.

:mod:`packstore.core.pickle_machine` runs it. A name becomes a :class:`Global`; a call becomes a :class:`SavedTensor`
where it is torch's usual one for a plain tensor, else a :class:`Call`. So a stranger's file can neither execute
anything nor, by deep nesting, end the process as it could inside torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from packstore.core.pickle_machine import StandIn, UnsupportedPickleError, run

_MAX_OPERATIONS = 200_000
"""A column takes about 60; bounds the time (about a microsecond each)."""
_MAX_RANK = 64


class _Described(StandIn):
    """A described object: its state and items are ignored."""

    __slots__ = ()

    def set_state(self, state: Any) -> None:
        pass

    def set_items(self, items: list[Any]) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Call(_Described):
    """The result of calling ``name``, which packstore does not know."""

    name: str


@dataclass(frozen=True, slots=True)
class Storage(_Described):
    """``numel`` elements of type ``kind`` (``ByteStorage`` …) in the zip entry ``data/KEY``."""

    kind: str
    key: str
    numel: int


@dataclass(frozen=True, slots=True)
class SavedTensor(_Described):
    """A strided view of a storage, in elements, that wants no gradient and has no flags."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Global(_Described):
    """A name that the pickle refers to: ``module.name``."""

    name: str

    def __call__(self, *arguments: Any) -> SavedTensor | Call:
        match self.name, arguments:
            case (
                "torch._utils._rebuild_tensor_v2",
                (Storage() as storage, int(offset), tuple(shape), tuple(stride), False, _),
            ) if max(len(shape), len(stride)) <= _MAX_RANK and all(type(n) is int for n in shape + stride):
                return SavedTensor(storage, offset, shape, stride)
        return Call(self.name)


def unpickle(data: bytes) -> Any:
    """The object that ``data`` describes: dicts, lists, tuples, strings, numbers, :class:`SavedTensor` and the like.

    Raises :class:`packstore.core.pickle_machine.PickleError`.
    """
    return run(data, lambda module, name: Global(f"{module}.{name}"), _MAX_OPERATIONS, _storage)


def _storage(persistent_id: Any) -> Storage:
    match persistent_id:
        case ("storage", Global(name), str(key), str(), int(numel)):
            return Storage(name.removeprefix("torch."), key, numel)
    raise UnsupportedPickleError("a pickle that refers to something that is no storage")

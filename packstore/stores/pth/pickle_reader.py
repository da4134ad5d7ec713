"""The pickle inside a ``.pth``, read without torch and without running anything: what it names is only described.

The pickle machine of Python (``Lib/pickle.py``), cut down to the instructions that :func:`pickle_dict` and
``torch.save`` use for a dict of tensors and strings. Nothing is imported or called: a name becomes a :class:`Global`,
a call becomes a :class:`Tensor` where it is torch's usual one for a plain tensor, else a :class:`Call`. A file of a
stranger can so neither execute anything nor, by deep nesting, end the process as it could inside torch.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_MAX_STEPS = 200_000
"""Instructions, of which a column takes about 60; bounds the time (about a microsecond each)."""
_MAX_RANK = 64
_VALUES = ("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "BINFLOAT")
_OPCODES = {opcode.code: opcode for opcode in pickletools.opcodes}
_PUT, _GET = ("BINPUT", "LONG_BINPUT"), ("BINGET", "LONG_BINGET")


class Malformed(Exception):  # noqa: N818 - the reader turns it into a StoreError
    """What is wrong with the pickle."""


class Foreign(Malformed):
    """It may be sound, but it is no dict of tensors and strings."""


@dataclass(frozen=True, slots=True)
class Global:
    """A name that the pickle refers to: ``module.name``."""

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """The result of a call that packstore does not know: of the function ``name``."""

    name: str


@dataclass(frozen=True, slots=True)
class Storage:
    """``numel`` elements of type ``kind`` (``ByteStorage`` …) in the zip entry ``data/KEY``."""

    kind: str
    key: str
    numel: int


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A strided view of a storage, in elements, that wants no gradient and has no flags."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class _Mark:
    """Where a tuple or a run of items begins on the stack."""


_MARK = _Mark()


def unpickle(data: bytes) -> Any:
    """What ``data`` describes: dicts with string keys, strings, numbers, tuples, :class:`SavedTensor` and such.

    Raises :class:`Foreign` for whatever else there is, and :class:`Malformed` for what is no pickle.
    """
    machine, file = _Machine(), io.BytesIO(data)
    try:
        for _ in range(_MAX_STEPS):
            # Not pickletools.genops: that reads arguments of any instruction, and some are numbers or strings as text.
            opcode = _OPCODES.get(file.read(1).decode("latin-1"))
            if opcode is None:
                raise Malformed("its pickle is damaged: it ends early or has an unknown instruction")
            if opcode.name == "STOP":
                return machine.result()
            if opcode.name not in _KNOWN:
                raise Foreign(f"its pickle has the instruction {opcode.name}, which a dict of tensors does not need")
            if opcode.name == "GLOBAL":
                machine.stack.append(_global(file))
            else:
                machine.do(opcode.name, None if opcode.arg is None else opcode.arg.reader(file))
    except (ValueError, IndexError, KeyError, UnicodeError) as error:  # an empty stack, no such memo ...
        raise Malformed(f"its pickle is damaged: {error}") from None
    raise Foreign(f"its pickle has more than {_MAX_STEPS} instructions")


def _global(file: io.BytesIO) -> Global:
    """Two lines. pickletools would take a backslash in them for an escape, and warn of it."""
    lines = file.readline(), file.readline()
    if not all(line.endswith(b"\n") for line in lines):
        raise Malformed("its pickle is damaged: a name without an end")
    return Global(".".join(line[:-1].decode("ascii") for line in lines))


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def do(self, name: str, argument: Any) -> None:
        action = _ACTIONS.get(name)
        if action is not None:
            action(self)
        elif name in _VALUES:
            self.stack.append(argument)
        elif name in _PUT:
            self.memo[argument] = self.stack[-1]
        elif name in _GET:
            self.stack.append(self.memo[argument])

    def result(self) -> Any:
        (value,) = self.stack
        return value

    def popped(self) -> list[Any]:
        """Everything down to the last mark."""
        for start in range(len(self.stack) - 1, -1, -1):
            if self.stack[start] is _MARK:
                items = self.stack[start + 1 :]
                del self.stack[start:]
                return items
        raise Malformed("its pickle is damaged: no mark")

    def pack(self, count: int) -> None:
        if len(self.stack) < count:
            raise Malformed("its pickle is damaged: the stack is empty")
        items = tuple(self.stack[len(self.stack) - count :])
        del self.stack[len(self.stack) - count :]
        self.stack.append(items)

    def store(self, items: list[Any]) -> None:
        """Puts keys and values into the dict on the stack; those of anything else are of no interest."""
        if len(items) % 2:
            raise Malformed("its pickle is damaged: a key without a value")
        target = self.stack[-1]
        if isinstance(target, dict):
            keys = items[::2]
            if not all(type(key) is str for key in keys):
                raise Foreign("its pickle has a dict whose keys are not strings")
            target.update(zip(keys, items[1::2], strict=True))

    def persistent(self) -> None:
        value = self.stack.pop()
        match value:
            case ("storage", Global(name), str(key), str(), int(numel)):
                self.stack.append(Storage(name.removeprefix("torch."), key, numel))
            case _:
                raise Foreign("its pickle refers to something that is no storage")

    def call(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        match function, arguments:
            case (
                Global("torch._utils._rebuild_tensor_v2"),
                (Storage() as storage, int(offset), tuple(shape), tuple(stride), False, _),
            ) if max(len(shape), len(stride)) <= _MAX_RANK and all(type(n) is int for n in shape + stride):
                self.stack.append(SavedTensor(storage, offset, shape, stride))
            case Global(name), _:
                self.stack.append(Call(name))
            case _:
                raise Foreign("its pickle calls something that has no name")

    def build(self) -> None:
        """State of an object: without interest, since objects are not made."""
        self.stack.pop()


_ACTIONS: dict[str, Callable[[_Machine], None]] = {
    "EMPTY_DICT": lambda m: m.stack.append({}),
    "EMPTY_LIST": lambda m: m.stack.append([]),
    "EMPTY_TUPLE": lambda m: m.stack.append(()),
    "NONE": lambda m: m.stack.append(None),
    "NEWFALSE": lambda m: m.stack.append(False),
    "NEWTRUE": lambda m: m.stack.append(True),
    "MARK": lambda m: m.stack.append(_MARK),
    "TUPLE": lambda m: m.stack.append(tuple(m.popped())),
    "TUPLE1": lambda m: m.pack(1),
    "TUPLE2": lambda m: m.pack(2),
    "TUPLE3": lambda m: m.pack(3),
    "SETITEM": lambda m: m.store([m.stack.pop(-2), m.stack.pop()]),
    "SETITEMS": lambda m: m.store(m.popped()),
    "BINPERSID": _Machine.persistent,
    "REDUCE": _Machine.call,
    "BUILD": _Machine.build,
}
_KNOWN = frozenset((*_ACTIONS, *_VALUES, *_PUT, *_GET, "GLOBAL", "PROTO"))

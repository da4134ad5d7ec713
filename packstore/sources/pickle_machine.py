"""A machine for the pickles of data sets, which promises what ``pickle.Unpickler`` does not.

The standard unpickler runs any program of opcodes. One of nine bytes makes it allocate gigabytes (its memo is an
array); tuples inside tuples as the key of a dictionary overflow the C stack, or are hashed for ever. A check
beforehand would have to follow the stack to know what becomes a key, and so be a machine as well: this one is all there
is. It knows the opcodes that ``pickle`` writes for dictionaries, lists, numbers, names and arrays with protocols 2 to
5 (CPython's ``Lib/pickletools.py``), and it never hashes, compares or prints what a program has built. So its time and
its memory are proportional to the length of the program, which is bounded, and nothing recurses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from packstore.core.errors import printable

MAX_OPERATIONS = 2_000_000
"""The largest published file, CIFAR-100's train, takes 250,000. One operation of one byte can take 72 in memory."""

_MAX_ARGUMENTS = 16
_MAX_KEY = 256
_STOP = 0x2E


class BatchError(Exception):
    """A file of a batch that is broken, or a pickle that asks for more than arrays."""


class Stateful(ABC):
    """An object that a program may give a state."""

    __slots__ = ()

    @abstractmethod
    def set_state(self, state: Any) -> None:
        """Checks and keeps ``state``; raises :class:`BatchError`."""


Names = Mapping[tuple[str, str], Callable[..., Any]]
"""(module, name) to the only functions that a program can call."""


def run(program: bytes, names: Names) -> Any:
    """What the pickle ``program`` makes, calling nothing but ``names``.

    Dictionaries have byte strings and texts as keys; the byte strings of Python 2 are bytes. Raises
    :class:`BatchError` for a program that is broken or cut off, and for one that asks for more.
    """
    machine = _Machine(program, names)
    try:
        for _ in range(MAX_OPERATIONS):
            code = program[machine.at]
            machine.at += 1
            if code == _STOP:
                return machine.stack.pop()
            operation = _OPERATIONS[code]
            if operation is None:
                raise BatchError(f"a pickle with the operation 0x{code:02x}, which a dataset has no need of")
            operation(machine)
    except (IndexError, KeyError, UnicodeDecodeError):
        # the end of the program, an empty stack, something that was never put aside, text that is none
        if machine.at >= len(program):
            raise BatchError(f"a broken pickle: it is cut off after {len(program)} bytes") from None
        raise BatchError(f"a broken pickle (at byte {machine.at})") from None
    raise BatchError(f"a pickle of more than {MAX_OPERATIONS:,} operations; that is not CIFAR")


class _Machine:
    """A stack of values, its heights at the open marks, and what the program has put aside."""

    __slots__ = ("at", "marks", "memo", "names", "program", "stack")

    def __init__(self, program: bytes, names: Names) -> None:
        self.program = program
        self.names = names
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}  # not a list: an index may be any number

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes of the program."""
        start, self.at = self.at, self.at + size
        if self.at > len(self.program):
            raise IndexError
        return self.program[start : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def line(self) -> str:
        end = self.program.find(b"\n", self.at)
        if end < 0:
            self.at = len(self.program)
            raise IndexError
        return self.take(end + 1 - self.at)[:-1].decode("utf-8")

    def since_mark(self) -> list[Any]:
        """Takes everything above the last mark off the stack."""
        mark = self.marks.pop()
        values = self.stack[mark:]
        del self.stack[mark:]
        return values

    def reduce(self) -> None:
        arguments, call = self.stack.pop(), self.stack.pop()
        if not callable(call) or type(arguments) is not tuple or len(arguments) > _MAX_ARGUMENTS:
            raise BatchError("a pickle that calls something else than a function of numpy")
        try:
            self.stack.append(call(*arguments))
        except TypeError:
            raise BatchError("a pickle that calls a function of numpy with wrong arguments") from None

    def build(self) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        if not isinstance(made, Stateful):
            raise BatchError(f"a pickle that changes an object of type {type(made).__name__}")
        made.set_state(state)

    def find(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            raise BatchError("a pickle that asks for a name that is none")
        found = self.names.get((module, name))
        if found is None:
            asked = printable(f"{module[:60]}.{name[:60]}")
            raise BatchError(f"a pickle that asks for {asked}, which a dataset has no need of")
        self.stack.append(found)

    def find_lines(self) -> None:
        module = self.line()
        self.find(module, self.line())

    def find_stacked(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.find(module, name)

    def append(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise BatchError(f"a pickle that appends to an object of type {type(target).__name__}")
        target += values

    def set_items(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(values) % 2:
            raise BatchError(f"a pickle that sets items of an object of type {type(target).__name__}")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if type(key) not in (bytes, str) or len(key) > _MAX_KEY:  # only these are sure to have a hash, and soon
                raise BatchError(f"a pickle with a key of type {type(key).__name__}, expected a short name")
            target[key] = value

    def pop_last(self, count: int) -> list[Any]:
        values = self.stack[-count:]
        if len(values) < count:
            raise IndexError
        del self.stack[-count:]
        return values


_Operation = Callable[[_Machine], Any]


def _constant(value: Any) -> _Operation:
    return lambda m: m.stack.append(value)


def _unsigned(size: int) -> _Operation:
    return lambda m: m.stack.append(m.number(size))


def _sized_bytes(size: int) -> _Operation:
    return lambda m: m.stack.append(m.take(m.number(size)))


def _sized_text(size: int) -> _Operation:
    return lambda m: m.stack.append(m.take(m.number(size)).decode("utf-8", "surrogatepass"))


def _tuple_of(count: int) -> _Operation:
    return lambda m: m.stack.append(tuple(m.pop_last(count)))


def _put(size: int) -> _Operation:
    return lambda m: m.memo.__setitem__(m.number(size), m.stack[-1])


def _get(size: int) -> _Operation:
    return lambda m: m.stack.append(m.memo[m.number(size)])


_BY_OPCODE: dict[bytes, _Operation] = {
    b"\x80": lambda m: m.take(1),  # PROTO
    b"\x95": lambda m: m.take(8),  # FRAME
    b"(": lambda m: m.marks.append(len(m.stack)),  # MARK
    b"N": _constant(None),
    b"\x88": _constant(True),  # NEWTRUE
    b"\x89": _constant(False),  # NEWFALSE
    b"J": lambda m: m.stack.append(int.from_bytes(m.take(4), "little", signed=True)),  # BININT
    b"K": _unsigned(1),  # BININT1
    b"M": _unsigned(2),  # BININT2
    b"\x8a": lambda m: m.stack.append(int.from_bytes(m.take(m.number(1)), "little", signed=True)),  # LONG1
    b"U": _sized_bytes(1),  # SHORT_BINSTRING
    b"T": _sized_bytes(4),  # BINSTRING
    b"C": _sized_bytes(1),  # SHORT_BINBYTES
    b"B": _sized_bytes(4),  # BINBYTES
    b"\x8e": _sized_bytes(8),  # BINBYTES8
    b"\x96": _sized_bytes(8),  # BYTEARRAY8
    b"\x8c": _sized_text(1),  # SHORT_BINUNICODE
    b"X": _sized_text(4),  # BINUNICODE
    b"\x8d": _sized_text(8),  # BINUNICODE8
    b"]": lambda m: m.stack.append([]),  # EMPTY_LIST
    b"}": lambda m: m.stack.append({}),  # EMPTY_DICT
    b")": _constant(()),  # EMPTY_TUPLE
    b"\x85": _tuple_of(1),
    b"\x86": _tuple_of(2),
    b"\x87": _tuple_of(3),
    b"t": lambda m: m.stack.append(tuple(m.since_mark())),  # TUPLE
    b"a": lambda m: m.append(m.pop_last(1)),  # APPEND
    b"e": lambda m: m.append(m.since_mark()),  # APPENDS
    b"s": lambda m: m.set_items(m.pop_last(2)),  # SETITEM
    b"u": lambda m: m.set_items(m.since_mark()),  # SETITEMS
    b"q": _put(1),  # BINPUT
    b"r": _put(4),  # LONG_BINPUT
    b"\x94": lambda m: m.memo.__setitem__(len(m.memo), m.stack[-1]),  # MEMOIZE
    b"h": _get(1),  # BINGET
    b"j": _get(4),  # LONG_BINGET
    b"c": _Machine.find_lines,  # GLOBAL
    b"\x93": _Machine.find_stacked,  # STACK_GLOBAL
    b"R": _Machine.reduce,
    b"b": _Machine.build,
}
_OPERATIONS = [_BY_OPCODE.get(bytes((code,))) for code in range(256)]

"""An interpreter for untrusted pickles. It runs no code of theirs, and bounds time and memory.

``pickle.Unpickler`` runs any program of opcodes. A program of nine bytes makes it allocate gigabytes (its memo is an
array); nested tuples as a dictionary key overflow the C stack, or take for ever to hash. A check beforehand would have
to simulate the stack to know the keys; it would be an interpreter, too. This interpreter knows the opcodes that
``pickle`` writes for dictionaries, lists, numbers, names, arrays and tensors with protocols 2 to 5 (CPython's
``Lib/pickletools.py``). It never hashes, compares or prints the objects that a program has built. Time and memory are
therefore proportional to the length of the program, which is bounded, and nothing recurses.

It imports nothing. A program can only call the objects that the caller's ``find`` returns.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

_MAX_ARGUMENTS = 16
_MAX_KEY = 256
_STOP = 0x2E


class PickleError(Exception):
    """A broken pickle."""


class UnsupportedPickleError(PickleError):
    """A pickle that may be valid, but uses opcodes, names or calls that its reader does not allow."""


class StandIn:
    """Base of harmless objects. ``find`` returns them in place of the objects that the program names.

    This base refuses a state and items with :class:`UnsupportedPickleError`. A subclass that accepts them overrides the
    methods.
    """

    __slots__ = ()

    def set_state(self, state: Any) -> None:
        """Receives the object's state. This default raises :class:`UnsupportedPickleError`."""
        raise UnsupportedPickleError(f"a pickle that changes an object of type {type(self).__name__}")

    def set_items(self, items: list[Any]) -> None:
        """Receives keys and values in turn. This default raises :class:`UnsupportedPickleError`."""
        raise UnsupportedPickleError(f"a pickle that sets items of an object of type {type(self).__name__}")


def interpret_pickle(
    program: bytes,
    find: Callable[[str, str], Any],
    max_operations: int,
    persistent: Callable[[Any], Any] | None = None,
) -> Any:
    """Interprets a pickle and returns its object.

    Args:
        program: The pickle. Byte strings of Python 2 become bytes; keys of dictionaries must be short bytes or texts.
        find: Returns the object for a module and a name; the program may call that object.
        max_operations: Most operations of a program. Memory is up to 72 bytes an operation.
        persistent: Returns the object for a persistent id. None refuses such ids.

    Raises:
        PickleError: The program is broken or truncated.
        UnsupportedPickleError: The program has other opcodes or calls than allowed, or more operations.
    """
    machine = _Machine(program, find, persistent)
    try:
        for _ in range(max_operations):
            code = program[machine.at]
            machine.at += 1
            if code == _STOP:
                if len(machine.stack) != 1:
                    raise PickleError(f"a broken pickle: it ends with {len(machine.stack)} values, expected one")
                return machine.stack[0]
            operation = _OPERATIONS[code]
            if operation is None:
                raise UnsupportedPickleError(
                    f"a pickle with the instruction {_opcode_name(code)}, which no dataset needs"
                )
            operation(machine)
    except (IndexError, KeyError, UnicodeError):
        # The program ends early, the stack is empty, a memo index is unknown, or text is not UTF-8 or Latin-1.
        if machine.at >= len(program):
            raise PickleError(f"a broken pickle: it is cut off after {len(program)} bytes") from None
        raise PickleError(f"a broken pickle (at byte {machine.at})") from None
    raise UnsupportedPickleError(f"a pickle of more than {max_operations:,} operations, which no dataset needs")


def interpret_plain_pickle(program: bytes, functions: Mapping[tuple[str, str], Any], max_operations: int) -> Any:
    """Interprets a pickle that may call ``functions``, by module and name, and ``_codecs.encode``, by which Python 3
    writes bytes in protocol 2. Raises the errors of :func:`interpret_pickle`."""
    left = len(program)

    def encode(text: Any, encoding: Any = "latin1") -> bytes:
        """Encodes Latin-1. A pickle has each byte string once; only a hostile one encodes a text again and again."""
        nonlocal left
        known = type(encoding) in (str, bytes) and encoding in ("latin1", "latin-1", b"latin1", b"latin-1")
        if type(text) is not str or not known:
            raise UnsupportedPickleError("a pickle that calls _codecs.encode for anything but bytes")
        left -= len(text)
        if left < 0:
            raise UnsupportedPickleError("a pickle that makes more bytes than it holds")
        return text.encode("latin-1")

    def find(module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return encode
        if (module, name) not in functions:
            raise UnsupportedPickleError(f"a pickle that asks for {module[:60]}.{name[:60]}, which is not run")
        return functions[module, name]

    return interpret_pickle(program, find, max_operations)


def _opcode_name(code: int) -> str:
    """Returns name and number of an opcode, for a message: ``INST 0x69``."""
    import pickletools  # slow to import, and only needed for this message

    known = {opcode.code: f"{opcode.name} " for opcode in pickletools.opcodes}
    return f"{known.get(chr(code), '')}0x{code:02x}"


class _Machine:
    """State of a running pickle: the stack, its heights at open marks, and the memo."""

    __slots__ = ("at", "find", "marks", "memo", "persistent", "program", "stack")

    def __init__(
        self, program: bytes, find: Callable[[str, str], Any], persistent: Callable[[Any], Any] | None
    ) -> None:
        self.program = program
        self.find = find
        self.persistent = persistent
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}  # not a list: an index may be any number

    def read_bytes(self, size: int) -> bytes:
        """Reads the next ``size`` bytes of the program. Raises :class:`IndexError` at its end."""
        start, self.at = self.at, self.at + size
        if self.at > len(self.program):
            raise IndexError
        return self.program[start : self.at]

    def read_number(self, size: int) -> int:
        """Reads an unsigned little-endian number of ``size`` bytes. Raises :class:`IndexError` at the end of the
        program."""
        return int.from_bytes(self.read_bytes(size), "little")

    def read_line(self) -> str:
        """Reads UTF-8 up to the next newline. Raises :class:`IndexError` if there is none."""
        end = self.program.find(b"\n", self.at)
        if end < 0:
            self.at = len(self.program)
            raise IndexError
        return self.read_bytes(end + 1 - self.at)[:-1].decode("utf-8")

    def pop_to_mark(self) -> list[Any]:
        """Pops the last mark and everything above it; returns these values. Raises :class:`IndexError` if no mark is
        open."""
        mark = self.marks.pop()
        values = self.stack[mark:]
        del self.stack[mark:]
        return values

    def call_function(self) -> None:
        """Pops arguments and a function, calls the function and pushes its result.

        Raises :class:`UnsupportedPickleError` in these cases:
        - The object is not callable.
        - The arguments are not a tuple, or are more than 16.
        - The function does not take them.
        """
        arguments, call = self.stack.pop(), self.stack.pop()
        if not callable(call) or type(arguments) is not tuple or len(arguments) > _MAX_ARGUMENTS:
            raise UnsupportedPickleError("a pickle that calls an object that is not a function")
        try:
            self.stack.append(call(*arguments))
        except TypeError:
            raise UnsupportedPickleError("a pickle that calls a function with wrong arguments") from None

    def set_state(self) -> None:
        """Pops a state and gives it to the :class:`StandIn` below it.

        Raises :class:`UnsupportedPickleError` for other objects.
        """
        state, made = self.stack.pop(), self.stack[-1]
        if not isinstance(made, StandIn):
            raise UnsupportedPickleError(f"a pickle that changes an object of type {type(made).__name__}")
        made.set_state(state)

    def resolve_persistent_id(self) -> None:
        """Replaces the persistent id on the stack by its object.

        Raises :class:`UnsupportedPickleError` if the caller allows no such ids.
        """
        if self.persistent is None:
            raise UnsupportedPickleError("a pickle that refers to something outside it")
        self.stack.append(self.persistent(self.stack.pop()))

    def push_found(self, module: Any, name: Any) -> None:
        """Pushes the object that ``find`` returns for a module and a name.

        Raises :class:`UnsupportedPickleError` if module or name is not a text.
        """
        if type(module) is not str or type(name) is not str:
            raise UnsupportedPickleError("a pickle that looks up a name that is not text")
        self.stack.append(self.find(module, name))

    def extend_list(self, values: list[Any]) -> None:
        """Appends values to the list at the top of the stack. Raises :class:`UnsupportedPickleError` for another
        object."""
        target = self.stack[-1]
        if type(target) is not list:
            raise UnsupportedPickleError(f"a pickle that appends to an object of type {type(target).__name__}")
        target += values

    def set_items(self, items: list[Any]) -> None:
        """Sets items of the dict or :class:`StandIn` at the top of the stack. ``items`` has keys and values in turn.

        Raises :class:`IndexError` for a key without a value. Raises :class:`UnsupportedPickleError` for other objects.
        In a dict, a key must be text or bytes, and short.
        """
        target = self.stack[-1]
        if len(items) % 2:
            raise IndexError
        if isinstance(target, StandIn):
            target.set_items(items)
            return
        if type(target) is not dict:
            raise UnsupportedPickleError(f"a pickle that sets items of an object of type {type(target).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in (bytes, str) or len(key) > _MAX_KEY:  # others may be unhashable, or slow to hash
                raise UnsupportedPickleError(f"a pickle with a key of type {type(key).__name__}, expected a short name")
            target[key] = value

    def pop_last(self, count: int) -> list[Any]:
        """Pops ``count`` values off the stack. Raises :class:`IndexError` if there are fewer."""
        values = self.stack[-count:]
        if len(values) < count:
            raise IndexError
        del self.stack[-count:]
        return values


_Operation = Callable[[_Machine], Any]


def _push_constant(value: Any) -> _Operation:
    """Returns an operation that pushes ``value``."""
    return lambda m: m.stack.append(value)


def _push_unsigned(size: int) -> _Operation:
    """Returns an operation that reads an unsigned number of ``size`` bytes and pushes it."""
    return lambda m: m.stack.append(m.read_number(size))


def _push_bytes(size: int) -> _Operation:
    """Returns an operation that pushes bytes of the program, after their length in ``size`` bytes."""
    return lambda m: m.stack.append(m.read_bytes(m.read_number(size)))


def _push_text(size: int) -> _Operation:
    """Returns an operation that pushes UTF-8 text, after its length in ``size`` bytes."""
    # Python pickles lone surrogates so
    return lambda m: m.stack.append(m.read_bytes(m.read_number(size)).decode("utf-8", "surrogatepass"))


def _push_tuple(count: int) -> _Operation:
    """Returns an operation that replaces the last ``count`` values on the stack by their tuple."""
    return lambda m: m.stack.append(tuple(m.pop_last(count)))


def _store_in_memo(size: int) -> _Operation:
    """Returns an operation that stores the top of the stack in the memo, at an index of ``size`` bytes."""
    return lambda m: m.memo.__setitem__(m.read_number(size), m.stack[-1])


def _push_from_memo(size: int) -> _Operation:
    """Returns an operation that pushes the value in the memo at an index of ``size`` bytes."""
    return lambda m: m.stack.append(m.memo[m.read_number(size)])


_BY_OPCODE: dict[bytes, _Operation] = {
    b"\x80": lambda m: m.read_bytes(1),  # PROTO
    b"\x95": lambda m: m.read_bytes(8),  # FRAME
    b"(": lambda m: m.marks.append(len(m.stack)),  # MARK
    b"N": _push_constant(None),
    b"\x88": _push_constant(True),  # NEWTRUE
    b"\x89": _push_constant(False),  # NEWFALSE
    b"J": lambda m: m.stack.append(int.from_bytes(m.read_bytes(4), "little", signed=True)),  # BININT
    b"K": _push_unsigned(1),  # BININT1
    b"M": _push_unsigned(2),  # BININT2
    b"\x8a": lambda m: m.stack.append(int.from_bytes(m.read_bytes(m.read_number(1)), "little", signed=True)),  # LONG1
    b"G": lambda m: m.stack.append(struct.unpack(">d", m.read_bytes(8))[0]),  # BINFLOAT
    b"U": _push_bytes(1),  # SHORT_BINSTRING
    b"T": _push_bytes(4),  # BINSTRING
    b"C": _push_bytes(1),  # SHORT_BINBYTES
    b"B": _push_bytes(4),  # BINBYTES
    b"\x8e": _push_bytes(8),  # BINBYTES8
    b"\x96": _push_bytes(8),  # BYTEARRAY8
    b"\x8c": _push_text(1),  # SHORT_BINUNICODE
    b"X": _push_text(4),  # BINUNICODE
    b"\x8d": _push_text(8),  # BINUNICODE8
    b"]": lambda m: m.stack.append([]),  # EMPTY_LIST
    b"}": lambda m: m.stack.append({}),  # EMPTY_DICT
    b")": _push_constant(()),  # EMPTY_TUPLE
    b"\x85": _push_tuple(1),
    b"\x86": _push_tuple(2),
    b"\x87": _push_tuple(3),
    b"t": lambda m: m.stack.append(tuple(m.pop_to_mark())),  # TUPLE
    b"a": lambda m: m.extend_list(m.pop_last(1)),  # APPEND
    b"e": lambda m: m.extend_list(m.pop_to_mark()),  # APPENDS
    b"s": lambda m: m.set_items(m.pop_last(2)),  # SETITEM
    b"u": lambda m: m.set_items(m.pop_to_mark()),  # SETITEMS
    b"q": _store_in_memo(1),  # BINPUT
    b"r": _store_in_memo(4),  # LONG_BINPUT
    b"\x94": lambda m: m.memo.__setitem__(len(m.memo), m.stack[-1]),  # MEMOIZE
    b"h": _push_from_memo(1),  # BINGET
    b"j": _push_from_memo(4),  # LONG_BINGET
    b"c": lambda m: m.push_found(m.read_line(), m.read_line()),  # GLOBAL
    b"\x93": lambda m: m.push_found(*m.pop_last(2)),  # STACK_GLOBAL
    b"Q": _Machine.resolve_persistent_id,  # BINPERSID
    b"R": _Machine.call_function,  # REDUCE
    b"b": _Machine.set_state,  # BUILD
}
_OPERATIONS = [_BY_OPCODE.get(bytes((code,))) for code in range(256)]

"""Options of public functions: a field of a dataclass has the name, type, default, meaning and range of each.

:func:`takes` makes the signature of a function, and the ``Args`` of its docstring, from the fields.
:mod:`packstore.cli.options` makes the options of a command from the same fields. The modules of such dataclasses import
nothing heavy, since ``packstore COMMAND --help`` imports them. Each check of a value raises :class:`UsageError` that
names the argument.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Real
from operator import index
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from packstore.core.errors import UsageError

if TYPE_CHECKING:
    from packstore.core.progress import ProgressCallback

P = ParamSpec("P")
Arguments = TypeVar("Arguments")
Default = TypeVar("Default")
Made = TypeVar("Made")
Result = TypeVar("Result")
Self = TypeVar("Self")

_LINE = 116
"""Columns of a docstring's text."""
MOST_NUMBER = (1 << 64) - 1
"""Largest whole number of an option; seeds have 64 bits."""
_MOST_VALUES = 1000
_MOST_SHOWN = 200
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_MOST_DIGITS = 30


@dataclass(frozen=True)
class Description:
    """Description of an option, in the metadata of its field.

    Attributes:
        meaning: Sentences for the docstring.
        help: Text for the command line. Empty: ``meaning``. None: the command line lacks the option.
        none: Phrase for the value that None stands for.
        flag: Name on the command line; empty: ``--`` and the name of the field.
        metavar: Placeholder of the value on the command line; None: that of its type.
        least: Smallest number.
        most: Largest number.
        group: Heading of the option in the help of a command with headings.
    """

    meaning: str
    help: str | None = None
    none: str = ""
    flag: str = ""
    metavar: str | None = None
    least: int | None = None
    most: int | None = None
    group: str = ""

    @property
    def documentation(self) -> str:
        """Text for the docstring: meaning, range if there is a largest number, and the meaning of None."""
        span = "" if self.most is None else f" From {self.least} to {self.most}."
        return self.meaning + span + (f" None for {self.none}." if self.none else "")


def option(default: Default, meaning: str, help: str | None = "", **more: Any) -> Default:
    """Makes a field with a default and a :class:`Description`, whose other attributes are in ``more``.

    Its declared result is the default: mypy compares the default's type with the field's.
    """
    made: Any = field(default=default, metadata={"option": Description(meaning, help, **more)})
    return made  # type: ignore[no-any-return]


def argument(meaning: str) -> Mapping[str, Description]:
    """Makes the metadata of a field without a default, for ``dataclasses.field(metadata=…)``."""
    return {"option": Description(meaning)}


def format_option() -> str | None:
    """Makes the option ``format`` of a new store."""
    return option(
        None,
        "``lmdb``, ``hdf5`` or ``pth``; None takes the destination's suffix.",
        "Format, whatever the suffix of the new store.",
        group="Store",
    )


def overwrite_option(kind: str = "store") -> bool:
    """Makes the option ``overwrite``. ``kind``: noun for the destination."""
    return option(False, f"Replace an existing {kind}, once the new one is complete.", group="Store")


def restart_option() -> bool:
    """Makes the option ``restart``."""
    return option(False, "Start again instead of resuming an interrupted run.", group="Run")


def workers_option(meaning: str = "Threads.", help: str = "", none: str = "one per core") -> int | None:
    """Makes the option ``workers``."""
    return option(None, meaning, help, none=none, metavar="N", least=1, group="Run")


def progress_option() -> bool | ProgressCallback:
    """Makes the argument ``progress``."""
    return option(
        False, "True for a bar, in a terminal or a notebook; or a function that is called after each batch.", None
    )


def list_options(options: type) -> Iterator[tuple[str, Any, Any, Description]]:
    """Yields name, type, default and description of each field.

    A field without a default has ``dataclasses.MISSING``. In a type, ``Any`` replaces names that are imported for type
    checkers alone.
    """
    # Some types are only imported for type checkers.
    names = defaultdict(lambda: Any, vars(builtins))
    for base in reversed(options.__mro__):
        names.update(vars(sys.modules[base.__module__]))
    types = get_type_hints(options, localns=names)
    for each in fields(cast("Any", options)):
        yield each.name, types[each.name], each.default, each.metadata.get("option", Description(""))


def check_options(options: Any) -> None:
    """Checks all options by the types and ranges of their fields: flags, choices, numbers and texts.

    Refuses one text for a list of names. Leaves values of other types, and of unions of these, to the options
    themselves. Raises :class:`UsageError` for a value that is not allowed.
    """
    described = _describe_options(type(options))  # type: ignore[arg-type]  # of mypy, for type[Any]
    values = {name: getattr(options, name) for name in described}
    check_option_numbers(type(options), values)
    for name, (kind, description) in described.items():
        value, parts = values[name], {*split_union(kind)}
        optional = NoneType in parts
        parts.discard(NoneType)
        if value is None and optional:
            continue
        if all(part is bool or get_origin(part) is Literal for part in parts):
            choices: list[Any] = [True, False] if bool in parts else []
            choices += [each for part in split_union(kind) for each in get_args(part) if part in parts]
            choices += [None] if optional and bool not in parts else []
            if isinstance(value, float) or value not in choices:
                *most, last = map(repr, choices)
                raise UsageError(f"{name} should be {', '.join(most)} or {last}, got {show_value(value)}")
        elif parts == {int}:
            whole_number(name, value, description.least)
        elif parts == {float}:
            if not isinstance(value, int | float):
                raise UsageError(f"{name} should be a number of at least {description.least or 0}, got {value!r}")
        elif parts == {str} and not isinstance(value, str):
            raise UsageError(f"{name} should be text{' or None' if optional else ''}, got {show_value(value)}")
        elif Sequence[str] in parts and str not in parts and isinstance(value, str):
            raise UsageError(f"{name} should be a list of names, got {show_value(value)}")


def check_option_numbers(
    options: type, values: Mapping[str, Any], owner: str = "", most_number: int = MOST_NUMBER
) -> None:
    """Checks the numbers and bools among ``values``, which are fields of ``options``. See :func:`check_numbers`.

    Also checks the least and the largest number of a field, and refuses numbers in fields that take none. Leaves all
    else, and None, to the options themselves.

    Args:
        options: The dataclass.
        values: Values by field.
        owner: Begins messages, such as ``Resize: ``.
        most_number: Largest number of any field.
    """
    for name, (kind, description) in _describe_options(options).items():
        value, kinds = values.get(name), _list_kinds(kind)
        if value is None:
            continue
        if not kinds & {int, float, bool, object, Any}:
            refuse_numbers(f"{owner}{name}", value, _name_kind(kind))
        elif kind is bool:
            check_bools(**{f"{owner}{name}": value})
        elif kinds & {int, float}:
            texts = bool(kinds & {str, Any}) or any(get_origin(each) is Literal for each in kinds)
            if {*split_union(kind)} <= {int, float, NoneType} and isinstance(value, list | tuple | Mapping):
                raise UsageError(f"{owner}{name} should be a single number, got {show_value(value)}")
            least, most = description.least, description.most
            at_least = "" if least is None else f" of at least {least}"
            span = at_least if most is None else f" from {least} to {most:,}"
            wanted = f"a {'' if float in kinds else 'whole '}number{span}"
            if not {int, float} & {*split_union(kind)} and not isinstance(value, list | tuple | Mapping):
                wanted = _name_kind(kind)
            check_numbers(f"{owner}{name}", value, most_number, bools=bool in kinds, texts=texts, wanted=wanted)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and ((least is not None and value < least) or (most is not None and value > most)):
                raise UsageError(f"{owner}{name} should be {wanted}, got {show_value(value)}")


def _name_kind(kind: Any) -> str:
    """Names a type for messages: ``RandomMasking or None``."""
    names = []
    for part in split_union(kind):
        if get_origin(part) is Callable or part is Callable:
            names.append("a function")
        elif get_origin(part) is Literal:
            names += map(repr, get_args(part))
        else:
            names.append({NoneType: "None", str: "text"}.get(part, getattr(part, "__name__", str(part))))
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


@functools.cache
def _list_kinds(kind: Any) -> frozenset[Any]:
    """Returns all types inside a type, such as float in ``Sequence[float] | None``."""
    inner = () if get_origin(kind) in (Literal, Callable) else get_args(kind)
    return frozenset({kind}).union(*map(_list_kinds, inner)) if inner else frozenset({kind})


@functools.cache
def _describe_options(options: type) -> dict[str, tuple[Any, Description]]:
    """Returns type and description of each field."""
    return {name: (kind, description) for name, kind, _, description in list_options(options)}


def split_union(kind: Any) -> tuple[Any, ...]:
    """Returns the types of a union; of another type, the type alone."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def takes(arguments: Callable[P, Arguments]) -> Callable[[Callable[[Arguments], Result]], Callable[P, Result]]:
    """Returns a decorator for a function of one argument, the dataclass ``arguments``. The new function takes the
    fields of the dataclass instead.

    The dataclass checks its values when it is made, see :func:`check_options`. Inserts a description of the fields into
    the docstring. The new function raises :class:`TypeError` for arguments
    that it does not have.
    """
    return lambda function: cast("Callable[P, Result]", _take(arguments, function, None))


def initializes(
    arguments: Callable[P, Arguments], unknown: Callable[[str], Exception] | None = None
) -> Callable[[Callable[[Self, Arguments], None]], Callable[Concatenate[Self, P], None]]:
    """Returns a decorator like that of :func:`takes`, for an ``__init__`` with one argument beside ``self``.

    The docstring stays as it is. ``unknown``: makes the error for an unknown keyword; None for :class:`TypeError`.
    """
    return lambda function: cast("Callable[Concatenate[Self, P], None]", _take(arguments, function, unknown))


def _take(
    arguments: Callable[..., Any], function: Callable[..., Any], unknown: Callable[[str], Exception] | None
) -> Callable[..., Any]:
    """Returns a function whose last arguments are the fields of ``arguments``, described in its docstring."""
    first = [*inspect.signature(function).parameters.values()][:-1]
    taken = inspect.signature(arguments).parameters
    signature = inspect.signature(function).replace(parameters=[*first, *taken.values()])

    @functools.wraps(function)
    def call(*values: Any, **keywords: Any) -> Any:
        if unknown is not None and not keywords.keys() <= taken.keys():
            raise unknown(min(keywords.keys() - taken.keys()))
        try:
            signature.bind(*values, **keywords)
        except TypeError as error:
            raise TypeError(f"{function.__qualname__}() {error}") from None
        return function(*values[: len(first)], arguments(*values[len(first) :], **keywords))

    call.__signature__ = signature  # type: ignore[attr-defined]
    types = {name: kind for name, kind, _, _ in list_options(cast("type", arguments))}
    call.__annotations__ = types | {"return": function.__annotations__["return"]}
    if not first:
        _add_arguments(call, arguments)
    return call


def describes(arguments: Callable[..., Any]) -> Callable[[type[Made]], type[Made]]:
    """Returns a decorator that inserts a description of ``arguments`` into the docstring of a class."""

    def describe(made: type[Made]) -> type[Made]:
        _add_arguments(made, arguments)
        return made

    return describe


def _add_arguments(described: Any, arguments: Callable[..., Any]) -> None:
    """Inserts ``Args`` into a docstring, before its first section."""
    if described.__doc__ is None:  # an interpreter without docstrings
        return
    lines = ["Args:"]
    options = {each.name: each.metadata["option"] for each in fields(cast("Any", arguments))}
    for name in inspect.signature(arguments).parameters:
        text = f"{name}: {options[name].documentation}"
        lines += textwrap.wrap(text, _LINE, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False)
    text = inspect.cleandoc(described.__doc__)
    section = re.search(r"^(Attributes|Returns|Raises):$", text, re.MULTILINE)
    start = len(text) if section is None else section.start()
    described.__doc__ = "\n\n".join(filter(None, (text[:start].rstrip(), "\n".join(lines), text[start:])))


def take_options(options: type[Made], arguments: Mapping[str, Any]) -> Made:
    """Makes a dataclass of options from arguments by name.

    Each field gets the argument of its name, or keeps its default. Ignores other arguments.
    """
    names = [field.name for field in fields(options)]  # type: ignore[arg-type]
    return options(**{name: arguments[name] for name in names if name in arguments})


def whole_number(name: str, value: Any, least: int | None = 1) -> int:
    """Converts ``value`` to an ``int``; accepts numpy's whole numbers. A ``least`` of None allows any number.

    Raises :class:`UsageError` for a bool, a float (also 3.0) and anything else that is no ``int``, and for a number
    below ``least`` or of more than 64 bits.
    """
    try:
        # True is 1 in Python, but no number of workers.
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        at_least = "" if least is None else f" of at least {least}"
        raise UsageError(f"{name} should be a whole number{at_least}, got {show_value(value)}")
    if not -MOST_NUMBER <= number <= MOST_NUMBER:
        raise UsageError(f"{name} should be a whole number of at most 64 bits, got {show_value(value)}")
    return number


def check_numbers(
    name: str, value: Any, most: int = MOST_NUMBER, *, bools: bool = False, texts: bool = True, wanted: str = "a number"
) -> None:
    """Checks all numbers in ``value``, at any depth of lists, tuples and mappings of up to 1,000 values.

    Raises :class:`UsageError` for NaN and infinity, for numbers beyond ``most`` on either side, and, unless allowed,
    for bools and texts. ``wanted`` says in the message what is meant.
    """
    for each in _iterate_values(value):
        wanted = wanted if each is value else "numbers"
        if isinstance(each, bool) or type(each).__name__ == "bool_":
            if not bools:
                raise UsageError(f"{name} should be {wanted}, got {show_value(value)}")
        elif isinstance(each, str):
            if not texts:
                raise UsageError(f"{name} should be {wanted}, got {show_value(value)}")
        elif isinstance(each, Real) and not _is_within(each, most):
            raise UsageError(f"{name} should be a finite number of at most {most:.3g}, got {show_value(value)}")


def _is_within(number: Any, most: int) -> bool:
    """Tells if a number is from ``-most`` to ``most``, which NaN is not."""
    return bool(number == number and -most <= number <= most)  # some versions of numpy warn of NaN in <=


def refuse_numbers(name: str, value: Any, expected: str) -> None:
    """Raises :class:`UsageError` for a number in ``value``, where none is meant. Looks as deep as
    :func:`check_numbers`. ``expected`` says in the message what is meant."""
    if any(isinstance(each, Real) for each in _iterate_values(value)):
        raise UsageError(f"{name} should be {expected}, got {show_value(value)}")


def _iterate_values(value: Any) -> Iterator[Any]:
    """Yields the values in lists, tuples and mappings, at any depth; else the value itself."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, list | tuple | Mapping):
            yield each
        elif len(each) <= _MOST_VALUES:  # longer ones are lists of indices
            waiting.extend(each.values() if isinstance(each, Mapping) else each)


def show_value(value: Any) -> str:
    """Returns the ``repr`` of an argument for messages, of at most 200 characters. Describes numbers with more digits
    than Python prints."""
    try:
        text = repr(value)
    except ValueError:
        return "a number with thousands of digits"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def check_bools(**values: Any) -> None:
    """Raises :class:`UsageError` unless each value equals True or False. Accepts 1 and 0."""
    for name, value in values.items():
        if value not in (True, False):
            raise UsageError(f"{name} should be True or False, got {show_value(value)}")


def check_texts(**values: Any) -> None:
    """Raises :class:`UsageError` unless each value is a ``str`` or None."""
    for name, value in values.items():
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{name} should be text or None, got {show_value(value)}")


def convert_size(size: int | str | None) -> int | None:
    """Converts the value of an option to bytes: parses a text as :func:`parse_bytes` does, returns others unchanged."""
    return parse_bytes(size) if isinstance(size, str) else size


def parse_bytes(text: str, least_bare: int = 1000) -> int:
    """Parses a number of bytes, such as ``500MB``, ``1.5GiB`` or ``4096``; drops the fraction of a byte.

    Raises :class:`UsageError` for any other text, for more than 30 digits, and for a number below ``least_bare``
    without a unit, except 0: the unit was probably forgotten.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", text.strip().lower(), re.ASCII)
    if match is None or match[2] not in _UNITS:
        raise UsageError(f"{text!r} is not a size; write for example 500MB or 1GiB")
    if len(match[1]) > _MOST_DIGITS:
        raise UsageError(f"{text[:_MOST_DIGITS]!r}… is larger than any disk; write for example 500MB or 1GiB")
    # A small number without a unit is hardly meant in bytes.
    if 0 < float(match[1]) < least_bare and text.strip()[-1].isdigit():
        raise UsageError(f"{text!r} has no unit; write for example {text}MB or {text}GB")
    return int(float(match[1]) * _UNITS[match[2]])

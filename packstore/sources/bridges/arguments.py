"""Parses arguments in the name of a bridge's source: ``torchvision:VOCDetection,year=2007:ROOT``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from packstore.core.errors import UsageError, printable


def parse_arguments(
    what: str, given: Sequence[str], known: Mapping[str, inspect.Parameter], closed: Container[str]
) -> dict[str, Any]:
    """Converts each ``name=value`` to the type of its parameter; returns the values by name. ``a+b`` becomes a list of
    texts. The last value of a repeated name counts.

    Args:
        what: The class in messages, such as ``torchvision's MNIST``.
        given: The arguments.
        known: Parameters of the class, see :func:`list_parameters`.
        closed: Names of parameters that the user must not set.

    Raises:
        UsageError: No parameter has this name, it is closed, or the value is of another type.
    """
    return dict(
        _parse_argument(what, each, {name: one for name, one in known.items() if name not in closed}) for each in given
    )


def _parse_argument(what: str, given: str, known: Mapping[str, inspect.Parameter]) -> tuple[str, Any]:
    """Converts the value of ``name=value`` by the annotated type of the parameter; returns name and value. Raises
    :class:`UsageError` for an unknown name, or a value of another type."""
    name, _, text = given.partition("=")
    if name not in known:
        raise UsageError(f"{what} takes no argument {printable(name)!r} here; it takes {', '.join(known)}")
    kind = str(known[name].annotation)
    if "bool" in kind and text.lower() in ("true", "false"):
        return name, text.lower() == "true"
    if "int" in kind and text.isdecimal():
        return name, int(text)
    if "str" not in kind:
        raise UsageError(f"{what}: {printable(name)} is {printable(text)!r}; expected {kind}")
    return name, text.split("+") if "+" in text else text


def list_parameters(made: type) -> dict[str, inspect.Parameter]:
    """Lists the parameters of a class's ``__init__`` by name. Includes parameters that ``__init__`` passes on to its
    bases as ``**kwargs``. Leaves out ``self`` and parameters that are keyword-only or positional-only."""
    parameters: dict[str, inspect.Parameter] = {}
    for each in made.__mro__:
        make: Callable[..., None] = each.__init__  # type: ignore[misc]
        own = inspect.signature(make).parameters
        named = {name: one for name, one in own.items() if one.kind == one.POSITIONAL_OR_KEYWORD}
        parameters = {name: one for name, one in named.items() if name != "self"} | parameters
        if not any(one.kind == one.VAR_KEYWORD for one in own.values()):
            break
    return parameters

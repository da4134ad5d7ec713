"""Augmentations as text: ``RandomResizedCrop(224), RandomHorizontalFlip()``, of which nothing is executed."""

from __future__ import annotations

import ast
from typing import Any

from packstore.core.errors import UsageError
from packstore.training import augment
from packstore.training.augment import Operation
from packstore.training.augment.per_image import as_operations
from packstore.training.augment.recipes import RECIPES, recipe

OPERATIONS = tuple(
    name
    for name in augment.__all__
    if isinstance(kind := getattr(augment, name), type)
    and issubclass(kind, Operation)
    and name not in ("InPlace", "Operation", "PerImage")
)
"""Operations that can be named; those that take functions cannot."""
MOST_PIXELS = 4096
"""The largest number that an operation is given here: a side of the images that it makes, in pixels."""

_LONGEST = 2000


def parse_augment(text: str) -> list[Operation]:
    """The operations in ``text``, as one writes them in Python, with commas between them; or those of a recipe.

    Raises :class:`UsageError` for anything but calls of :data:`OPERATIONS` with numbers, words and tuples of them."""
    if text.strip() in RECIPES:
        return list(as_operations(text.strip()))
    if len(text) > _LONGEST:
        raise UsageError(f"augmentations should take at most {_LONGEST} letters, got {len(text)}")
    try:
        parsed = ast.parse(f"[{text}]", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _unfit(text) from None
    if not isinstance(parsed, ast.List):
        raise _unfit(text)
    return [_operation(node) for node in parsed.elts]


def parse_options(text: str) -> dict[str, Any]:
    """The same as options of a loader: ``augment``, or ``views`` for a recipe that has several."""
    name = text.strip()
    if name in RECIPES and (views := recipe(name).views) is not None:
        return {"views": views}
    return {"augment": parse_augment(text)}


def named_operations(text: str) -> list[str]:
    """The names of all operations in a text that :func:`parse_augment` takes, within others too."""
    called = (node.func for node in ast.walk(ast.parse(f"[{text}]", mode="eval")) if isinstance(node, ast.Call))
    return sorted({each.id for each in called if isinstance(each, ast.Name)})


def _operation(node: ast.expr) -> Operation:
    text = ast.unparse(node)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in OPERATIONS:
        raise _unfit(text)
    try:
        positional = [_value(each) for each in node.args]
        named = {str(each.arg): _value(each.value) for each in node.keywords if each.arg}
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise _unfit(text) from None
    if len(named) != len(node.keywords) or not all(map(_is_small, [*positional, *named.values()])):
        raise _unfit(text)
    try:
        made: Operation = getattr(augment, node.func.id)(*positional, **named)
    except TypeError as error:
        raise UsageError(f"{text[:200]}: {error}") from None
    return made


def _value(node: ast.expr) -> Any:
    """A number, a word, an operation, or a list of them."""
    if isinstance(node, ast.List | ast.Tuple):
        values = [_value(each) for each in node.elts]
        return tuple(values) if isinstance(node, ast.Tuple) else values
    return _operation(node) if isinstance(node, ast.Call) else ast.literal_eval(node)


def _is_small(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return len(value) <= 8 and all(map(_is_small, value))
    if isinstance(value, (int, float)):
        return abs(value) <= MOST_PIXELS
    return value is None or isinstance(value, str | Operation)


def _unfit(text: str) -> UsageError:
    return UsageError(
        f"augmentations should be calls of packstore.augment's operations with numbers up to {MOST_PIXELS}, "
        f"such as RandomResizedCrop(224), RandomHorizontalFlip(); got {text[:200]!r}"
    )

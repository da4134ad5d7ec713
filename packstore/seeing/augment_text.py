"""Parses augmentations from text such as ``RandomResizedCrop(224), RandomHorizontalFlip()``, without executing it."""

from __future__ import annotations

import ast
from typing import Any

from packstore.core.errors import UsageError
from packstore.training import augment
from packstore.training.augment import Operation
from packstore.training.augment.recipes import RECIPES, recipe
from packstore.training.augment.steps import as_operations

OPERATIONS = tuple(
    name
    for name in augment.__all__
    if isinstance(kind := getattr(augment, name), type)
    and issubclass(kind, Operation)
    and name not in ("Albumentations", "InPlace", "Operation", "PerImage")
)
"""Names of the allowed operations; operations that take functions are not allowed."""
MOST_PIXELS = 4096
"""Largest number in the text, since it may be a side of the resulting images in pixels."""

_LONGEST = 2000
_DEEPEST = 50
"""Most levels of the syntax tree. Deeper ones exceed Python's stack in ``ast.unparse``."""


def parse_augment(text: str) -> list[Operation]:
    """Parses ``text`` to operations: the name of a recipe, or calls as in Python, separated by commas. Executes no code
    of the text.

    A call names one of :data:`OPERATIONS`. Its arguments are numbers up to :data:`MOST_PIXELS`, strings, None and
    further calls. Tuples and lists have up to eight of these.

    Raises :class:`UsageError` for anything else, for more than 2,000 letters, for nested expressions of more than 50
    levels, and for a recipe with several views.
    """
    if text.strip() in RECIPES:
        return list(as_operations(text.strip()))
    return [_make_operation(node) for node in _parse_calls(text)]


def parse_options(text: str) -> dict[str, Any]:
    """Parses ``text`` like :func:`parse_augment` into an option of a loader: ``{"augment": operations}``.

    For a recipe with several views (crops of one record), the option is ``{"views": views}``.
    """
    name = text.strip()
    if name in RECIPES and (views := recipe(name).views) is not None:
        return {"views": views}
    return {"augment": parse_augment(text)}


def list_operation_names(text: str) -> list[str]:
    """Returns the sorted names of all operations in a text, including nested ones. Returns none for the name of a
    recipe.

    :func:`parse_augment` must accept the text; only its syntax is checked here.
    """
    called = (node.func for call in _parse_calls(text) for node in ast.walk(call) if isinstance(node, ast.Call))
    return sorted({each.id for each in called if isinstance(each, ast.Name)})


def _parse_calls(text: str) -> list[ast.expr]:
    """Parses a text to the syntax trees of its expressions."""
    if len(text) > _LONGEST:
        raise UsageError(f"augmentations should take at most {_LONGEST} letters, got {len(text)}")
    try:
        parsed = ast.parse(f"[{text}]", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _unfit_error(text) from None
    if not isinstance(parsed, ast.List):
        raise _unfit_error(text)
    # Without recursion, since the tree may be deeper than the stack.
    level: list[ast.AST] = [*parsed.elts]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level:
        raise UsageError(f"augmentations are nested too deeply, more than {_DEEPEST} levels; got {text[:200]!r}")
    return parsed.elts


def _make_operation(node: ast.expr) -> Operation:
    """Makes an operation from its call in the syntax tree."""
    text = ast.unparse(node)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in OPERATIONS:
        raise _unfit_error(text)
    try:
        positional = [_parse_argument(each) for each in node.args]
        named = {str(each.arg): _parse_argument(each.value) for each in node.keywords if each.arg}
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise _unfit_error(text) from None
    if len(named) != len(node.keywords) or not all(map(_is_small, [*positional, *named.values()])):
        raise _unfit_error(text)
    try:
        made: Operation = getattr(augment, node.func.id)(*positional, **named)
    except TypeError as error:
        raise UsageError(f"{text[:200]}: {error}") from None
    return made


def _parse_argument(node: ast.expr) -> Any:
    """Converts an argument to its value: a literal, an operation, or a list or tuple of these."""
    if isinstance(node, ast.List | ast.Tuple):
        values = [_parse_argument(each) for each in node.elts]
        return tuple(values) if isinstance(node, ast.Tuple) else values
    return _make_operation(node) if isinstance(node, ast.Call) else ast.literal_eval(node)


def _is_small(value: Any) -> bool:
    """Tells if an argument has an accepted type, no number over :data:`MOST_PIXELS`, and no long list."""
    if isinstance(value, (tuple, list)):
        return len(value) <= 8 and all(map(_is_small, value))
    if isinstance(value, (int, float)):
        return abs(value) <= MOST_PIXELS
    return value is None or isinstance(value, str | Operation)


def _unfit_error(text: str) -> UsageError:
    """Makes the error for text that :func:`parse_augment` does not allow."""
    return UsageError(
        f"augmentations should be calls of packstore.augment's operations with numbers up to {MOST_PIXELS}, "
        f"such as RandomResizedCrop(224), RandomHorizontalFlip(); got {text[:200]!r}"
    )

"""Gives one thread its own random generator of torch, in place of the process's."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from packstore.core.errors import UsageError


class ThreadGenerator(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes torch's random operations on the calling thread draw from ``generator``, instead of the process's
    generator.

    ``with ThreadGenerator(generator): fn(image)`` gives the result of ``fn(image)`` after ``torch.manual_seed`` with
    the same seed. Other threads may draw numbers meanwhile. Operations that are called with a generator keep it.

    Raises:
        UsageError: Within the block: a random operation has no version with a generator.
    """

    # Modes of torch's dispatcher are per thread.

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = generator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None:
            func, kwargs = _find_generator_overload(func), kwargs | {"generator": self._generator}
        return func(*args, **kwargs)


def _find_generator_overload(operation: Any) -> Any:
    """Returns the overload of a random torch operation that takes a generator."""
    if any(argument.name == "generator" for argument in operation._schema.arguments):
        return operation
    versions = operation.overloadpacket
    for name in (f"{operation._overloadname}_generator", "generator"):
        if name in versions.overloads():
            return getattr(versions, name)
    raise UsageError(f"{operation} takes no generator, so its numbers would depend on what other threads draw")

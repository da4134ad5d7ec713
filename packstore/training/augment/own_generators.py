"""Finds the random generators that a user's function holds, and seeds them."""

from __future__ import annotations

import functools
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from packstore.training.random_draws import derive_key

_MOST_OBJECTS = 2000  # a pipeline of albumentations with 30 transforms has some 500
_OF_PROCESS = {id(getattr(random, "_inst", None)), id(getattr(np.random.mtrand, "_rand", None))}
"""Python's and numpy's own, which :class:`PerImage` seeds itself; torch's is no object of these classes."""

_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
_OPAQUE = (*_GENERATORS, types.ModuleType, type, torch.Tensor, np.ndarray, str, bytes, int, float, bool, complex)


def find_generators(fn: Callable[..., Any]) -> list[Any]:
    """Lists the random generators that a function reaches, each once, always in the same order.

    Follows closures, defaults, globals named in the code, attributes and containers. A transform of albumentations, for
    example, has two generators in its attributes.
    """
    found: dict[int, Any] = {}
    seen: set[int] = {id(torch.default_generator), *_OF_PROCESS}
    waiting: list[Any] = [fn]
    for part in waiting:  # grows meanwhile
        if id(part) in seen or len(seen) > _MOST_OBJECTS:
            continue
        seen.add(id(part))
        if isinstance(part, _GENERATORS):
            found[id(part)] = part
        elif not isinstance(part, _OPAQUE):
            waiting += _list_parts(part)
    return list(found.values())


def seed_generators(generators: list[Any], seed: int) -> None:
    """Seeds generators, each with its own number."""
    for number, generator in enumerate(generators):
        own = derive_key(seed, number) & 0xFFFFFFFF  # the most that numpy's RandomState takes
        if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = type(generator.bit_generator)(own).state
        elif isinstance(generator, torch.Generator):
            generator.manual_seed(own)
        else:
            generator.seed(own)


def _list_parts(part: Any) -> list[Any]:
    """Lists what an object refers to directly."""
    if isinstance(part, dict):
        return list(part.values())
    if isinstance(part, list | tuple):  # not sets, whose order differs between processes
        return list(part)
    if isinstance(part, functools.partial):
        return [part.func, *part.args, *part.keywords.values()]
    if isinstance(part, types.MethodType):
        return [part.__self__, part.__func__]
    if isinstance(part, types.FunctionType):
        cells = [cell.cell_contents for cell in part.__closure__ or () if cell != types.CellType()]
        names = set(_list_names(part.__code__))
        named = [value for name, value in part.__globals__.items() if name in names]
        return [*cells, *(part.__defaults__ or ()), *(part.__kwdefaults__ or {}).values(), *named]
    methods = (vars(kind).get(name) for kind in type(part).__mro__ for name in ("__call__", "forward"))
    own = [
        each for each in methods if isinstance(each, types.FunctionType) and not each.__module__.startswith("torch.")
    ]
    return [*getattr(part, "__dict__", {}).values(), *own]


def _list_names(code: types.CodeType) -> Iterator[str]:
    """Yields the names of globals and attributes in a function's code, including functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _list_names(constant)

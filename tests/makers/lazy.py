"""Libraries that a test file imports when its first test uses them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest


class Lazy:
    """A module that ``load`` imports when an attribute of it is first read."""

    __test__ = False  # pytest reads it of all that a test file has

    def __init__(self, name: str, load: Callable[[], Any]) -> None:
        self.__name__ = name  # for the names of cases
        self._load = load

    def __getattr__(self, name: str) -> Any:
        return getattr(self._load(), name)


def import_on_use(name: str) -> Any:
    """The module; skips the test file if its library is not installed."""
    if find_spec(name.partition(".")[0]) is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)
    return Lazy(name, lambda: importlib.import_module(name))

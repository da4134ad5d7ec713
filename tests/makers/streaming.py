"""mosaicml-streaming's reading and writing of MDS, without all else that the package imports."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

import pytest

_PACKAGES = (
    "streaming",
    "streaming.base",
    "streaming.base.format",
    "streaming.base.format.base",
    "streaming.base.format.mds",
)


def streaming_module(name: str) -> Any:
    """A module of the package; a test is skipped where it is not installed (the extra ``interop``)."""
    found = PathFinder.find_spec("streaming")
    if found is None or found.origin is None:
        pytest.skip("mosaicml-streaming is not installed")
    folder = found.origin.removesuffix("/__init__.py")
    for package in _PACKAGES:
        if package not in sys.modules:
            module = ModuleType(package)
            module.__path__ = [folder + package.removeprefix("streaming").replace(".", "/")]
            sys.modules[package] = module
    return import_module(name)

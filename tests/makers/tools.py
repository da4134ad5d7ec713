"""Modules of tools/, which is no package."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import ModuleType

from tests.conftest import ROOT


def load_tool(name: str) -> ModuleType:
    stem = name.removesuffix(".py")
    if stem not in sys.modules:
        loader = SourceFileLoader(stem, str(ROOT / "tools" / name))
        spec = spec_from_loader(stem, loader)
        assert spec is not None
        sys.modules[stem] = module_from_spec(spec)  # dataclasses look their module up
        loader.exec_module(sys.modules[stem])
    return sys.modules[stem]

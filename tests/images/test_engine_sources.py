"""The C files of the engine: which of them include which, and that an installation compiles all."""

from __future__ import annotations

import re
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

from tests.conftest import ROOT
from tests.makers.engine_mutations import SOURCE

MAY_INCLUDE = {
    "core": set[str](),
    "simd": {"core"},
    "io": {"core"},
    "shape": {"core", "simd"},
    "ops": {"core", "simd"},
    "jpeg": {"core", "simd", "shape"},
    "": {"core", "simd", "io", "shape", "ops", "jpeg"},
}
"""The folders whose files each folder of the engine may include, besides its own; "" for the files beside them."""


def list_sources() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*") if path.suffix in (".c", ".h", ".def"))


def list_includes(path: Path) -> set[Path]:
    names = re.findall(r'^#\s*include "(.*)"', path.read_text(), re.MULTILINE)
    return {(path.parent / name).resolve() for name in names}


def folder_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else ""


def test_folders_include_only_folders_below_them() -> None:
    for path in list_sources():
        for included in list_includes(path):
            assert folder_of(included) in MAY_INCLUDE[folder_of(path)] | {folder_of(path)}, (path, included)
    TopologicalSorter(MAY_INCLUDE).prepare()


def test_no_file_includes_itself_by_way_of_others() -> None:
    TopologicalSorter({path: list_includes(path) for path in list_sources()}).prepare()


def test_an_installation_knows_all_files() -> None:
    extension = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"][0]
    listed = {ROOT / name for name in (*extension["sources"], *extension["depends"])}
    assert listed >= set(list_sources())

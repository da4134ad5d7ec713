"""Every name of :mod:`tests.internals` exists, and no other test file names a module inside a room."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import internals

TESTS = Path(__file__).parent
ROOMS = tuple(f"packstore.{path.name}" for path in (TESTS.parent / "packstore").iterdir() if path.is_dir())
FACES = (*ROOMS, "packstore.images.engine", "packstore.images.decoders", "packstore.training.augment")
NAMED = re.compile(r"^\s*from (packstore\.[\w.]+) import ", re.MULTILINE)


def is_inside(name: str) -> bool:
    return name.startswith(ROOMS) and name not in FACES and not name.startswith("packstore.testing.")


def inside_modules(file: Path) -> Iterator[str]:
    text = file.read_text("utf-8")
    if any(map(is_inside, NAMED.findall(text))):  # or a program in a text: parsing all files would take seconds
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and is_inside(node.module or ""):
                yield node.module or ""


def test_names_exist() -> None:
    assert not [name for name in internals.HOMES if not hasattr(internals, name)]


@pytest.mark.slow
def test_no_other_file_names_a_module_inside_a_room() -> None:
    assert [*inside_modules(TESTS / "internals.py")]
    files = sorted({*TESTS.rglob("*.py")} - {TESTS / "internals.py"})
    assert not [(file.name, name) for file in files for name in inside_modules(file)]

"""Every name of :mod:`tests.internals` exists, and no other test file names a module inside a room."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests import internals

TESTS = Path(__file__).parent
ROOMS = tuple(f"packstore.{path.name}" for path in (TESTS.parent / "packstore").iterdir() if path.is_dir())


def named_modules(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(ROOMS):
            yield node.module or ""


def test_names_exist() -> None:
    assert not [name for name in internals.HOMES if not hasattr(internals, name)]


def test_no_other_file_names_a_module_inside_a_room() -> None:
    files = {file for file in TESTS.rglob("*.py") if file.name != "internals.py"}
    faces = (*ROOMS, "packstore.images.engine", "packstore.images.decoders", "packstore.training.augment")
    named = [(file.name, name) for file in sorted(files) for name in named_modules(file)]
    assert not [pair for pair in named if pair[1] not in faces and not pair[1].startswith("packstore.testing.")]

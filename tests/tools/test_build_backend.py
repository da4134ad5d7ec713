"""Where no C compiler is, ziglang compiles the engine; stand-ins take the place of both here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from ast import literal_eval
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.conftest import ROOT

NOTE = """
import os, sys
with open(os.environ["COMMANDS"], "a") as log:
    print(*sys.argv[1:], file=log)
open(sys.argv[sys.argv.index("-o") + 1], "w").close()
"""


@pytest.fixture
def call(tmp_path: Path) -> Callable[[str, Mapping[str, str]], str]:
    """Calls a hook in a copy of the repository, and gives what it returns."""
    tree, ziglang = tmp_path / "a tree", tmp_path / "site" / "ziglang"
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "guide", "page")
    shutil.copytree(ROOT / "packstore", tree / "packstore", ignore=ignored)
    (tree / "tools").mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "tools/build_backend.py"):
        shutil.copy(ROOT / name, tree / name)
    ziglang.mkdir(parents=True)
    (ziglang / "__main__.py").write_text(NOTE)

    def run(hook: str, env: Mapping[str, str]) -> str:
        code = f"import sys; sys.path[:0] = ['tools']; import build_backend as b; print('said', b.{hook})"
        paths = {"PYTHONPATH": str(ziglang.parent), "COMMANDS": str(tmp_path / "commands")}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tree, env={**os.environ, **paths, **env}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return next(line.removeprefix("said ") for line in done.stdout.splitlines() if line.startswith("said "))

    return run


def compiler(path: Path, script: str) -> dict[str, str]:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"CC": f"'{path}' -pthread"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_only_who_has_no_compiler_gets_one(call: Callable[..., str], tmp_path: Path, kind: str) -> None:
    hook = f"get_requires_for_build_{kind}()"
    assert call(hook, compiler(tmp_path / "works", ": >probed")) == "[]"
    (wanted,) = literal_eval(call(hook, {"CC": "/nowhere/cc"}))
    assert wanted.startswith("ziglang==")
    assert literal_eval(call(hook, compiler(tmp_path / "has no headers", "exit 1"))) == [wanted]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_it_compiles_for_any_processor_and_not_as_pythons_own_compiler(
    call: Callable[..., str], tmp_path: Path, kind: str
) -> None:
    name = call(f"build_{kind}({str(tmp_path)!r})", {"CC": "/nowhere/cc", "CFLAGS": "-DX=1"})
    with zipfile.ZipFile(tmp_path / name) as wheel:
        made = [each for each in wheel.namelist() if each.endswith(".so")]
    assert len(made) == (kind == "wheel")
    commands = [line.split() for line in (tmp_path / "commands").read_text().splitlines()]
    sources = {path.name for path in (ROOT / "packstore" / "images" / "engine").rglob("*.c")}
    assert {Path(word).name for words in commands for word in words if word.endswith(".c")} == sources
    for words in commands:
        assert words[0] == "cc"
        assert words[1:3] in (["-target", f"{os.uname().machine}-linux-gnu.2.17"], ["-mcpu=baseline", "-shared"])
        assert not any(word.startswith(("-Wl", "-specs", "-flto", "-march", "-g")) for word in words)
        assert "-DX=1" in words
    assert "-shared" in commands[-1]


@pytest.mark.slow
def test_a_compiler_that_works_is_used(call: Callable[..., str], tmp_path: Path) -> None:
    touch = 'while [ "$1" != -o ]; do shift; done; : >"$2"'
    call(f"build_wheel({str(tmp_path)!r})", compiler(tmp_path / "works", touch))
    assert not (tmp_path / "commands").exists()

"""Programs that drive the engine with mutated input, compiled with sanitizers."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_FLAGS = ("-std=gnu11", "-O1", "-g1", "-ffp-contract=off", "-Wno-psabi", *SANITIZERS)


def build_sanitized(name: str, request: pytest.FixtureRequest) -> Path:
    """``tests/makers/NAME.c`` with the engine, which is compiled once for all such programs and processes of a run.

    Without a compiler or its sanitizers the test is skipped, or fails if they are promised.
    """
    factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
    folder = factory.getbasetemp()
    if hasattr(request.config, "workerinput"):  # of pytest-xdist: the folder of all its processes
        folder = folder.parent
    folder /= "sanitized"
    folder.mkdir(exist_ok=True)
    program = folder / name
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        request.getfixturevalue("need")("sanitizers", program.exists() or _build(program, folder))
    return program


def _build(program: Path, folder: Path) -> bool:
    if shutil.which("gcc") is None:
        return False
    if not (engine := folder / "engine.a").exists():
        source = ROOT / "packstore" / "images" / "engine"
        # The headers of vector instructions, parsed once: a third of the time.
        header = ["-x", "c-header", source / "vectors.h", "-o", "vectors.h.gch"]
        if subprocess.run(["gcc", *_FLAGS, *header], cwd=folder, check=False).returncode:
            return False
        sources = ["-include", "vectors.h", *sorted(source.glob("*.c"))]
        if subprocess.run(["gcc", *_FLAGS, "-c", *sources], cwd=folder, check=False).returncode:
            return False
        subprocess.run(["ar", "rcs", engine, *sorted(folder.glob("*.o"))], check=True)
    source = ROOT / "tests" / "makers" / f"{program.name}.c"
    return not subprocess.run(["gcc", *_FLAGS, source, engine, "-o", program], check=False).returncode

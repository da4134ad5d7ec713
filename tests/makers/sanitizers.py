"""Programs that drive the engine with mutated input, compiled with sanitizers."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_ENGINE = ROOT / "packstore" / "images" / "engine"
_FLAGS = ("-std=gnu11", "-O1", "-g1", "-ffp-contract=off", "-Wno-psabi", *SANITIZERS)


def build_sanitized(name: str, request: pytest.FixtureRequest) -> Path:
    """Compiles ``tests/makers/NAME.c`` with the engine, and keeps both until a C file changes.

    Without a compiler or its sanitizers the test is skipped, or fails if they are promised.
    """
    kept = ROOT / "build" / "sanitized"
    folder = kept / _hash_sources()
    kept.mkdir(parents=True, exist_ok=True)
    program = folder / name
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for other in kept.iterdir():
            if other.is_dir() and other != folder:
                shutil.rmtree(other)
        folder.mkdir(exist_ok=True)
        request.getfixturevalue("need")("sanitizers", program.exists() or _build(program, folder))
    return program


def _hash_sources() -> str:
    """Hashes the C files and the flags."""
    hashed = hashlib.sha256(" ".join(_FLAGS).encode())
    for source in sorted([*_ENGINE.rglob("*.[ch]"), *Path(__file__).parent.glob("*.c")]):
        hashed.update(source.read_bytes())
    return hashed.hexdigest()[:16]


def _build(program: Path, folder: Path) -> bool:
    if shutil.which("gcc") is None:
        return False
    if not (engine := folder / "engine.a").exists():
        # The headers of vector instructions, parsed once: a third of the time.
        header = ["-x", "c-header", _ENGINE / "simd" / "vectors.h", "-o", "vectors.h.gch"]
        if subprocess.run(["gcc", *_FLAGS, *header], cwd=folder, check=False).returncode:
            return False
        sources = ["-include", "vectors.h", *sorted(_ENGINE.rglob("*.c"))]
        if subprocess.run(["gcc", *_FLAGS, "-c", *sources], cwd=folder, check=False).returncode:
            return False
        subprocess.run(["ar", "rcs", engine, *sorted(folder.glob("*.o"))], check=True)
    source = ROOT / "tests" / "makers" / f"{program.name}.c"
    return not subprocess.run(["gcc", *_FLAGS, source, engine, "-o", program], check=False).returncode

"""The examples under tools/ run, for a few steps."""

from __future__ import annotations

import io
import os
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import packstore
from tests.makers.datasets import make_cifar10, make_folder

EXAMPLES = Path(__file__).parents[2] / "tools" / "examples"


def run(name: str, *arguments: object) -> str:
    """What it prints. It runs in this process, which has loaded torch."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as out:
        patch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return out.getvalue()


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("encoding", ["uint8", "float16"])
def test_cifar(tmp_path: Path, encoding: str) -> None:
    packstore.convert(make_cifar10(tmp_path), tmp_path / "c.pth", encoding=encoding)
    out = run("train_cifar.py", tmp_path / "c.pth", "--epochs", 2, "--batch-size", 25, "--steps", 2, "--device", "cpu")
    assert [line.split(":")[0] for line in out.splitlines()] == ["epoch 0", "epoch 1"]
    assert "of 20" in out


@pytest.mark.slow
@pytest.mark.long
def test_images_and_resume(tmp_path: Path) -> None:
    packstore.convert(make_folder(tmp_path / "photos"), tmp_path / "a.lmdb")
    options = (tmp_path / "a.lmdb", "--batch-size", 3, "--size", 32, "--device", "cpu")
    checkpoint = ("--checkpoint", tmp_path / "state.pt")
    assert run("train_images.py", *options, "--steps", 3, *checkpoint).startswith("step 3: loss")
    # Four batches are an epoch; three are done.
    assert run("train_images.py", *options, *checkpoint).startswith("epoch 0: 1 steps in this run")
    assert (tmp_path / "state.pt").exists()


@pytest.mark.slow
@pytest.mark.long
def test_recipes_and_views(tmp_path: Path) -> None:
    packstore.convert(make_folder(tmp_path / "photos"), tmp_path / "a.lmdb")
    options = (tmp_path / "a.lmdb", "--batch-size", 2, "--steps", 1, "--device", "cpu")
    assert run("train_images.py", *options, "--recipe", "timm-rsb-a2").startswith("step 1: loss")
    assert run("train_views.py", *options, "--recipe", "dinov2").startswith("step 1: loss")


@pytest.mark.slow
def test_jax(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    packstore.convert(make_cifar10(tmp_path), tmp_path / "c.pth", encoding="uint8")
    out = run("train_jax.py", tmp_path / "c.pth", "--epochs", 2, "--batch-size", 25)
    assert [line.split(":")[0] for line in out.splitlines()] == ["epoch 0", "epoch 1"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_grain(tmp_path: Path, workers: int) -> None:
    pytest.importorskip("grain.python")
    packstore.convert(make_cifar10(tmp_path), tmp_path / "c.pth", encoding="uint8")
    command = [sys.executable, EXAMPLES / "load_grain.py", tmp_path / "c.pth", "--batch-size", "25"]
    done = subprocess.run(
        [*command, "--workers", str(workers)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["(25, 32, 32, 3) uint8 (25,)"] * 4


@pytest.mark.soak
def test_a_cluster_whose_parts_are_killed(tmp_path: Path) -> None:
    """Conversion on Ray to S3, byte by byte, and training that goes on with another number of ranks."""
    command = tmp_path / "packstore"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m packstore "$@"\n')
    command.chmod(0o755)
    places = [str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = os.environ | {"PATH": os.pathsep.join(places), "PYTHONPATH": str(EXAMPLES.parents[1])}
    done = subprocess.run(
        [EXAMPLES / "cluster.sh"], env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for said in ("driver", "bytes: all equal", "undamaged", "rank 2 of 3 ends its epoch"):
        assert said in done.stdout


def test_they_are_short() -> None:
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) < 80, path.name

"""``tools/bench/accuracy.py``: it trains by both loaders, and tells accuracies that differ from those that do not."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from tests.conftest import ROOT


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """An archive of ten classes that differ in colour."""
    rng = np.random.default_rng(0)
    for number in range(10):
        for split, count in (("train", 14), ("test", 3)):
            folder = tmp_path / "images" / split / f"class{number}"
            folder.mkdir(parents=True)
            for image in range(count):
                pixels = rng.integers(0, 56, (32, 32, 3)) + 20 * np.array([number, 9 - number, number % 3])
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{image:04}.jpg")
    with tarfile.open(tmp_path / "images.tar.gz", "w:gz") as tar:
        for split in ("train", "test"):
            tar.add(tmp_path / "images" / split, split)
    return tmp_path / "images.tar.gz"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["tar", "folder"])
def test_it_trains_by_both_loaders(images: Path, form: str) -> None:
    source = images if form == "tar" else images.parent / "images"
    options = ["--seeds", "2", "--train", "140", "--test", "20", "--epochs", "1"]
    command = [sys.executable, str(ROOT / "tools" / "bench" / "accuracy.py"), str(source), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.endswith(("| yes |", "| NO |"))]
    assert [row[0] for row in rows] == ["| crop and flip", "| TrivialAugment and erasing", "| mixup"], done.stderr
    assert done.returncode == any(row[-1] == "NO |" for row in rows)
    assert done.stderr.count(" seed 1: ") == 6


def test_accuracies_agree_within_two_standard_errors(bench: Callable[[str], ModuleType]) -> None:
    comparison = bench("accuracy").Comparison
    theirs = [0.50, 0.52, 0.51, 0.49, 0.53]
    compared = comparison(theirs, [value + 0.019 for value in theirs])
    assert compared.error == pytest.approx(0.01)  # each: deviation 0.0158, divided by the root of 5
    assert compared.difference == pytest.approx(0.019)
    assert compared.agrees
    assert comparison([value + 0.019 for value in theirs], theirs).agrees
    for apart in (0.021, -0.021):
        assert not comparison(theirs, [value + apart for value in theirs]).agrees
    assert comparison([0.5, 0.5], [0.5, 0.5]).agrees

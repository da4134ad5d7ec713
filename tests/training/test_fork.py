"""A fork beside a loader: an iterator of the parent ends with a reason in the child, and a new one works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from packstore import convert

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is not available here")

PROGRAM = """
import os, signal, sys
import torch
from packstore import PackedDataset, PackedLoader, UsageError

resident = sys.argv[2] == "resident"
torch.ones(2000, 2000).sum(), torch.ones(500, 500) @ torch.ones(500, 500)  # OpenMP's threads are there
loader = PackedLoader(PackedDataset(sys.argv[1], "train"), 2, True, normalize="imagenet", resident=resident, workers=2)
begun = iter(loader)
next(begun)
child = os.fork()
if not child:
    signal.alarm(240)  # a hang is a failure, not a wait
    try:
        next(begun)
        print("went on", flush=True)
    except UsageError as error:
        print(error, flush=True)
    del begun
    print(sum(1 for _ in loader), "batches", flush=True)
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(1 + sum(1 for _ in begun), "batches", flush=True)
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", ["streaming", "resident"])
def test_an_iterator_does_not_survive_a_fork(mode: str, demo_folder: Path, tmp_path: Path) -> None:
    convert(demo_folder, tmp_path / "x.h5", encoding="uint8", size=64)
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path / "x.h5"), mode]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    reason, child, parent = done.stdout.splitlines()
    assert "begun before a fork" in reason
    assert child == parent

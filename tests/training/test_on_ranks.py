"""``PackedLoader`` on two ranks, under Lightning's ddp, accelerate, and the ``Trainer`` of Transformers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from packstore import PackedDataset, PackedLoader
from tests.conftest import ROOT, Stores

TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
# Its --cpu starts one process. --multi_gpu starts any number, and Accelerator(cpu=True) keeps them off the GPUs.
ACCELERATE = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0", "-m"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("launcher", "frameworks"),
    [(TORCHRUN, ["lightning", "accelerate", "transformers"]), (ACCELERATE, ["accelerate"])],
    ids=["torchrun", "accelerate"],
)
def test_ranks_share_the_records_and_resume_in_their_order(
    stores: Stores, tmp_path: Path, launcher: list[str], frameworks: list[str]
) -> None:
    """All ranks together see what one rank would, whichever framework runs them, and whatever interrupts them."""
    store = stores("cifar.lmdb")
    done = subprocess.run(
        [sys.executable, "-m", *launcher, "tests.makers.on_ranks", store, tmp_path, *frameworks],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    loader = PackedLoader(PackedDataset(store, "train", columns=("image", "key")), 8, shuffle=True)
    expected = [sorted(keys) for _ in range(2) for _, keys in loader]
    for framework in frameworks:
        first, second = (rank[framework] for rank in ranks)
        whole = [sorted(one + other) for one, other in zip(first["whole"], second["whole"], strict=True)]
        assert whole == expected, framework
        for rank in (first, second):
            for kind, keys in rank.items():
                assert kind == "evaluated" or keys == rank["whole"], (framework, kind)
    assert [rank["transformers"]["evaluated"] for rank in ranks if "transformers" in rank] in ([20, 20], [])

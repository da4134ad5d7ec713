"""Conversions that are killed: a bounded number; ``tools/kill`` runs thousands."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.makers.datasets import make_folder

ROOT = Path(__file__).resolve().parents[2]


def load_killing() -> Any:
    spec = importlib.util.spec_from_file_location("killing", ROOT / "tools" / "killing.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["killing"] = module  # as a dataclass needs it
    spec.loader.exec_module(module)
    return module


killing = load_killing()


@pytest.fixture
def killer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from packstore.packing import conversion
    from packstore.stores.builder import journal as receipts
    from packstore.stores.lmdb import store as lmdb_store

    for module, name in (
        (receipts, "EVERY_SECONDS"),
        (conversion, "PASS_RECORDS"),
        (conversion, "DECODE_RECORDS"),
        (lmdb_store, "_TXN_BYTES"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))  # to be set back
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return killing.Killer(make_folder(tmp_path / "photos"), scratch, seed=int(os.environ.get("PACKSTORE_SEED", "1")))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("case", ["lmdb", "hdf5", "pth", "hdf5 shards", "lmdb shards"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_killed_at_random_moments_nothing_is_lost(killer: Any, case: str, overwrite: bool) -> None:
    for _ in range(3):
        killer.at_random(case, overwrite=overwrite)
    assert killer.tally.losses == []


@pytest.mark.parametrize(("case", "every"), [("lmdb", 10), ("hdf5", 9), ("pth shards", 5)])
def test_killed_at_system_calls_nothing_is_lost(killer: Any, case: str, every: int, need: Any) -> None:
    need("strace", killing.can_trace())
    killer.at_calls(case, every)
    assert killer.tally.kills >= 4
    assert killer.tally.losses == []


def test_a_loss_is_noticed(killer: Any) -> None:
    killer.reference("hdf5")
    out = killer._scratch / "out.h5"
    out.write_bytes(b"something else")
    killer.look("hdf5", out, {})
    killer.finish("hdf5", out, overwrite=False)
    assert [loss.partition(":")[2].split()[0] for loss in killer.tally.losses] == ["after", str(out) + ":", "the"]

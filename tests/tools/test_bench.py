"""Scripts under ``tools/bench`` that make stores by themselves: what they make is a store of today."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

import packstore

BENCH = Path(__file__).resolve().parents[2] / "tools" / "bench"


@pytest.mark.slow
@pytest.mark.parametrize("format", ["lmdb", "hdf5", "pth"])
def test_made_stores(format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    before = set(sys.modules)
    try:
        importlib.import_module("access").make_store(tmp_path / "many", format, 3000)
        importlib.import_module("shards").make_store(tmp_path / "shards", format, 3, 1000)
    finally:
        for name in set(sys.modules) - before:  # their names are short, and may be those of other modules
            if getattr(sys.modules[name], "__file__", None) and Path(str(sys.modules[name].__file__)).parent == BENCH:
                del sys.modules[name]
    assert packstore.verify(tmp_path / "many").ok
    for name in ("many", "shards"):
        dataset = packstore.PackedDataset(tmp_path / name)
        assert (len(dataset), dataset[2999][1]) == (3000, 999)

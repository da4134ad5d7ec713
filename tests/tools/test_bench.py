"""Scripts under ``tools/bench`` that make stores by themselves: what they make is a store of today."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import packstore


def test_a_script_for_qemu_prints_its_help(
    bench: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["instructions.py", "--help"])
    with pytest.raises(SystemExit):
        bench("instructions").parse_arguments()
    assert "JPEG files" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("format", ["lmdb", "hdf5", "pth"])
def test_made_stores(format: str, tmp_path: Path, bench: Callable[[str], ModuleType]) -> None:
    bench("access").make_store(tmp_path / "many", format, 3000)
    bench("shards").make_store(tmp_path / "shards", format, 3, 1000)
    assert packstore.verify(tmp_path / "many").ok
    for name in ("many", "shards"):
        dataset = packstore.PackedDataset(tmp_path / name)
        assert (len(dataset), dataset[2999][1]) == (3000, 999)

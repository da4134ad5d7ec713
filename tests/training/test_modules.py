"""What a batch loads: the modules of an ordinary batch, and none of what stands behind an option."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import packstore
from tests.makers.images import encode, picture

CODE = """
import json, sys
import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomHorizontalFlip, RandomResizedCrop
loader = PackedLoader(PackedDataset({path!r}), 4, augment=[RandomResizedCrop(24), RandomHorizontalFlip()])
next(iter(loader))
modules = {{name: each.__file__ for name, each in sys.modules.items() if name.split(".")[0] == "packstore"}}
print(json.dumps(modules))
"""
BEHIND_OPTIONS = (
    "augment.colour augment.mixing augment.mosaic augment.per_image augment.policies augment.recipes "
    "augment.targets augment.timm_policies augment.unequal augment.warps loader.copy_assembler loader.decoded_columns "
    "loader.ragged_columns loader.record_stage loader.resident loader.sampler_order loader.shards_ahead "
    "loader.unequal_look loader.views mixture"
)


@pytest.mark.slow
def test_an_ordinary_batch_of_jpegs_loads_what_it_uses(tmp_path: Path) -> None:
    for number in range(8):
        path = tmp_path / "photos" / f"class {number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(picture(width=80 + number, height=60), "JPEG"))
    packstore.convert(tmp_path / "photos", tmp_path / "photos.lmdb")
    code = CODE.format(path=str(tmp_path / "photos.lmdb"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules: dict[str, str | None] = json.loads(done.stdout)
    assert not {f"packstore.training.{name}" for name in BEHIND_OPTIONS.split()} & modules.keys()
    lines = sum(Path(file).read_text("utf-8").count("\n") for file in modules.values() if file is not None)
    assert len(modules) <= 110
    assert lines <= 24_000

"""Stores on read-only media, in directories that may not be written, and stores that were moved or copied."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from packstore import PackedDataset, convert, verify
from packstore.stores import open_store
from tests.makers.datasets import make_folder
from tests.makers.hostile import LESS_RIGHTS, in_child, open_folder

NAMES = ("x.lmdb", "x.h5", "x.pth", "sharded.lmdb", "sharded.h5", "sharded.pth")
READ = """
import sys
from packstore import PackedDataset, verify
from packstore.cli.info import store_rows
from packstore.stores import open_store

def read(path):
    assert verify(path, decode=True).ok
    dataset = PackedDataset(path, split="train")
    images = [dataset[i] for i in range(len(dataset))]
    with open_store(path) as reader:
        assert store_rows(reader).text
    return len(images)
"""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stores")
    source = make_folder(root / "source", per_class=1, size=(16, 16))
    for name in NAMES:
        convert(source, root / name, shard_size=2000 if name.startswith("sharded") else None, encoding="uint8")
    shutil.rmtree(source)
    return root


@pytest.mark.slow
def test_nothing_of_a_directory_without_write_permission_is_written(stores: Path) -> None:
    """As an ordinary user, with files and directories all read-only: nothing appears or changes."""
    code = (
        READ
        + LESS_RIGHTS
        + """
from pathlib import Path
own, foreign = map(Path, sys.argv[1:])
for path in sorted(own.iterdir()):
    read(path)  # imports all that there is to import
less_rights()
try:
    (foreign / "probe").touch()
except PermissionError:
    print("refused")
for path in sorted(foreign.iterdir()):
    print(path.name, read(path))
"""
    )
    with open_folder() as place:
        inside = Path(shutil.copytree(stores, place / "stores"))
        before = {p: p.stat().st_mtime_ns for p in inside.rglob("*")}
        for path in (inside, *inside.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        try:
            lines = in_child(code, stores, inside).splitlines()
        finally:
            for path in (inside, *inside.rglob("*")):
                path.chmod(0o755)
        assert lines == ["refused", *(f"{name} 3" for name in sorted(NAMES))]
        assert {p: p.stat().st_mtime_ns for p in inside.rglob("*")} == before


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_moved_copied_and_linked(name: str, stores: Path, tmp_path: Path) -> None:
    path = tmp_path / name
    source = stores / name
    shutil.copytree(source, path) if source.is_dir() else shutil.copy(source, path)
    digest = open_store(path).manifest.digest
    moved = path.rename(tmp_path / "another name, and no suffix")
    assert open_store(moved).manifest.digest == digest
    link = tmp_path / "link"
    link.symlink_to(moved)
    for place in (moved, link):
        assert verify(place).ok
        assert len(PackedDataset(place, split="train")) == 3

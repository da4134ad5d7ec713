"""Stores on read-only media, in directories that may not be written, and stores that were moved or copied."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
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


@pytest.fixture
def read_only_mount(stores: Path, tmp_path: Path) -> Iterator[Path]:
    """The stores on a mount that nobody can write to, not even root."""
    place = tmp_path / "mounted"
    place.mkdir()
    for command in (["mount", "--bind", stores, place], ["mount", "-o", "remount,bind,ro", place]):
        try:
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        except OSError as error:
            pytest.skip(f"no read-only mount here: {error}")
        if done.returncode:
            subprocess.run(["umount", str(place)], capture_output=True, check=False)
            pytest.skip(f"no read-only mount here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.slow
def test_a_read_only_mount(read_only_mount: Path) -> None:
    with pytest.raises(OSError, match="Read-only"):
        (read_only_mount / "probe").touch()
    code = READ + "\nfor path in sys.argv[1:]:\n    print(read(path))\n"
    paths = [read_only_mount / name for name in NAMES]
    assert in_child(code, *paths).split() == ["3"] * len(NAMES)


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


@pytest.mark.parametrize("name", NAMES[:3])
def test_a_store_that_is_moved_or_removed_while_it_is_open(name: str, stores: Path, tmp_path: Path) -> None:
    path = tmp_path / name
    source = stores / name
    shutil.copytree(source, path) if source.is_dir() else shutil.copy(source, path)
    with open_store(path) as reader:
        expected = [bytes(reader.read(i)) for i in range(len(reader))]
        moved = path.rename(tmp_path / "elsewhere")
        assert [bytes(reader.read(i)) for i in range(len(reader))] == expected
        shutil.rmtree(moved) if moved.is_dir() else moved.unlink()
        assert [bytes(reader.read(i)) for i in range(len(reader))] == expected

"""Work directories of runs that were killed as they began or ended, which hold nothing: clean removes them."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import packstore
from packstore.cli import cli
from tests.internals import DestinationError, find_leftovers, work_path
from tests.makers.stores import change

OWNERS = {"none": None, "empty": b"", "zeros": bytes(4096)}
NAMES = ["out.lmdb", "out.zip", "n" * 250, "é" * 120, os.fsdecode(b"caf\xe9.h5"), "a\nb.h5", "..h5", ".packstore"]


def clean(*words: object) -> str:
    done = CliRunner().invoke(cli, ["clean", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done.output


def make_work_directory(destination: Path, owner: bytes | None) -> Path:
    path = work_path(destination)
    path.mkdir()
    if owner is not None:
        (path / "owner").write_bytes(owner)
    return path


@pytest.mark.parametrize("owner", OWNERS.values(), ids=OWNERS)
@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.parametrize("beside", ["nothing", "a file", "a folder"])
@pytest.mark.parametrize("place", ["folder", "name"])
def test_clean_removes_an_empty_work_directory(
    tmp_path: Path, owner: bytes | None, name: str, beside: str, place: str
) -> None:
    out = tmp_path / name
    if beside == "a file":
        out.write_text("mine")
    elif beside == "a folder":
        out.mkdir()
        (out / "mine").write_text("mine")
    path = make_work_directory(out, owner)
    named = tmp_path if place == "folder" else out
    assert "empty" in clean(named, "--dry-run")
    assert path.exists()
    assert "removed" in clean(named, "--yes")
    assert sorted(p.name for p in tmp_path.iterdir()) == ([] if beside == "nothing" else [name])
    assert "no leftovers" in clean(tmp_path, "--yes")


@pytest.mark.parametrize(
    "name",
    [
        ".out.packstore/mine",
        ".out.packstore/owner/",
        ".out.packstore/run-00001/",
        ".packstore/",
        "out.packstore/",
        ".out.packstore.d/",
        f".{'n' * 201}.packstore/",
    ],
)
def test_clean_keeps_what_is_foreign(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("/"):
        path.mkdir(parents=True)
    else:
        path.parent.mkdir()
        path.write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    assert "no leftovers" in clean(tmp_path, "--yes")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_held_work_directory_stays(tmp_path: Path) -> None:
    import fcntl

    path = make_work_directory(tmp_path / "out.h5", b"")
    with (path / "owner").open("rb") as owner:  # a process that has not written its name yet
        fcntl.flock(owner, fcntl.LOCK_EX)
        assert list(find_leftovers(tmp_path)) == []
    assert len(list(find_leftovers(tmp_path))) == 1


Run = Callable[[Path, Path], object]
RUNS: dict[str, Run] = {
    "convert": lambda photos, root: packstore.convert(photos, root / "out.h5", encoding="original"),
    "merge": lambda photos, root: packstore.merge([root / "a.lmdb", root / "b.lmdb"], root / "out.lmdb"),
    "select": lambda photos, root: packstore.select(root / "a.lmdb", root / "out.h5", sample=3),
    "append": lambda photos, root: packstore.append(root / "a.lmdb", photos, split="val"),
    "export folder": lambda photos, root: packstore.export(root / "a.lmdb", root / "out", to="imagefolder"),
    "export zip": lambda photos, root: packstore.export(root / "a.lmdb", root / "out.zip"),
    "repair": lambda photos, root: packstore.repair(root / "damaged.lmdb", photos, root / "out.lmdb"),
    "salvage": lambda photos, root: packstore.salvage(root / "damaged.lmdb", root / "out.lmdb"),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("how", RUNS)
@pytest.mark.parametrize("call", ["unlink", "rmdir"])
def test_a_run_killed_in_its_last_moment_is_cleaned(photos: Path, tmp_path: Path, how: str, call: str) -> None:
    """Killed before its owner file is removed, or between that and the removal of the directory."""
    for name, split in (("a", "train"), ("b", "val")):
        packstore.convert(photos, tmp_path / f"{name}.lmdb", split=split, encoding="original")
    shutil.copytree(tmp_path / "a.lmdb", tmp_path / "damaged.lmdb")
    with packstore.open(tmp_path / "a.lmdb") as reader:
        change(tmp_path / "damaged.lmdb", bytes(reader.read(3)), 100)
    before = {p.name for p in tmp_path.iterdir()}

    real = getattr(os, call)

    def kill_before(path: Any, *more: Any, **options: Any) -> None:
        work = Path(path).parent if call == "unlink" else Path(path)
        if work.parent == tmp_path and work.suffix == ".packstore" and Path(path).name in (work.name, "owner"):
            os.kill(os.getpid(), signal.SIGKILL)
        real(path, *more, **options)

    child = os.fork()
    if not child:
        try:
            setattr(os, call, kill_before)
            RUNS[how](photos, tmp_path)
        finally:
            os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    (leftover,) = find_leftovers(tmp_path)
    assert (leftover.owner is None) == (call == "rmdir")
    assert "removed" in clean(tmp_path, "--yes")
    left = {p.name for p in tmp_path.iterdir()} - before
    assert left == (set() if how == "append" else {leftover.destination.name})
    for name in left:
        with pytest.raises(DestinationError, match="exists already"):
            RUNS[how](photos, tmp_path)
        assert {p.name for p in tmp_path.iterdir()} - before == {name}

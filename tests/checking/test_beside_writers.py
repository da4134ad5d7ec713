"""Stores that another process writes to, or replaces, while they are checked."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import packstore
from packstore.cli import cli
from tests.internals import Progress, Staging, WorkDirectory, growth

SUFFIXES = (".lmdb", ".h5", ".pth")
LATEST = "_sync_directory"
"""Step of an append after which the new manifest is in its place."""


def run(*words: object) -> Any:
    return CliRunner().invoke(cli, [*map(str, words)])


@pytest.fixture(params=SUFFIXES)
def suffix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[3000, None], ids=["shards", "one file"])
def store(photos: Path, tmp_path: Path, suffix: str, request: pytest.FixtureRequest) -> Path:
    """A store of the split ``train``."""
    path = tmp_path / f"o{suffix}"
    packstore.convert(photos, path, split="train", encoding="original", shard_size=request.param)
    return path


sharded = pytest.mark.parametrize("store", [3000], indirect=True, ids=["shards"])


@pytest.mark.slow
@pytest.mark.parametrize("step", ["_sync_files", "_refuse_changed", LATEST])
def test_commands_beside_an_append_find_no_damage(
    photos: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    home = growth._LocalGrowth if step == "_refuse_changed" else growth
    real, seen = getattr(home, step), []

    def look(*arguments: Any) -> None:
        real(*arguments)
        if not seen:
            seen.append(step)
            records = 24 if step == LATEST else 12
            for quick in (False, True):
                report = packstore.verify(store, quick=quick)
                assert (report.problems, report.manifest.records) == ((), records)
                assert report.writer is not None
                assert report.writer.startswith(f"process {os.getpid()} on ")
            shown = run("verify", store)
            assert (shown.exit_code, "is writing to this store now" in shown.output) == (0, True)
            assert json.loads(run("verify", store, "--json").output)["writer"] == report.writer
            repaired = packstore.repair(store, photos, tmp_path / f"fixed{store.suffix}")
            assert (repaired.problem_count, repaired.destination) == (0, None)
            saved = packstore.salvage(store, tmp_path / f"saved{store.suffix}")
            assert (saved.recovered, saved.notes) == (records, ())
            assert "no leftovers" in run("clean", store, "--yes").output
            for words in (("info", store), ("audit", store), ("sheet", store, tmp_path / "sheet.png")):
                assert run(*words).exit_code == 0

    monkeypatch.setattr(home, step, look)
    packstore.append(store, photos, split="val")
    assert seen
    report = packstore.verify(store)
    assert (report.ok, report.writer, report.manifest.records) == (True, None, 24)


Writer = Callable[[Path, Path], object]
WRITERS: dict[str, Writer] = {
    "convert": lambda photos, out: packstore.convert(photos, out, encoding="original", overwrite=True, shard_size=4000),
    "select": lambda photos, out: packstore.select(out.with_name("x.h5"), out, sample=5, overwrite=True),
    "merge": lambda photos, out: packstore.merge([out.with_name("x.h5"), out.with_name("y.h5")], out, overwrite=True),
    "append": lambda photos, out: packstore.append(out, photos, split="val"),
}


def make_others(photos: Path, store: Path) -> None:
    """Stores to select from and to merge."""
    for name, split in (("x.h5", "train"), ("y.h5", "val")):
        packstore.convert(photos, store.with_name(name), split=split, encoding="original")


@pytest.mark.slow
@pytest.mark.parametrize("how", WRITERS)
def test_a_store_that_is_being_replaced_is_whole(
    photos: Path, store: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    make_others(photos, store)
    seen = []

    def look(real: Callable[..., None]) -> Callable[..., None]:
        def step(*arguments: Any) -> None:
            for act in (lambda: None, lambda: real(*arguments)):
                act()
                report = packstore.verify(store)
                assert report.ok
                seen.append(report.writer)

        return step

    monkeypatch.setattr(Staging, "_replace_store", look(Staging._replace_store))
    monkeypatch.setattr(growth, "_sync_directory", look(growth._sync_directory))
    WRITERS[how](photos, store)
    assert seen
    assert all(writer is not None for writer in seen)


@pytest.mark.slow
@pytest.mark.parametrize("how", WRITERS)
@pytest.mark.parametrize("stage", ["structure", "verify"])
def test_a_store_that_is_replaced_while_it_is_checked(photos: Path, store: Path, how: str, stage: str) -> None:
    make_others(photos, store)
    done: list[str] = []

    def progress(report: Progress) -> None:
        if not done and report.stage in (stage, "verify"):
            done.append(stage)
            WRITERS[how](photos, store)

    report = packstore.verify(store, progress=progress)
    assert done
    assert (report.problems, report.writer) == ((), None)


@pytest.mark.slow
@sharded
def test_damage_beside_a_writer_is_still_damage(store: Path) -> None:
    shard = max(store.glob("shard-*"))
    shutil.rmtree(shard) if shard.is_dir() else shard.unlink()
    (store / "notes.txt").write_text("mine")
    work = WorkDirectory(store)
    try:
        report = packstore.verify(store)
    finally:
        work.release()
    assert not report.ok
    assert report.writer is not None
    assert "'notes.txt' does not belong to the store" in [problem.what for problem in report.problems]
    work = WorkDirectory(store)
    work.remove()


def test_a_store_that_is_not_there_yet(tmp_path: Path, suffix: str) -> None:
    work = WorkDirectory(tmp_path / f"o{suffix}")
    try:
        with pytest.raises(
            packstore.StoreError, match=rf"does not exist yet: process {os.getpid()} on .* is writing it"
        ):
            packstore.verify(tmp_path / f"o{suffix}")
    finally:
        work.remove()
    with pytest.raises(packstore.StoreError, match=r"does not exist$"):
        packstore.verify(tmp_path / f"o{suffix}")

"""``append``: the same dataset as one conversion of all; at every moment the old or the new store; shards linked."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import packstore
from packstore.cli import cli
from packstore.stores import open_store
from tests.internals import (
    STORE_MANIFEST_FILE,
    DestinationError,
    Run,
    Shards,
    SourceError,
    StoreError,
    UsageError,
    WorkDirectory,
    append_report_rows,
    find_leftovers,
    growth,
    remote_publish,
    remove_leftover,
    work_path,
)
from tests.makers.datasets import make_folder
from tests.makers.interrupted import CutError, cut_short, take_small_steps
from tests.makers.stores import content

SUFFIXES = (".lmdb", ".h5", ".pth")
ENCODINGS: list[dict[str, Any]] = [
    {"encoding": "original"},
    {"encoding": "uint8", "size": 16},
    {"encoding": "jpeg", "resize": 24, "quality": 80},
    {"encoding": "float16", "size": 16},
    {"encoding": "uint8"},
]
Part = Callable[..., Path]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("photos") / "all", per_class=4)


@pytest.fixture
def part(photos: Path, tmp_path: Path) -> Part:
    """A folder with some of the photos: ``part(name, wanted)``."""

    def make(name: str, wanted: Callable[[str], bool]) -> Path:
        for path in photos.rglob("*.*"):
            key = str(path.relative_to(photos))
            if wanted(key):
                (tmp_path / name / key).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, tmp_path / name / key)
        return tmp_path / name

    return make


def keys(path: Path | str) -> list[str]:
    with open_store(path) as reader:
        return [reader.key(i) for i in range(len(reader))]


def assert_same(path: Path | str, other: Path) -> None:
    """Two stores hold the same, and both are whole; nothing lies beside the first."""
    assert packstore.verify(path).problems == ()
    with open_store(path) as a, open_store(other) as b:
        assert keys(path) == keys(other)
        assert a.manifest.splits == b.manifest.splits
        assert [c.declaration for c in a.manifest.columns] == [c.declaration for c in b.manifest.columns]
        assert [c.nbytes for c in a.manifest.columns] == [c.nbytes for c in b.manifest.columns]
        assert a.manifest.dataset_digest == b.manifest.dataset_digest
        assert [bytes(a.read(i)) for i in range(len(a))] == [bytes(b.read(i)) for i in range(len(b))]
        assert a.fixed_column("label").tolist() == b.fixed_column("label").tolist()
    assert not work_path(Path(path)).exists()


@pytest.mark.sampled(1, per="suffix", fast=0)
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("options", ENCODINGS, ids=lambda o: " ".join(map(str, o.values())))
@pytest.mark.parametrize("shard_size", [None, 4000])
def test_the_same_as_all_at_once(
    photos: Path, part: Part, tmp_path: Path, suffix: str, options: dict[str, Any], shard_size: int | None
) -> None:
    """Also with a class that is new: its name comes last by chance of the alphabet, as it does by appending."""
    store, whole = tmp_path / f"x{suffix}", tmp_path / f"whole{suffix}"
    packstore.convert(part("first", lambda key: "/cat/" not in key), store, shard_size=shard_size, **options)
    report = packstore.append(store, part("second", lambda key: "/cat/" in key))
    packstore.convert(photos, whole, **options)
    assert_same(store, whole)
    assert report.added == {"train": 4, "val": 4}
    assert (report.rewritten, report.linked, report.skipped) == (0 if shard_size else 16, 0, ())
    assert report.manifest.classes == ("ant", "bee", "cat")
    packstore.convert(store, tmp_path / f"again{suffix}", encoding=options["encoding"])  # it is a source, too
    assert packstore.open(tmp_path / f"again{suffix}").manifest.dataset_digest == report.manifest.dataset_digest


@pytest.mark.slow
@pytest.mark.sampled(fast=1)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_store_of_one_file_becomes_the_first_shard(part: Part, tmp_path: Path, suffix: str) -> None:
    store = tmp_path / f"x{suffix}"
    packstore.convert(part("first", lambda key: key.startswith("train/")), store, encoding="original")
    data = store / "data.mdb" if suffix == ".lmdb" else store
    before = data.stat().st_ino
    packstore.append(store, part("second", lambda key: key.startswith("val/")))
    first = store / f"shard-00000{suffix}"
    assert (first / "data.mdb" if suffix == ".lmdb" else first).stat().st_ino == before
    assert [split.name for split in packstore.open(store).manifest.splits] == ["train", "val"]
    assert packstore.verify(store).ok


@pytest.mark.slow
def test_several_times(photos: Path, part: Part, tmp_path: Path) -> None:
    store = tmp_path / "x.lmdb"
    packstore.convert(part("a", lambda key: "/ant/" in key), store, shard_size=3000)
    for name in ("bee", "cat"):
        packstore.append(store, part(name, lambda key, name=name: f"/{name}/" in key))  # type: ignore[misc]
    packstore.convert(photos, tmp_path / "whole.lmdb")
    assert_same(store, tmp_path / "whole.lmdb")
    manifest = packstore.open(store).manifest
    assert manifest.shards is not None
    numbers = manifest.shards.table["number"].tolist()
    assert numbers != sorted(numbers)
    saved = packstore.salvage(store, tmp_path / "saved.lmdb")
    assert saved.complete
    assert keys(tmp_path / "saved.lmdb") == keys(store)
    next(store.glob("table-*")).unlink()
    (store / "manifest.json").unlink()
    assert packstore.salvage(store, tmp_path / "again.lmdb").recovered == 24
    assert keys(tmp_path / "again.lmdb") == keys(tmp_path / "whole.lmdb")


@pytest.mark.slow
def test_who_reads_meanwhile_reads_the_old_store(part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.internals import sharded

    monkeypatch.setattr(sharded, "_MOST_OPEN", 2)
    monkeypatch.setattr(sharded, "_FEWEST_OPEN", 2)
    store = tmp_path / "x.h5"
    packstore.convert(part("a", lambda key: "/ant/" in key), store, shard_size=1)
    with open_store(store) as old:
        images = [bytes(old.read(i)) for i in range(len(old))]
        packstore.append(store, part("b", lambda key: "/bee/" in key))
        with open_store(store) as new:
            assert (len(old), len(new)) == (8, 16)
        assert [bytes(old.read(i)) for i in range(len(old))] == images


# Splits


@pytest.mark.parametrize(
    ("own", "given", "split", "message"),
    [
        (True, False, None, r"has no splits, and .*: say with --split which .*\(train, or a new one\)"),
        (False, True, None, "has the splits train, val, and .* has none: take one of them with --split"),
        (False, False, "train", "neither .* nor .* has splits"),
        (True, True, "tests", "has no split 'tests'"),
    ],
)
def test_splits_that_do_not_go_together(
    part: Part, tmp_path: Path, own: bool, given: bool, split: str | None, message: str
) -> None:
    first, second = (part(name, lambda key: "/ant/" in key) for name in ("first", "second"))
    packstore.convert(first if own else first / "train", tmp_path / "x.h5", split="train" if own else None)
    before = content(tmp_path / "x.h5")
    with pytest.raises(UsageError, match=message):
        packstore.append(tmp_path / "x.h5", second if given else second / "val", split=split)
    assert content(tmp_path / "x.h5") == before
    assert not work_path(tmp_path / "x.h5").exists()


@pytest.mark.slow
@pytest.mark.sampled(fast=2)
@pytest.mark.parametrize(
    ("own", "given", "split", "added", "splits"),
    [
        (True, False, "train", {"train": 4}, ["train", "val"]),
        (True, False, "more", {"more": 4}, ["train", "val", "more"]),
        (True, True, "val", {"val": 4}, ["train", "val"]),
        (False, True, "val", {"": 4}, []),
        (False, False, None, {"": 4}, []),
    ],
)
def test_splits_that_go_together(
    part: Part, tmp_path: Path, own: bool, given: bool, split: str | None, added: dict[str, int], splits: list[str]
) -> None:
    first, second = part("first", lambda key: "/ant/" in key), part("second", lambda key: "/bee/" in key)
    packstore.convert(first if own else first / "train", tmp_path / "x.h5")
    report = packstore.append(tmp_path / "x.h5", second if given else second / "val", split=split)
    assert report.added == added
    assert [each.name for each in report.manifest.splits] == splits
    assert packstore.verify(tmp_path / "x.h5").ok


# Keys that are there, and what does not fit


@pytest.mark.slow
def test_columns_that_do_not_fit(photos: Path, tmp_path: Path) -> None:
    store = tmp_path / "x.h5"
    packstore.convert(photos, store, encoding="uint8", size=16)
    before = content(store)
    flat = tmp_path / "flat"
    flat.mkdir()
    shutil.copy2(photos / "train/ant/000.jpg", flat / "new.jpg")
    with pytest.raises(StoreError, match="has a column 'label', the source has none"):
        packstore.append(store, flat, split="train")
    (tmp_path / "labels.csv").write_text("file,label\nnew.jpg,7\n")
    packstore.convert(photos / "train", tmp_path / "other.h5", encoding="uint8", size=24)
    with pytest.raises(StoreError, match=r"column 'image' of .* holds .* 16 x 16 x 3 .* of the source .* 24 x 24 x 3"):
        packstore.append(store, tmp_path / "other.h5", split="more")
    with pytest.raises(UsageError, match="cannot be appended to itself"):
        packstore.append(store, store)
    assert content(store) == before


@pytest.mark.slow
def test_a_file_in_the_way_stays(part: Part, tmp_path: Path) -> None:
    store = tmp_path / "x.h5"
    packstore.convert(part("first", lambda key: "/ant/" in key), store, shard_size=10**6)
    (store / "shard-00002.h5").write_bytes(b"mine")
    with pytest.raises(DestinationError, match=r"shard-00002\.h5 does not belong to the store; move it away first"):
        packstore.append(store, part("second", lambda key: "/bee/" in key))
    assert (store / "shard-00002.h5").read_bytes() == b"mine"
    assert len(keys(store)) == 8


@pytest.mark.slow
def test_somebodys_file_in_a_store_of_one_file_stays(part: Part, tmp_path: Path) -> None:
    store = tmp_path / "x.lmdb"
    packstore.convert(part("first", lambda key: "/ant/" in key), store)
    (store / "notes.txt").write_text("mine")
    before = content(store)
    with pytest.raises(DestinationError, match=r"also holds 'notes\.txt'"):
        packstore.append(store, part("second", lambda key: "/bee/" in key))
    assert content(store) == before
    assert not work_path(store).exists()


@pytest.mark.slow
def test_a_link_to_a_store_is_refused(photos: Path, tmp_path: Path) -> None:
    packstore.convert(photos, tmp_path / "x.h5", split="train")
    (tmp_path / "link.h5").symlink_to("x.h5")
    with pytest.raises(DestinationError, match="is a symbolic link; name the path that it points to"):
        packstore.append(tmp_path / "link.h5", photos, split="val")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.h5", "x.h5"]


# Shards as they are


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("duplicates", ["raise", "unchecked"])
def test_shards_of_a_store_are_linked(
    photos: Path, part: Part, tmp_path: Path, suffix: str, duplicates: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = tmp_path / f"x{suffix}", tmp_path / f"y{suffix}"
    options: dict[str, Any] = {"encoding": "original", "shard_size": 3000}
    packstore.convert(part("first", lambda key: "/cat/" not in key), store, **options)
    classes = part("second", lambda key: "/cat/" in key)
    for split in ("train", "val"):  # so that both know all classes, in the same order
        for name in ("ant", "bee"):
            (classes / split / name).mkdir()
            shutil.copy2(photos / split / name / "000.jpg", classes / split / name / "zzz.jpg")
    packstore.convert(classes, other, **options)
    inodes = {path.stat().st_ino for path in other.rglob("shard-*") if path.is_file()}
    if suffix == ".lmdb":
        inodes = {path.stat().st_ino for path in other.rglob("data.mdb")}
    if duplicates == "unchecked":
        monkeypatch.setattr(Shards, "open", lambda *_: pytest.fail("a shard is opened"))
    report = packstore.append(store, other, on_duplicate=duplicates)
    monkeypatch.undo()
    manifest = packstore.open(other).manifest
    assert report.linked == len(manifest.shards or ()) > 2
    assert report.added == {"train": 6, "val": 6}
    assert inodes <= {path.stat().st_ino for path in store.rglob("*")}
    assert packstore.verify(store).ok
    shutil.rmtree(other)
    assert packstore.verify(store).ok


@pytest.mark.slow
def test_neighbouring_shards_of_several_splits(tmp_path: Path) -> None:
    """Each is rewritten by itself, even if the next begins with the split with which it ends."""
    for number, splits in enumerate([("train", "val"), ("val", "test"), ("train",)]):
        for path in make_folder(tmp_path / str(number), splits, per_class=1).rglob("*.jpg"):
            path.rename(path.with_stem(str(number)))
        packstore.convert(tmp_path / str(number), tmp_path / f"{number}.lmdb")
    store = tmp_path / "0.lmdb"
    assert packstore.append(store, tmp_path / "1.lmdb").linked == 1
    report = packstore.append(store, tmp_path / "2.lmdb")
    assert (report.linked, report.rewritten) == (1, 12)
    assert report.manifest.shards is not None
    assert report.manifest.shards.table["records"].tolist() == [3] * 5
    assert [key[:8] for key in keys(store)[::3]] == ["train/an", "train/an", "val/ant/", "val/ant/", "test/ant"]
    assert packstore.verify(store).problems == ()


def test_no_space_for_copies_is_said_before_they_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, split in (("x.h5", "train"), ("y.lmdb", "val")):
        packstore.convert(make_folder(tmp_path / split, (split,), per_class=1), tmp_path / name)
    before = content(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**6, 10**6 - 1000, 1000))
    with pytest.raises(DestinationError, match=r"x\.h5: .* free there"):
        packstore.append(tmp_path / "x.h5", tmp_path / "y.lmdb")
    assert content(tmp_path) == before


@pytest.mark.slow
def test_without_links_shards_are_copied(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packstore.convert(photos, tmp_path / "x.h5", split="train")
    packstore.convert(photos, tmp_path / "y.h5", split="val", shard_size=3000)

    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    packstore.append(tmp_path / "x.h5", tmp_path / "y.h5")
    monkeypatch.undo()
    packstore.convert(photos, tmp_path / "whole.h5")
    assert_same(tmp_path / "x.h5", tmp_path / "whole.h5")


# Interrupted


@pytest.mark.slow
@pytest.mark.sampled(fast=1)
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("remote", [False, True])
def test_an_interrupted_run_goes_on(
    photos: Path, part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sharded: bool, remote: bool
) -> None:
    take_small_steps(monkeypatch, 2)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # an append to a URL packs there
    path, second = tmp_path / "x.h5", part("second", lambda key: "/cat/" in key)
    store = path.as_uri() if remote else str(path)
    packstore.convert(part("first", lambda key: "/cat/" not in key), store, shard_size=3000 if sharded else None)
    before = content(path)
    error = cut_short(packstore.append, store, second, after=4)
    (note,) = error.__notes__
    assert "the same command goes on from there" in note
    assert note.endswith(f"packstore clean {store} removes it")
    assert content(path) == before
    with pytest.raises(UsageError):  # a slip does not lose the work
        packstore.append(store, second, split="none")
    resumed: list[int] = []
    pack = Run.pack

    def noted(self: Run, *arguments: Any) -> None:
        pack(self, *arguments)
        resumed.append(self.resumed)

    monkeypatch.setattr(Run, "pack", noted)
    packstore.append(store, second)
    assert resumed[0] >= 4
    packstore.convert(photos, tmp_path / "whole.h5")
    assert_same(store, tmp_path / "whole.h5")
    assert list(tmp_path.glob("packstore-*/*")) == []


@pytest.mark.slow
@pytest.mark.parametrize("remote", [False, True])
def test_what_is_packed_is_packed_once_if_publishing_fails(
    photos: Path, part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    take_small_steps(monkeypatch, 2)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # an append to a URL packs there
    path, second = tmp_path / "x.h5", part("second", lambda key: "/cat/" in key)
    store = path.as_uri() if remote else str(path)
    packstore.convert(part("first", lambda key: "/cat/" not in key), store, shard_size=3000)
    packstore.convert(photos, tmp_path / "whole.h5")
    before = content(path)

    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(*(remote_publish, "upload_and_publish") if remote else (growth, "_sync_files"), fail)
        with pytest.raises((DestinationError, OSError)):
            packstore.append(store, second)
    assert content(path) == before
    monkeypatch.setattr(Run, "pack", fail)
    packstore.append(store, second)
    assert_same(store, tmp_path / "whole.h5")
    assert list(tmp_path.glob("packstore-*/*")) == []


@pytest.mark.slow
@pytest.mark.sampled(1, per="step")
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize(
    "step", ["write_manifest_and_table", "link_shards", "_sync_files", "_refuse_changed", "_sync_directory"]
)
def test_an_error_while_publishing(
    photos: Path, part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sharded: bool, step: str
) -> None:
    """At each step; kills are in ``test_stateful.py``."""
    store, second = tmp_path / "x.h5", part("second", lambda key: "/cat/" in key)
    packstore.convert(part("first", lambda key: "/cat/" not in key), store, shard_size=3000 if sharded else None)
    before = content(store)
    home = growth._LocalGrowth if step == "_refuse_changed" else growth
    real = getattr(home, step)

    def fail(*arguments: Any) -> None:
        real(*arguments)
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(home, step, fail)
        with pytest.raises(DestinationError):
            packstore.append(store, second)
    assert not work_path(store).exists()
    assert content(store) == before
    packstore.append(store, second)
    packstore.convert(photos, tmp_path / "whole.h5")
    assert_same(store, tmp_path / "whole.h5")


@pytest.mark.slow
def test_clean_takes_away_what_a_kill_left_in_the_store(
    part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, second = tmp_path / "x.lmdb", part("second", lambda key: "/cat/" in key)
    packstore.convert(part("first", lambda key: "/cat/" not in key), store, shard_size=3000)
    before = content(store)

    def killed(*_: object) -> None:
        raise CutError

    with monkeypatch.context() as patch:
        patch.setattr(growth, "_sync_files", killed)
        patch.setattr(WorkDirectory, "undo_interrupted_publish", lambda self: False)
        patch.setattr(WorkDirectory, "remove", WorkDirectory.release)
        with pytest.raises(CutError):
            packstore.append(store, second)
    assert len(content(store)) > len(before)
    (found,) = find_leftovers(tmp_path)
    added = sorted({name.split("/")[0] for name in content(store).keys() - before.keys()})
    assert sorted(found.in_store) == added
    (advice,) = (problem.what for problem in packstore.verify(store, quick=True).problems)
    assert re.match(f"an interrupted append left {len(added)} files in the store .*packstore clean", advice)
    shown = CliRunner().invoke(cli, ["clean", str(tmp_path), "--dry-run"]).output
    assert f"and {len(added)} unneeded files in that store: " in shown
    assert all(name in shown for name in added[:2])
    assert CliRunner().invoke(cli, ["clean", str(tmp_path), "--yes"]).exit_code == 0
    assert content(store) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["first", "second", "x.lmdb"]


@pytest.mark.slow
@pytest.mark.parametrize("remote", [False, True])
def test_a_run_that_was_killed_while_cleaning_up_is_not_repeated(
    part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # an append to a URL packs there
    path, second = tmp_path / "x.h5", part("second", lambda key: "/cat/" in key)
    store = path.as_uri() if remote else str(path)
    packstore.convert(part("first", lambda key: "/cat/" not in key), store, shard_size=3000)

    remove = WorkDirectory.remove

    def killed(directory: WorkDirectory) -> None:
        if directory.path.name == ".added.packstore":
            remove(directory)
            return
        shutil.rmtree(directory.path / "added", ignore_errors=True)
        directory.release()
        raise CutError

    before = keys(store)
    with monkeypatch.context() as patch:
        patch.setattr(WorkDirectory, "remove", killed)
        with pytest.raises(CutError):
            packstore.append(store, second, on_duplicate="unchecked")
    whole = keys(store)
    assert len(whole) > len(before)
    packstore.append(store, second, on_duplicate="unchecked")
    assert keys(store) == whole
    assert list(tmp_path.glob("packstore-*/*")) == list(tmp_path.glob(".*.packstore")) == []


@pytest.mark.slow
def test_packed_records_that_were_damaged_are_packed_again(
    photos: Path, part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_small_steps(monkeypatch, 2)
    store, second = tmp_path / "x.lmdb", part("second", lambda key: "/cat/" in key)
    packstore.convert(part("first", lambda key: "/cat/" not in key), store, shard_size=3000)

    def fail(*_: object) -> None:
        raise CutError

    with monkeypatch.context() as patch:
        patch.setattr(growth, "_sync_files", fail)
        with pytest.raises(CutError):
            packstore.append(store, second)
    (data, *_) = sorted((work_path(store) / "added").glob("shard-*/data.mdb"))
    data.write_bytes(data.read_bytes()[:-1])
    packstore.append(store, second)
    packstore.convert(photos, tmp_path / "whole.h5")
    assert_same(store, tmp_path / "whole.h5")


@pytest.mark.slow
def test_other_runs_leave_alone_what_a_killed_append_has_published(
    photos: Path, part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, second = tmp_path / "x.h5", part("second", lambda key: "/cat/" in key)
    packstore.convert(part("first", lambda key: "/cat/" not in key), store, shard_size=3000)
    with monkeypatch.context() as patch:
        patch.setattr(WorkDirectory, "remove", WorkDirectory.release)
        packstore.append(store, second)
    whole = content(store)
    with pytest.raises(DestinationError, match="exists already"):
        packstore.convert(photos, store)
    assert content(store) == whole
    manifest = store / STORE_MANIFEST_FILE
    damaged = manifest.read_bytes()[:-9]
    manifest.write_bytes(damaged)
    (found,) = find_leftovers(tmp_path)
    remove_leftover(found)  # cannot tell which files the store needs, so it keeps all
    assert content(store) == whole | {STORE_MANIFEST_FILE: damaged}


@pytest.mark.slow
def test_bad_files(photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bad"
    shutil.copytree(photos, folder)
    packstore.convert(folder, tmp_path / "x.h5", split="train")
    bad = sorted(p for p in (folder / "val").rglob("*.*"))[0]
    bad.write_bytes(b"")
    with pytest.raises(packstore.SampleError):
        packstore.append(tmp_path / "x.h5", folder, split="val")
    assert len(keys(tmp_path / "x.h5")) == 12
    report = packstore.append(tmp_path / "x.h5", folder, split="val", on_error="skip")
    assert [s.key for s in report.skipped] == [str(bad.relative_to(folder))]
    assert report.manifest.skipped == report.skipped
    assert len(keys(tmp_path / "x.h5")) == 23
    packstore.convert(folder, tmp_path / "other.h5", split="val", on_error="skip")
    packstore.convert(folder, tmp_path / "pixels.h5", split="train", encoding="uint8")
    report = packstore.append(tmp_path / "pixels.h5", tmp_path / "other.h5")  # decodes the records of the store
    with open_store(tmp_path / "other.h5") as reader:
        assert report.manifest.skipped == reader.manifest.skipped


@pytest.mark.parametrize("value", ["overwrite", None, True])
def test_unknown_policies(photos: Path, tmp_path: Path, value: Any) -> None:
    with pytest.raises(UsageError, match="on_duplicate should be 'raise', 'skip' or 'unchecked'"):
        packstore.append(tmp_path / "x.h5", photos, on_duplicate=value)


def test_nothing_is_made_where_there_is_no_store(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        packstore.append(tmp_path / "x.h5", photos)
    assert [*tmp_path.iterdir()] == []


def other_photos(photos: Path, part: Part, differ: int) -> Path:
    """A folder with the keys of ``photos``, of which some have other images."""
    given = part("again", lambda _: True)
    images = sorted(given.glob("train/ant/*"))
    for path, other in pairwise(images[: differ + 1]):
        path.write_bytes((photos / "train/ant" / other.name).read_bytes())
    return given


@pytest.mark.slow
@pytest.mark.sampled(2, per="options")
@pytest.mark.parametrize("options", ENCODINGS[:3])
@pytest.mark.parametrize("differ", [0, 2])
def test_known_keys_with_the_same_and_with_other_content(
    photos: Path, part: Part, tmp_path: Path, options: dict[str, Any], differ: int
) -> None:
    store, given = tmp_path / "x.h5", other_photos(photos, part, differ)
    packstore.convert(photos, store, **options)
    with pytest.raises(SourceError, match="24 of the keys") as caught:
        packstore.append(store, given)
    said = str(caught.value)
    assert "--key-prefix" in said
    assert ("--on-duplicate skip" in said) == (not differ)
    assert ("22 with the same content and 2 with other content" if differ else "all with the same content") in said


def test_a_known_key_with_another_label_is_not_the_same(photos: Path, tmp_path: Path) -> None:
    image = next((photos / "train/ant").iterdir())
    for label in ("ant", "bee"):
        (tmp_path / label).mkdir()
        shutil.copy2(image, tmp_path / label / "a.jpg")
        (tmp_path / f"{label}.csv").write_text(f"file,label\na.jpg,{label}\n")
    packstore.convert(tmp_path / "ant", tmp_path / "x.h5", labels=tmp_path / "ant.csv")
    with pytest.raises(SourceError, match="0 with the same content and 1 with other"):
        packstore.append(tmp_path / "x.h5", tmp_path / "bee", labels=tmp_path / "bee.csv")


@pytest.mark.slow
@pytest.mark.parametrize("source", ["folder", "store"])
def test_a_prefix_of_keys(photos: Path, part: Part, tmp_path: Path, source: str) -> None:
    store, other, given = tmp_path / "x.h5", tmp_path / "y.h5", other_photos(photos, part, 2)
    packstore.convert(photos, store)
    packstore.convert(given, other)
    given, before = other if source == "store" else given, keys(store)
    report = packstore.append(store, given, key_prefix="week-2/")
    assert report.added == {"train": 12, "val": 12}
    assert sorted(keys(store)) == sorted([*before, *(f"week-2/{key}" for key in before)])
    assert packstore.verify(store).ok
    with open_store(store) as reader:
        images = {reader.key(i): bytes(reader.read(i)) for i in range(len(reader))}
    with open_store(other) as reader:
        for i in range(len(reader)):
            assert images[f"week-2/{reader.key(i)}"] == bytes(reader.read(i))
    with pytest.raises(SourceError, match="24 of the keys"):
        packstore.append(store, given, key_prefix="week-2/")


@pytest.mark.slow
def test_new_classes_are_said_or_refused(photos: Path, part: Part, tmp_path: Path) -> None:
    store = tmp_path / "x.h5"
    packstore.convert(part("first", lambda key: "/cat/" not in key), store)
    second = part("second", lambda key: "/cat/" in key)
    before = content(store)
    with pytest.raises(StoreError, match=r"has 1 class of 'label' that .* lacks \(cat\); .*--no-new-classes"):
        packstore.append(store, second, no_new_classes=True)
    assert content(store) == before
    report = packstore.append(store, second)
    assert report.new_classes == {"label": ("cat",)}
    assert "new classes label: 1 (cat)" in append_report_rows(report).text
    again = packstore.append(store, photos, on_duplicate="skip", no_new_classes=True)
    assert again.new_classes == {}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_double_keys_are_found(photos: Path, part: Part, tmp_path: Path, suffix: str) -> None:
    store = tmp_path / f"x{suffix}"
    packstore.convert(photos, store, encoding="uint8", size=16)
    packstore.append(store, part("again", lambda key: key.endswith("/000.jpg")), on_duplicate="unchecked")
    added = [key for key in keys(store) if keys(store).count(key) == 2]
    assert len(added) == 12
    for quick in (False, True):
        report = packstore.verify(store, quick=quick)
        assert (report.problem_count, report.double_keys) == (6, 6)
        assert {problem.key for problem in report.problems} == {*added}
    done = CliRunner().invoke(cli, ["verify", str(store)])
    assert (done.exit_code, ": undamaged" in done.output) == (1, False)
    assert "--drop-kinds double_key" in done.output
    found = CliRunner().invoke(cli, ["audit", str(store), "--json", str(tmp_path / "audit.json")])
    assert "6" in found.output
    packstore.select(store, tmp_path / f"y{suffix}", drop=tmp_path / "audit.json", drop_kinds=["double_key"])
    assert keys(tmp_path / f"y{suffix}") == list(dict.fromkeys(keys(store)))
    assert packstore.verify(tmp_path / f"y{suffix}").ok

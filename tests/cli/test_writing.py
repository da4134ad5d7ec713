"""Commands that write stores and exports: what they say, as JSON too, and what is left when they are stopped."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import packstore
from tests.makers.command import run
from tests.makers.datasets import make_folder


@pytest.fixture(scope="module")
def store(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("export") / "in.lmdb"
    packstore.convert(photos, store)
    return store


@pytest.mark.slow
def test_there_and_back(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.zip"
    done = run("export", store, out, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert "(zip: an image folder in a zip)" in done.stdout
    assert "not in it    " in done.stdout
    assert done.stdout.endswith("nothing was written (--dry-run)\n")
    assert not out.exists()
    done = run("export", store, out)
    assert done.returncode == 0
    assert done.stderr.startswith("other readers of zip do not get: ")
    assert f"prove it with: packstore verify {store} --against {out}" in done.stdout
    assert run("verify", store, "--against", out).returncode == 0
    assert "packstore.json" in run("info", out).stdout
    done = run("export", store, out, "-q")
    assert (done.returncode, done.stdout) == (1, "")
    assert "--overwrite" in done.stderr
    done = run("export", store, out, "--overwrite", "-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("out",), "the name has no suffix of an export; choose the kind with --to: imagefolder, tar"),
        (("out", "--to", "betamax"), "unknown kind of export 'betamax'"),
        (("out.zip", "--shard-size", "1MB"), "shard_size is for exports of several shards, and zip is one file"),
        (("out", "--to", "webdataset", "--shard-size", "5"), "has no unit"),
        (("out.zip", "--quality", "80"), "for encode='jpeg'"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_2(store: Path, arguments: tuple[str, ...], message: str) -> None:
    destination, *options = arguments
    done = run("export", store, store.parent / destination, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert not (store.parent / "out").exists()


@pytest.mark.slow
def test_no_export_lies_in_its_store(store: Path) -> None:
    done = run("export", store, store / "out.zip")
    assert (done.returncode, done.stdout) == (1, "")
    assert "one lies in the other; choose another destination" in done.stderr


@pytest.mark.slow
def test_a_source_is_packed_first(photos: Path, tmp_path: Path) -> None:
    done = run("export", photos, tmp_path / "out.zip")
    assert done.returncode == 2
    assert "pack it first: packstore convert" in done.stderr
    done = run("export", tmp_path / "none.lmdb", tmp_path / "out.zip")
    assert (done.returncode, "no such file" in done.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_is_gone_on_with(
    store: Path, tmp_path: Path, number: signal.Signals, rng: random.Random
) -> None:
    out = tmp_path / "out"
    command = ["export", store, out, "--to", "webdataset", "--shard-size", "1kB"]
    done = run(*command, stop=(number, "export", rng.randrange(4, 25)))
    assert done.returncode == (-number if number == signal.SIGKILL else 128 + number), done.stderr
    assert not out.exists()
    assert number == signal.SIGKILL or "the same command goes on" in done.stderr
    assert ".out.packstore: " in run("clean", tmp_path, "--dry-run").stdout
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert "taken over from an interrupted run" in done.stdout
    assert run("verify", store, "--against", out).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
def test_append(photos: Path, tmp_path: Path) -> None:
    store = tmp_path / "a.lmdb"
    run("convert", photos, store, "--split", "train", "-q")
    done = run("append", store, photos, "--split", "val", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert "adds         12 records" in done.stdout
    assert done.stdout.endswith("nothing was written (--dry-run)\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.lmdb"]
    done = run("append", store, photos, "--split", "val")
    assert (done.returncode, done.stderr) == (0, "")
    assert "12 records added, 24 records now" in done.stdout
    assert "added    val 12" in done.stdout
    assert f"prove it with: packstore verify {store}" in done.stdout
    done = run("append", store, photos)
    assert (done.returncode, done.stdout) == (1, "")
    assert "has 24 of the keys of" in done.stderr
    done = run("append", store, photos, "--on-duplicate", "skip")
    assert "24 samples with keys of the store" in done.stdout
    assert run("append", store, photos, "--split", "no").returncode == 2
    done = run("append", tmp_path / "none.lmdb", photos)
    assert (done.returncode, "does not exist" in done.stderr) == (2, True)


@pytest.mark.slow
def test_bad_files_are_listed(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "bad")
    run("convert", photos, tmp_path / "a.h5", "--split", "train", "-q")
    (tmp_path / "bad/val/ant/000.jpg").write_bytes(b"")
    done = run("append", tmp_path / "a.h5", tmp_path / "bad", "--split", "val")
    assert done.returncode == 1
    assert "val/ant/000.jpg" in done.stderr
    assert "--on-error skip" in done.stderr
    done = run("append", tmp_path / "a.h5", tmp_path / "bad", "--split", "val", "--on-error", "skip")
    assert done.returncode == 3
    assert "1 sample:" in done.stdout


@pytest.mark.slow
def test_merge_and_select(photos: Path, tmp_path: Path) -> None:
    a, b, both = tmp_path / "a.h5", tmp_path / "b.h5", tmp_path / "both.h5"
    run("convert", photos, a, "--split", "train", "-q")
    run("convert", photos, b, "--split", "val", "-q")
    done = run("merge", a, b, "-o", both, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert "reused       2 shards with 24 records" in done.stdout
    assert not both.exists()
    done = run("merge", a, b, "-o", both)
    assert (done.returncode, done.stderr) == (0, "")
    assert "splits   train 12, val 12" in done.stdout
    assert "reused   2 shards unchanged" in done.stdout
    assert run("merge", a, b, "-o", both).returncode == 1
    assert run("merge", a, "-o", tmp_path / "c.h5").returncode == 2
    done = run("select", both, "-o", tmp_path / "c.h5", "--where", "label in (ant, bee)", "--per-class", "2", "-n")
    assert "records      4" in done.stdout
    done = run("select", both, "-o", tmp_path / "c.h5", "--split", "x=0.75,y=0.25", "--stratify", "--seed", "3")
    assert "splits   x 18, y 6" in done.stdout
    for bad in (["--where", "label = ant"], ["--split", "x"], ["--split", "x=0.5"], ["--drop-column", "mask"]):
        done = run("select", both, "-o", tmp_path / "d.h5", *bad)
        assert (done.returncode, done.stdout) == (2, ""), bad
    twice = run("select", both, "-o", tmp_path / "d.h5", "--split", "a=0.5, a=0.5")
    assert twice.returncode == 2
    assert "has the split 'a' twice: give each split one share" in " ".join(twice.stderr.split())
    assert "at character 7" in run("select", both, "-o", tmp_path / "d.h5", "--where", "label = ant").stderr


@pytest.mark.slow
def test_class_counts_of_many_shards_are_not_counted_unasked(photos: Path, tmp_path: Path) -> None:
    store = tmp_path / "a.h5"
    packstore.convert(make_folder(tmp_path / "many", splits=(), per_class=34, size=(9, 9)), store, shard_size=1)
    assert "not counted, since that opens all shards (--counts counts)" in run("info", store).stdout
    assert re.search(r"^per class +34$", run("info", store, "--counts").stdout, re.MULTILINE)
    assert json.loads(run("info", store, "--json").stdout)["class_counts"] is None
    counts = json.loads(run("info", store, "--json", "--counts").stdout)["class_counts"]
    assert counts == dict.fromkeys(("ant", "bee", "cat"), 34)


def report(code: int, *arguments: object, cwd: Path) -> dict[str, Any]:
    done = run(*arguments, "--json", cwd=cwd)
    assert (done.returncode, done.stderr) == (code, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_of_convert(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    plan = report(0, "convert", "photos", "a.lmdb", "--dry-run", cwd=tmp_path)
    assert not (tmp_path / "a.lmdb").exists()
    assert (plan["kind"], plan["records"], plan["encoding"]) == ("imagefolder", 24, "original")
    assert plan["estimate_bytes"] > plan["source_bytes"] > 0
    (tmp_path / "photos/val/ant/bad.jpg").write_bytes(b"")
    found = report(3, "convert", "photos", "a.lmdb", "--on-error", "skip", cwd=tmp_path)
    assert found["skipped"] == [{"key": "val/ant/bad.jpg", "reason": "is empty"}]
    assert found["splits"] == {"train": 12, "val": 12}
    assert found["classes"] == {"label": ["ant", "bee", "cat"]}
    assert found["ledger"]["files"]["packed"] == 25
    with packstore.open(tmp_path / "a.lmdb") as store:
        assert found["dataset_digest"] == store.manifest.dataset_digest


@pytest.mark.slow
def test_of_what_grows_and_composes(photos: Path, tmp_path: Path) -> None:
    for split in ("train", "val"):
        packstore.convert(photos, tmp_path / f"{split}.h5", split=split)
    merged = report(0, "merge", "train.h5", "val.h5", "-o", "both.h5", cwd=tmp_path)
    assert (merged["records"], merged["linked"], merged["copied"]) == (24, 2, 0)
    plan = report(0, "select", "both.h5", "-o", "ants.h5", "--where", "label == ant", "--dry-run", cwd=tmp_path)
    assert (plan["records"], plan["splits"], plan["copied"]) == (8, {"train": 4, "val": 4}, 8)
    moved = report(0, "select", "both.h5", "-o", "one.h5", "--split", "x=1", cwd=tmp_path)["moved"]
    assert moved == [{"from": split, "to": "x", "records": 12} for split in ("train", "val")]
    plan = report(0, "append", "train.h5", photos, "--split", "val", "--dry-run", cwd=tmp_path)
    assert (plan["records"], plan["added"], plan["duplicates"]) == (12, {"val": 12}, 0)
    added = report(0, "append", "train.h5", photos, "--split", "val", cwd=tmp_path)
    assert (added["records"], added["added"], added["shards"]) == (24, {"val": 12}, 2)
    assert added["dataset_digest"] == merged["dataset_digest"]


@pytest.mark.slow
def test_of_export(photos: Path, tmp_path: Path) -> None:
    packstore.convert(photos, tmp_path / "a.h5")
    plan = report(0, "export", "a.h5", "out.zip", "--dry-run", cwd=tmp_path)
    found = report(0, "export", "a.h5", "out.zip", cwd=tmp_path)
    assert (plan["kind"], plan["records"], plan["losses"]) == ("zip", 24, found["losses"])
    assert found["disk_bytes"] >= (tmp_path / "out.zip").stat().st_size


@pytest.mark.slow
def test_of_index_and_link(photos: Path, tmp_path: Path) -> None:
    packstore.convert(photos, tmp_path / "a.lmdb", index=False)
    assert report(0, "index", "a.lmdb", cwd=tmp_path)["written"]
    assert report(0, "index", "a.lmdb", cwd=tmp_path) == {"store": "a.lmdb", "records": 24, "written": False}
    packstore.convert(photos, tmp_path / "linked.lmdb", link=True)
    found = report(0, "link", "linked.lmdb", "--relative", cwd=tmp_path)
    assert found == {"store": "linked.lmdb", "files": 24, "moved": 0, "compared": 0}


@pytest.mark.slow
def test_of_clean(photos: Path, tmp_path: Path) -> None:
    run("convert", photos, "a.h5", "--workers", "1", cwd=tmp_path, stop=(signal.SIGKILL, "pack", 20))
    listed = report(0, "clean", "--dry-run", cwd=tmp_path)
    assert [(each["path"], each["destination"]) for each in listed["leftovers"]] == [(".a.h5.packstore", "a.h5")]
    done = run("clean", "--json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--json asks nothing; add --yes to remove, or --dry-run to list" in done.stderr
    assert report(0, "clean", "--yes", cwd=tmp_path) == listed | {"removed": True}
    assert list(tmp_path.iterdir()) == []
    assert report(0, "clean", "--yes", cwd=tmp_path)["leftovers"] == []

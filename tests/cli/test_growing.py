"""``append``, ``merge`` and ``select`` on the command line."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
from pathlib import Path

import pytest

import packstore
from tests.makers.command import run
from tests.makers.datasets import make_folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("photos") / "all")


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


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_append_leaves_the_store_as_it_was(tmp_path: Path, number: signal.Signals, rng: random.Random) -> None:
    photos = make_folder(tmp_path / "photos", splits=(), per_class=6)
    packstore.convert(make_folder(tmp_path / "few", splits=(), per_class=1), tmp_path / "a.h5")
    before = (tmp_path / "a.h5").read_bytes()
    for path in sorted(photos.rglob("*.jpg")):
        path.rename(path.with_name(f"new-{path.name}"))
    command = ["append", tmp_path / "a.h5", photos, "--on-duplicate", "skip", "--workers", "1"]
    done = run(*command, stop=(number, "pack", rng.randrange(19)))
    assert done.returncode == 128 + number, done.stderr
    assert (tmp_path / "a.h5").read_bytes() == before
    assert {p.name for p in tmp_path.iterdir()} <= {"photos", "few", "a.h5", ".a.h5.packstore"}
    assert run(*command, "-q").returncode == 0
    assert packstore.verify(tmp_path / "a.h5").ok
    assert not (tmp_path / ".a.h5.packstore").exists()

"""``--json`` of commands that write: their reports and plans for other programs."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import packstore
from tests.makers.command import run

pytestmark = pytest.mark.slow


def report(code: int, *arguments: object, cwd: Path) -> dict[str, Any]:
    done = run(*arguments, "--json", cwd=cwd)
    assert (done.returncode, done.stderr) == (code, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


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


def test_of_export(photos: Path, tmp_path: Path) -> None:
    packstore.convert(photos, tmp_path / "a.h5")
    plan = report(0, "export", "a.h5", "out.zip", "--dry-run", cwd=tmp_path)
    found = report(0, "export", "a.h5", "out.zip", cwd=tmp_path)
    assert (plan["kind"], plan["records"], plan["losses"]) == ("zip", 24, found["losses"])
    assert found["disk_bytes"] >= (tmp_path / "out.zip").stat().st_size


def test_of_index_and_link(photos: Path, tmp_path: Path) -> None:
    packstore.convert(photos, tmp_path / "a.lmdb", index=False)
    assert report(0, "index", "a.lmdb", cwd=tmp_path)["written"]
    assert report(0, "index", "a.lmdb", cwd=tmp_path) == {"store": "a.lmdb", "records": 24, "written": False}
    packstore.convert(photos, tmp_path / "linked.lmdb", link=True)
    found = report(0, "link", "linked.lmdb", "--relative", cwd=tmp_path)
    assert found == {"store": "linked.lmdb", "files": 24, "moved": 0, "compared": 0}


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

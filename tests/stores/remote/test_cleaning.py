"""Cleaning a store at a URL: what is needless goes, all else stays."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from packstore.objects import ObjectStore, open_objects
from packstore.stores import open_store
from packstore.testing.records import assert_holds, flip, listing, make_records, write
from tests.internals import (
    GRACE_SECONDS,
    MissingStoreError,
    StoreError,
    UrlPath,
    find_unneeded,
    remove_unneeded,
    sha256_json,
    to_canonical_json,
    upload_store,
    version_name,
)
from tests.makers.command import run

LATER = time.time() + GRACE_SECONDS + 3600


@pytest.fixture
def store(bucket: Path) -> Path:
    return bucket / "x.h5"


@pytest.fixture
def objects(store: Path, tmp_path: Path) -> ObjectStore:
    """A store whose first version was replaced just now."""
    for seed in (0, 1):
        write(tmp_path / f"{seed}.h5", make_records("uint8", 6, seed), shard_size=200)
        upload_store(tmp_path / f"{seed}.h5", UrlPath(store.as_uri()), overwrite=True)
    return open_objects(store.as_uri())


def age(store: Path) -> None:
    for path in store.rglob("*"):
        os.utime(path, (time.time() - GRACE_SECONDS - 3600,) * 2)


def clean(objects: ObjectStore, now: float) -> set[str]:
    removed = remove_unneeded(objects, find_unneeded(objects, now), now)
    return {info.name for info in removed.objects}


def test_what_was_replaced_goes_after_the_grace_period(objects: ObjectStore, store: Path) -> None:
    before = listing(store)
    assert clean(objects, time.time()) == set()
    assert listing(store) == before
    removed = clean(objects, LATER)
    assert {name.partition("/")[0] for name in removed} == {"shards", "tables"}
    assert before - listing(store) == removed
    assert_holds(open_store(store.as_uri()), make_records("uint8", 6, 1))
    assert len([*(store / "versions").iterdir()]) == 2
    assert clean(objects, LATER) == set()


def test_an_old_version_is_kept_while_it_was_replaced_a_short_time_ago(objects: ObjectStore, store: Path) -> None:
    age(store)
    os.utime(store / version_name(2))
    assert clean(objects, time.time()) == set()


def test_a_killed_upload(objects: ObjectStore, store: Path) -> None:
    open_store(store.as_uri()).close()
    (store / version_name(2)).unlink()
    age(store)
    assert clean(objects, time.time())
    assert_holds(open_store(store.as_uri()), make_records("uint8", 6))


def test_before_the_first_version(objects: ObjectStore, store: Path) -> None:
    for number in (1, 2):
        (store / version_name(number)).unlink()
    assert clean(objects, time.time()) == set()
    assert len(clean(objects, LATER)) > 4
    (store / "manifest.json").unlink()
    with pytest.raises(MissingStoreError, match="there is no store, nor any part of one"):
        find_unneeded(objects, LATER)


def test_what_is_not_ours_stays(objects: ObjectStore, store: Path) -> None:
    """By its name, or because it has not the content that its name says."""
    table = open_store(store.as_uri()).manifest.shards
    assert table is not None
    flipped = sorted((store / "shards").iterdir())
    for path in flipped:
        flip(path, 300)
    theirs = ["shards/notes.txt", "tables/x.shards", "_work/theirs", "_work/convert-0123456789ab/plan.json", "other"]
    for name in theirs:
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        (store / name).write_text("{}")
    age(store)
    removed = clean(objects, time.time())
    assert {name.partition("/")[0] for name in removed} == {"tables"}
    assert all(path.exists() for path in flipped)
    assert all((store / name).exists() for name in theirs)


def test_conversions(objects: ObjectStore, store: Path) -> None:
    """The notes of one that ended long ago go; while one is at work, all shards stay."""
    work = store / "_work" / "convert-0123456789ab"
    for name in ("plan.json", "done/000042.json"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        plain = {"what": name}
        (work / name).write_text(to_canonical_json(plain | {"digest": sha256_json(plain)}))
    (store / "_work" / ("probe-" + 32 * "0")).write_bytes(b"")
    age(store)
    os.utime(work / "done" / "000042.json")
    found = find_unneeded(objects, time.time())
    assert found.busy == ("convert-0123456789ab",)
    assert {info.name.partition("/")[0] for info in found.objects} == {"tables", "_work"}
    age(store)
    removed = clean(objects, time.time())
    assert {name.partition("/")[0] for name in removed} == {"tables", "shards", "_work"}
    assert not [path for path in (store / "_work").rglob("*") if path.is_file()]


def test_a_version_that_cannot_be_read(objects: ObjectStore, store: Path) -> None:
    (store / version_name(2)).write_text(json.dumps({"format_version": 2}))
    with pytest.raises(StoreError, match=r"versions/000000002\.json"):
        find_unneeded(objects, LATER)


@pytest.mark.slow
def test_the_command(objects: ObjectStore, store: Path) -> None:
    url = store.as_uri()
    done = run("clean", url)
    assert done.stdout == f"{url}: every object is needed, or too young to be removed\n"
    age(store)
    before = listing(store)
    done = run("clean", url, "--dry-run")
    assert "that no version needs" in done.stdout
    assert listing(store) == before
    done = run("clean", url)
    assert done.returncode == 2
    assert "add --yes to remove" in done.stderr
    done = run("clean", url, "--yes")
    assert "removed " in done.stdout
    assert_holds(open_store(url), make_records("uint8", 6, 1))
    done = run("clean", f"{url}x", "--yes")
    assert (done.returncode, done.stderr) == (2, f"packstore: error: {url}x: there is no store, nor any part of one\n")

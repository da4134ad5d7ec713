"""Conversions to a real S3 server: several drivers at once, and readers of what they made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import packstore
from packstore.objects import open_objects
from tests.internals import ConvertOptions, location, make_plan
from tests.makers.clusters import assert_same, expected_objects, objects_at
from tests.makers.datasets import make_folder

DRIVER = """
import sys, packstore
packstore.convert(sys.argv[1], sys.argv[2], shard_size=8000, cluster="processes:2", workers=1)
"""


@pytest.mark.slow
def test_several_drivers_at_once(tmp_path: Path, s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three, of which the first is killed: the bytes of one machine, one version, and nothing else."""
    folder, url = make_folder(tmp_path / "photos", splits=("train",), per_class=5), f"{s3}/x.h5"
    packstore.convert(folder, tmp_path / "x.h5", shard_size=8000)
    drivers = [subprocess.Popen([sys.executable, "-c", DRIVER, str(folder), url]) for _ in range(3)]
    try:
        while drivers[0].poll() is None and not any("/done/" in name for name in objects_at(url)):
            pass
        drivers[0].kill()
        codes = [driver.wait() for driver in drivers]
    finally:
        for driver in drivers:
            driver.kill()
    # One that looked after another had ended found a store there.
    assert 0 in codes[1:]
    # Workers of the killed one may have created a receipt after all others had ended.
    committed = {name: data for name, data in objects_at(url).items() if not name.startswith("_work/")}
    assert committed == expected_objects(tmp_path / "x.h5")
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    assert packstore.verify(url, against=folder).ok


@pytest.mark.slow
def test_from_s3_to_s3(tmp_path: Path, s3: str) -> None:
    """Each process opens the source at its URL for itself."""
    folder = make_folder(tmp_path / "photos", per_class=2)
    objects = open_objects(f"{s3}/photos")
    for file in folder.rglob("*.*"):
        objects.create(file.relative_to(folder).as_posix(), file)
    packstore.convert(f"{s3}/photos", tmp_path / "x.h5", shard_size=30_000)
    packstore.convert(f"{s3}/photos", f"{s3}/x.h5", shard_size=30_000, cluster="processes:2", workers=1)
    assert_same(f"{s3}/x.h5", tmp_path / "x.h5")


def test_a_plan_for_a_server_that_is_not_asked(tmp_path: Path) -> None:
    plan = make_plan(make_folder(tmp_path, per_class=1), location("s3://nowhere/x.pth"), ConvertOptions(size=16))
    assert plan.free_bytes is None
    assert plan.shards is not None
    assert str(plan.destination) == "s3://nowhere/x.pth"

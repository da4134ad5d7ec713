"""Conversions to URLs: on the command line, of every layout, and on a real S3 server with several drivers at once."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import packstore
from packstore.objects import open_objects
from tests.internals import ConvertOptions, LocalRunner, PackstoreError, SharedJob, driver, location, make_plan, task
from tests.makers.all_layouts import LAYOUTS
from tests.makers.clusters import assert_same, expected_objects, objects_at
from tests.makers.command import run
from tests.makers.datasets import make_folder


@pytest.fixture(scope="module")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("photos"), per_class=2)


@pytest.mark.slow
def test_a_dry_run_asks_nothing_of_the_server(small_folder: Path, tmp_path: Path) -> None:
    done = run("convert", small_folder, "s3://bucket/x.h5", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "destination  s3://bucket/x.h5 (HDF5)" in done.stdout
    assert "shards       of at most 268 MB of the source, one split each" in done.stdout
    assert "free" not in done.stdout


@pytest.mark.slow
def test_a_store_at_a_url(small_folder: Path, tmp_path: Path) -> None:
    url = f"{tmp_path.as_uri()}/objects/x.h5"
    done = run("convert", small_folder, url, "--shard-size", "30KB", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{url}: 12 records (original in HDF5)\n")
    assert f"prove it with: packstore verify {url} --against {small_folder}\n" in done.stdout
    packstore.convert(small_folder, tmp_path / "x.h5", shard_size="30KB")
    assert_same(url, tmp_path / "x.h5")
    again = run("convert", small_folder, url, cwd=tmp_path)
    assert again.returncode == 1
    assert again.stderr == (
        f"packstore: error: {url} exists already; choose another URL, or --overwrite (Python: overwrite=True) to "
        "replace it\n"
    )
    proof = run("verify", url, "--against", small_folder, cwd=tmp_path)
    assert proof.returncode == 0, proof.stderr


@pytest.mark.slow
def test_a_path_that_is_a_url(small_folder: Path, tmp_path: Path) -> None:
    """:class:`Path` makes one slash of two."""
    packstore.convert(small_folder, Path(f"{tmp_path.as_uri()}/objects/x.h5"))
    assert "versions/000000001.json" in objects_at(f"{tmp_path.as_uri()}/objects/x.h5")


@pytest.mark.slow
def test_failures_of_tasks_are_said_in_one_line(small_folder: Path, tmp_path: Path) -> None:
    photos = make_folder(tmp_path / "photos", per_class=1)
    bad = photos / "val" / "cat" / "000.jpg"
    bad.write_bytes(b"nothing")
    url = f"{tmp_path.as_uri()}/objects/x.h5"
    done = run("convert", photos, url, "--shard-size", "10KB", "--cluster", "processes:2", cwd=tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"packstore: error: {photos}/val/cat/000.jpg: ")
    assert line.endswith("repair or remove it, or leave bad files out with --on-error skip")
    skipping = ("--on-error", "skip", "--shard-size", "10KB", "--cluster", "processes:2")
    done = run("convert", photos, url, *skipping, cwd=tmp_path)
    assert done.returncode == 3
    assert "skipped  1 sample:\n    val/cat/000.jpg" in done.stdout


class Elsewhere(LocalRunner):
    """Packs as another process does: job and entries come as bytes."""

    def __init__(self, job: SharedJob) -> None:
        super().__init__(pickle.loads(pickle.dumps(job)))

    def submit(self, number: int, entries: Any) -> None:
        super().submit(number, pickle.loads(pickle.dumps(entries)))


@pytest.fixture(autouse=True)
def close_sources() -> Iterator[None]:
    """Closes what the process that packs has opened; an array in a file warns otherwise."""
    yield
    while task._sources:
        task._sources.popitem()[1].close()


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize("at_a_url", [False, True])
@pytest.mark.parametrize("layout", [layout for layout, (kind, _) in LAYOUTS.items() if kind is not None])
def test_the_same_bytes_of_any_source(
    layout: str, at_a_url: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    kind, make = LAYOUTS[layout]
    (tmp_path / "source").mkdir()
    path = make(tmp_path / "source")
    if layout == "ILSVRC for validation":  # what lies beside an object is not fetched
        path = path.parent
    place = path.as_uri() if at_a_url else path
    options: dict[str, Any] = {"source_kind": kind, "shard_size": 600, "on_error": "skip"}
    monkeypatch.setattr(driver, "LocalRunner", Elsewhere)
    url = f"{tmp_path.as_uri()}/objects/x.h5"
    try:
        packstore.convert(path, tmp_path / "x.h5", **options)
    except PackstoreError as error:  # of some, keys come twice
        with pytest.raises(type(error), match=re.escape(str(error))):
            packstore.convert(place, url, **options)
    else:
        packstore.convert(place, url, **options)
        assert_same(url, tmp_path / "x.h5")


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

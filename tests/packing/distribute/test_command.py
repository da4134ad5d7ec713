"""``packstore convert`` with a URL as its destination."""

from __future__ import annotations

from pathlib import Path

import pytest

import packstore
from tests.makers.clusters import assert_same, objects_at
from tests.makers.command import run
from tests.makers.datasets import make_folder


@pytest.fixture(scope="module")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("photos"), per_class=2)


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

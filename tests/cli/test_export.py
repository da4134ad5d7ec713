"""``packstore export`` on the command line."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from tests.makers.command import run
from tests.makers.datasets import make_folder


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    run("convert", make_folder(folder / "photos"), folder / "in.lmdb", "-q")
    return folder / "in.lmdb"


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


def test_no_export_lies_in_its_store(store: Path) -> None:
    done = run("export", store, store / "out.zip")
    assert (done.returncode, done.stdout) == (1, "")
    assert "one lies in the other; choose another destination" in done.stderr


@pytest.mark.slow
def test_a_source_is_packed_first(store: Path, tmp_path: Path) -> None:
    done = run("export", store.parent / "photos", tmp_path / "out.zip")
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
    assert number == signal.SIGKILL or "run the same command again" in done.stderr
    assert ".out.packstore: " in run("clean", tmp_path, "--dry-run").stdout
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert "taken over from an interrupted run" in done.stdout
    assert run("verify", store, "--against", out).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]

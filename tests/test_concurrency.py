"""Many readers, one writer a name, and readers that keep what they have opened."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from xxhash import xxh3_64_intdigest

import packstore
from packstore import PackedDataset
from packstore.errors import DestinationError
from packstore.progress import Progress
from packstore.stores import receipts
from packstore.stores.work import find_leftovers, work_path
from tests.datasets import make_folder

SUFFIXES = (".lmdb", ".h5", ".pth")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("images") / "photos")


def digests(reader: Any) -> list[int]:
    return [xxh3_64_intdigest(reader.read(i)) for i in range(len(reader))]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("shard_size", [None, 3000])
def test_a_reader_keeps_what_it_has_opened_while_the_store_is_replaced(
    folder: Path, tmp_path: Path, suffix: str, shard_size: int | None
) -> None:
    out = tmp_path / f"out{suffix}"
    packstore.convert(folder, out, encoding="original", shard_size=shard_size)
    with packstore.open(out) as old:
        before = digests(old)
        packstore.convert(folder, out, encoding="uint8", size=16, overwrite=True)
        assert digests(old) == before
        labels = old.fixed("label").tolist()
    with packstore.open(out) as new:
        assert new.fixed("label").tolist() == labels
        assert new.manifest.encoding == "uint8"
        assert digests(new) != before


READ = "import sys, packstore; from tests.test_concurrency import digests; print(digests(packstore.open(sys.argv[1])))"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_many_processes_and_threads_read_the_same(folder: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"out{suffix}"
    packstore.convert(folder, out, encoding="original")
    with packstore.open(out) as reader:
        expected = digests(reader)
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda _: digests(reader), range(16))) == [expected] * 16
    root = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-c", READ, str(out)]
    running = [subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [eval(process.communicate()[0]) for process in running] == [expected] * 4


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_workers_of_a_dataloader(folder: Path, tmp_path: Path, suffix: str, start: str) -> None:
    out = tmp_path / f"out{suffix}"
    packstore.convert(folder, out, encoding="uint8", size=16)
    ds = PackedDataset(out, "train")
    ds[0]  # open before the fork
    context = multiprocessing.get_context(start)
    loader: Any = DataLoader(ds, batch_size=5, num_workers=2, multiprocessing_context=context)
    images = [image for batch, _ in loader for image in batch]
    assert all((image == ds[i][0]).all() for i, image in enumerate(images))
    assert len(images) == len(ds)


HOLD = """
import sys, time, packstore
from packstore.stores import receipts
from packstore import conversion
receipts.EVERY_SECONDS, conversion.PASS_RECORDS = 0.0, 4
def progress(report):
    if report.stage == "pack" and report.done >= 8:
        print("packing", flush=True)
        sys.stdin.readline()
packstore.convert(sys.argv[1], sys.argv[2], progress=progress)
"""


@pytest.fixture
def holding(folder: Path, tmp_path: Path) -> Any:
    """Another process that is in the middle of packing ``out.h5``."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), str(tmp_path / "out.h5")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "packing\n"
    yield process
    process.kill()
    process.communicate()


def test_the_second_converter_is_refused_and_the_first_ends_well(holding: Any, folder: Path, tmp_path: Path) -> None:
    who = f"is being written by process {holding.pid} on {socket.gethostname()}"
    for path in (tmp_path / "out.h5", Path(os.path.relpath(tmp_path / "out.h5"))):
        with pytest.raises(DestinationError, match=who):
            packstore.convert(folder, path)
    command = [sys.executable, "-m", "packstore", "convert", str(folder), str(tmp_path / "out.h5"), "--overwrite"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert who in done.stderr
    assert list(find_leftovers(tmp_path)) == []  # it is nobody's to clean
    holding.communicate("\n" * 100)
    assert holding.returncode == 0
    assert packstore.verify(tmp_path / "out.h5", against=folder).ok
    assert [p.name for p in tmp_path.iterdir()] == ["out.h5"]


def test_what_a_dead_process_has_left_is_taken_over(holding: Any, folder: Path, tmp_path: Path) -> None:
    holding.send_signal(signal.SIGKILL)
    holding.wait()
    (leftover,) = find_leftovers(tmp_path)
    assert leftover.owner.pid == holding.pid
    assert packstore.convert(folder, tmp_path / "out.h5").taken_over >= 4
    assert [p.name for p in tmp_path.iterdir()] == ["out.h5"]


@pytest.mark.parametrize("kind", ["file", "directory", "link", "of another name"])
def test_what_is_foreign_is_not_touched(folder: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out.h5"
    path = work_path(out)
    if kind == "file":
        path.write_text("mine")
    elif kind == "directory":
        path.mkdir()
        (path / "mine").write_text("mine")
    elif kind == "link":
        (tmp_path / "elsewhere").mkdir()
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.mkdir()
        owner = {"what": "packstore work directory", "destination": "x.h5", "pid": 1, "host": "h", "started": 1.0}
        (path / "owner").write_text(json.dumps(owner))
        (path / "run-00001").mkdir()
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    with pytest.raises(DestinationError, match="move it away"):
        packstore.convert(folder, out)
    assert list(find_leftovers(tmp_path)) == []
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["n" * 250 + ".h5", os.fsdecode(b"caf\xe9.h5"), "a\nb.h5", " .h5", "..h5"])
def test_names_of_all_kinds_go_on_and_are_cleaned(
    folder: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "EVERY_SECONDS", 0.0)

    class CutError(BaseException):
        pass

    def progress(report: Progress) -> None:
        if report.stage == "pack" and report.done:
            raise CutError

    for _ in range(2):
        with pytest.raises(CutError):
            packstore.convert(folder, tmp_path / name, progress=progress)
    (leftover,) = find_leftovers(tmp_path)
    assert leftover.owner.destination == name
    assert packstore.convert(folder, tmp_path / name).taken_over > 0
    assert [p.name for p in tmp_path.iterdir()] == [name]
    shutil.rmtree(tmp_path / name, ignore_errors=True)


def test_threads_that_pack_to_different_names_do_not_meet(folder: Path, tmp_path: Path) -> None:
    results: dict[str, Any] = {}

    def pack(suffix: str) -> None:
        results[suffix] = packstore.convert(folder, tmp_path / f"out{suffix}", encoding="original")

    threads = [threading.Thread(target=pack, args=(suffix,)) for suffix in SUFFIXES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {r.manifest.dataset_digest for r in results.values()} == {results[".h5"].manifest.dataset_digest}
    assert len(results) == 3

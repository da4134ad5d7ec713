"""Many readers, one writer a name, and readers that keep what they have opened."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from xxhash import xxh3_64_intdigest

import packstore
from packstore import PackedDataset
from tests.internals import (
    DestinationError,
    Manifest,
    Owner,
    WorkDirectory,
    find_leftovers,
    local_place,
    place_of,
    read_manifest,
    read_owner,
    sharded,
    work_path,
)
from tests.internals import journal as receipts
from tests.makers.interrupted import cut_short

SUFFIXES = (".lmdb", ".h5", ".pth")


def digests(reader: Any) -> list[int]:
    return [xxh3_64_intdigest(reader.read(i)) for i in range(len(reader))]


@pytest.mark.slow
@pytest.mark.sampled(1, per="suffix")
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("shard_size", [None, 3000])
@pytest.mark.parametrize("read", [1, 24])
def test_a_reader_keeps_the_store_that_it_has_opened_while_that_is_replaced(
    photos: Path, tmp_path: Path, suffix: str, shard_size: int | None, read: int
) -> None:
    """Also shards that it has not read yet."""
    out = tmp_path / f"out{suffix}"
    packstore.convert(photos, out, encoding="original", shard_size=shard_size)
    with packstore.open(out) as reader:
        before = digests(reader)
    with packstore.open(out) as old:
        assert [xxh3_64_intdigest(old.read(i)) for i in range(read)] == before[:read]
        packstore.convert(photos, out, encoding="uint8", size=16, shard_size=shard_size, overwrite=True)
        assert digests(old) == before
        labels = old.fixed_column("label").tolist()
    with packstore.open(out) as new:
        assert new.fixed_column("label").tolist() == labels
        assert new.manifest.encoding == "uint8"
        assert digests(new) != before


@pytest.mark.slow
def test_a_store_that_is_replaced_while_it_is_opened(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.lmdb"
    packstore.convert(photos, out, encoding="original", shard_size=3000)
    hold = sharded._open_files

    def replaced(manifest: Any, path: Path) -> Any:
        monkeypatch.setattr(sharded, "_open_files", hold)
        packstore.convert(photos, out, encoding="uint8", size=16, shard_size=3000, overwrite=True)
        return hold(manifest, path)

    monkeypatch.setattr(sharded, "_open_files", replaced)
    with packstore.open(out) as reader:
        assert reader.manifest.encoding == "uint8"
        assert len(digests(reader)) == len(reader)


READERS = """
import resource, sys, packstore
from packstore.core import files
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
files._USUAL_FILES = 32
readers = [packstore.open(sys.argv[1]) for _ in range(8)]
print(sum(len({bytes(reader.read(i)) for i in range(len(reader))}) for reader in readers), files._reserved)
for reader in readers[1:]:
    reader.close()
del reader, readers
print(files._reserved)
"""


@pytest.mark.slow
def test_several_readers_of_many_shards_each(photos: Path, tmp_path: Path) -> None:
    """As for the splits of one store: the limit of open files has to be enough for all of them together."""
    packstore.convert(photos, tmp_path / "out.lmdb", encoding="original", shard_size=1)
    command = [sys.executable, "-c", READERS, str(tmp_path / "out.lmdb")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{8 * 24} {8 * 24 * 3}\n0\n", "")


@pytest.mark.slow
def test_a_dataset_that_was_pickled_before_its_store_was_replaced_says_so(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.lmdb"
    packstore.convert(photos, out, encoding="uint8", size=8)
    text = pickle.dumps(PackedDataset(out, "train"))
    packstore.convert(photos, out, encoding="uint8", size=16, overwrite=True)
    with pytest.raises(packstore.StoreError, match="has been replaced by another store"):
        pickle.loads(text)[0]


@pytest.mark.slow
@pytest.mark.sampled(1, per="suffix")
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("shard_size", [None, 3000])
@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_forked_processes_read_on(
    photos: Path, tmp_path: Path, suffix: str, shard_size: int | None, opened: bool
) -> None:
    out = tmp_path / f"out{suffix}"
    packstore.convert(photos, out, encoding="original", shard_size=shard_size)
    with packstore.open(out) as fresh:
        expected = digests(fresh)
    with packstore.open(out) as reader:
        if opened:
            digests(reader)
            # What is open stays so over a fork, too, though its name is another store's now.
            packstore.convert(photos, out, encoding="uint8", size=16, overwrite=True)
        children = []
        for _ in range(3):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    code = 0 if digests(reader) == expected else 2
                finally:
                    os._exit(code)
            children.append(child)
        assert digests(reader) == expected  # at the same time
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]


HOLD = """
import sys, time, packstore
from packstore.stores.places import resuming as receipts
from packstore.packing import batches
receipts.EVERY_SECONDS, batches.PASS_RECORDS = 0.0, 4
def progress(report):
    if report.stage == "pack" and report.done >= 8:
        print("packing", flush=True)
        sys.stdin.readline()
packstore.convert(sys.argv[1], sys.argv[2], progress=progress)
"""


@pytest.fixture
def holding(photos: Path, tmp_path: Path) -> Any:
    """Another process that is in the middle of packing ``out.h5``."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(photos), str(tmp_path / "out.h5")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "packing\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_the_second_converter_is_refused_and_the_first_ends_well(holding: Any, photos: Path, tmp_path: Path) -> None:
    who = f"is being written by process {holding.pid} on {socket.gethostname()}"
    for path in (tmp_path / "out.h5", Path(os.path.relpath(tmp_path / "out.h5"))):
        with pytest.raises(DestinationError, match=who):
            packstore.convert(photos, path)
    command = [sys.executable, "-m", "packstore", "convert", str(photos), str(tmp_path / "out.h5"), "--overwrite"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert who in done.stderr
    assert list(find_leftovers(tmp_path)) == []  # it is nobody's to clean
    holding.communicate("\n" * 100)
    assert holding.returncode == 0
    assert packstore.verify(tmp_path / "out.h5", against=photos).ok
    assert [p.name for p in tmp_path.iterdir()] == ["out.h5"]


@pytest.mark.slow
def test_what_a_dead_process_has_left_is_taken_over(holding: Any, photos: Path, tmp_path: Path) -> None:
    holding.send_signal(signal.SIGKILL)
    holding.wait()
    (leftover,) = find_leftovers(tmp_path)
    assert leftover.owner.pid == holding.pid
    assert packstore.convert(photos, tmp_path / "out.h5").resumed >= 4
    assert [p.name for p in tmp_path.iterdir()] == ["out.h5"]


def tree(directory: Path) -> dict[str, Any]:
    """Everything below, with mode, content of files, and time of change."""
    return {
        str(path): (path.lstat().st_mode, path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in directory.rglob("*")
    }


@pytest.mark.parametrize("content", [b"", bytes(4096)])
def test_a_work_directory_that_says_nothing_yet_is_taken_over(photos: Path, tmp_path: Path, content: bytes) -> None:
    """Killed as it was made, or the power went before the owner was on the disk."""
    path = work_path(tmp_path / "out.h5")
    path.mkdir()
    (path / "owner").write_bytes(content)
    assert packstore.convert(photos, tmp_path / "out.h5").manifest.records == 24
    assert [p.name for p in tmp_path.iterdir()] == ["out.h5"]


def test_who_has_just_begun_is_named_once_it_has_said_who_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = WorkDirectory(tmp_path / "out.h5")  # its lock stays, also while its name is not there yet
    owner = holder.path / "owner"
    content = owner.read_bytes()
    os.truncate(owner, 0)
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            owner.write_bytes(content)

    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(DestinationError, match=rf"is being written by process {os.getpid()} on "):
        WorkDirectory(tmp_path / "out.h5")
    assert len(waited) == 3
    holder.remove()


def test_a_signal_does_not_end_the_removal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = WorkDirectory(tmp_path / "out.h5")
    work.create_run()

    def stop(path: Path) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr("packstore.stores.places.work.remove_run", stop)
    with pytest.raises(KeyboardInterrupt):
        work.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_work_directory_that_goes_as_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when its owner is done just then."""
    path = tmp_path / ".out.h5.packstore"
    path.mkdir()
    looked: list[Path] = []

    def gone(where: Path) -> Owner | None:
        looked.append(where)
        if len(looked) == 1:
            where.rmdir()
        return read_owner(where)

    monkeypatch.setattr("packstore.stores.places.work.read_owner", gone)
    holder = WorkDirectory(tmp_path / "out.h5")
    assert looked == [path]
    assert (path / "owner").exists()
    holder.remove()


def test_a_run_that_ends_while_another_looks_at_what_it_left(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.h5"
    packstore.convert(photos, out)
    held = WorkDirectory(out)
    held.create_run()

    def read(path: Path) -> Manifest:
        held.remove()
        return read_manifest(path)

    monkeypatch.setattr(local_place, "read_manifest", read)
    assert not place_of(out).was_killed_after_publishing()
    with pytest.raises(packstore.DestinationError, match="exists already"):
        packstore.convert(photos, out)


@pytest.mark.slow
def test_of_many_converters_at_once_one_wins(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.h5"
    command = [sys.executable, "-B", "-m", "packstore", "convert", "-q", str(photos), str(out)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    errors = [process.communicate()[1] for process in running]
    assert sorted(process.returncode for process in running) == [0, 1, 1]
    for process, error in zip(running, errors, strict=True):
        assert error.count("\n") == process.returncode
        assert process.returncode == 0 or "is being written by process" in error or "exists already" in error
    assert packstore.verify(out, against=photos).ok
    assert [p.name for p in tmp_path.iterdir()] == ["out.h5"]


@pytest.mark.parametrize("kind", ["file", "directory", "link", "of another name", "owner", "owner link", "owner pipe"])
def test_what_is_foreign_is_not_touched(photos: Path, tmp_path: Path, kind: str) -> None:
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
    elif kind.startswith("owner"):
        path.mkdir()
        (tmp_path / "elsewhere").write_text("")
        if kind == "owner":
            (path / "owner").write_text("mine")
        elif kind == "owner link":
            (path / "owner").symlink_to(tmp_path / "elsewhere")
        else:
            os.mkfifo(path / "owner")
    else:
        path.mkdir()
        owner = {"what": "packstore work directory", "destination": "x.h5", "pid": 1, "host": "h", "started": 1.0}
        (path / "owner").write_text(json.dumps(owner))
        (path / "run-00001").mkdir()
    before = tree(tmp_path)
    with pytest.raises(DestinationError, match="move it away"):
        packstore.convert(photos, out)
    assert list(find_leftovers(tmp_path)) == []
    assert tree(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["n" * 252 + ".h5", "\u00e9" * 126 + ".h5", os.fsdecode(b"caf\xe9.h5"), "a\nb.h5", " .h5", "..h5"]
)
def test_names_of_all_kinds_go_on_and_are_cleaned(
    photos: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "EVERY_SECONDS", 0.0)
    cut_short(packstore.convert, photos, tmp_path / name, after=1)
    command = [sys.executable, "-B", "-m", "packstore", "clean", "--yes", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        cut_short(packstore.convert, photos, tmp_path / name, after=1)
    (leftover,) = find_leftovers(tmp_path)
    assert leftover.owner.destination == name
    assert packstore.convert(photos, tmp_path / name).resumed > 0
    assert [p.name for p in tmp_path.iterdir()] == [name]
    shutil.rmtree(tmp_path / name, ignore_errors=True)


@pytest.mark.slow
def test_threads_that_pack_to_different_names_do_not_meet(photos: Path, tmp_path: Path) -> None:
    results: dict[str, Any] = {}

    def pack(suffix: str) -> None:
        results[suffix] = packstore.convert(photos, tmp_path / f"out{suffix}", encoding="original")

    threads = [threading.Thread(target=pack, args=(suffix,)) for suffix in SUFFIXES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {r.manifest.dataset_digest for r in results.values()} == {results[".h5"].manifest.dataset_digest}
    assert len(results) == 3

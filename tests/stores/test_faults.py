"""A disk that is full or faulty, at each kind of write: one line, nothing published, and the next run completes it."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest

import packstore
from packstore.stores import is_store
from tests.internals import writer as lmdb_writer
from tests.makers.command import run as run_command
from tests.makers.failing_operations import EXPORTS, STORES
from tests.makers.stores import content
from tests.makers.tools import load_tool

killing: Any = load_tool("killing.py")
SUFFIXES = (".lmdb", ".h5", ".pth")
CALLS = "write,pwrite64,writev,fsync,fdatasync,rename,renameat2,mkdir,ftruncate"


CASES = {suffix: (suffix,) for suffix in SUFFIXES} | {"shards": (".h5", "--shard-size", "3kB")}
"""Suffix and options, by name."""


@pytest.fixture(scope="module")
def reference(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, bytes]]:
    made: dict[str, dict[str, bytes]] = {}

    def get(case: str) -> dict[str, bytes]:
        if case not in made:
            path = tmp_path_factory.mktemp("reference") / f"out{CASES[case][0]}"
            pack(photos, path, case)
            made[case] = content(path)
        return made[case]

    return get


def pack(folder: Path, out: Path, case: str) -> None:
    packstore.convert(folder, out, encoding="original", shard_size=3000 if case == "shards" else None)


@pytest.fixture
def traced(photos: Path, need: Any) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a conversion under strace with further arguments for it."""
    need("strace", killing.can_trace())

    def run(out: Path, *trace: str, case: str = "", overwrite: bool = False) -> subprocess.CompletedProcess[str]:
        options = ["--encoding", "original", *CASES.get(case, ())[1:], *["--overwrite"] * overwrite]
        return run_command("convert", "-q", photos, out, *options, trace=trace)

    return run


def calls(traced: Callable[..., Any], out: Path, case: str) -> Counter[str]:
    """How often an undisturbed conversion makes each call, in its first thread."""
    log = out.with_name("trace")
    assert traced(out, "-o", str(log), "-e", f"trace={CALLS}", case=case).returncode == 0
    shutil.rmtree(out) if out.is_dir() else out.unlink()
    lines = [line.split(None, 1) for line in log.read_text(errors="replace").splitlines()]
    log.unlink()
    return Counter(rest.partition("(")[0] for thread, rest in lines if thread == lines[0][0])


def failures(counts: Counter[str], last: bool) -> Iterator[tuple[str, str, int]]:
    """Call, error, and which of these calls: the last, or one in the middle."""
    for call, error in (
        ("write", "ENOSPC"),
        ("pwrite64", "ENOSPC"),
        ("writev", "EIO"),
        ("fdatasync", "EIO"),
        ("fsync", "EIO"),
        ("rename", "ENOSPC"),
        ("renameat2", "EIO"),
        ("mkdir", "ENOSPC"),
    ):
        if counts[call] and last:
            yield call, error, counts[call]
        elif counts[call]:
            yield call, {"EIO": "ENOSPC", "ENOSPC": "EIO"}[error], (counts[call] + 1) // 2


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("last", [False, True])
def test_a_call_that_fails(
    traced: Callable[..., Any],
    reference: Callable[[str], dict[str, bytes]],
    photos: Path,
    tmp_path: Path,
    case: str,
    last: bool,
) -> None:
    out = tmp_path / f"out{CASES[case][0]}"
    counts = calls(traced, out, case)
    tried = 0
    for call, error, number in failures(counts, last):
        inject = f"inject={call}:error={error}:when={number}"
        done = traced(out, "-o", "/dev/null", "-e", f"trace={call}", "-e", inject, case=case)
        where = f"{call} number {number}: {error}: {done.stderr}"
        tried += 1
        assert done.returncode in (0, 1), where
        assert "Traceback" not in done.stderr, where
        if done.returncode == 0:
            # What failed was of no consequence: an attempt to make the result durable sooner, a message.
            assert content(out) == reference(case), where
        else:
            assert done.stderr.startswith("packstore: error: "), where
            assert done.stderr.count("\n") == 1, where
            assert not out.exists(), where
            assert not any(is_store(path) for path in tmp_path.iterdir()), where
            pack(photos, out, case)
            assert content(out) == reference(case), where
        shutil.rmtree(out) if out.is_dir() else out.unlink()
        assert list(tmp_path.iterdir()) == [], where
    assert tried >= 3


@pytest.mark.parametrize("shard_size", [None, 20_000])
@pytest.mark.parametrize("failing", [1, 2])
def test_a_failed_sync_in_the_background(
    photos: Path, tmp_path: Path, shard_size: int | None, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux tells of a failed write once, to the sync that meets it: those that follow succeed, and it is lost."""
    syncs = 0

    def sync(path: Path) -> None:
        nonlocal syncs
        syncs += 1
        if syncs == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    flush = lmdb_writer.LmdbWriter._write_pending

    def flush_when_synced(writer: lmdb_writer.LmdbWriter) -> None:
        """One sync for each transaction, however long a sync takes."""
        if writer._syncing is not None and not writer._syncing.cancelled():
            wait([writer._syncing])
        flush(writer)

    monkeypatch.setattr(lmdb_writer.LmdbWriter, "_write_pending", flush_when_synced)
    monkeypatch.setattr(lmdb_writer, "sync_file", sync)
    monkeypatch.setattr(lmdb_writer, "_TXN_BYTES", 4096)
    with pytest.raises(packstore.PackstoreError, match="Input/output error"):
        packstore.convert(photos, tmp_path / "out.lmdb", encoding="original", shard_size=shard_size)
    assert syncs >= failing
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(("call", "error"), [("renameat2", "EIO"), ("fsync", "EIO")])
def test_the_old_store_stays_when_the_new_one_fails(
    traced: Callable[..., Any], photos: Path, tmp_path: Path, suffix: str, call: str, error: str
) -> None:
    out = tmp_path / f"out{suffix}"
    packstore.convert(photos, out, encoding="uint8", size=8)
    before = content(out)
    inject = ["-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:error={error}:when=1+"]
    done = traced(out, *inject, overwrite=True)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert content(out) == before
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.sampled(1)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_write_that_lies_is_never_published(
    traced: Callable[..., Any], reference: Callable[[str], dict[str, bytes]], photos: Path, tmp_path: Path, suffix: str
) -> None:
    """The call says that all was written, or a byte, and nothing was: only reading back can tell."""
    out, log = tmp_path / f"out{suffix}", tmp_path / "trace"
    writes = ("write", "pwrite64", "writev")
    assert traced(out, "-o", str(log), "-e", f"trace={','.join(writes)}").returncode == 0
    shutil.rmtree(out) if out.is_dir() else out.unlink()
    lines = [line.split(None, 1) for line in log.read_text(errors="replace").splitlines()]
    log.unlink()
    found = 0
    for call in writes:
        made = [text for thread, text in lines if thread == lines[0][0] and text.startswith(f"{call}(")]
        for number in sorted({(len(made) + 1) // 2, len(made)} - {0}):
            for result in (int(made[number - 1].rpartition("= ")[2]), 1):
                inject = f"inject={call}:retval={result}:when={number}"
                done = traced(out, "-o", "/dev/null", "-e", f"trace={call}", "-e", inject)
                if done.returncode == 0:  # it was of no consequence: a note for runs to come
                    assert content(out) == reference(suffix), inject
                    shutil.rmtree(out) if out.is_dir() else out.unlink()
                elif done.returncode == -signal.SIGBUS and suffix == ".lmdb":
                    # LMDB reads its own pages through its map: of a page that never came to be, it dies.
                    found += 1
                    assert not out.exists(), inject
                    packstore.convert(photos, out, encoding="original")
                    assert content(out) == reference(suffix), inject
                    shutil.rmtree(out) if out.is_dir() else out.unlink()
                else:
                    found += 1
                    assert done.returncode == 1, inject
                    assert done.stderr.startswith("packstore: error: "), inject
                    assert done.stderr.count("\n") == 1, inject
                assert list(tmp_path.iterdir()) == [], inject
    assert found >= 1


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_interrupted_calls_are_made_again(
    traced: Callable[..., Any], reference: Callable[[str], dict[str, bytes]], tmp_path: Path, suffix: str
) -> None:
    out = tmp_path / f"out{suffix}"
    interrupted = "write,pwrite64,writev,fsync"
    inject = f"inject={interrupted}:error=EINTR:when=1+2"
    done = traced(out, "-o", "/dev/null", "-e", f"trace={interrupted}", "-e", inject)
    assert (done.returncode, done.stderr) == (0, "")
    assert content(out) == reference(suffix)


@pytest.mark.slow
def test_out_of_memory_is_one_line(photos: Path, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (192 << 20, 192 << 20))

    big = tmp_path / "photos" / "a"
    big.mkdir(parents=True)
    for number in range(3):
        with (big / f"{number}.jpg").open("wb") as file:
            file.write(next((photos / "train").rglob("*.jpg")).read_bytes())
            file.truncate(300 << 20)
    command = [sys.executable, "-B", "-m", "packstore", "convert", "-q", str(big.parent), str(tmp_path / "out.h5")]
    done = subprocess.run([*command, "--check", "none"], capture_output=True, text=True, check=False, preexec_fn=limit)
    assert done.returncode == 1
    assert done.stderr == "packstore: error: out of memory; fewer --workers need less memory\n"
    assert [p.name for p in tmp_path.iterdir()] == ["photos"]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_disk_that_is_full(photos: Path, tmp_path: Path, suffix: str) -> None:
    """A real one, of one megabyte, most of which is taken when packing has begun."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        room = 64 << 10
        (disk / "other").write_bytes(bytes((1 << 20) - room))
        command = [sys.executable, "-B", "-c", UNAWARE, str(photos), str(disk / f"out{suffix}")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "No space left on device" in done.stderr
        assert done.stderr.count("\n") == 1
        assert [p.name for p in disk.iterdir()] == ["other"]
        (disk / "other").unlink()
        packstore.convert(photos, disk / f"out{suffix}", encoding="original")
        assert packstore.verify(disk / f"out{suffix}").ok
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# The check of free space beforehand would refuse it; here the space is gone only afterwards.
UNAWARE = """
import sys
from packstore.packing import conversion
from packstore.cli import main
conversion.check_space = lambda *_: None
main(["convert", "-q", sys.argv[1], sys.argv[2], "--encoding", "original"])
"""

ERRORS = ("ENOSPC", "EIO", "EDQUOT", "EROFS")
REASONS = ("No space left on device", "Input/output error", "Disk quota exceeded", "Read-only file system",
           "No usable temporary directory found")  # fmt: skip


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [*STORES, *EXPORTS])
def test_writing_fails_from_any_call_on(tmp_path: Path, need: Any, name: str) -> None:
    """In the default run, from every fifth call on."""
    need("cc", shutil.which("cc") is not None and sys.platform == "linux")
    command = [sys.executable, "-m", "tests.makers.failing_calls", tmp_path, name, "5", ",".join(ERRORS)]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    outcomes: dict[str, int] = json.loads(done.stdout)
    assert outcomes.pop("done") >= 1
    assert sum(outcomes.values()) >= 3
    for outcome in outcomes:
        assert outcome.startswith(f"DestinationError: cannot write {tmp_path}"), outcome
        assert any(reason in outcome for reason in REASONS), outcome

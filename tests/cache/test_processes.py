"""A cache that processes share which are killed, stopped and forked: right bytes, within the budget, and no hang."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from packstore.cache import Cache
from tests.internals import CacheError
from tests.internals import folder as folders
from tests.makers.caching import fetch_from, make_objects, used_bytes

ROOT = Path(__file__).parents[2]
SIZE = 100_000
PATIENCE = 120.0
"""Seconds after which something hangs."""


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.makers.caching", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@contextmanager
def running(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    with start(*arguments) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    make_objects(tmp_path / "objects", 16, SIZE)
    return tmp_path / "objects"


class Workers:
    """Four processes that open and check objects; whoever is killed is replaced."""

    def __init__(self, objects: Path, cache: Cache) -> None:
        self.objects, self.cache = objects, cache
        self.counts: Counter[str] = Counter()
        self.started = 0
        self.processes = [self.begin() for _ in range(4)]

    def begin(self) -> subprocess.Popen[str]:
        self.started += 1
        process = start("work", self.objects, self.cache.root, self.cache.budget, self.started)
        threading.Thread(target=self.listen, args=(process,), daemon=True).start()
        return process

    def listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                # A line that a kill cut off says nothing.
                if line.endswith("\n"):
                    self.counts[line.rstrip()] += 1
                    self.counts[f"of {process.pid}"] += 1

    def wait(self, lines: int, process: subprocess.Popen[str]) -> None:
        """Until a process has written so many lines more; it must not hang."""
        wanted = self.counts[f"of {process.pid}"] + lines
        end = time.monotonic() + PATIENCE
        while self.counts[f"of {process.pid}"] < wanted:
            assert time.monotonic() < end, f"it hangs: {self.counts}"
            assert process.poll() is None, process.poll()
            time.sleep(0.001)

    def kill(self, number: int) -> None:
        self.processes[number].kill()
        self.processes[number].wait()
        self.processes[number] = self.begin()

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("kills", [12, pytest.param(3000, marks=pytest.mark.soak)])
def test_processes_that_are_killed(objects: Path, tmp_path: Path, kills: int, rng: random.Random) -> None:
    """Each of four holds up to three of 16 objects, in a cache for eight: it is full at times."""
    cache = Cache(tmp_path / "cache", 8 * SIZE)
    workers = Workers(objects, cache)
    try:
        for process in workers.processes:
            workers.wait(1, process)
        for _ in range(kills):
            victim = rng.randrange(4)
            workers.wait(rng.randrange(4), workers.processes[victim])
            time.sleep(rng.random() * 0.01)
            workers.kill(victim)
            assert used_bytes(cache) <= cache.budget
        for process in workers.processes:
            workers.wait(20, process)
    finally:
        workers.end()
    said = {line.split()[0] for line in workers.counts}
    assert said <= {"of", "read", "full", "failed"}, workers.counts
    assert workers.counts["read"] > 80
    assert used_bytes(cache) <= cache.budget
    assert not any(entry.in_use for entry in cache.entries())
    for entry in cache.entries():
        assert hashlib.sha256((cache.root / "whole" / entry.name).read_bytes()).hexdigest() == entry.name
    cache.clean()
    assert used_bytes(cache) == 0


@pytest.mark.slow
def test_a_process_killed_before_each_step(objects: Path, tmp_path: Path) -> None:
    with running("grid", objects, tmp_path / "caches") as process:
        said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert int(said) > 60


@pytest.mark.slow
def test_a_forked_child_keeps_no_lock_of_a_killed_parent(objects: Path, tmp_path: Path) -> None:
    digest = min(os.listdir(objects))
    with running("fetch_for_ever", objects, tmp_path / "cache", digest, "forks") as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
        process.wait()
        try:
            cache = Cache(tmp_path / "cache", 3 * SIZE, patience_seconds=10 * PATIENCE)
            opened = threading.Thread(target=cache.open, args=(digest, SIZE, fetch_from(objects, digest)), daemon=True)
            opened.start()
            opened.join(PATIENCE)
            assert not opened.is_alive()
            os.kill(child, 0)  # it lives
        finally:
            os.kill(child, signal.SIGKILL)
    assert [entry.name for entry in cache.entries()] == [digest]


@pytest.mark.slow
def test_a_stopped_process_is_not_waited_for_for_ever(objects: Path, tmp_path: Path) -> None:
    digest = min(os.listdir(objects))
    cache = Cache(tmp_path / "cache", 3 * SIZE, patience_seconds=0.1)
    with running("fetch_for_ever", objects, cache.root, digest, "") as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGSTOP)
        descriptor = cache.open(digest, SIZE, fetch_from(objects, digest))
        assert hashlib.sha256(os.pread(descriptor, SIZE, 0)).hexdigest() == digest
        os.close(descriptor)
        assert used_bytes(cache) == 2 * SIZE  # its part is counted as long as it lives
    assert cache.clean() == 2 * SIZE


@pytest.mark.slow
def test_a_process_that_is_late_takes_what_is_there(objects: Path, tmp_path: Path) -> None:
    """It was stopped so long that another fetched the object too."""
    digest = min(os.listdir(objects))
    cache = Cache(tmp_path / "cache", 3 * SIZE, patience_seconds=0.1)

    def fetch() -> Iterator[bytes]:
        yield from fetch_from(objects, digest)()
        os.close(cache.open(digest, SIZE, fetch_from(objects, digest)))

    descriptor = cache.open(digest, SIZE, fetch)
    assert os.fstat(descriptor).st_ino == (cache.root / "whole" / digest).stat().st_ino
    assert used_bytes(cache) == SIZE
    os.close(descriptor)


def test_a_stopped_process_that_counts_the_budget_is_named(
    objects: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path / "cache", 3 * SIZE)
    digest = min(os.listdir(objects))
    os.close(cache.open(digest, SIZE, fetch_from(objects, digest)))
    monkeypatch.setattr(folders, "_BUSY_SECONDS", 0.05)
    with cache._folder.lock_cache():
        os.close(cache.open(digest, SIZE, list))  # what is there needs no guard
        with pytest.raises(CacheError, match="a process that uses it has stopped; end it, or name another folder"):
            cache.clean()


@pytest.mark.parametrize("count", [2, 6])
def test_threads_that_want_the_same_object_fetch_it_once(objects: Path, tmp_path: Path, count: int) -> None:
    digest = min(os.listdir(objects))
    cache = Cache(tmp_path / "cache", 3 * SIZE, patience_seconds=10 * PATIENCE)
    barrier, calls, descriptors = threading.Barrier(count), [], []

    def fetch() -> Iterator[bytes]:
        calls.append(1)
        time.sleep(0.01)
        yield from fetch_from(objects, digest)()

    def open_it() -> None:
        barrier.wait()
        descriptors.append(cache.open(digest, SIZE, fetch))

    threads = [threading.Thread(target=open_it) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE / 4)
    assert (len(descriptors), len(calls)) == (count, 1)
    for descriptor in descriptors:
        os.close(descriptor)


def read_inherited(descriptor: int, digest: str) -> None:
    assert hashlib.sha256(os.pread(descriptor, SIZE, 0)).hexdigest() == digest


def read_anew(cache: Cache, digest: str) -> None:
    descriptor = cache.open(digest, SIZE, list)
    read_inherited(descriptor, digest)
    os.close(descriptor)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_read_and_fetch(objects: Path, tmp_path: Path, method: str) -> None:
    context = multiprocessing.get_context(method)
    digest = min(os.listdir(objects))
    cache = Cache(tmp_path / "cache", 3 * SIZE)
    descriptor = cache.open(digest, SIZE, fetch_from(objects, digest))
    children = [context.Process(target=read_anew, args=(cache, digest))]
    if method == "fork":
        children.append(context.Process(target=read_inherited, args=(descriptor, digest)))
    for child in children:
        child.start()
    for child in children:
        child.join(PATIENCE)
        assert child.exitcode == 0
    os.close(descriptor)
    assert cache.clean() == SIZE


def test_what_a_child_has_open_stays(objects: Path, tmp_path: Path) -> None:
    digest = min(os.listdir(objects))
    cache = Cache(tmp_path / "cache", 3 * SIZE)
    descriptor = cache.open(digest, SIZE, fetch_from(objects, digest))
    os.set_inheritable(descriptor, True)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[descriptor]) as child:
        os.close(descriptor)
        assert cache.clean() == 0
        assert child.stdin is not None
        child.stdin.close()
    assert cache.clean() == SIZE

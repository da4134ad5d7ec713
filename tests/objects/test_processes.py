"""Object stores in forked and spawned processes, after the parent has used them: a DataLoader's workers are such."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from packstore.objects import ConflictError, MissingObjectError, ObjectStore, RemoteError, open_objects
from tests.internals import get_agent_if_forked

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

SECONDS = 60
"""Where a child hangs, the test fails; on a busy machine it may take its time."""


def forked(work: Callable[[], object]) -> object:
    """What ``work`` returns in a forked child; the text of what it raises."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = repr(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    timer = threading.Timer(SECONDS, os.kill, (child, signal.SIGKILL))
    timer.start()
    with os.fdopen(read) as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    timer.cancel()
    return answer


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    url = f"file://{tmp_path}/objects" if request.param == "file" else request.getfixturevalue("s3")
    store = open_objects(url)
    store.create("a", b"hello")
    store.create("big", bytes(9 << 20))
    return store


@pytest.mark.slow
def test_everything_works_in_a_forked_child(store: ObjectStore) -> None:
    def work() -> object:
        with pytest.raises(MissingObjectError, match="no does not exist"):
            store.get("no")
        with pytest.raises(ConflictError) as caught:
            store.create("a", b"other")
        assert caught.value.name == "a"
        assert store.create("b", b"of the child")
        assert sum(map(len, store.stream("big"))) == 9 << 20
        assert next(store.stream("big"))  # and the rest is not wanted
        assert {info.name for info in store.list_directory()[0]} == {"a", "b", "big"}
        assert get_agent_if_forked() is not None
        store.delete(["big"])
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(store.get, ["a"] * 100)) == {b"hello"}
        return sorted(info.name for info in store.list()), store.get("a", 1, 3), store.head("a").nbytes

    assert forked(work) == "(['a', 'b'], b'el', 5)"
    assert get_agent_if_forked() is None
    assert store.get("b") == b"of the child"


@pytest.mark.slow
def test_forked_children_of_forked_ones(store: ObjectStore) -> None:
    assert forked(lambda: (store.get("a"), forked(lambda: store.get("a")), store.get("a"))) == repr(
        (b"hello", repr(b"hello"), b"hello")
    )


@pytest.mark.slow
def test_an_agent_ends_with_its_parent(store: ObjectStore) -> None:
    def work() -> int:
        store.get("a")
        return get_agent_if_forked().process.pid

    number = int(forked(work))
    until = time.monotonic() + SECONDS
    while Path(f"/proc/{number}/stat").exists() and time.monotonic() < until:
        if Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break  # its parent has ended, and nobody takes note of its own end
        time.sleep(0.01)
    else:
        assert not Path(f"/proc/{number}").exists()


@pytest.mark.slow
def test_a_killed_agent_is_said_in_one_line_and_replaced(store: ObjectStore) -> None:
    def kill_agent() -> None:
        number = get_agent_if_forked().process.pid
        os.kill(number, signal.SIGKILL)
        os.waitid(os.P_PID, number, os.WEXITED | os.WNOWAIT)
        with pytest.raises(RemoteError, match="the process that fetches for this forked one has ended"):
            store.get("a")

    def work() -> object:
        store.get("a")  # its connection is kept
        kill_agent()
        next(store.stream("big"))  # the rest is not wanted: its connection is closed
        kill_agent()
        return store.get("a")

    assert forked(work) == repr(b"hello")


@pytest.mark.slow
def test_memory_is_one_process_s() -> None:
    store = open_objects("memory://here")
    store.create("a", b"1")
    assert forked(lambda: store.get("a")) == (
        "RemoteError: memory://here is the memory of one process; a forked one cannot read it"
    )


def read(store: ObjectStore) -> bytes:
    return store.get("a")


@pytest.mark.slow
def test_spawn(store: ObjectStore) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply_async(read, (store,)).get(SECONDS) == b"hello"


@pytest.mark.slow
def test_workers_of_a_dataloader(store: ObjectStore) -> None:
    from torch.utils.data import DataLoader, Dataset

    class Numbers(Dataset[int]):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> int:
            return len(store.get("a")) + index

    for _ in range(2):
        loader = DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context="fork", timeout=SECONDS)
        assert sorted(number for batch in loader for number in batch.tolist()) == list(range(5, 45))

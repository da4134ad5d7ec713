"""Tasks that take too long: a second copy of them begins, and the first outcome counts."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import packstore
from tests.internals import PendingTasks, ProcessRunner, RayRunner, driver, runners
from tests.makers.clusters import KillingObjects, assert_same, drive

PASSING: dict[str, Any] = {"shard_size": 30_000, "workers": 1}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_what_is_late(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LEAST_SECONDS", 4.0)
    tasks = PendingTasks()
    for number in range(4):
        tasks.add_copy(number, ())
    clock[0] = 1000.0
    assert tasks.choose_stragglers(9) == []  # nothing has ended yet, so who knows
    assert tasks.seconds_to_straggler() is None
    for number in range(4, 7):
        tasks.add_copy(number, ())
    for number in range(4, 7):
        clock[0] += 2
        assert tasks.remove_task(number) == 0
    tasks.add_copy(7, ())
    assert [number for number, _ in tasks.choose_stragglers(9)] == [0, 1, 2, 3]  # 4 seconds is the median
    assert [number for number, _ in tasks.choose_stragglers(6)] == [0]  # of the 6 workers 5 are busy
    assert tasks.choose_stragglers(5) == []
    assert tasks.seconds_to_straggler() == 12.0
    tasks.add_copy(0, ())
    assert len(tasks) == 6
    assert [number for number, _ in tasks.choose_stragglers(9)] == [1, 2, 3]
    assert tasks.remove_task(0) == 1
    assert 0 not in tasks
    clock[0] += 100
    assert [number for number, _ in tasks.choose_stragglers(1)] == [1]  # all are late, and no worker is idle
    for _ in range(driver.COPIES - 1):
        tasks.add_copy(1, ())
    clock[0] += 100
    assert [number for number, _ in tasks.choose_stragglers(9)] == [2, 3, 7]
    assert tasks.seconds_to_straggler() is None


def test_no_task_is_late_at_once(clock: list[float]) -> None:
    tasks = PendingTasks()
    tasks.add_copy(0, ())
    tasks.add_copy(1, ())
    clock[0] = 0.01
    tasks.remove_task(0)
    clock[0] = driver.LEAST_SECONDS
    assert tasks.choose_stragglers(9) == []
    clock[0] += 1
    assert [number for number, _ in tasks.choose_stragglers(9)] == [1]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"{(tmp_path / 'objects').as_uri()}/x.h5"


@pytest.fixture
def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks are late soon; those that are stopped have to be woken up to end, however long one waits for them."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(driver, "LEAST_SECONDS", 0.2)
    monkeypatch.setattr(runners, "ENDING_SECONDS", 1000.0)


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("part", "after", "processes"),
    [("start", False, 2), ("shards/", False, 2), ("done/", False, 2), ("done/", True, 2), ("done/000001", False, 1)],
)
def test_a_worker_hangs(photos: Path, url: str, tmp_path: Path, part: str, after: bool, processes: int) -> None:
    """When it has just begun, before it uploads, before its receipt, and after: the bytes of one machine. The only
    worker, too."""
    packstore.convert(photos, tmp_path / "x.h5", **PASSING)
    objects = KillingObjects(url, tmp_path / "kills", part, after=after, sent=signal.SIGSTOP)
    drive(photos, url, objects=objects, cluster=f"processes:{processes}", **PASSING)
    assert (tmp_path / "kills" / "killed").exists()
    assert_same(url, tmp_path / "x.h5")
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_interrupted_while_all_workers_hang(
    photos: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers: list[Any] = []
    start = ProcessRunner._start_worker
    monkeypatch.setattr(ProcessRunner, "_start_worker", lambda self: workers.append(start(self)) or workers[-1])
    kills, main = tmp_path / "kills", threading.get_ident()
    objects = KillingObjects(url, kills, "done/", sent=signal.SIGSTOP, times=2)

    def interrupt() -> None:
        while len(list(kills.iterdir())) < 2:
            time.sleep(0.01)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        drive(photos, url, objects=objects, cluster="processes:2", **PASSING)
    thread.join()
    assert "what is packed so far is kept there" in caught.value.__notes__[0]
    assert [worker.process.poll() is not None for worker in workers] == [True, True]
    assert not list((tmp_path / "scratch").iterdir())


def test_a_copy_on_ray_is_dropped() -> None:
    """The first outcome of a task counts, and its other copies are cancelled."""

    class Ray:
        def __init__(self) -> None:
            self.cancelled: list[tuple[str, bool]] = []

        def cancel(self, ref: str, *, force: bool) -> None:
            self.cancelled.append((ref, force))

    runner = RayRunner.__new__(RayRunner)
    runner._ray, runner._refs = Ray(), {"a": 3, "b": 4, "c": 3}
    runner.drop(3)
    assert runner._refs == {"b": 4}
    assert runner._ray.cancelled == [("a", True), ("c", True)]

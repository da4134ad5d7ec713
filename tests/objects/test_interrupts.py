"""A signal ends requests to a server that does not answer."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import packstore
from packstore import objects as interrupts
from packstore.objects import RemoteError, interrupt
from tests.conftest import Need
from tests.internals import call_interruptibly, connection, iterate_interruptibly
from tests.makers.datasets import make_folder
from tests.makers.s3 import Double, Fault


@pytest.fixture(autouse=True)
def _not_interrupted() -> Iterator[None]:
    yield
    interrupts._interrupted.clear()


@pytest.fixture
def silence() -> Iterator[threading.Event]:
    """Of what waits for it; over at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def test_calls_return_and_raise_what_the_function_does() -> None:
    def refuse() -> None:
        raise KeyError("x")

    assert call_interruptibly(divmod, 7, 2) == (3, 1)
    with pytest.raises(KeyError, match="x"):
        call_interruptibly(refuse)
    assert list(iterate_interruptibly(iter(range(10)), 4)) == list(range(10))
    assert threading.current_thread() is not call_interruptibly(threading.current_thread)


def test_the_next_values_are_fetched_while_the_caller_is_busy(silence: threading.Event) -> None:
    asked = [threading.Event() for _ in range(3)]

    def values() -> Iterator[int]:
        for number, event in enumerate(asked):
            event.set()
            yield number

    taken = iterate_interruptibly(values(), 1, ahead=True)
    assert next(taken) == 0
    assert asked[1].wait(30)  # without being asked for
    assert not asked[2].is_set()  # one, and no more
    assert list(taken) == [1, 2]
    for event in asked:
        event.clear()
    taken = iterate_interruptibly(values(), 1)
    assert next(taken) == 0
    assert not asked[1].wait(0.01)
    assert list(taken) == [1, 2]
    assert not interrupts._pending


def test_what_is_fetched_ahead_and_not_taken_ends(silence: threading.Event) -> None:
    def values() -> Iterator[int]:
        yield 0
        silence.wait()

    taken = iterate_interruptibly(values(), 1, ahead=True)
    assert next(taken) == 0
    assert len(interrupts._pending) == 1
    interrupt()
    with pytest.raises(RemoteError, match="interrupted"):
        next(taken)
    interrupts._interrupted.clear()
    taken = iterate_interruptibly(values(), 1, ahead=True)
    assert next(taken) == 0
    taken.close()  # type: ignore[attr-defined]
    assert not interrupts._pending


def test_threads_are_used_again(silence: threading.Event) -> None:
    def workers() -> set[threading.Thread]:  # those of other tests too, idle or not
        return {thread for thread in threading.enumerate() if isinstance(thread, interrupts._RequestThread)}

    call_interruptibly(threading.get_ident)
    before = workers()
    assert {call_interruptibly(threading.get_ident) for _ in range(50)} <= {worker.ident for worker in before}
    waiting = threading.Thread(target=call_interruptibly, args=(silence.wait,))
    waiting.start()
    silence.set()
    waiting.join()
    for _ in range(50):
        call_interruptibly(threading.get_ident)
    assert len(workers() - before) <= 1


def test_all_that_is_under_way_ends(silence: threading.Event) -> None:
    raised: list[Exception] = []

    def ask() -> None:
        try:
            call_interruptibly(silence.wait)
        except RemoteError as error:
            raised.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    while len(interrupts._pending) < 8:
        time.sleep(0.001)
    interrupt()
    for thread in threads:
        thread.join()
    assert [str(error) for error in raised] == ["interrupted"] * 8


def test_what_comes_later_has_a_short_time(silence: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt()
    assert call_interruptibly(divmod, 7, 2) == (3, 1)
    monkeypatch.setattr(interrupts, "_LAST_SECONDS", 0.05)
    with pytest.raises(RemoteError, match="interrupted"):
        call_interruptibly(silence.wait)


def test_no_answer_is_kept_alive() -> None:
    import weakref

    class Answer:
        pass

    kept = weakref.ref(call_interruptibly(Answer))
    while kept() is not None:  # the thread may be about to let it go
        time.sleep(0.001)


@pytest.mark.slow
@pytest.mark.parametrize("command", [["verify"], ["cache", "prefetch"], ["audit", "--pixels"], ["info"]])
def test_ctrl_c_ends_a_command(s3_double: Double, tmp_path: Path, command: list[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    packstore.convert(make_folder(tmp_path / "photos"), "s3://bucket/x.lmdb", shard_size=3000)
    which = r"\.shards$|manifest|versions" if command == ["info"] else r"\.lmdb$"
    s3_double.faults.append(Fault("silent", "GET", which, 1 << 30))
    s3_double.requests.clear()
    run = [sys.executable, "-m", "packstore", *command, "s3://bucket/x.lmdb"]
    with subprocess.Popen(run, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        while s3_double.faults[-1].times == 1 << 30:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        # Left alone, it asks again for three quarters of a minute.
        assert "packstore: interrupted" in process.communicate(timeout=30)[1]
        assert process.returncode == 130


@pytest.mark.slow
def test_ctrl_c_ends_the_page(s3_double: Double, tmp_path: Path, monkeypatch: Any, need: Need) -> None:
    need("starlette", importlib.util.find_spec("starlette") is not None)
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    packstore.convert(make_folder(tmp_path / "photos"), "s3://bucket/x.lmdb", shard_size=3000)
    s3_double.faults.append(Fault("silent", "GET", r"\.lmdb$", 1 << 30))
    run = [sys.executable, "-m", "packstore", "view", "s3://bucket/x.lmdb", "--no-browser"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(run, env=os.environ, **pipes) as process, ThreadPoolExecutor() as visitors:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        opener.open(address).close()
        answer = visitors.submit(opener.open, address.partition("?")[0] + "thumbnail/96/0")
        while s3_double.faults[-1].times == 1 << 30:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30)[0].splitlines()[-1] == "packstore: interrupted"
        assert process.returncode == 130
        with pytest.raises(urllib.error.HTTPError, match="503") as refused:
            answer.result()
        refused.value.close()


@pytest.mark.slow
def test_ctrl_c_ends_an_epoch(s3_double: Double, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(connection, "SILENCE_SECONDS", 1.0)  # a request of the first epoch may be waited for
    packstore.convert(
        make_folder(tmp_path / "photos"), "s3://bucket/x.lmdb", shard_size=3000, encoding="uint8", size=16
    )
    loader = packstore.PackedLoader(packstore.PackedDataset("s3://bucket/x.lmdb", "train"), 4, resident=False)
    silent = Fault("silent", "GET", r"\.lmdb$", 1 << 30)
    s3_double.faults.append(silent)
    main = threading.get_ident()

    def stop() -> None:
        while silent.times == 1 << 30:
            time.sleep(0.01)
        signal.pthread_kill(main, signal.SIGINT)  # to the process, it may interrupt another thread

    stopping = threading.Thread(target=stop)
    stopping.start()
    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        next(iter(loader))
    assert time.monotonic() - before < 30, "it asks again for three quarters of a minute"
    stopping.join()
    s3_double.faults.clear()
    assert sum(len(images) for images, _ in loader) == len(loader.dataset)

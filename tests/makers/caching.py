"""Processes that share a cache, are killed, and check each byte that they read: programs for :mod:`tests.cache`.

The objects lie in a folder, each under its SHA-256.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import mmap
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from packstore.cache import Cache
from tests.internals import CacheFullError, StoreError

CHANGES = ("posix_fallocate", "ftruncate", "write", "utime", "unlink", "mkdir")
"""Functions of :mod:`os` before each call of which a process is killed; and ``Path.rename``, ``fcntl.flock``, and
``os.open`` where it creates a file."""


def make_objects(folder: Path, count: int, nbytes: int) -> list[str]:
    """Random objects; returns their digests."""
    folder.mkdir()
    drawn = random.Random(count)
    digests = []
    for _ in range(count):
        data = drawn.randbytes(nbytes)
        digests.append(hashlib.sha256(data).hexdigest())
        (folder / digests[-1]).write_bytes(data)
    return digests


def fetch_from(folder: Path, digest: str, fault: str = "") -> Callable[[], Iterator[bytes]]:
    """A fetch of an object in small pieces; with ``fault`` ``cut``, ``flipped`` or ``broken`` (an error midway)."""

    def fetch() -> Iterator[bytes]:
        data = (folder / digest).read_bytes()
        half = len(data) // 2
        if fault == "flipped":
            data = data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :]
        yield data[:half]
        if fault == "broken":
            raise StoreError("connection reset")
        if fault != "cut":
            yield data[half:]

    return fetch


def faulty_fetch(folder: Path, digest: str, drawn: random.Random) -> Callable[[], Iterator[bytes]]:
    """A fetch of which each call may go wrong in another way."""

    def fetch() -> Iterator[bytes]:
        fault = drawn.choice(["cut", "flipped", "broken"]) if drawn.random() < 0.09 else ""
        return fetch_from(folder, digest, fault)()

    return fetch


def used_bytes(cache: Cache) -> int:
    """Bytes of all objects in a cache at one moment."""
    used = 0
    with cache._folder.lock_cache():
        for path in cache.root.glob("*/*"):
            with suppress(FileNotFoundError):  # whoever fetches removes a part that came damaged
                used += path.stat().st_size
    return used


def work(objects: str, root: str, budget: str, seed: str) -> None:
    """Opens objects at random for ever, keeps up to three open, checks all bytes of one of them; a line for each."""
    cache, folder, drawn = Cache(Path(root), int(budget)), Path(objects), random.Random(seed)
    digests = sorted(os.listdir(folder))
    held: list[tuple[str, mmap.mmap]] = []
    while True:
        digest = drawn.choice(digests)
        nbytes = (folder / digest).stat().st_size
        try:
            descriptor = cache.open(digest, nbytes, faulty_fetch(folder, digest, drawn))
        except CacheFullError:
            held = []
            print("full", flush=True)
            continue
        except StoreError as error:
            print("failed" if "3 times" in str(error) or "reset" in str(error) else f"ERROR {error}", flush=True)
            continue
        held = [*held, (digest, mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))][-3:]
        os.close(descriptor)  # the map has a copy
        digest, data = drawn.choice(held)
        print("read" if hashlib.sha256(data).hexdigest() == digest else "WRONG", flush=True)


def grid(objects: str, root: str) -> None:
    """Kills a process before each call that changes or locks a file, while it opens an object in a full cache, and
    looks at what is left. Prints how many steps there were."""
    folder = Path(objects)
    digests = sorted(os.listdir(folder))
    nbytes = (folder / digests[0]).stat().st_size
    step = 0
    while True:
        cache = Cache(Path(root) / str(step), 3 * nbytes)
        if step % 3:  # else there is no cache yet
            for digest in digests[:3]:
                os.close(cache.open(digest, nbytes, fetch_from(folder, digest)))
            if step % 3 == 2:  # the object is there, damaged
                (cache.root / "whole" / digests[3]).write_bytes(bytes(nbytes))
                (cache.root / "whole" / digests[0]).unlink()
        if _survives(cache, folder, digests[3], nbytes, step // 3) and step % 3 == 2:
            break
        assert not cache.root.exists() or (cache.root / "packstore-cache").exists() or not any(cache.root.iterdir())
        for digest in (digests[3], digests[1], digests[4]):
            descriptor = cache.open(digest, nbytes, fetch_from(folder, digest))
            assert hashlib.sha256(os.pread(descriptor, 2 * nbytes, 0)).hexdigest() == digest, step
            os.close(descriptor)
            assert used_bytes(cache) <= cache.budget, step
        cache.clean()
        assert not list(cache.root.glob("*/*")), step
        step += 1
    print(step)


def _survives(cache: Cache, folder: Path, digest: str, nbytes: int, calls: int) -> bool:
    """Opens an object in a child that is killed before the call of this number; returns whether it got to its end."""
    child = os.fork()
    if child == 0:
        left, create = calls, os.open

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                nonlocal left
                if function is create and not arguments[1] & os.O_CREAT:
                    return function(*arguments, **named)
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                return function(*arguments, **named)

            return call

        for name in ("open", *CHANGES):
            setattr(os, name, counted(getattr(os, name)))
        Path.rename = counted(Path.rename)  # type: ignore[method-assign]
        fcntl.flock = counted(fcntl.flock)
        cache.open(digest, nbytes, fetch_from(folder, digest))
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def fetch_for_ever(objects: str, root: str, digest: str, forks: str) -> None:
    """Begins to fetch an object in a thread and never ends; prints its process, with ``forks`` that of a child."""
    import threading

    folder = Path(objects)
    begun = threading.Event()

    def fetch() -> Iterator[bytes]:
        yield (folder / digest).read_bytes()[:10]
        begun.set()
        time.sleep(1000)

    nbytes = (folder / digest).stat().st_size
    threading.Thread(target=lambda: Cache(Path(root), 3 * nbytes).open(digest, nbytes, fetch), daemon=True).start()
    begun.wait()
    child = os.fork() if forks else os.getpid()
    if child:
        print(child, flush=True)
    time.sleep(1000)


if __name__ == "__main__":
    logging.disable()  # that objects are damaged
    {"work": work, "grid": grid, "fetch_for_ever": fetch_for_ever}[sys.argv[1]](*sys.argv[2:])

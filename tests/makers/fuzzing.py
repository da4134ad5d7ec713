"""A small coverage-guided fuzzer: mutates inputs, keeps those that reach lines not reached before.

Used by ``tests/tools/test_fuzz.py`` for a bounded run that is the same each time, and by ``tools/fuzz`` for long ones.
A target is a function of bytes that returns or raises what its contract allows; anything else, and anything that takes
too long, is a find.
"""

from __future__ import annotations

import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

_NUMBERS = (0, 1, 2, 7, 8, 127, 128, 255, 256, 4095, 4096, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63,
            2**64 - 1)  # fmt: skip
_MAX_INPUT = 1 << 17
_MAX_HUNG = 3
"""Inputs that took too long, after which a run ends: to wait for more of them tells nothing new."""


@dataclass(frozen=True)
class Target:
    """A parser under test.

    Attributes:
        name: Of the parser; its seeds lie in ``tests/corpus/NAME``.
        run: Takes an input; raises only what ``allowed`` lists.
        allowed: Exceptions that are an answer.
        files: Ends of the names of the source files whose lines are watched.
        repair: Makes digests and checksums of a mutated input right again, so that what lies behind them is reached.
        words: Pieces that inputs are made of.
    """

    name: str
    run: Callable[[bytes], object]
    allowed: tuple[type[BaseException], ...]
    files: tuple[str, ...]
    repair: Callable[[bytes, random.Random], bytes] | None = None
    words: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Find:
    """An input that a target did not answer as it should, and what it did."""

    data: bytes
    what: str
    trace: str


@dataclass
class Result:
    """What a run found: inputs tried, those kept for the lines that they reached, finds."""

    tried: int = 0
    answered: int = 0
    kept: list[bytes] = field(default_factory=list)
    finds: list[Find] = field(default_factory=list)
    lines: int = 0


class TookTooLong(BaseException):
    """Not an Exception, so that no parser catches it."""


def fuzz(
    target: Target,
    seeds: list[bytes],
    *,
    rng: random.Random,
    count: int | None = None,
    seconds: float | None = None,
    limit_seconds: float = 10.0,
    before: Callable[[bytes], object] = lambda data: None,
) -> Result:
    """Runs ``target`` on ``seeds`` and on mutations of them.

    Args:
        target: What to run.
        seeds: Inputs to begin with.
        rng: Where all choices come from; with ``count`` a run is the same each time.
        count: Mutations to try.
        seconds: Or how long to go on.
        limit_seconds: What one input may take: of processor time, and 30 times that on the clock.
        before: Called with each input before it is tried, for a run that may end the process.
    """
    result = Result()
    reached: set[tuple[str, int, int]] = set()
    seen: set[str] = set()
    pool: list[bytes] = []
    end = None if seconds is None else time.monotonic() + seconds
    hung = 0

    def attempt(data: bytes, keep: bool) -> None:
        nonlocal hung
        before(data)
        result.tried += 1
        new: set[tuple[str, int, int]] = set()
        try:
            with _watching(target.files, new), _limited(limit_seconds):
                target.run(data)
            result.answered += 1
        except target.allowed:
            pass
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            hung += isinstance(error, TookTooLong)
            last = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__} at {last.name}:{last.lineno}: {error!s:.200}"
            if f"{type(error).__name__}{last.name}{last.lineno}" not in seen:
                seen.add(f"{type(error).__name__}{last.name}{last.lineno}")
                result.finds.append(Find(data, what, "".join(traceback.format_exception(error, limit=-6))))
        if keep or not new <= reached:
            reached.update(new)
            pool.append(data)
            if not keep:
                result.kept.append(data)

    for seed in seeds:
        attempt(seed, True)
    while (count is None or result.tried < count + len(seeds)) and (end is None or time.monotonic() < end):
        if hung >= _MAX_HUNG:
            break
        # The latest are the nearest to what has not been reached yet.
        data = pool[-1 - int(rng.random() ** 2 * len(pool))] if rng.random() < 0.7 else rng.choice(pool)
        data = mutated(data, rng, pool, target.words)[:_MAX_INPUT]
        if target.repair is not None and rng.random() < 0.8:
            data = target.repair(data, rng)
        attempt(data, False)
    result.lines = len({(file, line) for file, _, line in reached})
    return result


def mutated(data: bytes, rng: random.Random, pool: list[bytes], words: tuple[bytes, ...] = ()) -> bytes:
    """``data`` with one to a few changes, anywhere."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        at = rng.randrange(len(out) + 1)
        size = rng.choice((1, 1, 2, 4, 8, 16, 64))
        match rng.randrange(9):
            case 0 if out:
                out[min(at, len(out) - 1)] ^= 1 << rng.randrange(8)
            case 1 if out:
                out[min(at, len(out) - 1)] = rng.randrange(256)
            case 2:
                width, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
                number = rng.choice((*_NUMBERS, len(out), max(0, len(out) - 1), rng.randrange(len(out) + 1)))
                out[at : at + width] = (number % 256**width).to_bytes(width, order)  # type: ignore[arg-type]
            case 3:
                del out[at : at + size]
            case 4:
                out[at:at] = out[at : at + size] * rng.choice((1, 1, 2, 50))
            case 5:
                out[at:at] = rng.randbytes(size)
            case 6:
                other = rng.choice(pool)
                start = rng.randrange(len(other) + 1)
                out[at : at + size] = other[start : start + size]
            case 7 if words:
                out[at : at + rng.choice((0, size))] = rng.choice(words)
            case _:
                if rng.random() < 0.2:
                    del out[at:]
                elif out:
                    digit = rng.choice((b"-1", b"9" * 30, b"1e999", b"0", b"%d" % rng.choice(_NUMBERS)))
                    out[at : at + rng.choice((0, 1, len(digit)))] = digit
    return bytes(out)


@contextmanager
def _watching(files: tuple[str, ...], reached: set[tuple[str, int, int]]) -> Iterator[None]:
    """Notes each step from line to line in the files whose names end so."""
    wanted: dict[str, bool] = {}

    def call(frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        watch = wanted.get(name)
        if watch is None:
            watch = wanted[name] = name.endswith(files)
        if not watch:
            return None
        last = 0

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            if event == "line":
                reached.add((name, last, frame.f_lineno))
                last = frame.f_lineno
            return line

        return line

    before = sys.gettrace()
    sys.settrace(call)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TookTooLong(f"more than {seconds:g} s")

    before = {number: signal.signal(number, stop) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 30 * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)

"""Shards that are fetched before batches need them: in order, within the room, and never in the way."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.internals import CacheFullError, ShardReads, ShardsAhead, StoreError, max_bytes_needed


class Reader:
    """Notes what it is asked for; ``gate`` holds fetches back, ``errors`` are raised."""

    def __init__(self, errors: dict[int, Exception] | None = None) -> None:
        self.fetched: list[int] = []
        self.left: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self._errors = errors or {}

    def prefetch(self, number: int) -> None:
        self.fetched.append(number)
        self.gate.wait(30)
        if number in self._errors:
            raise self._errors[number]

    def release(self, numbers: Collection[int]) -> None:
        self.left += numbers


def reads(*rows: tuple[int, int, int]) -> ShardReads:
    """Shards with the first and the last batch that need them."""
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    return ShardReads(columns[0], columns[1], columns[2])


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it did not come to that in 30 s"
        time.sleep(0.001)


def settled(ahead: ShardsAhead) -> bool:
    """Whether no thread fetches: each waits for room, or is done."""
    with ahead._changed:
        waiting = len(ahead._changed._waiters)
    return waiting >= sum(thread.is_alive() for thread in ahead._threads)


def ended(ahead: ShardsAhead) -> None:
    until(lambda: not any(thread.is_alive() for thread in ahead._threads))


ONE_A_BATCH = reads(*((shard, shard, shard) for shard in range(10)))
SIZES = np.full(10, 100, np.int64)


def test_as_many_ahead_as_there_is_room_for() -> None:
    reader = Reader()
    with ShardsAhead(reader, ONE_A_BATCH, SIZES, 0, 350) as ahead:
        until(lambda: settled(ahead))
        assert sorted(reader.fetched) == [0, 1, 2]
        ahead.mark_done(1)
        until(lambda: settled(ahead) and len(reader.fetched) == 4)
        assert reader.left == [0]
        ahead.mark_done(5)  # shard 4 was never fetched ahead, and is not now
        until(lambda: settled(ahead) and len(reader.fetched) >= 7)
        assert sorted(reader.fetched) == [0, 1, 2, 3, 5, 6, 7]
        assert sorted(reader.left) == [0, 1, 2, 3, 4]  # who needed shard 4 has it open
        ahead.mark_done(10)
        ended(ahead)
        assert sorted(reader.left) == list(range(10))


def test_what_has_no_room_when_it_is_needed_is_left_to_those_that_need_it() -> None:
    reader = Reader()
    with ShardsAhead(reader, reads((3, 0, 9), (5, 0, 9), (7, 4, 9), (8, 10, 11)), SIZES, 0, 150) as ahead:
        until(lambda: settled(ahead))
        assert reader.fetched == [3]
        ahead.mark_done(4)
        until(lambda: settled(ahead) and ahead._taken == 3)
        assert reader.fetched == [3]
        ahead.mark_done(10)
        until(lambda: reader.fetched == [3, 8])


def test_it_goes_on_in_mid_epoch() -> None:
    reader = Reader()
    with ShardsAhead(reader, ONE_A_BATCH, SIZES, 7, 10_000) as ahead:
        until(lambda: settled(ahead))
        assert sorted(reader.fetched) == [7, 8, 9]


def test_a_shard_of_two_lanes_stays_for_the_second() -> None:
    reader = Reader()
    with ShardsAhead(reader, reads((2, 0, 1), (2, 1, 5)), SIZES, 0, 1000) as ahead:
        until(lambda: settled(ahead))
        ahead.mark_done(2)
        assert reader.left == []
        ahead.mark_done(6)
        assert reader.left == [2]


def test_then_what_the_next_epoch_needs_first() -> None:
    reader = Reader()
    two, following = reads((0, 0, 1), (1, 2, 3)), reads((4, 0, 1), (5, 0, 1), (6, 2, 3), (7, 2, 3))
    with ShardsAhead(reader, two, SIZES, 0, 300, following) as ahead:
        until(lambda: settled(ahead))
        assert sorted(reader.fetched) == [0, 1, 4]
        ahead.mark_done(2)
        assert reader.left == [0]
    ended(ahead)
    assert sorted(reader.fetched) == [0, 1, 4, 5]


def test_an_epoch_that_is_broken_off_fetches_nothing_for_the_next() -> None:
    reader = Reader()
    ahead = ShardsAhead(reader, reads((0, 0, 1), (1, 2, 3)), SIZES, 0, 100, reads((4, 0, 1)))
    until(lambda: settled(ahead))
    ahead.__exit__(GeneratorExit, None, None)
    ended(ahead)
    assert reader.fetched == [0]


def test_what_has_no_room_at_the_end_is_not_waited_for() -> None:
    reader = Reader()
    with ShardsAhead(reader, reads((0, 0, 9)), SIZES, 0, 100, reads((4, 0, 0), (5, 0, 0))) as ahead:
        until(lambda: settled(ahead))
    ended(ahead)
    assert reader.fetched == [0, 4]


def test_errors_are_left_to_those_that_need_the_shard(caplog: pytest.LogCaptureFixture) -> None:
    full = CacheFullError(10, 5, 0, Path("cache"))
    reader = Reader({0: StoreError("shard 0 is gone"), 1: full})
    with caplog.at_level(logging.WARNING), ShardsAhead(reader, ONE_A_BATCH, SIZES, 0, 10_000) as ahead:
        until(lambda: settled(ahead))
        assert sorted(reader.fetched) == list(range(10))
    assert [record.getMessage() for record in caplog.records] == ["not fetched ahead: shard 0 is gone"]


def test_the_end_does_not_wait_for_a_fetch_and_begins_no_other() -> None:
    reader = Reader()
    reader.gate.clear()
    with ShardsAhead(reader, ONE_A_BATCH, SIZES, 0, 10_000) as ahead:
        until(lambda: len(reader.fetched) == 4)
    reader.gate.set()
    ended(ahead)
    assert len(reader.fetched) == 4


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 20), st.integers(0, 9)), min_size=1, max_size=20))
def test_the_most_at_a_time(rows: list[tuple[int, int, int]]) -> None:
    sizes = np.array([1, 20, 300, 4000, 50000])
    spans = [(shard, first, first + length) for shard, first, length in rows]
    needed = [{s for s, f, t in spans if f <= batch <= t} for batch in range(31)]  # a shard counts once
    most = max(int(sizes[sorted(each)].sum()) for each in needed)
    assert max_bytes_needed(reads(*spans), sizes) == most

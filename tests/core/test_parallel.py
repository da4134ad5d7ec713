"""The ordered map over threads: order, what is in flight, and that nothing waits for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.internals import batches as packing
from tests.internals import conversion, ordered_flat_map, ordered_map
from tests.makers.tiers import examples


def threads() -> list[str]:
    """Of work in parallel; those that ask object stores stay, for the next requests."""
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("packstore")]
    return [name for name in names if name != "packstore-request"]


@given(st.integers(1, 5), st.integers(0, 30))
def test_results_come_in_order(workers: int, items: int) -> None:
    def slow(item: int) -> int:
        time.sleep(item * 7 % 5 / 10_000)
        return item * item

    assert list(ordered_map(slow, range(items), workers)) == [n * n for n in range(items)]


def test_few_items_are_taken_ahead() -> None:
    taken = count()
    results = ordered_map(lambda item: item, taken, 3)
    assert list(islice(results, 10)) == list(range(10))
    assert next(taken) <= 10 + 2 * 3 + 1
    results.close()  # type: ignore[attr-defined]
    assert not threads()


def test_an_error_comes_at_its_items_turn() -> None:
    def fail(item: int) -> int:
        if item == 3:
            raise KeyError(item)
        return item

    results = ordered_map(fail, range(100), 4)
    assert list(islice(results, 3)) == [0, 1, 2]
    with pytest.raises(KeyError, match="3"):
        next(results)
    assert not threads()


def test_pieces_made_before_an_error_come_before_it() -> None:
    def fail(item: int) -> Iterator[int]:
        yield item
        raise KeyError(item)

    results = ordered_flat_map(fail, range(9), 2)
    assert next(results) == 0
    with pytest.raises(KeyError, match="0"):
        next(results)
    assert not threads()


def test_an_error_of_the_items_ends_it() -> None:
    def items() -> Iterator[int]:
        yield from range(20)
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        list(ordered_map(lambda item: item, items(), 2))
    assert not threads()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"encoding": "uint8"}])
def test_a_store_does_not_depend_on_how_its_batches_come(
    options: dict[str, Any], demo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = conversion.convert(demo_folder, tmp_path / "whole.lmdb", **options).manifest
    monkeypatch.setattr(packing, "_PIECE_BYTES", 1)
    pieces = conversion.convert(demo_folder, tmp_path / "pieces.lmdb", **options).manifest
    assert pieces.dataset_digest == whole.dataset_digest


class Live:
    """Makes pieces, and knows how many bytes of them exist at most."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.bytes = self.most = 0

    def make(self, nbytes: int) -> Piece:
        with self.lock:
            self.bytes += nbytes
            self.most = max(self.most, self.bytes)
        return Piece(self, nbytes)


class Piece:
    def __init__(self, live: Live, nbytes: int) -> None:
        self.live, self.nbytes = live, nbytes

    def __del__(self) -> None:
        with self.live.lock:
            self.live.bytes -= self.nbytes


@pytest.mark.slow
@examples(60)
@given(
    sizes=st.lists(st.lists(st.integers(1, 100), max_size=8), max_size=30),
    workers=st.integers(1, 4),
    budget=st.integers(1, 500),
    pause=st.sampled_from([0, 0.0005]),
)
def test_bytes_in_flight_are_bounded(sizes: list[list[int]], workers: int, budget: int, pause: float) -> None:
    live = Live()

    def pieces(item: list[int]) -> Iterator[Piece]:
        for nbytes in item:
            yield live.make(nbytes)

    found = []
    largest = max((n for item in sizes for n in item), default=0)
    for piece in ordered_flat_map(pieces, sizes, workers, lambda p: p.nbytes, budget):
        found.append(piece.nbytes)
        time.sleep(pause)  # a slow consumer, as a disk is
        del piece
    assert found == [n for item in sizes for n in item]
    assert live.most <= budget + (workers + 1) * largest
    assert live.bytes == 0


def test_one_item_larger_than_the_budget_passes() -> None:
    live = Live()
    results = ordered_flat_map(lambda _: (live.make(10) for _ in range(50)), range(6), 3, lambda p: p.nbytes, budget=1)
    assert sum(piece.nbytes for piece in results) == 6 * 50 * 10
    assert live.most <= 1 + 4 * 10


def test_workers_that_wait_for_room_go_home_with_the_consumer() -> None:
    results = ordered_flat_map(lambda _: (100 for _ in range(9)), range(50), 4, lambda piece: piece, budget=1)
    assert next(results) == 100
    assert len(threads()) > 1
    results.close()  # type: ignore[attr-defined]
    assert not threads()

"""Shuffling in lanes: nodes that fetch shards of their own, once, and records that mix all the same."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.internals import Order, group_by_shard, permute_within


def shards_of(number: int, least: int = 30, most: int = 70) -> tuple[NDArray[np.int64], int]:
    """The starts of so many shards of unequal sizes, and their records."""
    sizes = np.random.default_rng(number).integers(least, most + 1, number)
    return np.cumsum(sizes) - sizes, int(sizes.sum())


def lanes(shards: int, global_batch: int, ranks: int = 1, rank: int = 0, **options: Any) -> Order:
    starts, length = shards_of(shards)
    return Order(
        length,
        global_batch // ranks,
        shuffle=True,
        shards=starts,
        rank=rank,
        world_size=ranks,
        **{"seed": 1, **options},
    )


def sequence(order: Order, epoch: int = 0) -> NDArray[np.int64]:
    found: NDArray[np.int64] = order.records_at(epoch, np.arange(order.count))
    return found


def shard_of(order: Order, records: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.searchsorted(order.shards, records, "right") - 1


# Permutations within windows ----------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=8), st.integers(0, 2**70), st.integers(0, 1000))
def test_each_window_is_permuted(sizes: list[int], seed: int, epoch: int) -> None:
    windows = np.repeat(np.arange(len(sizes)), sizes)
    places = np.concatenate([np.arange(size) for size in sizes])
    found = permute_within(places, windows, np.repeat(sizes, sizes), seed, epoch)
    for number, size in enumerate(sizes):
        assert np.array_equal(np.sort(found[windows == number]), np.arange(size))
    # Every place stands alone: any of them, in any order, gives the same.
    some = np.random.default_rng(epoch).permutation(len(places))[:20]
    alone = permute_within(places[some], windows[some], np.repeat(sizes, sizes)[some], seed, epoch)
    assert alone.tolist() == found[some].tolist()


@pytest.mark.parametrize("size", [6, 1024, 1025, 5000])
def test_windows_are_permuted_independently_and_evenly(size: int) -> None:
    count = 300
    windows, places = np.repeat(np.arange(count), size), np.tile(np.arange(size), count)
    found = permute_within(places, windows, np.full(len(places), size), 3, 1).reshape(count, size)
    deviation = (found.mean(0) - (size - 1) / 2) / np.sqrt((size**2 - 1) / 12 / count)
    assert np.abs(deviation).max() < 5
    for same in ((found[1:] == found[:-1]).sum(1), (found == np.arange(size)).sum(1)):
        assert abs(same.mean() - 1) < 5 * np.sqrt(1.2 / count)
    cells = np.bincount((np.tile(np.arange(size) * 6 // size * 6, count) + found.ravel() * 6 // size), minlength=36)
    expected = len(places) / 36
    assert ((cells - expected) ** 2 / expected).sum() < 25 + 5 * np.sqrt(50)


def test_the_longest_windows() -> None:
    size = 2**31
    places = np.linspace(0, size - 1, 1000).astype(np.int64)
    found = permute_within(places, np.arange(1000) % 7, np.full(1000, size), 1, 2)
    assert 0 <= found.min() < size // 100 < size - size // 100 < found.max() < size


# Lanes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 2, 5, 11, 50, 300])
@pytest.mark.parametrize("drop_last", [False, True])
def test_any_number_of_ranks_gives_the_same_global_batches(shards: int, drop_last: bool) -> None:
    whole = lanes(shards, 24, drop_last=drop_last)
    numbers = {0, 1, whole.count_batches() // 2, whole.count_batches() - 1} & set(range(whole.count_batches()))
    for ranks in (2, 3, 4, 6, 12):
        parts = [lanes(shards, 24, ranks, rank, drop_last=drop_last) for rank in range(ranks)]
        assert parts[0].dropped_count == whole.dropped_count == (whole.count % 24 if drop_last else 0)
        for number in (
            numbers - {whole.count_batches() - 1} if parts[0].count_batches() < whole.count_batches() else numbers
        ):
            joined = np.concatenate([part.batch_records(2, number) for part in parts])
            assert joined.tolist()[:24] == whole.batch_records(2, number).tolist()
    records = np.concatenate([whole.batch_records(2, number) for number in range(whole.count_batches())])
    assert np.unique(records).size == records.size == whole.count - whole.dropped_count


def test_each_epoch_is_dealt_anew_and_seeds_differ() -> None:
    order = lanes(40, 24)
    first = sequence(order)
    for other in (sequence(order, 1), sequence(lanes(40, 24, seed=2))):
        assert (first == other).mean() < 0.02
        assert (shard_of(order, first) == shard_of(order, other)).mean() < 0.1
    assert np.array_equal(first, sequence(pickle.loads(pickle.dumps(order))))
    # The same whatever was asked for before.
    assert order.batch_records(0, 7).tolist() == lanes(40, 24).batch_records(0, 7).tolist()


@pytest.mark.parametrize(
    ("global_batch", "shards", "window", "expected"),
    [
        (4096, 1000, 64, (64, 1)),
        (4096, 1000, 256, (128, 2)),
        (768, 1000, 64, (48, 1)),
        (3840, 1000, 64, (60, 1)),
        (12, 1000, 64, (12, 5)),
        (12, 30, 64, (12, 5)),
        (4096, 30, 64, (8, 8)),
        (24, 5, 64, (4, 16)),
        (127, 1000, 64, (1, 64)),
        (4096, 1, 64, (1, 64)),
        (4096, 1000, 1, (1, 1)),
    ],
)
def test_the_number_of_lanes_suits_many_numbers_of_ranks(
    global_batch: int, shards: int, window: int, expected: tuple[int, int]
) -> None:
    made = lanes(shards, global_batch, window=window).lanes
    assert (made.lanes, made.depth) == expected


@pytest.mark.parametrize(
    ("shards", "global_batch", "most"), [(400, 256, 1.2), (200, 96, 1.3), (64, 64, 1.3), (32, 64, 1.3)]
)
def test_eight_nodes_fetch_each_shard_about_once(shards: int, global_batch: int, most: float) -> None:
    """Each node keeps only as many shards as its windows have: what it needs again after that, it fetches again."""
    fetches = 0
    for rank in range(8):
        order = lanes(shards, global_batch, 8, rank)
        made = order.lanes
        kept: OrderedDict[int, None] = OrderedDict()
        room = -(-made.lanes // 8) * (made.depth + 1)
        for number in range(order.count_batches()):
            for shard in np.unique(shard_of(order, order.batch_records(0, number))).tolist():
                fetches += shard not in kept
                kept[shard] = None
                kept.move_to_end(shard)
            while len(kept) > room:
                kept.popitem(last=False)
    assert fetches <= most * shards


@pytest.mark.parametrize("ranks", [1, 4, 8, 16])
@pytest.mark.parametrize("shards", [2, 7, 90, 400])
def test_reads_are_what_a_rank_reads(ranks: int, shards: int) -> None:
    for rank in {0, ranks // 2, ranks - 1}:
        order = lanes(shards, 64, ranks, rank)
        reads = order.list_shard_reads(5)
        assert (np.diff(reads.first) >= 0).all()
        assert (reads.first <= reads.last).all()
        foreseen = {(s, b) for s, f, t in zip(*map(np.ndarray.tolist, reads), strict=True) for b in range(f, t + 1)}
        found = {
            (shard, number)
            for number in range(order.count_batches() - (0 < order.count % 64 < ranks))
            for shard in shard_of(order, order.batch_records(5, number)).tolist()
        }
        assert found <= foreseen
        # And little else: each shard is read by its rank, in a window that is not much longer than it takes.
        assert len({shard for shard, _ in found}) >= len({shard for shard, _ in foreseen}) * 0.8 - 1


def test_reads_in_the_order_of_the_store() -> None:
    starts, length = shards_of(20)
    order = Order(length, 10, shards=starts, world_size=3, rank=1)
    reads = order.list_shard_reads(0)
    assert reads.shards.tolist() == list(range(20))
    for number in range(order.count_batches()):
        needed = set(shard_of(order, order.batch_records(0, number)).tolist())
        assert needed <= {s for s, f, t in zip(*reads, strict=True) if f <= number <= t}
    assert Order(length, 10, shuffle=True).list_shard_reads(0) is None
    assert Order(length, 10, shards=starts, indices=np.arange(9)).list_shard_reads(0) is None


def test_a_lane_is_done_with_a_window_before_the_next() -> None:
    order = lanes(300, 48, window=96)
    made = order.lanes
    assert (made.lanes, made.depth) == (48, 2)
    records = sequence(order)[: order.count // 48 * 48].reshape(-1, 48)
    for lane in range(48):
        shards = shard_of(order, records[:, lane])
        spans = [np.flatnonzero(shards == shard) for shard in np.unique(shards)]
        # No shard stays longer than its window, of at most two shards.
        assert max(span[-1] - span[0] for span in spans) < 140
        assert np.diff(np.flatnonzero(np.diff(shards))).min() < 10  # and records of both are mixed


@pytest.mark.slow
def test_records_mix() -> None:
    """A batch draws from all lanes, and neighbours of the store do not stay together."""
    order = lanes(400, 96)
    found = sequence(order)
    batches = found[: order.count // 96 * 96].reshape(-1, 96)
    assert min(np.unique(shard_of(order, batch)).size for batch in batches) >= 48
    assert (np.abs(np.diff(found)) == 1).mean() < 0.05
    # Every place of the epoch is as likely for a record: its mean place over epochs.
    places = np.mean([np.argsort(sequence(order, epoch)) for epoch in range(40)], 0)
    deviation = (places - (order.count - 1) / 2) / (order.count / np.sqrt(12 * 40))
    assert np.abs(deviation).max() < 5.5
    assert 0.6 < deviation.std() < 1.4


def test_one_shard_is_shuffled_as_a_whole() -> None:
    found = sequence(Order(5000, 50, shuffle=True, shards=np.zeros(1, np.int64)))
    assert np.array_equal(np.sort(found), np.arange(5000))
    assert abs(np.corrcoef(found, np.arange(5000))[0, 1]) < 0.1


@given(st.lists(st.integers(0, 99), max_size=60), st.lists(st.integers(0, 100), max_size=10))
def test_entries_of_a_shard_come_together(records: list[int], cuts: list[int]) -> None:
    starts = np.array([0, *sorted(cuts)])
    order, found = group_by_shard(np.array(records, np.int64), starts)
    assert sorted(order.tolist()) == list(range(len(records)))
    stops = np.append(starts[1:], 100)
    for shard, entries in enumerate(np.split(np.array(records, np.int64)[order], found[1:])):
        assert ((entries >= starts[shard]) & (entries < stops[shard])).all()


def test_indices_are_read_shard_by_shard() -> None:
    starts, length = shards_of(50)
    indices = np.random.default_rng(0).permutation(length)[: length // 3]
    order = Order(length, 24, shuffle=True, shards=starts, indices=np.append(indices, indices[:5]), window=12)
    found = sequence(order, 3)
    assert sorted(found.tolist()) == sorted([*indices.tolist(), *indices[:5].tolist()])
    fetched = [np.unique(np.searchsorted(starts, batch, "right")).size for batch in np.array_split(found, 10)]
    assert max(fetched) <= 25  # of 50


def test_a_batch_costs_the_same_in_every_epoch_and_place() -> None:
    """Of 20,000 shards and a hundred million records, a batch computes only with its own."""
    starts = np.arange(20_000) * 5000
    order = Order(10**8, 512, shuffle=True, shards=starts, world_size=8, rank=3)
    touched = np.concatenate([order.batch_records(0, number) for number in range(0, 1000, 10)])
    assert np.unique(shard_of(order, touched)).size <= 1.3 * 1000 * 512 / 5000
    last = order.batch_records(10**6, order.count_batches() - 1)
    assert np.unique(last).size == len(last) == 10**8 % 4096 // 8

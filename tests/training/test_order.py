"""Order: permutations that are permutations, ranks that share an epoch, and batches that stand alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.internals import MAX_LENGTH, Order, UsageError, permutation, permute

LENGTHS = [1, 2, 3, 7, 100, 1023, 1024, 1025, 1026, 2047, 2048, 2049, 5000, 65_535, 65_536, 65_537, 300_007]


def whole(length: int, seed: int = 1, epoch: int = 0) -> NDArray[np.int64]:
    result: NDArray[np.int64] = permute(np.arange(length), length, seed, epoch)
    return result


# permute ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", LENGTHS)
def test_every_record_once(length: int) -> None:
    for epoch in range(3):
        found = whole(length, 5, epoch)
        assert found.dtype == np.int64
        assert np.array_equal(np.sort(found), np.arange(length))


@given(
    st.one_of(st.integers(1, 5000), st.integers(1, MAX_LENGTH)), st.integers(0, 2**70), st.integers(0, 10**6), st.data()
)
def test_positions_stand_alone_and_torch_agrees(length: int, seed: int, epoch: int, data: st.DataObject) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=30)))
    found = permute(positions, length, seed, epoch)
    assert ((found >= 0) & (found < length)).all()
    assert found.tolist() == [int(permute(np.array([p]), length, seed, epoch)[0]) for p in positions]
    theirs = permute(torch.from_numpy(positions), length, seed, epoch)
    assert theirs.dtype == torch.int64
    assert theirs.tolist() == found.tolist()
    # Different positions go to different records.
    assert len(set(found.tolist())) == len(set(positions.tolist()))


@pytest.mark.slow
def test_the_longest() -> None:
    positions = np.linspace(0, MAX_LENGTH - 1, 100_000).astype(np.int64)
    for length in (MAX_LENGTH, MAX_LENGTH - 1, 2**30 + 1, 2**31 - 2**16 + 1):
        within = positions[positions < length]
        found = permute(within, length, 3, 4)
        assert np.unique(found).size == within.size
        assert 0 <= found.min() < length // 1000
        assert length - length // 1000 < found.max() < length
        assert np.array_equal(found, permute(torch.from_numpy(within), length, 3, 4).numpy())


def test_in_any_shape_with_and_without_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    one = whole(10_000)
    shaped = permute(np.arange(10_000).reshape(100, 100), 10_000, 1, 0)
    assert shaped.shape == (100, 100)
    assert np.array_equal(shaped.ravel(), one)
    monkeypatch.setattr(permutation, "permute_in_place", lambda *_arguments: False)
    assert np.array_equal(whole(10_000), one)


def test_the_values_stay() -> None:
    # Resumed trainings rely on them.
    assert permute(np.arange(5), 10, 1, 2).tolist() == [2, 6, 8, 0, 9]
    assert permute(np.arange(5), 50_000, 1, 2).tolist() == [41817, 40619, 37036, 35852, 7833]


EPOCHS = 400


@pytest.mark.parametrize("length", [16, 1000, 1040, 2048, 5008])
def test_permutations_are_uniform(length: int) -> None:
    epochs = np.stack([whole(length, 7, e) for e in range(EPOCHS)])
    # Each position's mean, in standard deviations.
    deviation = (epochs.mean(0) - (length - 1) / 2) / np.sqrt((length**2 - 1) / 12 / EPOCHS)
    assert np.abs(deviation).max() < 5
    assert 0.6 < deviation.std() < 1.4
    # Which sixteenth of the positions goes to which sixteenth of the records.
    cells = np.bincount((np.arange(length) * 16 // length * 16 + epochs * 16 // length).ravel(), minlength=256)
    expected = length * EPOCHS / 256
    chi = ((cells - expected) ** 2 / expected).sum()
    assert abs(chi - 225) < 5 * np.sqrt(2 * 225)
    # Fixed points, neighbours that stay neighbours, records at the same place in the next epoch: one each, on average.
    for count in (
        (epochs == np.arange(length)).sum(1),
        (np.diff(epochs, axis=1) % length == 1).sum(1) * length / (length - 1),
        (epochs[1:] == epochs[:-1]).sum(1),
    ):
        assert abs(count.mean() - 1) < 5 * np.sqrt(1.2 / EPOCHS)
    # No trend within an epoch, nor from one to the next.
    for first, second in [*zip(epochs[:, :-1], epochs[:, 1:], strict=True), *pairwise(epochs)][::7]:
        assert abs(np.corrcoef(first, second)[0, 1]) < 5.5 / np.sqrt(length)


@pytest.mark.slow
def test_small_permutations_all_come() -> None:
    seen = [tuple(whole(4, 3, e).tolist()) for e in range(4800)]
    counts = np.unique(seen, axis=0, return_counts=True)[1]
    assert counts.size == 24
    assert ((counts - 200) ** 2 / 200).sum() < 23 + 5 * np.sqrt(2 * 23)


def test_seeds_and_epochs_differ() -> None:
    length = 5000
    for a, b in [((1, 0), (2, 0)), ((1, 0), (1, 1)), ((0, 1), (1, 0)), ((1, 2), (2, 1))]:
        assert (whole(length, *a) == whole(length, *b)).sum() < 12


@pytest.mark.parametrize("length", [0, -1, MAX_LENGTH + 1])
def test_an_impossible_length(length: int) -> None:
    with pytest.raises(UsageError, match="an order needs"):
        permute(np.arange(1), length, 0, 0)


# Order ------------------------------------------------------------------------------------------------------------


def epoch_of(epoch: int, **options: Any) -> list[list[NDArray[np.int64]]]:
    """Batches of each rank."""
    ranks = [Order(rank=r, **options) for r in range(options.get("world_size", 1))]
    return [[o.batch_records(epoch, n) for n in range(o.count_batches())] for o in ranks]


OPTIONS = st.fixed_dictionaries(
    {
        "length": st.integers(0, 300),
        "batch_size": st.integers(1, 40),
        "seed": st.integers(0, 5),
        "world_size": st.integers(1, 5),
        "drop_last": st.booleans(),
    }
)
SHUFFLES = st.one_of(
    st.just({}),
    st.just({"shuffle": True}),
    st.builds(lambda b, w: {"shuffle": True, "block": b, "window": w}, st.integers(1, 70), st.integers(1, 5)),
    st.builds(
        lambda s, w: {"shuffle": True, "shards": sorted(s), "window": w},
        st.lists(st.floats(0, 1), max_size=20),
        st.integers(1, 30),
    ),
)


@given(OPTIONS, SHUFFLES, st.integers(0, 3), st.booleans())
def test_ranks_share_an_epoch(options: dict[str, Any], shuffle: dict[str, Any], epoch: int, subset: bool) -> None:
    options = {**options, **shuffle}
    length = options["length"]
    if "shards" in options:
        options["shards"] = np.array([0, *(int(share * length) for share in options["shards"])])
    if subset:
        options["indices"] = np.random.default_rng(length).permutation(length)[: length // 2]
    ranks = epoch_of(epoch, **options)
    order = Order(**options)
    # Equally many batches, none empty, full ones of the batch size, the last as even as can be.
    assert len({len(batches) for batches in ranks}) == 1
    for number in range(order.count_batches()):
        sizes = [len(batches[number]) for batches in ranks]
        assert min(sizes) > 0
        assert max(sizes) - min(sizes) <= 1
        if number < order.count_batches() - 1 or options["drop_last"]:
            assert sizes == [options["batch_size"]] * len(ranks)
    # Disjoint, and together everything but what is said to be dropped.
    seen = np.concatenate([b for batches in ranks for b in batches]) if order.count_batches() else np.empty(0, np.int64)
    everything = np.arange(length) if not subset else options["indices"]
    assert np.unique(seen).size == seen.size == len(everything) - order.dropped_count
    assert np.isin(seen, everything).all()
    assert order.count == len(everything)
    whole = options["batch_size"] * len(ranks)
    left = order.count % whole if options["drop_last"] else 0
    assert order.dropped_count == (left if order.count_batches() else order.count)
    # A number of batches is a position in the sequence, and back.
    for batches in range(order.count_batches() + 1):
        assert order.count_records(batches) == sum(len(b[n]) for b in ranks for n in range(batches))
        assert order.batches_before(order.count_records(batches)) == batches
    # Global batches are parts of one sequence, which does not depend on the number of ranks.
    sequence = order.records_at(epoch, np.arange(order.count))
    joined = [np.concatenate([batches[n] for batches in ranks]) for n in range(order.count_batches())]
    assert np.array_equal(np.concatenate([np.empty(0, np.int64), *joined]), sequence[: seen.size])
    one = Order(**{**options, "world_size": 1, "batch_size": whole})
    assert one.records_at(epoch, np.arange(order.count)).tolist() == sequence.tolist()
    found = order.records_at(epoch, torch.arange(order.count))
    assert found.tolist() == sequence.tolist()
    assert found.dtype == torch.int64
    if not options.get("shuffle"):
        assert sequence.tolist() == everything.tolist()


def test_any_number_of_ranks_sees_the_same_global_batches() -> None:
    def batches(ranks: int) -> list[list[int]]:
        found = epoch_of(4, length=1000, batch_size=12 // ranks, shuffle=True, world_size=ranks)
        return [np.concatenate(parts).tolist() for parts in zip(*found, strict=True)]

    assert batches(1) == batches(2) == batches(3) == batches(4)


@pytest.mark.parametrize("drop_last", [False, True])
def test_what_is_left_out_does_not_depend_on_the_ranks(drop_last: bool) -> None:
    """80 records, global batch 12: no number of ranks leaves the tail of 8 out, or each does when it is told to."""
    for ranks in (1, 2, 3, 4, 6, 12):
        found = epoch_of(0, length=80, batch_size=12 // ranks, shuffle=True, world_size=ranks, drop_last=drop_last)
        assert sum(len(batch) for batches in found for batch in batches) == (72 if drop_last else 80)


@pytest.mark.parametrize(
    ("length", "world_size", "drop_last", "sizes", "dropped"),
    [
        (20, 1, False, [[4], [4], [4], [4], [4]], 0),
        (21, 1, False, [[4], [4], [4], [4], [4], [1]], 0),
        (21, 1, True, [[4], [4], [4], [4], [4]], 1),
        (21, 2, False, [[4, 4], [4, 4], [3, 2]], 0),
        (17, 2, False, [[4, 4], [5, 4]], 0),
        (18, 2, False, [[4, 4], [4, 4], [1, 1]], 0),
        (2, 3, False, [], 2),
        (0, 1, False, [], 0),
    ],
)
def test_the_tail(length: int, world_size: int, drop_last: bool, sizes: list[list[int]], dropped: int) -> None:
    ranks = epoch_of(0, length=length, batch_size=4, world_size=world_size, drop_last=drop_last, shuffle=True)
    assert [[len(b) for b in step] for step in zip(*ranks, strict=True)] == sizes
    assert Order(length, 4, world_size=world_size, drop_last=drop_last).dropped_count == dropped


def test_a_window_reads_few_blocks() -> None:
    length, block, window = 10_050, 100, 4
    order = Order(length, 50, shuffle=True, block=block, window=window)
    sequence = order.records_at(1, np.arange(length))
    for start in range(0, length, block * window):
        part = sequence[start : start + block * window]
        assert np.unique(part // block).size <= window + 2
    # Mixed within the window: a batch draws from several blocks, and neighbours do not stay together.
    first = sequence[: block * window]
    assert all(np.unique(first[i : i + 50] // block).size >= 3 for i in range(0, first.size, 50))
    assert (np.diff(sequence) == 1).mean() < 0.02
    # Blocks lie at other places in the next epoch.
    places = [np.argsort(order.records_at(e, np.arange(length))) // block for e in range(30)]
    assert abs(np.mean([np.corrcoef(places[0], p)[0, 1] for p in places[1:]])) < 0.15
    means = np.mean(places, 0)
    assert np.abs(means - means.mean()).max() < 5 * np.sqrt(100**2 / 12 / 30)


def test_the_short_block_comes_anywhere() -> None:
    order = Order(103, 10, shuffle=True, block=10, window=1)
    at = [int(np.flatnonzero(order.records_at(e, np.arange(103)) == 101)[0]) // 10 for e in range(300)]
    assert set(at) == set(range(11))


def test_indices_may_repeat_and_are_kept() -> None:
    indices = np.array([5, 5, 2], np.int32)
    order = Order(6, 2, indices=indices)
    indices[:] = 0
    assert order.batch_records(0, 0).tolist() == [5, 5]
    assert order.batch_records(0, 1).tolist() == [2]
    assert order.batch_records(0, 1).dtype == np.int64
    shuffled = Order(6, 3, indices=[5, 5, 2], shuffle=True)
    assert {tuple(shuffled.batch_records(e, 0).tolist()) for e in range(30)} == {(5, 5, 2), (5, 2, 5), (2, 5, 5)}


def test_a_batch_that_is_not_there() -> None:
    order = Order(10, 4)
    for number in (-1, 3):
        with pytest.raises(UsageError, match=f"no batch {number}: an epoch has 3 batches"):
            order.batch_records(0, number)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": -1}, "an order has 0"),
        ({"length": MAX_LENGTH + 1}, "an order has 0"),
        ({"batch_size": 0}, "batch_size should be at least 1, got 0"),
        ({"rank": 2, "world_size": 2}, "got rank 2 of 2"),
        ({"rank": -1}, "got rank -1 of 1"),
        ({"world_size": 0}, "got rank 0 of 0"),
        ({"block": 5}, "add shuffle=True"),
        ({"block": 0, "shuffle": True}, "block should be at least 1 record, got 0"),
        ({"block": 1, "shuffle": True, "window": 0}, "window should be at least 1 block or shard, got 0"),
        ({"shards": [0, 5], "block": 5, "shuffle": True}, "two ways of shuffling"),
        ({"shards": [0, 11]}, "ascend from 0 to at most 10, got 0 … 11"),
        ({"shards": [1, 5]}, "ascend from 0"),
        ({"shards": [0, 5, 4]}, "ascend from 0"),
        ({"shards": [0.5]}, "integers, got float64"),
        ({"indices": [0, 10]}, r"indices should be in \[0, 10\), got 0 … 10"),
        ({"indices": [-1]}, "negative ones are not counted back"),
        ({"indices": [0.5]}, "one-dimensional array of integers, got float64"),
        ({"indices": [[1]]}, r"got int64 \(1, 1\)"),
        ({"indices": [True]}, "got bool"),
    ],
)
def test_what_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Order(**{"length": 10, "batch_size": 2, **options})

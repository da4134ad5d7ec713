"""Counter-based random numbers: the same bits everywhere, and no structure that a training could learn."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.internals import Draws, UsageError, derive_key, mix_bits

RECORDS = np.arange(20_000)


def bits(
    seed: int = 1, epoch: int = 0, stream: int = 0, draw: int = 0, records: NDArray[np.int64] = RECORDS
) -> NDArray[np.int64]:
    found: NDArray[np.int64] = Draws(seed, epoch, records, stream).bits(draw)
    return found


def chi_square(counts: NDArray[np.int64]) -> float:
    """How far ``counts`` are from equal, in standard deviations of what chance gives (normal for many cells)."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


def test_the_values_stay() -> None:
    # Resumed trainings rely on them.
    assert bits(7, 3, 2, 5, np.array([0, 1, 2**31, 2**40])).tolist() == [698648886, 2974397157, 3530051860, 3640629417]
    assert derive_key(1, 2, 3) == 15020427595393229491


@given(
    st.integers(-(2**70), 2**70),
    st.integers(0, 10**6),
    st.lists(st.integers(0, 2**62), min_size=1, max_size=20),
    st.integers(-5, 50),
    st.integers(0, 100),
)
def test_numpy_and_torch_agree(seed: int, epoch: int, records: list[int], stream: int, draw: int) -> None:
    ours = Draws(seed, epoch, np.array(records), stream)
    theirs = Draws(seed, epoch, torch.tensor(records), stream)
    assert ours.bits(draw).tolist() == theirs.bits(draw).tolist()
    assert ours.uniform(draw).tolist() == theirs.uniform(draw).tolist()
    assert ours.integers(1000, draw).tolist() == theirs.integers(1000, draw).tolist()
    high = np.array(records) % 2**31 + 1
    assert ours.integers(high, draw).tolist() == theirs.integers(torch.from_numpy(high), draw).tolist()
    assert ours.bits(draw, 3).tolist() == theirs.bits(draw, 3).tolist()
    assert theirs.bits(draw).dtype == torch.int64
    assert theirs.uniform(draw).dtype == torch.float64


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=20), st.integers(0, 20), st.integers(1, 5))
def test_each_number_stands_alone(records: list[int], draw: int, count: int) -> None:
    draws = Draws(3, 4, np.array(records), 1)
    together = draws.bits(draw)
    assert together.tolist() == [int(Draws(3, 4, np.array([r]), 1).bits(draw)[0]) for r in records]
    assert draws[1:].bits(draw).tolist() == together[1:].tolist()
    several = draws.bits(draw, count)
    assert several.tolist() == [draws.bits(draw + i).tolist() for i in range(count)]
    assert draws.uniform(draw, count).tolist() == [draws.uniform(draw + i).tolist() for i in range(count)]


@pytest.mark.slow
def test_the_mixing_is_a_bijection() -> None:
    # Every step is one on 32 bits; on fewer values at least nothing may collide.
    values = np.concatenate([np.arange(300_000), 2**32 - 1 - np.arange(300_000), np.arange(300_000) << 13])
    values = np.array(sorted(set(values.tolist())))
    mixed = mix_bits(values)
    assert len(set(mixed.tolist())) == values.size
    assert mix_bits(5) == mix_bits(np.array([5]))[0] == mix_bits(torch.tensor([5]))[0]
    assert 0 <= int(mixed.min()) <= int(mixed.max()) < 2**32


@pytest.mark.slow
@pytest.mark.parametrize("what", ["records", "epochs", "streams", "draws", "seeds", "high records"])
def test_bytes_are_uniform(what: str) -> None:
    numbers = {
        "records": lambda: bits(records=np.arange(100_000)),
        "epochs": lambda: np.array([bits(epoch=e, records=np.array([17]))[0] for e in range(20_000)]),
        "streams": lambda: np.array([bits(stream=s, records=np.array([17]))[0] for s in range(20_000)]),
        "draws": lambda: Draws(1, 2, np.array([17])).bits(0, 100_000)[:, 0],
        "seeds": lambda: np.array([bits(seed=s, records=np.array([17]))[0] for s in range(20_000)]),
        "high records": lambda: bits(records=np.arange(100_000) << 32),
    }[what]()
    for shift in (0, 8, 16, 24):
        assert abs(chi_square(np.bincount((numbers >> shift) & 255, minlength=256))) < 5


def neighbours() -> list[tuple[str, NDArray[np.int64], NDArray[np.int64]]]:
    base = bits()
    return [
        ("records", base[:-1], base[1:]),
        ("records 256 apart", base[:-256], base[256:]),
        ("epochs", base, bits(epoch=1)),
        ("streams", base, bits(stream=1)),
        ("draws", base, bits(draw=1)),
        ("seeds", base, bits(seed=2)),
        ("epoch and stream exchanged", bits(epoch=1), bits(stream=1)),
        ("stream and draw exchanged", bits(stream=1), bits(draw=1)),
        ("records 2**32 apart", base, bits(records=RECORDS + 2**32)),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [pytest.param(a, b, id=name) for name, a, b in neighbours()])
def test_neighbours_are_independent(first: NDArray[np.int64], second: NDArray[np.int64]) -> None:
    n = first.size
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(n)
    # Every bit of one against every bit of the other, and the high and low nibbles as a table.
    ones = [((x[:, None] >> np.arange(32)) & 1) * 2 - 1 for x in (first, second)]
    assert np.abs(ones[0].T @ ones[1]).max() < 5.5 * np.sqrt(n)
    for a, b in itertools.product((0, 28), (0, 28)):
        table = np.bincount(((first >> a) & 15) * 16 + ((second >> b) & 15), minlength=256)
        assert abs(chi_square(table)) < 5
    # Each output bit changes in half the cases.
    changed = (((first ^ second)[:, None] >> np.arange(32)) & 1).mean(0)
    assert np.abs(changed - 0.5).max() < 5 * 0.5 / np.sqrt(n)


def test_uniform_numbers() -> None:
    numbers = Draws(5, 1, np.arange(200_000), 3).uniform(2)
    assert numbers.dtype == np.float64
    assert 0 <= numbers.min() < 1e-4
    assert 1 - 1e-4 < numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 5 * np.sqrt(1 / 12 / numbers.size)
    assert abs(numbers.var() - 1 / 12) < 5 * np.sqrt(1 / 180 / numbers.size)


@pytest.mark.parametrize("high", [1, 2, 3, 9, 10, 1000, 2**31])
def test_integers_are_uniform(high: int) -> None:
    numbers = Draws(5, 1, np.arange(100_000)).integers(high, 0)
    assert numbers.min() >= 0
    assert numbers.max() < high
    bins = min(high, 50)
    if bins > 1:
        assert abs(chi_square(np.bincount(numbers * bins // high, minlength=bins))) < 5


@pytest.mark.parametrize("high", [0, -1, 2**31 + 1])
def test_integers_of_an_impossible_range(high: int) -> None:
    with pytest.raises(UsageError, match="number of choices"):
        Draws(0, 0, RECORDS).integers(high, 0)


def test_replace() -> None:
    draws = Draws(1, 2, RECORDS, 3)
    assert draws.replace(epoch=9).bits(0).tolist() == bits(1, 9, 3).tolist()
    assert draws.replace(stream=9).bits(0).tolist() == bits(1, 2, 9).tolist()
    assert draws.replace(epoch=0, stream=0).bits(0).tolist() == bits(1, 0, 0).tolist()
    assert len(draws) == RECORDS.size


def test_keys_depend_on_every_word_and_on_order() -> None:
    keys = [derive_key(a, b, c) for a, b, c in itertools.product(range(-3, 4), repeat=3)] + [
        derive_key(1, 2),
        derive_key(2, 1),
        derive_key(1),
    ]
    assert len(set(keys)) == len(keys)
    assert derive_key(2**64 + 5) == derive_key(5)

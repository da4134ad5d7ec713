"""``PackedLoader(shuffle="lanes")``: the same global batches from any number of ranks, resumed by any other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import packstore
from packstore import PackedDataset, PackedLoader, UsageError
from tests.makers.datasets import make_cifar10

LANES: dict[str, Any] = {"shuffle": "lanes", "window": 6, "resident": False}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PackedDataset:
    """A split of 20 shards or more, of two records."""
    root = tmp_path_factory.mktemp("lanes")
    packstore.convert(make_cifar10(root), root / "c.lmdb", encoding="uint8", shard_size=2 * 3072)
    return PackedDataset(root / "c.lmdb", "test", columns=("image", "key"))


def keys(loader: PackedLoader) -> list[list[str]]:
    return [list(keys) for _, keys in loader]


def loaders(dataset: PackedDataset, ranks: int, global_batch: int = 12, **options: Any) -> list[PackedLoader]:
    options = LANES | options
    return [
        PackedLoader(dataset, global_batch // ranks, rank=rank, world_size=ranks, **options) for rank in range(ranks)
    ]


def together(parts: Sequence[PackedLoader]) -> list[list[str]]:
    """The global batches of all ranks."""
    return [[key for part in step for key in part] for step in zip(*map(keys, parts), strict=True)]


@pytest.mark.slow
def test_global_batches_do_not_depend_on_the_ranks(dataset: PackedDataset) -> None:
    whole = together(loaders(dataset, 1))
    assert sorted(key for batch in whole for key in batch) == sorted(dataset.keys)
    assert [key for batch in whole for key in batch] != dataset.keys
    for ranks in (2, 3, 4, 6):
        assert together(loaders(dataset, ranks)) == whole


def test_an_epoch_goes_on_with_another_number_of_ranks(dataset: PackedDataset) -> None:
    whole = together(loaders(dataset, 1, 4))
    two = loaders(dataset, 2, 4)
    iterators = [iter(loader) for loader in two]
    given = [[key for iterator in iterators for key in next(iterator)[1]] for _ in range(2)]
    states = [loader.state_dict() for loader in two]
    assert states[0] == states[1]
    four = loaders(dataset, 4, 4)
    for loader in four:
        loader.load_state_dict(states[0])
    assert given + together(four) == whole
    assert together(four) == together([*map(_in_epoch_1, loaders(dataset, 1, 4))])


def _in_epoch_1(loader: PackedLoader) -> PackedLoader:
    loader.set_epoch(1)
    return loader


def test_a_part_of_a_split_with_repetitions(dataset: PackedDataset) -> None:
    indices = [7, 3, 3, 11, 0, 7, 19, 18, 5]
    loader = PackedLoader(dataset, 2, indices=indices, **LANES)
    first, second = keys(loader), keys(loader)
    expected = Counter(dataset.keys[index] for index in indices)
    assert Counter(key for batch in first for key in batch) == expected == Counter(k for b in second for k in b)
    assert first != second


def test_resident_and_streaming_agree(dataset: PackedDataset) -> None:
    resident = PackedLoader(dataset, 4, **LANES | {"resident": True})
    for (a, x), (b, y) in zip(resident, PackedLoader(dataset, 4, **LANES), strict=True):
        assert torch.equal(a, b)
        assert x == y


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"shuffle": True, "window": None}, "shuffle 'lanes', this loader 'full'"),
        ({"window": 5}, "window 6, this loader 5"),
        ({"seed": 3}, "seed 0, this loader 3"),
    ],
)
def test_a_state_of_another_order_is_refused(dataset: PackedDataset, options: dict[str, Any], named: str) -> None:
    state = PackedLoader(dataset, 4, **LANES).state_dict()
    PackedLoader(dataset, 4, **LANES).load_state_dict(state)
    with pytest.raises(UsageError, match=f"state has {named}"):
        PackedLoader(dataset, 4, **LANES | options).load_state_dict(state)


@pytest.mark.slow
def test_a_state_of_other_shards_is_refused(dataset: PackedDataset, tmp_path: Path) -> None:
    """The same records in other shards come in another order."""
    packstore.convert(make_cifar10(tmp_path), tmp_path / "d.lmdb", encoding="uint8", shard_size=3 * 3072)
    other = PackedDataset(tmp_path / "d.lmdb", "test", columns=("image", "key"))
    assert other.manifest.dataset_digest == dataset.manifest.dataset_digest
    state = PackedLoader(dataset, 4, **LANES).state_dict()
    with pytest.raises(UsageError, match="state has shards"):
        PackedLoader(other, 4, **LANES).load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle": "lanes", "block": 4}, "another way of shuffling than 'lanes'"),
        ({"shuffle": True, "window": 4}, "window is of shuffle='lanes' or of block"),
        ({"window": 4}, "window is of shuffle='lanes' or of block"),
        ({"sampler": [1, 2], "window": 4}, "window is of shuffle='lanes' or of block"),
        ({"sampler": [1, 2], "shuffle": "lanes"}, "a sampler decides on the order alone"),
        ({"shuffle": "lanes", "window": 0}, "window should be a whole number of at least 1, got 0"),
    ],
)
def test_what_does_not_go_together(dataset: PackedDataset, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PackedLoader(dataset, 4, **options)


def test_full_is_the_permutation_of_all(dataset: PackedDataset) -> None:
    assert keys(PackedLoader(dataset, 4, shuffle="full")) == keys(PackedLoader(dataset, 4, shuffle=True))

"""``PackedLoader(shuffle="lanes")``: the same global batches from any number of ranks, resumed by any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import packstore
from packstore import PackedDataset, PackedLoader, UsageError
from tests.makers.batches import flat_keys, go_on, join_ranks, same
from tests.makers.datasets import make_cifar10

LANES: dict[str, Any] = {"shuffle": "lanes", "window": 6, "resident": False}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PackedDataset:
    """A split of 20 shards or more, of two records."""
    root = tmp_path_factory.mktemp("lanes")
    packstore.convert(make_cifar10(root), root / "c.lmdb", encoding="uint8", shard_size=2 * 3072)
    return PackedDataset(root / "c.lmdb", "test", columns=("image", "key"))


def load(dataset: PackedDataset, batch_size: int = 12, world_size: int = 1, **options: Any) -> PackedLoader:
    """Makes a loader of global batches of this size."""
    return PackedLoader(dataset, batch_size // world_size, **({"rank": 0, "world_size": world_size} | LANES | options))


@pytest.mark.slow
def test_global_batches_do_not_depend_on_the_ranks(dataset: PackedDataset) -> None:
    whole = list(load(dataset))
    assert sorted(flat_keys(whole)) == sorted(dataset.keys)
    assert flat_keys(whole) != dataset.keys
    for count in (2, 3, 4, 6):
        assert same(join_ranks(lambda **ranks: load(dataset, **ranks), count), whole)


def test_an_epoch_goes_on_with_another_number_of_ranks(dataset: PackedDataset) -> None:
    loader = load(dataset, 4)
    epochs = [list(loader) for _ in range(2)]
    states = [go_on(*(load(dataset, 4, 2, rank=rank) for _ in range(2)), 2).state_dict() for rank in range(2)]
    assert states[0] == states[1]
    four = [load(dataset, 4, 4, rank=rank) for rank in range(4)]
    for loader in four:
        loader.load_state_dict(states[0])
    assert same(join_ranks(lambda rank, world_size: four[rank], 4), epochs[0][2:])
    assert same(join_ranks(lambda rank, world_size: four[rank], 4), epochs[1])


def test_a_part_of_a_split_with_repetitions(dataset: PackedDataset) -> None:
    indices = [7, 3, 3, 11, 0, 7, 19, 18, 5]
    loader = PackedLoader(dataset, 2, indices=indices, **LANES)
    first, second = flat_keys(loader), flat_keys(loader)
    assert sorted(first) == sorted(second) == sorted(dataset.keys[index] for index in indices)
    assert first != second


def test_resident_and_streaming_agree(dataset: PackedDataset) -> None:
    assert same(load(dataset, 4, resident=True), load(dataset, 4))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"shuffle": True, "window": None}, "shuffle 'lanes', this loader 'full'"),
        ({"window": 5}, "window 6, this loader 5"),
        ({"seed": 3}, "seed 0, this loader 3"),
    ],
)
def test_a_state_of_another_order_is_refused(dataset: PackedDataset, options: dict[str, Any], named: str) -> None:
    state = load(dataset, 4).state_dict()
    load(dataset, 4).load_state_dict(state)
    with pytest.raises(UsageError, match=f"state has {named}"):
        load(dataset, 4, **options).load_state_dict(state)


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
    assert same(PackedLoader(dataset, 4, shuffle="full"), PackedLoader(dataset, 4, shuffle=True))

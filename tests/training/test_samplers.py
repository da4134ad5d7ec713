"""Ranks, samplers, subsets and masks: who takes which records, and when that is decided."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    random_split,
)

from packstore import Mix, PackedDataset, PackedLoader, UsageError
from packstore.augment import RandomHorizontalFlip, RASampler
from tests.conftest import Stores
from tests.makers.batches import flat_keys, go_on, join_ranks, keys_of, run_ranks, same

Ranks = Callable[[int | None, int | None], None]


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    """Sets ``RANK`` and ``WORLD_SIZE``, or unsets them."""

    def set_ranks(rank: int | None, world_size: int | None) -> None:
        for name, value in (("RANK", rank), ("WORLD_SIZE", world_size)):
            monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, str(value))

    set_ranks(None, None)
    return set_ranks


@pytest.fixture
def dataset(stores: Stores) -> PackedDataset:
    return PackedDataset(stores("cifar.h5"), "train", columns=("image", "key"))


# Ranks --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resident", [True, False])
def test_ranks_are_those_of_when_an_epoch_begins(dataset: PackedDataset, ranks: Ranks, resident: bool) -> None:
    loader = PackedLoader(dataset, 5, shuffle=True, resident=resident)
    assert (len(loader), loader.rank, loader.world_size) == (20, 0, 1)
    seen = []
    for rank in (0, 1):
        ranks(rank, 2)
        loader.set_epoch(0)
        assert (len(loader), loader.rank, loader.world_size) == (10, rank, 2)
        assert f"rank {rank} of 2" in repr(loader)
        seen += flat_keys(loader)
        assert loader.state_dict()["global_batch_size"] == 10
    assert sorted(seen) == sorted(dataset.keys)
    ranks(None, None)
    assert loader.state_dict()["records"] == 100  # of the epoch that two ranks shared
    assert len(flat_keys(loader)) == 100


def test_world_size_counts_together_with_rank_alone(dataset: PackedDataset, ranks: Ranks) -> None:
    """Lightning sets it before it starts the other ranks."""
    loader = PackedLoader(dataset, 5)
    for rank, world_size in ((None, 2), (1, None)):
        ranks(rank, world_size)
        assert (loader.rank, loader.world_size, len(loader)) == (0, 1, 20)
    ranks(1, 4)
    assert (loader.rank, loader.world_size, len(loader)) == (1, 4, 5)
    assert PackedLoader(dataset, 5, rank=0, world_size=1).world_size == 1
    ranks(4, 4)
    with pytest.raises(UsageError, match="RANK='4' and WORLD_SIZE='4', which is no rank of several"):
        len(loader)


def test_a_state_waits_for_the_ranks(dataset: PackedDataset, ranks: Ranks) -> None:
    whole = flat_keys(PackedLoader(dataset, 10, shuffle=True))
    resumed, rest = PackedLoader(dataset, 5, shuffle=True), []
    state = go_on(PackedLoader(dataset, 10, shuffle=True), PackedLoader(dataset, 10, shuffle=True), 3).state_dict()
    for rank in (0, 1):
        ranks(rank, 2)
        resumed.load_state_dict(state)
        rest += flat_keys(resumed)
    assert sorted(rest) == sorted(whole[30:])


# Samplers -----------------------------------------------------------------------------------------------------------


class Striped(Sampler[int]):
    """Somebody's own, which shares out by itself."""

    def __init__(self, rank: int) -> None:
        self.num_replicas, self.rank = 2, rank

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.rank, 100, 2))

    def __len__(self) -> int:
        return 50


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("kind", ["DistributedSampler", "Striped"])
def test_a_sampler_of_a_rank_is_not_shared_out_again(
    dataset: PackedDataset, ranks: Ranks, kind: str, resident: bool
) -> None:
    seen = []
    for rank in (0, 1):
        ranks(rank, 2)
        sampler: Any = (
            DistributedSampler(dataset, num_replicas=2, rank=rank) if kind == "DistributedSampler" else Striped(rank)
        )
        loader = PackedLoader(dataset, 5, sampler=sampler, resident=resident)
        assert len(loader) == 10
        seen += flat_keys(loader)
    assert sorted(seen) == sorted(dataset.keys)
    told = [flat_keys(PackedLoader(dataset, 5, sampler=sampler, rank=r, world_size=2)) for r in (0, 1)]
    assert [len(part) for part in told] == [25, 25]  # rank= wins


def test_a_state_of_a_sampler_of_a_rank_moves_to_other_ranks(dataset: PackedDataset) -> None:
    def make(rank: int, replicas: int) -> PackedLoader:
        sampler = DistributedSampler(dataset, num_replicas=replicas, rank=rank, seed=4)
        return PackedLoader(dataset, 12 // replicas, sampler=sampler)

    rest = [key for rank in range(4) for key in flat_keys(go_on(make(0, 2), make(rank, 4), 3))]
    assert sorted(rest) == sorted(flat_keys(make(0, 1))[36:])


WITHOUT_SEED: dict[str, Callable[[Any, Any], Any]] = {
    "RandomSampler": lambda ds, generator: RandomSampler(ds, generator=generator),
    "WeightedRandomSampler": lambda ds, generator: WeightedRandomSampler([1.0] * len(ds), 100, False, generator),
    "SubsetRandomSampler": lambda ds, generator: SubsetRandomSampler(range(100), generator),
}


@pytest.mark.parametrize("kind", WITHOUT_SEED)
def test_a_sampler_without_seed_is_refused_on_several_ranks(dataset: PackedDataset, ranks: Ranks, kind: str) -> None:
    make = WITHOUT_SEED[kind]
    loader = PackedLoader(dataset, 5, sampler=make(dataset, None))
    assert sorted(flat_keys(loader)) == sorted(dataset.keys)  # alone it may draw as it likes
    ranks(0, 2)
    advice = re.escape(f"{kind}(..., generator=torch.Generator().manual_seed(0))")
    for begin in (lambda: iter(loader), lambda: PackedLoader(dataset, 5, sampler=make(dataset, None))):
        with pytest.raises(UsageError, match=rf"{kind} has no seed: each of the 2 ranks would draw .*{advice}"):
            begin()
    assert len(flat_keys(PackedLoader(dataset, 5, sampler=make(dataset, None), rank=0, world_size=2))) == 50
    assert share(dataset, ranks, lambda: make(dataset, torch.Generator().manual_seed(0))) == sorted(dataset.keys)


def share(dataset: PackedDataset, ranks: Ranks, make: Callable[[], Any]) -> list[str]:
    """Lists the keys, in order, that two ranks with this sampler see."""
    seen = []
    for rank in (0, 1):
        ranks(rank, 2)
        seen += flat_keys(PackedLoader(dataset, 7, sampler=make()))
    return sorted(seen)


@pytest.mark.parametrize("kind", WITHOUT_SEED)
@pytest.mark.parametrize("stop", [0, 3, 20])
def test_a_state_has_the_generator_of_the_sampler(dataset: PackedDataset, kind: str, stop: int) -> None:
    """Each epoch draws on from where the one before left the generator."""

    def make() -> PackedLoader:
        sampler = WITHOUT_SEED[kind](dataset, torch.Generator().manual_seed(5))
        return PackedLoader(dataset, 5, sampler=sampler)

    loader, begun = make(), make()
    epochs = [flat_keys(loader) for _ in range(4)]
    assert len({tuple(epoch) for epoch in epochs}) == 4
    for _ in range(2):
        list(begun)
    resumed = go_on(begun, make(), stop)
    state = begun.state_dict()
    assert (resumed.state_dict() == state) == (stop < 20)
    for expected in (epochs[2][5 * stop :], epochs[3]):
        assert not expected or flat_keys(resumed) == expected  # after all batches, the next epoch
    with pytest.raises(UsageError, match="state has a generator that torch refuses"):
        make().load_state_dict(state | {"generator": "00"})


@pytest.mark.parametrize("make", [SequentialSampler, lambda ds: list(range(len(ds)))[::-1]])
def test_ranks_share_what_a_plain_sampler_gives(dataset: PackedDataset, ranks: Ranks, make: Any) -> None:
    assert share(dataset, ranks, lambda: make(dataset)) == sorted(dataset.keys)


def test_set_epoch_of_the_sampler_is_the_loaders(dataset: PackedDataset) -> None:
    def make(**options: Any) -> PackedLoader:
        sampler = DistributedSampler(dataset, num_replicas=2, rank=0)
        return PackedLoader(dataset, 5, sampler=sampler, **options)

    counted = make()
    epochs = [flat_keys(counted) for _ in range(4)]
    assert len({tuple(epoch) for epoch in epochs}) == 4
    told = make()
    for epoch in (2, 3, 0, np.int64(2)):
        told.sampler.set_epoch(epoch)
        assert flat_keys(told) == epochs[epoch]
        assert told.state_dict()["epoch"] == epoch
    told.set_epoch(1)
    assert flat_keys(told) == epochs[1]
    resumed = go_on(told, make())  # epoch 2
    resumed.sampler.set_epoch(2)  # as Lightning tells it when it resumes
    assert flat_keys(resumed) == epochs[2][5:]


def test_batches_of_a_batch_sampler_are_told(dataset: PackedDataset) -> None:
    batches: Any = BatchSampler(SequentialSampler(dataset), 5, False)
    with pytest.raises(UsageError, match="it gives batches: pass the sampler within, and batch_size="):
        list(PackedLoader(dataset, sampler=batches))
    with pytest.raises(UsageError, match="no argument batch_sampler: pass the sampler within as sampler="):
        PackedLoader(dataset, batch_sampler=batches)


# Endless ones -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resident", [True, False])
def test_an_endless_sampler_is_drawn_as_it_is_needed(dataset: PackedDataset, resident: bool) -> None:
    drawn = 0

    def endless() -> Iterator[int]:
        nonlocal drawn
        for drawn in itertools.count(1):
            if drawn > 2_000_000:
                raise AssertionError("drawn without end")
            yield drawn % 100

    loader = PackedLoader(dataset, 8, sampler=endless(), augment=[RandomHorizontalFlip()], resident=resident)
    iterator = iter(loader)
    found = [key for _ in range(50) for key in next(iterator)[1]]
    assert found == [dataset.keys[(1 + i) % 100] for i in range(400)]
    assert drawn < 400_000 if resident else drawn < 20_000
    iterator.close()


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("length", [5, 50, 8192, 8195, 9001, 12_289])
def test_drawn_in_parts_ranks_share_as_if_drawn_at_once(dataset: PackedDataset, length: int, world_size: int) -> None:
    """Records and their repetitions; longer ones than are drawn at a time."""
    wanted = [(7 * i) % 100 for i in range(length)]

    def ids(first: int, **options: Any) -> list[list[list[int]]]:
        loaders = [PackedLoader(dataset, 4, rank=r, world_size=world_size, **options) for r in range(world_size)]
        return [[part.tolist() for part in loader._epochs.iterate_batches(0, first)] for loader in loaders]

    for first in (0, 2, 1030):
        assert ids(first, sampler=wanted) == ids(first, indices=wanted)


# Processes ----------------------------------------------------------------------------------------------------------


def _train(rank: int, path: str) -> Any:
    """As users build it: the loader first, then the group, which the rest of the generator has."""
    dataset = PackedDataset(path, "train", columns=("image", "key"))
    seeded = torch.Generator().manual_seed(0)
    samplers: dict[str, Any] = {
        "none": None,
        "random": RandomSampler(dataset, generator=seeded),
        "distributed": DistributedSampler(dataset, num_replicas=2, rank=rank),
    }
    loaders = {
        name: PackedLoader(dataset, 5, shuffle=sampler is None, sampler=sampler) for name, sampler in samplers.items()
    }
    unseeded = PackedLoader(dataset, 5, sampler=RandomSampler(dataset))
    yield
    found: dict[str, Any] = {name: (len(loader), flat_keys(loader)) for name, loader in loaders.items()}
    with pytest.raises(UsageError, match="RandomSampler has no seed"):
        iter(unseeded)
    if rank == 0:  # a loader that talked to the others would wait for ever
        found["alone"] = len(flat_keys(loaders["none"]))
    yield found


@pytest.mark.slow
@pytest.mark.long
def test_loaders_built_before_the_process_group(stores: Stores, tmp_path: Path) -> None:
    assert "RANK" not in os.environ
    results = run_ranks(_train, (tmp_path / "rendezvous").as_uri(), str(stores("cifar.h5")))
    for name in ("none", "random", "distributed"):
        assert [results[rank][name][0] for rank in (0, 1)] == [10, 10]
        assert len({key for rank in (0, 1) for key in results[rank][name][1]}) == 100
    assert results[0]["alone"] == 50


# Subsets ----------------------------------------------------------------------------------------------------------


def nest(dataset: Dataset[Any], choices: list[list[float]]) -> Any:
    """A ``Subset`` in a ``Subset`` …, of the items at these fractions of each length."""
    for fractions in choices:
        dataset = Subset(dataset, [int(each * len(dataset)) for each in fractions])
    return dataset


fraction = st.floats(-1, 1, exclude_max=True)


@given(choices=st.lists(st.lists(fraction, min_size=1, max_size=20), min_size=1, max_size=3), resident=st.booleans())
def test_a_subset_has_the_records_and_order_of_torch(
    stores: Stores, choices: list[list[float]], resident: bool
) -> None:
    subset = nest(PackedDataset(stores("cifar.h5"), "train", columns=("image", "key")), choices)
    loader = PackedLoader(subset, 4, resident=resident)
    assert keys_of(loader) == keys_of(DataLoader(subset, 4))
    assert len(loader.dataset) == len(subset)


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, range, tuple])
def test_any_kind_of_indices(dataset: PackedDataset, kind: Any) -> None:
    indices = range(3, 17, 3) if kind is range else kind([5, 2, 2, 9])
    assert flat_keys(PackedLoader(Subset(dataset, indices), 3)) == [dataset.keys[int(i)] for i in indices]


def test_random_split_shuffles_its_own_records(dataset: PackedDataset) -> None:
    parts = random_split(dataset, [0.7, 0.3], torch.Generator().manual_seed(1))
    seen = [{*flat_keys(PackedLoader(part, 4, shuffle=True))} for part in parts]
    assert seen == [{dataset.keys[i] for i in part.indices} for part in parts]
    assert seen[0] | seen[1] == {*dataset.keys}
    chosen = PackedLoader(dataset, 4, shuffle=True, indices=parts[0].indices)
    assert same(PackedLoader(parts[0], 4, shuffle=True), chosen)


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
@pytest.mark.parametrize("in_subset", [False, True])
def test_indices_may_be_a_mask(dataset: PackedDataset, kind: Any, in_subset: bool) -> None:
    chosen = Subset(dataset, [*range(len(dataset) - 1, 5, -1)]) if in_subset else dataset
    mask = [i % 3 == 0 for i in range(len(chosen))]
    places = [chosen.indices[i] if isinstance(chosen, Subset) else i for i in range(0, len(chosen), 3)]
    loader = PackedLoader(chosen, 4, indices=kind(mask))
    assert flat_keys(loader) == [dataset.keys[i] for i in places]
    with pytest.raises(UsageError, match=rf"mask with a bool for each of {len(chosen)} items, got {len(chosen) - 1}"):
        PackedLoader(chosen, 4, indices=kind(mask[1:]))
    with pytest.raises(UsageError, match=r"a mask of bools alone, got \[True, 1, 0"):
        PackedLoader(chosen, 4, indices=[True, 1, 0])
    with pytest.raises(UsageError, match="is empty: there is nothing to load"):
        PackedLoader(chosen, 4, indices=kind([False] * len(chosen)))


@pytest.mark.parametrize("resident", [False, True])
def test_samplers_count_the_items_of_the_subset(dataset: PackedDataset, resident: bool) -> None:
    subset = Subset(dataset, [9, 4, 7, 30, 12, 1, 2])

    def make_samplers() -> list[Any]:
        seeded = RandomSampler(subset, generator=torch.Generator().manual_seed(3))
        ranks = [DistributedSampler(subset, 2, rank, seed=5) for rank in range(2)]
        return [seeded, *ranks, RASampler(subset, repeats=2), [6, 0, 0, -1]]

    for theirs, ours in zip(make_samplers(), make_samplers(), strict=True):
        loader = PackedLoader(subset, 2, sampler=ours, resident=resident)
        assert keys_of(loader) == keys_of(DataLoader(subset, 2, sampler=theirs))
    with pytest.raises(UsageError, match="what sampler gives should be from 0 to 6, got 7"):
        next(iter(PackedLoader(subset, 2, sampler=[7])))


def test_ranks_share_a_subset(dataset: PackedDataset) -> None:
    subset = Subset(dataset, [*range(1, 24, 2)])
    parts = join_ranks(partial(PackedLoader, subset, 3, shuffle=True), 2)
    assert sorted(flat_keys(parts)) == sorted(dataset.keys[i] for i in subset.indices)


def test_a_state_belongs_to_its_subset(dataset: PackedDataset) -> None:
    make = partial(PackedLoader, Subset(dataset, [*range(2, 30)]), 4, shuffle=True)
    begun = make()
    assert same(go_on(begun, make()), list(make())[1:])
    with pytest.raises(UsageError, match="the loader's state has indices"):
        PackedLoader(Subset(dataset, [*range(1, 29)]), 4, shuffle=True).load_state_dict(begun.state_dict())


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([], "indices of a Subset should be a list of whole numbers, and is empty"),
        ([0.5], "indices of a Subset should be a list of whole numbers"),
        ([0, 10_000], "indices of a Subset should be from 0 to"),
    ],
)
def test_wrong_subsets_are_refused(dataset: PackedDataset, indices: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PackedLoader(Subset(dataset, indices), 4)


def test_a_dataset_in_a_subset_is_checked(stores: Stores) -> None:
    path = stores("cifar.h5")
    with pytest.raises(UsageError, match="the dataset has a transform"):
        PackedLoader(Subset(PackedDataset(path, "train", transform=abs), [0]), 4)
    with pytest.raises(UsageError, match=re.escape("a Mix decides on the order: leave out sampler, indices, Subset")):
        PackedLoader(Subset(Mix([path], "train"), [0]), 4)


def test_a_loader_of_a_subset_shows_itself(dataset: PackedDataset) -> None:
    loader = PackedLoader(Subset(dataset, [1, 2, 3]), 2)
    assert "2 batches of 2" in repr(loader)
    assert str(dataset.path) in loader._repr_html_()


def test_a_dataloader_of_the_parts_loads_the_subset(dataset: PackedDataset) -> None:
    loader = PackedLoader(Subset(dataset, [9, 2, 5, 11, 0]), 2, shuffle=True)
    own = keys_of(loader)
    loader.set_epoch(0)
    parts = DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn)
    assert keys_of(parts) == own
    loader.set_epoch(0)
    assert [[loader.dataset[i][1] for i in batch] for batch in loader.batch_sampler] == own

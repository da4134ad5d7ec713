"""``Subset``, ``random_split`` and masks: a loader gives the records that torch's loader gives, in its order."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler, Subset, random_split

from packstore import Mix, PackedDataset, PackedLoader, UsageError
from packstore.augment import RASampler
from tests.conftest import Stores
from tests.makers.batches import flat_keys, go_on, join_ranks, keys_of, same


@pytest.fixture
def dataset(stores: Stores) -> PackedDataset:
    return PackedDataset(stores("cifar.h5"), "train", columns=("image", "key"))


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

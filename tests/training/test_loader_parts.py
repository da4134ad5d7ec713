"""``PackedLoader`` as a ``DataLoader``: its attributes, a ``DataLoader`` made of them, iterators without a batch."""

from __future__ import annotations

import pickle
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from packstore import PackedLoader, UsageError
from tests.conftest import Stores
from tests.makers.batches import flat_keys, go_on, keys_of, make_loaders, same

KINDS = ("files", "resident", "streaming", "in order", "drop_last", "lanes", "mix", "views", "dict", "single", "ranks")
SAMPLERS = ("random", "weighted", "distributed", "repeated", "list", "endless")


def make(stores: Stores, kind: str) -> PackedLoader:
    """Makes a loader: that of the last rank, if there are several."""
    return make_loaders(stores, kind)[-1]


def rebuild(loader: PackedLoader, skipped: int = 0, **options: Any) -> DataLoader[Any]:
    """Makes a ``DataLoader`` of a loader's parts, as accelerate does it to skip batches."""

    class Skipping(BatchSampler):
        def __init__(self) -> None:
            pass

        def __iter__(self) -> Any:
            return (batch for number, batch in enumerate(loader.batch_sampler) if number >= skipped)

        def __len__(self) -> int:
            return len(loader.batch_sampler) - skipped

    names = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
    names += ("generator", "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order")
    parts = {name: getattr(loader, name) for name in names}
    return DataLoader(loader.dataset, batch_sampler=Skipping(), **(parts | options))


def list_items(loader: Any, most: int = 14) -> list[Any]:
    """Lists at most ``most`` batches."""
    return list(islice(loader, most))


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", [*KINDS, *SAMPLERS])
def test_a_data_loader_made_of_the_parts_gives_the_same_batches(stores: Stores, kind: str) -> None:
    whole, loader = make(stores, kind), make(stores, kind)
    first, second = list_items(whole), list_items(whole)
    random = torch.get_rng_state()
    assert same(list_items(rebuild(loader, 2), 12), first[2:])
    assert kind == "endless" or loader.epoch == 1
    assert torch.equal(torch.get_rng_state(), random)
    assert kind == "endless" or same(loader, second)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", [*KINDS, *SAMPLERS[:-1]])
def test_the_state_within_a_data_loader_made_of_the_parts(stores: Stores, kind: str) -> None:
    whole, loader, resumed = (make(stores, kind) for _ in range(3))
    first, second = list_items(whole), list_items(whole)
    for step, _ in enumerate(rebuild(loader, 1), 2):
        if step == 2:
            resumed.load_state_dict(loader.state_dict())
    assert same(resumed, first[2:])
    assert same(resumed, second)
    resumed.load_state_dict(loader.state_dict())  # after the last batch
    assert same(resumed, second)


def test_skipping_counts_from_the_first_batch_of_the_epoch_whatever_state_was_loaded(stores: Stores) -> None:
    whole, loader = make(stores, "streaming"), make(stores, "streaming")
    epochs = [list(whole) for _ in range(3)]
    list(loader)
    resumed = go_on(loader, make(stores, "streaming"), 2)
    assert same(rebuild(resumed, 2), epochs[1][2:])
    assert same(resumed, epochs[2])


@pytest.mark.parametrize("kind", ["streaming", "distributed"])
def test_the_epoch_can_be_set_in_every_part(stores: Stores, kind: str) -> None:
    """Lightning sets it in the sampler, and in that of the batch sampler; Transformers in the batch sampler."""
    whole, loader = make(stores, kind), make(stores, kind)
    epochs = [list(whole) for _ in range(4)]
    for number, part in enumerate((loader.sampler, loader.batch_sampler, loader.batch_sampler.sampler)):
        part.set_epoch(3 - number)
        assert same(loader, epochs[3 - number])
        iterator = iter(loader)
        part.set_epoch(2 - number)  # after the iterator was made, before its first batch
        assert same(iterator, epochs[2 - number])
        assert loader.epoch == 3 - number
        part.set_epoch(3 - number)
        assert same(rebuild(loader, 1), epochs[3 - number][1:])


@pytest.mark.parametrize("kind", ["random", "weighted", "list"])
@pytest.mark.parametrize("when", ["before", "after", "rebuilt"])
def test_a_later_epoch_of_a_sampler_that_has_only_a_generator(stores: Stores, kind: str, when: str) -> None:
    """Frameworks that resume say the epoch alone: the generator advances by those that are left out."""
    whole, loader = make(stores, kind), make(stores, kind)
    epochs = [list(whole) for _ in range(4)]
    if when == "after":
        iterator = iter(loader)
        loader.batch_sampler.sampler.set_epoch(2)
        assert same(iterator, epochs[2])
    else:
        loader.set_epoch(2)
        assert same(loader if when == "before" else rebuild(loader), epochs[2])
    state = loader.state_dict()
    assert same(loader, epochs[3])
    loader.load_state_dict(state)
    loader.set_epoch(3)
    assert same(loader, epochs[3])


def test_the_parts_say_what_the_loader_does(stores: Stores) -> None:
    for kind in ("streaming", "in order", "drop_last", "ranks", "list"):
        loader = make(stores, kind)
        keys = flat_keys(loader)
        loader.set_epoch(0)
        assert [loader.dataset.keys[index] for index in loader.sampler][: len(keys)] == keys
        assert [len(batch) for batch in loader.batch_sampler] == [*map(len, keys_of(loader))]
        loader.set_epoch(0)
        assert [loader.dataset.keys[index] for batch in loader.batch_sampler for index in batch] == keys
        assert loader.epoch == 0
        assert len(loader.batch_sampler) == len(loader)
        assert kind == "list" or len(loader.sampler) == len(keys)
        assert isinstance(loader.batch_sampler.sampler, SequentialSampler) == (kind in ("in order", "list"))
        assert isinstance(loader.batch_sampler.sampler, RandomSampler) != (kind in ("in order", "list"))
        assert loader.drop_last == (kind == "drop_last") == loader.batch_sampler.drop_last
        assert (loader.batch_size, loader.batch_sampler.batch_size, loader.num_workers) == (8, 8, 0)
    assert next(iter(make(stores, "in order").batch_sampler)) == [*range(2, 10)]


def test_worker_processes_for_a_loaders_batches_are_refused(stores: Stores) -> None:
    loader = make(stores, "in order")
    with pytest.raises(UsageError, match=r"loaded by its threads.* leave num_workers at 0"):
        pickle.dumps(next(iter(loader.batch_sampler)))


# Iterators without a batch --------------------------------------------------------------------------------------------


def test_an_iterator_that_is_dropped_before_its_first_batch_counts_for_nothing(stores: Stores) -> None:
    """Lightning tries if a loader can be iterated, and throws the iterator away."""
    whole, loader = make(stores, "streaming"), make(stores, "streaming")
    epochs = [list(whole) for _ in range(3)]
    iter(loader)
    assert same(loader, epochs[0])
    iter(loader)
    iter(loader)
    resumed = go_on(loader, make(stores, "streaming"), 2)
    iter(resumed)
    assert resumed.state_dict() == loader.state_dict()
    iter(resumed)
    assert same(resumed, epochs[1][2:])
    assert same(resumed, epochs[2])


@pytest.mark.slow
@pytest.mark.parametrize("told", [1, 2])
def test_set_epoch_before_the_first_batch_of_an_iterator(stores: Stores, told: int) -> None:
    """The resumed epoch keeps its position, another one begins at its first batch; the state says the same."""
    whole, loader = make(stores, "streaming"), make(stores, "streaming")
    epochs = [list(whole) for _ in range(4)]
    list(loader)
    resumed = go_on(loader, make(stores, "streaming"))
    iterator = iter(resumed)
    resumed.set_epoch(told)
    copy = make(stores, "streaming")
    copy.load_state_dict(resumed.state_dict())
    wanted = epochs[told][1:] if told == 1 else epochs[told]
    assert same(iterator, wanted)
    assert same(copy, wanted)
    assert same(resumed, epochs[told + 1])
    pickle.loads(pickle.dumps(resumed))


def test_two_iterators_are_two_epochs(stores: Stores) -> None:
    whole, loader = make(stores, "streaming"), make(stores, "streaming")
    epochs = [list(whole) for _ in range(3)]
    one, two = iter(loader), iter(loader)
    pickle.dumps(loader)
    assert same(two, epochs[1])
    assert same(one, epochs[0])
    assert same(loader, epochs[2])


def test_augmentation_follows_the_epoch_that_is_set_late(stores: Stores) -> None:
    loader, late = make(stores, "files"), make(stores, "files")
    loader.set_epoch(5)
    iterator = iter(late)
    late.set_epoch(5)
    assert same(iterator, loader)

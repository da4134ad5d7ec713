"""``PackedLoader`` as a ``DataLoader``: its attributes, a ``DataLoader`` made of them, iterators without a batch."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from packstore import Mix, PackedDataset, PackedLoader, UsageError
from packstore.training.augment import RandomHorizontalFlip, RASampler
from tests.conftest import Stores
from tests.makers.batches import RAGGED, same

KINDS = ("files", "resident", "streaming", "in order", "drop_last", "lanes", "mix", "views", "dict", "single", "rank")
SAMPLERS = ("random", "weighted", "distributed", "repeated", "list", "endless")


class _Endless(Sampler[int]):
    """Draws without end, and has no length."""

    def __init__(self, length: int) -> None:
        self.length, self.generator = length, torch.Generator().manual_seed(2)

    def __iter__(self) -> Any:
        while True:
            yield from torch.randperm(self.length, generator=self.generator).tolist()


def make(stores: Stores, kind: str) -> PackedLoader:
    """Makes a loader whose items are images and keys; images alone for "single"."""
    if kind == "mix":
        mixed = Mix({stores("cifar.h5"): 3, stores("cifar.pth"): 1}, "train", columns=("image", "key"), epoch=26)
        return PackedLoader(mixed, 8, True, seed=3)
    name = {"files": "files.lmdb", "lanes": "shards.h5"}.get(kind, "cifar.lmdb")
    columns = ("image",) if kind == "single" else ("image", "key")
    dataset = PackedDataset(stores(name), "train", columns=columns, output="dict" if kind == "dict" else "tensor")
    seeded, some = torch.Generator().manual_seed(7), range(2, 28)
    samplers = {
        "random": lambda: RandomSampler(dataset, num_samples=26, generator=seeded),
        "weighted": lambda: WeightedRandomSampler([1.0] * 26, 26, generator=seeded),
        "distributed": lambda: DistributedSampler(dataset, 3, 1, seed=5),
        "repeated": lambda: RASampler(dataset, 3, seed=5),
        "list": lambda: [*range(26)][::-1],
        "endless": lambda: _Endless(26),
    }
    options: dict[str, Any] = {
        "files": {"augment": RAGGED},
        "resident": {"resident": True, "indices": some},
        "streaming": {"resident": False, "indices": some},
        "in order": {"shuffle": False, "indices": some},
        "drop_last": {"drop_last": True, "indices": some},
        "lanes": {"shuffle": "lanes", "window": 2, "indices": range(0, 100, 3)},
        "views": {"views": {"one": (2, RAGGED)}, "indices": some},
        "rank": {"rank": 1, "world_size": 3, "indices": range(2, 78)},
        **{kind: {"sampler": sampler(), "shuffle": False} for kind, sampler in samplers.items()},
    }.get(kind, {"indices": some})
    return PackedLoader(dataset, 8, **({"shuffle": True, "seed": 3, "augment": []} | options))


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


def list_items(loader: Any, most: int = 14) -> list[list[Any]]:
    """Lists the tensors and keys of at most ``most`` batches."""
    found = []
    for item, _ in zip(loader, range(most), strict=False):
        values = list(item.values()) if isinstance(item, dict) else item if isinstance(item, tuple) else [item]
        found.append([each["one"] if isinstance(each, dict) else each for each in values])
    return found


def equal(a: list[list[Any]], b: list[list[Any]]) -> bool:
    """Tells if images and keys of two lists of batches are equal."""
    keys = [[[value for value in item if isinstance(value, list)] for item in each] for each in (a, b)]
    images = [[[value for value in item if not isinstance(value, list)] for item in each] for each in (a, b)]
    return keys[0] == keys[1] and same(*images)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", [*KINDS, *SAMPLERS])
def test_a_data_loader_made_of_the_parts_gives_the_same_batches(stores: Stores, kind: str) -> None:
    whole, loader = make(stores, kind), make(stores, kind)
    first, second = list_items(whole), list_items(whole)
    random = torch.get_rng_state()
    assert equal(list_items(rebuild(loader, 2), 12), first[2:])
    assert kind == "endless" or loader.epoch == 1
    assert torch.equal(torch.get_rng_state(), random)
    assert kind == "endless" or equal(list_items(loader), second)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", [*KINDS, *SAMPLERS[:-1]])
def test_the_state_within_a_data_loader_made_of_the_parts(stores: Stores, kind: str) -> None:
    whole, loader, resumed = (make(stores, kind) for _ in range(3))
    first, second = list_items(whole), list_items(whole)
    for step, _ in enumerate(rebuild(loader, 1), 2):
        if step == 2:
            resumed.load_state_dict(loader.state_dict())
    assert equal(list_items(resumed), first[2:])
    assert equal(list_items(resumed), second)
    resumed.load_state_dict(loader.state_dict())  # after the last batch
    assert equal(list_items(resumed), second)


def test_skipping_counts_from_the_first_batch_of_the_epoch_whatever_state_was_loaded(stores: Stores) -> None:
    whole, loader = make(stores, "streaming"), make(stores, "streaming")
    epochs = [list_items(whole) for _ in range(3)]
    list_items(loader)
    iterator = iter(loader)
    next(iterator), next(iterator)
    resumed = make(stores, "streaming")
    resumed.load_state_dict(loader.state_dict())
    assert equal(list_items(rebuild(resumed, 2)), epochs[1][2:])
    assert equal(list_items(resumed), epochs[2])


@pytest.mark.parametrize("kind", ["streaming", "distributed"])
def test_the_epoch_can_be_set_in_every_part(stores: Stores, kind: str) -> None:
    """Lightning sets it in the sampler, and in that of the batch sampler; Transformers in the batch sampler."""
    whole, loader = make(stores, kind), make(stores, kind)
    epochs = [list_items(whole) for _ in range(4)]
    for number, part in enumerate((loader.sampler, loader.batch_sampler, loader.batch_sampler.sampler)):
        part.set_epoch(3 - number)  # type: ignore[union-attr]
        assert equal(list_items(loader), epochs[3 - number])
        iterator = iter(loader)
        part.set_epoch(2 - number)  # type: ignore[union-attr]  # after the iterator was made, before its first batch
        assert equal(list_items(iterator), epochs[2 - number])
        assert loader.epoch == 3 - number
        part.set_epoch(3 - number)  # type: ignore[union-attr]
        assert equal(list_items(rebuild(loader, 1)), epochs[3 - number][1:])


@pytest.mark.parametrize("kind", ["random", "weighted", "list"])
@pytest.mark.parametrize("when", ["before", "after", "rebuilt"])
def test_a_later_epoch_of_a_sampler_that_has_only_a_generator(stores: Stores, kind: str, when: str) -> None:
    """Frameworks that resume say the epoch alone: the generator advances by those that are left out."""
    whole, loader = make(stores, kind), make(stores, kind)
    epochs = [list_items(whole) for _ in range(4)]
    if when == "after":
        iterator = iter(loader)
        loader.batch_sampler.sampler.set_epoch(2)
        assert equal(list_items(iterator), epochs[2])
    else:
        loader.set_epoch(2)
        assert equal(list_items(loader if when == "before" else rebuild(loader)), epochs[2])
    state = loader.state_dict()
    assert equal(list_items(loader), epochs[3])
    loader.load_state_dict(state)
    loader.set_epoch(3)
    assert equal(list_items(loader), epochs[3])


def test_the_parts_say_what_the_loader_does(stores: Stores) -> None:
    for kind in ("streaming", "in order", "drop_last", "rank", "list"):
        loader = make(stores, kind)
        keys = [key for _, keys in loader for key in keys]
        loader.set_epoch(0)
        assert [loader.dataset.keys[index] for index in loader.sampler][: len(keys)] == keys
        assert [len(batch) for batch in loader.batch_sampler] == [len(keys) for _, keys in list_items(loader)]
        loader.set_epoch(0)
        assert [loader.dataset.keys[index] for batch in loader.batch_sampler for index in batch] == keys
        assert loader.epoch == 0
        assert len(loader.batch_sampler) == len(loader)
        assert kind == "list" or len(loader.sampler) == len(keys)  # type: ignore[arg-type]
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
    epochs = [list_items(whole) for _ in range(3)]
    iter(loader)
    assert equal(list_items(loader), epochs[0])
    iter(loader)
    iter(loader)
    iterator = iter(loader)
    next(iterator), next(iterator)
    resumed = make(stores, "streaming")
    resumed.load_state_dict(loader.state_dict())
    iter(resumed)
    assert resumed.state_dict() == loader.state_dict()
    iter(resumed)
    assert equal(list_items(resumed), epochs[1][2:])
    assert equal(list_items(resumed), epochs[2])


@pytest.mark.parametrize("told", [1, 2])
def test_set_epoch_before_the_first_batch_of_an_iterator(stores: Stores, told: int) -> None:
    """The resumed epoch keeps its position, another one begins at its first batch; the state says the same."""
    whole, loader = make(stores, "streaming"), make(stores, "streaming")
    epochs = [list_items(whole) for _ in range(4)]
    list_items(loader)
    next(iter(loader))
    resumed = make(stores, "streaming")
    resumed.load_state_dict(loader.state_dict())
    iterator = iter(resumed)
    resumed.set_epoch(told)
    copy = make(stores, "streaming")
    copy.load_state_dict(resumed.state_dict())
    wanted = epochs[told][1:] if told == 1 else epochs[told]
    assert equal(list_items(iterator), wanted)
    assert equal(list_items(copy), wanted)
    assert equal(list_items(resumed), epochs[told + 1])
    pickle.loads(pickle.dumps(resumed))


def test_two_iterators_are_two_epochs(stores: Stores) -> None:
    whole, loader = make(stores, "streaming"), make(stores, "streaming")
    epochs = [list_items(whole) for _ in range(3)]
    one, two = iter(loader), iter(loader)
    pickle.dumps(loader)
    assert equal(list_items(two), epochs[1])
    assert equal(list_items(one), epochs[0])
    assert equal(list_items(loader), epochs[2])


def test_augmentation_follows_the_epoch_that_is_set_late(stores: Stores) -> None:
    dataset = PackedDataset(stores("cifar.lmdb"), "train")
    loader, late = (PackedLoader(dataset, 8, augment=[RandomHorizontalFlip()]) for _ in range(2))
    loader.set_epoch(5)
    iterator = iter(late)
    late.set_epoch(5)
    assert same(list(iterator), list(loader))

"""``PackedLoader``: states, and epochs that resume."""

from __future__ import annotations

import json
import pickle
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler, RandomSampler, Sampler, WeightedRandomSampler

import packstore
from packstore import Mix, PackedDataset, PackedLoader, UsageError
from packstore.training.augment import RandomHorizontalFlip, RandomResizedCrop
from tests.conftest import Stores
from tests.makers.batches import FIXED, RAGGED, same
from tests.makers.datasets import write_image


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", ["files.lmdb", "cifar.pth"])
@pytest.mark.parametrize("resident", [False, "auto"])
@pytest.mark.parametrize("stop", [0, 1, 3])
def test_a_resumed_epoch_goes_on_where_it_stood(stores: Stores, name: str, resident: Any, stop: int) -> None:
    ds = PackedDataset(stores(name), "train")
    make = lambda: PackedLoader(ds, 4, shuffle=True, augment=RAGGED, seed=9, resident=resident)  # noqa: E731
    loader = make()
    epochs = [list(loader) for _ in range(3)]
    loader = make()
    list(loader)
    iterator = iter(loader)
    for _ in range(stop):
        next(iterator)
    state = loader.state_dict()
    del iterator
    resumed = make()
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert same(list(resumed), epochs[1][stop:])
    assert same(list(resumed), epochs[2])


@pytest.mark.parametrize(("name", "resident"), [("files.lmdb", False), ("cifar.h5", False), ("cifar.pth", True)])
def test_a_loader_that_has_run_can_be_pickled(stores: Stores, name: str, resident: bool) -> None:
    augment = RAGGED if name == "files.lmdb" else FIXED
    ds = PackedDataset(stores(name), "train")
    loader = PackedLoader(ds, 4, shuffle=True, augment=augment, resident=resident, workers=2)
    list(loader)
    batches = iter(loader)
    next(batches)
    copy = pickle.loads(pickle.dumps(loader))
    assert copy.state_dict() == loader.state_dict()
    assert copy.stats()["images"] == 0
    batches.close()
    copy.load_state_dict(copy.state_dict())
    loader.load_state_dict(loader.state_dict())
    assert same(list(copy), list(loader))


@pytest.mark.parametrize("resident", [True, False])
def test_a_batch_is_free_before_the_next_is_made(stores: Stores, resident: bool) -> None:
    before: list[weakref.ref[torch.Tensor]] = []

    def transform(images: torch.Tensor) -> torch.Tensor:
        assert not before or before[-1]() is None
        before.append(weakref.ref(images))
        return images

    loader = PackedLoader(PackedDataset(stores("cifar.h5"), "train"), 4, transform=transform, resident=resident)
    for images, _ in loader:
        del images, _
    assert len(before) == len(loader)


def test_a_state_moves_to_another_number_of_ranks(stores: Stores) -> None:
    ds = PackedDataset(stores("cifar.h5"), "train", columns=("image", "key"))

    def keys(loader: PackedLoader) -> list[list[str]]:
        return [sorted(k) for _, k in loader]

    whole = keys(PackedLoader(ds, 12, shuffle=True))
    first = PackedLoader(ds, 6, shuffle=True, rank=0, world_size=2)
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    state = first.state_dict()
    one = PackedLoader(ds, 12, shuffle=True)
    one.load_state_dict(state)
    assert keys(one) == whole[3:]
    four = [PackedLoader(ds, 3, shuffle=True, rank=r, world_size=4) for r in range(4)]
    for loader in four:
        loader.load_state_dict(state)
    parts = [keys(loader) for loader in four]
    assert [sorted(k for part in p for k in part) for p in zip(*parts, strict=True)] == whole[3:]


@pytest.mark.parametrize("change", [{"seed": 1}, {"batch_size": 5}, {"version": 99}, {"shuffle": True}])
def test_a_state_of_another_loader_is_refused(stores: Stores, change: dict[str, Any]) -> None:
    ds = PackedDataset(stores("cifar.h5"), "train")
    state = PackedLoader(ds, 4).state_dict()
    version = change.pop("version", None)
    if version is not None:
        state["version"] = version
    with pytest.raises(UsageError, match="state has"):
        PackedLoader(ds, **{"batch_size": 4, **change}).load_state_dict(state)


def test_a_state_of_another_shuffle_is_refused(stores: Stores) -> None:
    ds = PackedDataset(stores("cifar.h5"), "train")
    state = PackedLoader(ds, 4, shuffle=True, block=8).state_dict()
    PackedLoader(ds, 4, shuffle=True, block=8).load_state_dict(state)
    with pytest.raises(UsageError, match="state has block 8, this loader None"):
        PackedLoader(ds, 4, shuffle=True).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"dataset": "square.h5"}, "dataset"),
        ({"split": "test"}, "split"),
        ({"indices": range(1, 33)}, "indices"),
        ({"sampler": list(range(32))}, "sampler"),
        ({"augment": [RandomHorizontalFlip(0.4)]}, "augment"),
        ({"augment": [len]}, "augment"),
        ({"drop_last": True}, "drop_last"),
    ],
)
def test_what_differs_from_the_state_is_named(stores: Stores, change: dict[str, Any], named: str) -> None:
    """Another store, part of it or augmentation would go on with other batches, silently."""
    change = dict(change)
    store, split = change.pop("dataset", "cifar.h5"), change.pop("split", "train")
    usual = {"augment": [RandomHorizontalFlip()]} | ({"indices": range(32)} if "indices" in change else {})
    state = PackedLoader(PackedDataset(stores("cifar.h5"), "train"), 4, **usual).state_dict()
    PackedLoader(PackedDataset(stores("cifar.pth"), "train"), 4, **usual).load_state_dict(state)  # the same records
    with pytest.raises(UsageError, match=f"state has {named}"):
        PackedLoader(PackedDataset(stores(store), split), 4, **(usual | change)).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: None, "state_dict\\(\\) gave, got NoneType; look under which name the checkpoint has it"),
        (lambda state: [1], "takes what a loader's state_dict\\(\\) gave, got list"),
        (lambda state: {}, r"this dict is empty: .* Save loader\.state_dict\(\)"),
        (lambda state: {"model": 1}, "this dict has model, and lacks version, epoch, records"),
        (lambda state: {"version": 2}, "this dict has version, and lacks epoch, records"),
        (lambda state: {k: v for k, v in state.items() if k != "seed"}, "and lacks seed: look under"),
        (lambda state: {"version": 3}, "has version 3, expected 2"),
        (lambda state: state | {"epoch": None}, "should have whole numbers as epoch and records, and has epoch None"),
        (lambda state: state | {"records": -1}, "and has epoch 0, records -1"),
    ],
)
def test_what_is_no_state_is_told(stores: Stores, change: Callable[[Any], Any], message: str) -> None:
    loader = PackedLoader(PackedDataset(stores("cifar.h5"), "train"), 4)
    with pytest.raises(UsageError, match=message):
        loader.load_state_dict(change(loader.state_dict()))


@pytest.mark.slow
@pytest.mark.parametrize("splits", [False, True])
def test_a_state_says_whether_the_store_has_grown_since(tmp_path: Path, splits: bool) -> None:
    for folder, seed in (("first", 0), ("second", 1), ("other", 2)):
        for split in ("train", "val") if splits else ("",):
            for number in range(6):
                path = tmp_path / folder / split / "ant" / f"{folder}{number}.png"
                write_image(path, 8, 9, 10 * seed + number)
    packstore.convert(tmp_path / "first", tmp_path / "s.lmdb", shard_size=500)
    packstore.convert(tmp_path / "other", tmp_path / "other.lmdb", shard_size=500)
    split = "train" if splits else None

    def make(name: str) -> PackedLoader:
        return PackedLoader(PackedDataset(tmp_path / name, split), 2)

    state = make("s.lmdb").state_dict()
    packstore.append(tmp_path / "s.lmdb", tmp_path / "second")
    words = r"has grown since \(6 records then, 12 now\).*begin the next one: loader.set_epoch\(1\)"
    with pytest.raises(UsageError, match=f"state has dataset .*s.lmdb.* {words}"):
        make("s.lmdb").load_state_dict(state)
    with pytest.raises(UsageError, match=r"other.lmdb.* is another one, .*it does not begin with the records of that"):
        make("other.lmdb").load_state_dict(state)


def test_a_state_holds_plain_values(stores: Stores) -> None:
    loader = PackedLoader(PackedDataset(stores("cifar.h5"), "train"), 4, True, augment=FIXED, indices=[3, 1])
    assert json.loads(json.dumps(loader.state_dict())) == loader.state_dict()


@pytest.mark.parametrize("options", [{"rank": 0, "world_size": 1_000_000}, {"drop_last": True}, {"sampler": []}])
def test_an_epoch_without_batches_is_refused(stores: Stores, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"an epoch has no batches|there is nothing to load"):
        list(PackedLoader(PackedDataset(stores("cifar.h5"), "train"), 100_000, **options))


def test_all_ranks_step_through_the_tail(stores: Stores) -> None:
    """Of 5 records, two ranks with batches of 2 get 3 and 2."""
    ds = PackedDataset(stores("cifar.h5"), "train", columns=("image", "key"))
    seen = [list(PackedLoader(ds, 2, indices=range(5), rank=rank, world_size=2)) for rank in range(2)]
    assert [[len(keys) for _, keys in batches] for batches in seen] == [[3], [2]]
    assert {key for batches in seen for _, keys in batches for key in keys} == set(ds.keys[:5])


def test_a_resume_that_leaves_records_out_says_so(stores: Stores, caplog: pytest.LogCaptureFixture) -> None:
    ds = PackedDataset(stores("cifar.h5"), "train")
    two = PackedLoader(ds, 4, indices=range(10), rank=0, world_size=2)
    iterator = iter(two)
    next(iterator)
    eight = PackedLoader(ds, 1, indices=range(10), rank=0, world_size=8)
    eight.load_state_dict(two.state_dict())
    assert "2 records of epoch 0 are left out: too few for 8 ranks" in caplog.text
    assert (eight.epoch, len(list(eight))) == (1, len(eight))


# Sequences of epochs --------------------------------------------------------------------------------------------------

EPOCHS = 3


class _Drawn(Sampler[int]):
    """Sampler with a generator of its own, without a length."""

    def __init__(self, length: int, generator: torch.Generator) -> None:
        self.length, self.generator = length, generator

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(self.length, generator=self.generator).tolist()


def read(loader: PackedLoader) -> list[list[str]]:
    """Returns the keys of each batch."""
    return [keys for *_, keys in loader]


def _make_loaders(stores: Stores, kind: str) -> list[PackedLoader]:
    """Makes the loaders of all ranks, of batches with keys in the last place."""
    if kind == "mix":
        mixed = Mix({stores("cifar.h5"): 3, stores("cifar.pth"): 1}, "train", columns=("image", "key"), epoch=26)
        return [PackedLoader(mixed, 8, True, seed=3)]
    name = {"files": "files.lmdb", "lanes": "shards.h5", "lanes on ranks": "shards.h5"}.get(kind, "cifar.lmdb")
    dataset = PackedDataset(stores(name), "train", columns=("image", "key"))
    views = [[RandomResizedCrop(16)], [RandomResizedCrop(8)]]
    some, seeded = range(26), torch.Generator().manual_seed(7)
    options: dict[str, Any] = {
        "files": {"augment": RAGGED},
        "drop_last": {"drop_last": True, "indices": some},
        "lanes": {"shuffle": "lanes", "window": 2, "indices": range(0, 100, 3)},
        "lanes on ranks": {"shuffle": "lanes", "window": 2},
        "block": {"block": 4, "indices": some},
        "views": {"views": views, "resident": False, "indices": some},
        "resident views": {"views": views, "resident": True, "indices": some},
        "random": {"sampler": RandomSampler(dataset, generator=seeded), "shuffle": False},
        "weighted": {"sampler": WeightedRandomSampler([1.0] * 26, 26, generator=seeded), "shuffle": False},
        "without a length": {"sampler": _Drawn(26, seeded), "shuffle": False, "resident": False},
        "resident, without a length": {"sampler": _Drawn(24, seeded), "shuffle": False, "resident": True},
        "streaming": {"resident": False, "prefetch": 1, "indices": some},
        "in order": {"shuffle": False, "indices": some},
    }.get(kind, {"indices": some})
    options = {"shuffle": True, "seed": 3} | options
    if kind == "distributed":
        shares = [DistributedSampler(dataset, 3, rank, seed=5) for rank in range(3)]  # type: ignore[var-annotated]
        return [PackedLoader(dataset, 8, sampler=each) for each in shares]
    ranks = 3 if "rank" in kind else 1
    return [PackedLoader(dataset, 8, rank=rank, world_size=ranks, **options) for rank in range(ranks)]


KINDS = ["files", "resident", "streaming", "drop_last", "lanes", "mix", "ranks", "lanes on ranks", "block", "views"]
KINDS += ["resident views", "random", "weighted", "without a length", "resident, without a length", "distributed"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", [*KINDS, "in order"])
def test_epochs_after_a_resume_are_those_without_an_interruption(stores: Stores, kind: str) -> None:
    own = [[read(loader) for _ in range(EPOCHS)] for loader in _make_loaders(stores, kind)]

    @given(data=st.data())
    def resume(data: st.DataObject) -> None:
        """Saves anywhere: before and after an epoch, within the body of any batch, after a break."""
        batches = len(own[0][0])
        epoch, done = data.draw(st.integers(0, 1)), data.draw(st.integers(0, batches) | st.just(batches))
        how = data.draw(st.sampled_from(["in the body", "after a break", "after the end"]))
        says = data.draw(st.sampled_from(["nothing", "set_epoch", "set_epoch of the sampler"]))
        states = []
        for loader in _make_loaders(stores, kind):
            for _ in range(epoch):
                read(loader)
            iterator = iter(loader)
            for _ in range(done):
                next(iterator)
            if how == "after the end" and done == batches:
                assert next(iterator, None) is None
            elif how == "after a break":
                iterator.close()  # type: ignore[attr-defined]
            states.append(json.loads(json.dumps(loader.state_dict())))
        assert all(state == states[0] for state in states)
        for loader, expected in zip(_make_loaders(stores, kind), own, strict=True):
            loader.load_state_dict(states[0])
            following = [expected[epoch][done:]] * (done < batches) + expected[epoch + 1 :]
            for number, batches_of in enumerate(following, EPOCHS - len(following)):
                assert loader.epoch == number
                if says == "set_epoch":
                    loader.set_epoch(number)
                elif says == "set_epoch of the sampler" and hasattr(loader.sampler, "set_epoch"):
                    loader.sampler.set_epoch(number)  # type: ignore[union-attr]
                assert read(loader) == batches_of

    resume()


@pytest.mark.parametrize("done", [0, 2, 13])
def test_set_epoch_of_a_resumed_loader(stores: Stores, done: int) -> None:
    """The state's own epoch keeps the position; any other begins, also the one that the state is the end of."""
    [loader] = _make_loaders(stores, "random_order")
    epochs = [read(loader) for _ in range(4)]
    loader.set_epoch(1)
    batches = iter(loader)
    for _ in range(min(done, len(loader))):
        next(batches)
    state = loader.state_dict()
    kept, epoch = (epochs[1][done:], 1) if done < len(loader) else (epochs[2], 2)
    for told, expected in (([], kept), ([epoch], kept), ([epoch, epoch], kept), ([3], epochs[3]), ([0], epochs[0])):
        loader.load_state_dict(state)
        for number in told:
            loader.set_epoch(number)
        assert read(loader) == expected
    loader.load_state_dict(state)
    loader.set_epoch(3)
    loader.set_epoch(epoch)
    assert read(loader) == epochs[epoch]
    loader.load_state_dict(state)
    loader.set_epoch(epoch - 1)
    assert read(loader) == epochs[epoch - 1]


@pytest.mark.parametrize("done", [0, 2, 7])
def test_a_state_follows_set_epoch(stores: Stores, done: int) -> None:
    """What set_epoch has said is saved, as the next iteration of the loader itself would follow it."""
    [loader] = _make_loaders(stores, "random_order")
    epochs = [read(loader) for _ in range(4)]
    [loader] = _make_loaders(stores, "random_order")
    list(zip(range(done), loader, strict=False))
    loader.set_epoch(3)
    [resumed] = _make_loaders(stores, "random_order")
    resumed.load_state_dict(loader.state_dict())
    assert read(resumed) == epochs[3] == read(loader)


def test_a_state_follows_set_epoch_of_the_sampler(stores: Stores) -> None:
    loader, *_ = _make_loaders(stores, "distributed")
    epochs = [read(loader) for _ in range(4)]
    loader.sampler.set_epoch(2)  # type: ignore[union-attr]
    resumed, *_ = _make_loaders(stores, "distributed")
    resumed.load_state_dict(loader.state_dict())
    assert read(resumed) == epochs[2]


def test_a_state_of_an_earlier_version_resumes(stores: Stores) -> None:
    """Such states do not say that the epoch has ended."""
    loader, resumed = (_make_loaders(stores, "weighted")[0] for _ in range(2))
    epochs = []
    for _ in range(2):
        epochs.append(read(loader))
        state = loader.state_dict()
        del state["ended"]
    resumed.load_state_dict(state)
    assert read(resumed) == read(loader)

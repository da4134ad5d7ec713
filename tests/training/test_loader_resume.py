"""``PackedLoader``: states, and epochs that resume."""

from __future__ import annotations

import json
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import packstore
from packstore import PackedDataset, PackedLoader, UsageError
from packstore.augment import RandomHorizontalFlip
from tests.conftest import Stores
from tests.makers.batches import FIXED, go_on, join_ranks, keys_of, make_loaders, same
from tests.makers.datasets import write_image


@pytest.mark.parametrize("kind", ["files", "streaming", "resident"])
def test_a_loader_that_has_run_can_be_pickled(stores: Stores, kind: str) -> None:
    [loader] = make_loaders(stores, kind)
    list(loader)
    batches = iter(loader)
    next(batches)
    copy = pickle.loads(pickle.dumps(loader))
    assert copy.state_dict() == loader.state_dict()
    assert copy.stats()["images"] == 0
    batches.close()
    copy.load_state_dict(copy.state_dict())
    loader.load_state_dict(loader.state_dict())
    assert same(copy, loader)


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
    whole = list(PackedLoader(ds, 12, shuffle=True))
    begun = PackedLoader(ds, 6, shuffle=True, rank=0, world_size=2)
    assert same(go_on(begun, PackedLoader(ds, 12, shuffle=True), 3), whole[3:])
    state = begun.state_dict()

    def make(**ranks: int) -> PackedLoader:
        loader = PackedLoader(ds, 3, shuffle=True, **ranks)
        loader.load_state_dict(state)
        return loader

    assert same(join_ranks(make, 4), whole[3:])


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
    eight = go_on(two, PackedLoader(ds, 1, indices=range(10), rank=0, world_size=8))
    assert "2 records of epoch 0 are left out: too few for 8 ranks" in caplog.text
    assert (eight.epoch, len(list(eight))) == (1, len(eight))


# Sequences of epochs --------------------------------------------------------------------------------------------------

EPOCHS = 3


KINDS = ["files", "resident", "streaming", "drop_last", "lanes", "mix", "ranks", "lanes on ranks", "block", "views"]
KINDS += ["resident views", "random", "weighted", "without a length", "resident, without a length", "distributed"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", [*KINDS, "in order"])
def test_epochs_after_a_resume_are_those_without_an_interruption(stores: Stores, kind: str) -> None:
    own = [[list(loader) for _ in range(EPOCHS)] for loader in make_loaders(stores, kind)]

    @given(data=st.data())
    def resume(data: st.DataObject) -> None:
        """Saves anywhere: before and after an epoch, within the body of any batch, after a break."""
        batches = len(own[0][0])
        epoch, done = data.draw(st.integers(0, 1)), data.draw(st.integers(0, batches) | st.just(batches))
        how = data.draw(st.sampled_from(["in the body", "after a break", "after the end"]))
        says = data.draw(st.sampled_from(["nothing", "set_epoch", "set_epoch of the sampler"]))
        states = []
        for loader in make_loaders(stores, kind):
            for _ in range(epoch):
                list(loader)
            iterator = iter(loader)
            for _ in range(done):
                next(iterator)
            if how == "after the end" and done == batches:
                assert next(iterator, None) is None
            elif how == "after a break":
                iterator.close()
            states.append(json.loads(json.dumps(loader.state_dict())))
        assert all(state == states[0] for state in states)
        for loader, expected in zip(make_loaders(stores, kind), own, strict=True):
            loader.load_state_dict(states[0])
            assert loader.state_dict() == states[0] or done == batches
            following = [expected[epoch][done:]] * (done < batches) + expected[epoch + 1 :]
            for number, batches_of in enumerate(following, EPOCHS - len(following)):
                assert loader.epoch == number
                if says == "set_epoch":
                    loader.set_epoch(number)
                elif says == "set_epoch of the sampler" and hasattr(loader.sampler, "set_epoch"):
                    loader.sampler.set_epoch(number)
                assert same(loader, batches_of)

    resume()


@pytest.mark.parametrize("done", [0, 2, 13])
def test_set_epoch_of_a_resumed_loader(stores: Stores, done: int) -> None:
    """The state's own epoch keeps the position; any other begins, also the one that the state is the end of."""
    [loader] = make_loaders(stores, "shuffled")
    epochs = [keys_of(loader) for _ in range(4)]
    loader.set_epoch(1)
    state = go_on(loader, make_loaders(stores, "shuffled")[0], min(done, len(loader))).state_dict()
    kept, epoch = (epochs[1][done:], 1) if done < len(loader) else (epochs[2], 2)
    cases = [([], kept), ([epoch], kept), ([epoch, epoch], kept), ([3], epochs[3]), ([0], epochs[0])]
    for told, expected in [*cases, ([3, epoch], epochs[epoch]), ([epoch - 1], epochs[epoch - 1])]:
        loader.load_state_dict(state)
        for number in told:
            loader.set_epoch(number)
        assert keys_of(loader) == expected


@pytest.mark.parametrize("done", [0, 2, 7])
@pytest.mark.parametrize("kind", ["shuffled", "distributed"])
def test_a_state_follows_set_epoch(stores: Stores, kind: str, done: int) -> None:
    """What set_epoch has said is saved, as the next iteration of the loader itself would follow it."""
    whole, loader, resumed = (make_loaders(stores, kind)[0] for _ in range(3))
    epochs = [keys_of(whole) for _ in range(4)]
    list(zip(range(done), loader, strict=False))
    (loader.sampler if kind == "distributed" else loader).set_epoch(3)
    resumed.load_state_dict(loader.state_dict())
    assert keys_of(resumed) == epochs[3] == keys_of(loader)


def test_a_state_of_an_earlier_version_resumes(stores: Stores) -> None:
    """Such states do not say that the epoch has ended."""
    loader, resumed = (make_loaders(stores, "weighted")[0] for _ in range(2))
    for _ in range(2):
        list(loader)
        state = loader.state_dict()
        del state["ended"]
    resumed.load_state_dict(state)
    assert keys_of(resumed) == keys_of(loader)

"""``PackedLoader``: what it gives, and in which order; shuffling in lanes; forks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import WeightedRandomSampler

import packstore
from packstore import PackedDataset, PackedLoader, UsageError, convert
from packstore.augment import RandomHorizontalFlip
from tests.conftest import Stores
from tests.internals import Normalization
from tests.makers.batches import FIXED, RAGGED, flat_keys, go_on, images_of, join_ranks, joined, same
from tests.makers.datasets import make_cifar10


@pytest.mark.parametrize("name", ["cifar.lmdb", "cifar.h5", "cifar.pth", "shards.h5", "floats.pth", "bfloats.h5"])
@pytest.mark.parametrize("resident", [True, False])
def test_in_order_it_gives_the_datasets_items(stores: Stores, name: str, resident: bool) -> None:
    ds = PackedDataset(stores(name), "test")
    batches = list(PackedLoader(ds, 6, resident=resident))
    assert [len(labels) for _, labels in batches] == [6, 6, 6, 2]
    images, labels = joined(batches)
    expected, targets = ds[:]
    assert torch.equal(images.to(expected.dtype), expected)
    assert torch.equal(labels, targets)


def test_every_epoch_has_an_order_of_its_own_and_every_record_once(stores: Stores) -> None:
    ds = PackedDataset(stores("cifar.pth"), "train", columns=("image", "key"))
    loader = PackedLoader(ds, 7, shuffle=True)
    epochs = [flat_keys(loader) for _ in range(3)]
    assert all(sorted(keys) == sorted(ds.keys) for keys in epochs)
    assert len({tuple(keys) for keys in epochs}) == 3
    assert loader.epoch == 3
    for wrong in (True, -1, 1.0, "1", None):
        with pytest.raises(UsageError, match=f"^epoch should be a whole number of at least 0, got {wrong!r}$"):
            loader.set_epoch(wrong)
    for one in (1, np.int64(1)):
        loader.set_epoch(one)
        assert type(loader.epoch) is int
        assert flat_keys(loader) == epochs[1]


@pytest.mark.slow
@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("augment", [[], FIXED])
def test_normalisation_dtype_and_memory_format(stores: Stores, resident: bool, augment: list[Any]) -> None:
    ds = PackedDataset(stores("cifar.h5"), "test")
    raw = joined(list(PackedLoader(ds, 6, augment=augment, resident=resident)))[0]
    assert raw.dtype == torch.uint8
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    m, s = torch.tensor(mean).view(3, 1, 1), torch.tensor(std).view(3, 1, 1)
    expected = (raw / 255 - m) / s
    for dtype, tolerance in ((None, 1e-6), (torch.float32, 1e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
        loader = PackedLoader(
            ds, 6, augment=augment, normalize=Normalization(mean, std), dtype=dtype, resident=resident
        )
        images = joined(list(loader))[0]
        assert images.dtype == (dtype or torch.float32)
        torch.testing.assert_close(images.float(), expected, rtol=tolerance, atol=tolerance)
    scaled = joined(list(PackedLoader(ds, 6, augment=augment, dtype=torch.float32, resident=resident)))[0]
    torch.testing.assert_close(scaled, raw / 255)
    for wanted, memory_format in ((True, torch.channels_last), (False, torch.contiguous_format)):
        loader = PackedLoader(ds, 6, augment=augment, channels_last=wanted, normalize="cifar10", resident=resident)
        for images, _ in loader:
            assert images.is_contiguous(memory_format=memory_format)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("columns", [("image", "label"), ("image",), ("image", "label", "key")])
@pytest.mark.parametrize("name", ["cifar.lmdb", "cifar.h5", "cifar.pth", "floats.pth", "bfloats.h5"])
def test_small_resident_images_without_operations_are_only_gathered(
    stores: Stores, name: str, columns: tuple[str, ...], channels_last: bool
) -> None:
    """The engine has nothing to do: images are kept in the memory format of batches, and rows are copied."""
    dataset = PackedDataset(stores(name), "train", columns=columns)
    options: dict[str, Any] = {"shuffle": True, "drop_last": True, "channels_last": channels_last}
    if dataset.manifest.holds_floats:  # as they are stored
        options["dtype"] = getattr(torch, dataset.manifest.image.dtype)
    loader = PackedLoader(dataset, 7, resident=True, **options)
    assert loader.pipeline.resident_look is None
    wanted = torch.channels_last if channels_last else torch.contiguous_format
    streamed = PackedLoader(dataset, 7, resident=False, **options)
    for _ in range(2):
        ours, theirs = list(loader), list(streamed)
        assert same(ours, theirs)
        for batch, other in zip(ours, theirs, strict=True):
            image, expected = (each if len(columns) == 1 else each[0] for each in (batch, other))
            assert image.is_contiguous(memory_format=wanted)
            assert image.stride() == expected.stride()
    assert loader._producer.images.is_contiguous(memory_format=wanted)


@pytest.mark.parametrize("resident", [True, False])
def test_columns_transforms_and_anybodys_function(stores: Stores, resident: bool) -> None:
    path = stores("cifar.h5")
    ds = PackedDataset(path, "test", columns=("key", "image", "label", "checksum"))
    seen: list[int] = []

    def mine(images: torch.Tensor) -> torch.Tensor:
        seen.append(len(images))
        return 255 - images

    loader = PackedLoader(
        ds, 6, augment=[mine], transform=lambda x: x.float().mean((1, 2, 3)), target_transform=lambda y: y * 2,
        resident=resident,
    )  # fmt: skip
    keys, means, labels, checksums = (list(part) for part in zip(*loader, strict=True))
    plain = PackedDataset(path, "test")
    assert [k for part in keys for k in part] == list(plain.keys)
    torch.testing.assert_close(torch.cat(means), 255 - plain[:][0].float().mean((1, 2, 3)), rtol=1e-5, atol=1e-3)
    assert torch.cat(labels).tolist() == [2 * t for t in plain.targets]
    assert torch.cat(checksums).dtype == torch.int64
    assert sum(seen) == 20
    alone = list(PackedLoader(PackedDataset(path, "test", columns=("image",)), 6, resident=resident))
    assert isinstance(alone[0], torch.Tensor)


@pytest.mark.parametrize("augment", [[], [lambda x: x + 1]])
def test_pre_transform_need_not_give_images(stores: Stores, augment: list[Any]) -> None:
    ds = PackedDataset(stores("cifar.pth"), "train")
    for dims in ((1, 2, 3), (2, 3)):
        loader = PackedLoader(ds, 6, pre_transform=lambda x, d=dims: x.float().mean(d), augment=augment)
        means, _ = next(iter(loader))
        assert means.shape == (6, 3)[: 4 - len(dims)]
        assert torch.allclose(means[2], ds[2][0].float().mean([d - 1 for d in dims]) + len(augment))


def test_any_loader_can_be_shown(stores: Stores) -> None:
    ds = PackedDataset(stores("cifar.pth"), "train")
    assert "5 batches of 20, resident on cpu" in repr(PackedLoader(ds, 20))
    assert "batches of 20 (rank 1 of 2), streaming" in repr(PackedLoader(ds, 20, rank=1, world_size=2, resident=False))
    assert "batches of 20" in repr(PackedLoader(ds, 20, sampler=(i for i in range(9))))
    assert repr(packstore.prefetch([torch.ones(9)], "cpu")) == "prefetch of a list to cpu"


def test_a_transform_may_give_what_is_no_plain_tensor(stores: Stores) -> None:
    ds = PackedDataset(stores("cifar.pth"), "train")
    expected = [images.float() for images, _ in PackedLoader(ds, 6, resident=False)]
    loader = PackedLoader(ds, 6, resident=False, transform=lambda x: x.float().flatten(1).to_sparse())
    for found, images in zip([x for x, _ in loader], expected, strict=True):
        assert torch.equal(found.to_dense().view_as(images), images)


def test_pre_transform_runs_once_and_its_result_stays(stores: Stores) -> None:
    ds = PackedDataset(stores("cifar.pth"), "test")
    calls: list[torch.Size] = []

    def normalise(images: torch.Tensor) -> torch.Tensor:
        calls.append(images.shape)
        return images.to(torch.float16) / 255

    loader = PackedLoader(ds, 6, pre_transform=normalise, augment=[RandomHorizontalFlip(0)])
    assert loader.mode == "resident"
    first, second = (joined(list(loader))[0] for _ in range(2))
    assert calls == [torch.Size([20, 3, 32, 32])]
    assert first.dtype == torch.float16
    assert torch.equal(first, second)
    torch.testing.assert_close(first.float(), ds[:][0] / 255, rtol=0, atol=1e-3)


@pytest.mark.parametrize("resident", [True, False])
def test_indices_and_samplers(stores: Stores, resident: bool) -> None:
    ds = PackedDataset(stores("cifar.h5"), "train", columns=("image", "key"))
    wanted = [5, 5, 99, -1, 0, 42, 17]
    assert flat_keys(PackedLoader(ds, 3, indices=wanted, resident=resident)) == [ds.keys[i] for i in wanted]
    sampled = PackedLoader(ds, 3, sampler=[5, 99, 0], resident=resident)
    assert len(sampled) == 1
    assert flat_keys(sampled) == [ds.keys[i] for i in (5, 99, 0)]
    weights = torch.zeros(100)
    weights[[3, 7]] = 1.0
    drawn = PackedLoader(ds, 8, sampler=WeightedRandomSampler(weights.tolist(), 50), resident=resident)
    assert {*flat_keys(drawn)} == {ds.keys[3], ds.keys[7]}
    shuffled = PackedLoader(ds, 3, indices=range(10, 40), shuffle=True, resident=resident)
    assert sorted(flat_keys(shuffled)) == list(ds.keys)[10:40]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar.lmdb", "files.lmdb"])
@pytest.mark.parametrize("source", [{"sampler": ()}, {"indices": ()}, {"indices": (), "shuffle": True}], ids=str)
def test_each_repetition_of_a_record_has_draws_of_its_own(stores: Stores, name: str, source: dict[str, Any]) -> None:
    ds = PackedDataset(stores(name), "train", columns=("image", "key"))
    ragged = ds.manifest.image.kind == "ragged"
    wanted = [5] * 8 + [2, 5, 2, 0]

    def make(batch_size: int = 4, **options: Any) -> PackedLoader:
        options = {key: value or wanted for key, value in source.items()} | options
        return PackedLoader(ds, batch_size, augment=RAGGED if ragged else FIXED, seed=3, **options)

    whole = list(make(resident=False, workers=1))
    images, keys = images_of(whole), flat_keys(whole)
    assert len(images[[key == ds.keys[5] for key in keys]].flatten(1).unique(dim=0)) == 9
    for resident in (False,) if ragged else (False, True):
        for batch_size, workers in ((4, 4), (1, 2), (12, 1)):
            again = list(make(batch_size, workers=workers, resident=resident))
            assert same((images_of(again), flat_keys(again)), (images, keys))
        for count in (2, 4):
            assert same(join_ranks(lambda **ranks: make(4 // ranks["world_size"], **ranks), count), whole)
        for stop in range(3):
            assert same(go_on(make(resident=resident), make(resident=resident), stop), whole[stop:])
    if "sampler" in source:
        assert torch.equal(images_of(make(indices=[5], sampler=None, resident=False)), images[:1])


# Lanes ------------------------------------------------------------------------------------------------------------

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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_part_of_a_split_with_repetitions(dataset: PackedDataset) -> None:
    indices = [7, 3, 3, 11, 0, 7, 19, 18, 5]
    loader = PackedLoader(dataset, 2, indices=indices, **LANES)
    first, second = flat_keys(loader), flat_keys(loader)
    assert sorted(first) == sorted(second) == sorted(dataset.keys[index] for index in indices)
    assert first != second


@pytest.mark.slow
def test_resident_and_streaming_agree(dataset: PackedDataset) -> None:
    assert same(load(dataset, 4, resident=True), load(dataset, 4))


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_full_is_the_permutation_of_all(dataset: PackedDataset) -> None:
    assert same(PackedLoader(dataset, 4, shuffle="full"), PackedLoader(dataset, 4, shuffle=True))


# Forks ------------------------------------------------------------------------------------------------------------

PROGRAM = """
import os, signal, sys
import torch
from packstore import PackedDataset, PackedLoader, UsageError

resident = sys.argv[2] == "resident"
torch.ones(2000, 2000).sum(), torch.ones(500, 500) @ torch.ones(500, 500)  # OpenMP's threads are there
loader = PackedLoader(PackedDataset(sys.argv[1], "train"), 2, True, normalize="imagenet", resident=resident, workers=2)
begun = iter(loader)
next(begun)
child = os.fork()
if not child:
    signal.alarm(240)  # a hang is a failure, not a wait
    try:
        next(begun)
        print("went on", flush=True)
    except UsageError as error:
        print(error, flush=True)
    del begun
    print(sum(1 for _ in loader), "batches", flush=True)
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(1 + sum(1 for _ in begun), "batches", flush=True)
sys.exit(code)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is not available here")
@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", ["streaming", "resident"])
def test_an_iterator_does_not_survive_a_fork(mode: str, demo_folder: Path, tmp_path: Path) -> None:
    convert(demo_folder, tmp_path / "x.h5", encoding="uint8", size=64)
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path / "x.h5"), mode]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    reason, child, parent = done.stdout.splitlines()
    assert "begun before a fork" in reason
    assert child == parent

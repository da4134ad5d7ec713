"""``PackedLoader``: what it gives, in which order, and how it behaves when things go wrong."""

from __future__ import annotations

import gc
import itertools
import json
import multiprocessing
import pickle
import random
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import WeightedRandomSampler

import packstore
from packstore import DecodeError, PackedDataset, PackedLoader, UsageError
from packstore.core.manifest import Normalization
from packstore.training.augment import (
    CenterCrop,
    Cutout,
    PerImage,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from packstore.training.augment.base import Crops
from packstore.training.augment.resample import resize_by_products
from packstore.training.loader.assemble import Assembler
from packstore.training.loader.rows import RowWriter, _as_planes
from packstore.training.single_threaded import is_single_threaded, make_single_threaded, single_threaded
from tests.conftest import Stores
from tests.makers.datasets import write_image

RAGGED = [RandomResizedCrop(32), RandomHorizontalFlip()]
FIXED = [RandomCrop(32, padding=4), RandomHorizontalFlip(), Cutout(8)]


def all_batches(loader: PackedLoader) -> list[Any]:
    return list(loader)


def joined(batches: list[Any]) -> list[torch.Tensor]:
    return [torch.cat(parts) for parts in zip(*batches, strict=True)]


def same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, y) for one, two in zip(a, b, strict=True) for x, y in zip(one, two, strict=True)
    )


@pytest.mark.parametrize("name", ["cifar.lmdb", "cifar.h5", "cifar.pth", "shards.h5", "floats.pth", "bfloats.h5"])
@pytest.mark.parametrize("resident", [True, False])
def test_in_order_it_gives_the_datasets_items(stores: Stores, name: str, resident: bool) -> None:
    ds = PackedDataset(stores(name), "test")
    batches = all_batches(PackedLoader(ds, 6, resident=resident))
    assert [len(labels) for _, labels in batches] == [6, 6, 6, 2]
    images, labels = joined(batches)
    expected, targets = ds[:]
    assert torch.equal(images.to(expected.dtype), expected)
    assert torch.equal(labels, targets)


@pytest.mark.parametrize("suffix", ["lmdb", "h5", "pth"])
@pytest.mark.parametrize("kind", ["files", "pixels"])
def test_geometry_is_torchvisions(stores: Stores, suffix: str, kind: str) -> None:
    ds = PackedDataset(stores(f"{kind}.{suffix}"), "val")
    images, labels = joined(all_batches(PackedLoader(ds, 4, augment=[Resize(36), CenterCrop(32)])))
    for i in range(len(ds)):
        image, label = ds[i]
        _, h, w = image.shape
        size = (36, int(36 * w / h)) if h <= w else (int(36 * h / w), 36)
        channels_last = image[None].contiguous(memory_format=torch.channels_last)
        resized = torch.nn.functional.interpolate(channels_last, size, mode="bilinear", antialias=True)[0]
        top, left = round((size[0] - 32) / 2.0), round((size[1] - 32) / 2.0)
        assert torch.equal(images[i], resized[:, top : top + 32, left : left + 32])
        assert labels[i] == label


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "augment"),
    [("files.lmdb", RAGGED), ("pixels.h5", RAGGED), ("square.h5", FIXED), ("cifar.lmdb", FIXED), ("cifar.pth", FIXED)],
)
def test_threads_prefetch_and_batches_change_nothing(stores: Stores, name: str, augment: list[Any]) -> None:
    ds = PackedDataset(stores(name), "train")
    wanted = all_batches(PackedLoader(ds, 5, shuffle=True, augment=augment, seed=3, workers=1, resident=False))
    for options in ({"workers": 5}, {"workers": 2, "prefetch": 1}, {"prefetch": 9}):
        again = PackedLoader(ds, 5, shuffle=True, augment=augment, seed=3, resident=False, **options)
        assert same(all_batches(again), wanted)
    other = PackedLoader(ds, 5, shuffle=True, augment=augment, seed=4, resident=False)
    assert not same(all_batches(other), wanted)


@pytest.mark.parametrize(
    "augment", [FIXED, RAGGED, [CenterCrop(20), RandomHorizontalFlip(alternating=True)], [], FIXED[1:2]]
)
@pytest.mark.parametrize("name", ["cifar.lmdb", "cifar.h5", "cifar.pth", "shards.pth", "square.h5"])
def test_resident_and_streaming_give_the_same(stores: Stores, name: str, augment: list[Any]) -> None:
    ds = PackedDataset(stores(name), "train")
    options: dict[str, Any] = {"shuffle": True, "augment": augment, "normalize": "cifar10", "seed": 1}
    streaming, resident = (PackedLoader(ds, 8, resident=r, **options) for r in (False, True))
    assert (streaming.mode, resident.mode) == ("streaming", "resident")
    for _ in range(2):
        a, b = all_batches(streaming), all_batches(resident)
        assert [x.shape for x, _ in a] == [x.shape for x, _ in b]
        for (x, y), (u, v) in zip(a, b, strict=True):
            torch.testing.assert_close(x, u, rtol=0, atol=1e-6)
            assert torch.equal(y, v)


def test_every_epoch_has_an_order_of_its_own_and_every_record_once(stores: Stores) -> None:
    ds = PackedDataset(stores("cifar.pth"), "train", columns=("image", "key"))
    loader = PackedLoader(ds, 7, shuffle=True)
    epochs = [[key for _, keys in loader for key in keys] for _ in range(3)]
    assert all(sorted(keys) == sorted(ds.keys) for keys in epochs)
    assert len({tuple(keys) for keys in epochs}) == 3
    assert loader.epoch == 3
    loader.set_epoch(1)
    assert [key for _, keys in loader for key in keys] == epochs[1]


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("augment", [[], FIXED])
def test_normalisation_dtype_and_memory_format(stores: Stores, resident: bool, augment: list[Any]) -> None:
    ds = PackedDataset(stores("cifar.h5"), "test")
    raw = joined(all_batches(PackedLoader(ds, 6, augment=augment, resident=resident)))[0]
    assert raw.dtype == torch.uint8
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    m, s = torch.tensor(mean).view(3, 1, 1), torch.tensor(std).view(3, 1, 1)
    expected = (raw / 255 - m) / s
    for dtype, tolerance in ((None, 1e-6), (torch.float32, 1e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
        loader = PackedLoader(
            ds, 6, augment=augment, normalize=Normalization(mean, std), dtype=dtype, resident=resident
        )
        images = joined(all_batches(loader))[0]
        assert images.dtype == (dtype or torch.float32)
        torch.testing.assert_close(images.float(), expected, rtol=tolerance, atol=tolerance)
    scaled = joined(all_batches(PackedLoader(ds, 6, augment=augment, dtype=torch.float32, resident=resident)))[0]
    torch.testing.assert_close(scaled, raw / 255)
    for wanted, memory_format in ((True, torch.channels_last), (False, torch.contiguous_format)):
        loader = PackedLoader(ds, 6, augment=augment, channels_last=wanted, normalize="cifar10", resident=resident)
        for images, _ in loader:
            assert images.is_contiguous(memory_format=memory_format)


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
    alone = all_batches(PackedLoader(PackedDataset(path, "test", columns=("image",)), 6, resident=resident))
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
    first, second = (joined(all_batches(loader))[0] for _ in range(2))
    assert calls == [torch.Size([20, 3, 32, 32])]
    assert first.dtype == torch.float16
    assert torch.equal(first, second)
    torch.testing.assert_close(first.float(), ds[:][0] / 255, rtol=0, atol=1e-3)


# Which records ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resident", [True, False])
def test_indices_and_samplers(stores: Stores, resident: bool) -> None:
    ds = PackedDataset(stores("cifar.h5"), "train", columns=("image", "key"))
    wanted = [5, 5, 99, -1, 0, 42, 17]
    keys = [k for _, part in PackedLoader(ds, 3, indices=wanted, resident=resident) for k in part]
    assert keys == [ds.keys[i] for i in wanted]
    sampled = PackedLoader(ds, 3, sampler=[5, 99, 0], resident=resident)
    assert len(sampled) == 1
    assert [k for _, part in sampled for k in part] == [ds.keys[i] for i in (5, 99, 0)]
    weights = torch.zeros(100)
    weights[[3, 7]] = 1.0
    drawn = PackedLoader(ds, 8, sampler=WeightedRandomSampler(weights.tolist(), 50), resident=resident)
    assert {k for _, part in drawn for k in part} == {ds.keys[3], ds.keys[7]}
    shuffled = PackedLoader(ds, 3, indices=range(10, 40), shuffle=True, resident=resident)
    assert sorted(k for _, part in shuffled for k in part) == list(ds.keys)[10:40]


def _torchvisions(name: str, **attributes: Any) -> Any:
    members = {"__module__": "torchvision.transforms.transforms", "__call__": lambda self, images: images}
    return type(name, (), members | attributes)()


@pytest.mark.parametrize("name", ["RandomHorizontalFlip", "ColorJitter", "GaussianBlur"])
def test_torchvisions_random_operations_need_per_image(stores: Stores, name: str) -> None:
    ds, random_one = PackedDataset(stores("cifar.lmdb"), "train"), _torchvisions(name, sigma=(0.1, 2.0))
    compose = _torchvisions("Compose", transforms=[_torchvisions("CenterCrop"), random_one])
    for augment in ([random_one], compose, [compose], [print, random_one]):
        with pytest.raises(UsageError, match=f"torchvision's {name} would treat the whole batch alike; use .*PerImage"):
            PackedLoader(ds, 4, augment=augment)
    two = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Identity())
    assert len(PackedLoader(ds, 4, augment=two).options.augment) == 2
    plain = _torchvisions(
        "Compose", transforms=[_torchvisions("CenterCrop"), _torchvisions("GaussianBlur", sigma=(1, 1))]
    )
    assert len(PackedLoader(ds, 4, augment=[plain, PerImage(random_one), _torchvisions("MixUp")]).options.augment) == 4


def _noisy(image: torch.Tensor) -> torch.Tensor:
    drawn = torch.rand(1).item() + np.random.rand() + random.random()
    return image.float().mul_(0).add_(drawn)


def test_per_image_draws_for_each_image_reproducibly(stores: Stores) -> None:
    ds = PackedDataset(stores("cifar.lmdb"), "train")
    torch.manual_seed(0)
    random.seed(0)
    before = torch.get_rng_state(), random.getstate()

    def loaded(**options: Any) -> torch.Tensor:
        return torch.cat([images for images, _ in PackedLoader(ds, augment=[PerImage(_noisy)], **options)])

    images = loaded(batch_size=8, resident=False)
    assert len(images.flatten(1).unique(dim=0)) == len(images)
    for options in ({"resident": True}, {"resident": False, "workers": 4}):
        assert torch.equal(loaded(batch_size=7, **options), images)
    half = loaded(batch_size=4, rank=1, world_size=2)
    assert torch.equal(half[:4], images[4:8])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    with pytest.raises(UsageError, match="tensors of one shape, and gave int"):
        next(iter(PackedLoader(ds, 4, augment=[PerImage(lambda image: 1)])))  # type: ignore[arg-type,return-value]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar.lmdb", "files.lmdb"])
def test_each_repetition_of_a_record_has_draws_of_its_own(stores: Stores, name: str) -> None:
    ds = PackedDataset(stores(name), "train", columns=("image", "key"))
    ragged = ds.manifest.image.kind == "ragged"
    augment: list[Any] = [RandomResizedCrop(24), RandomHorizontalFlip()] if ragged else FIXED
    modes = [False] if ragged else [False, True]

    def loaded(**options: Any) -> tuple[torch.Tensor, list[str]]:
        batches = list(PackedLoader(ds, **({"batch_size": 4, "augment": augment, "seed": 3} | options)))
        return torch.cat([images for images, _ in batches]), [key for _, keys in batches for key in keys]

    wanted = [5] * 8 + [2, 5, 2, 0]
    for source in ({"sampler": wanted}, {"indices": wanted}, {"indices": wanted, "shuffle": True}):
        images, keys = loaded(**source, resident=False, workers=1)
        assert len(images[[key == ds.keys[5] for key in keys]].flatten(1).unique(dim=0)) == 9
        for resident in modes:
            for batch_size, workers in ((4, 4), (1, 2), (12, 1)):
                options = {"resident": resident, "batch_size": batch_size, "workers": workers}
                again, same_keys = loaded(**source, **options)
                assert (same_keys, again.tolist()) == (keys, images.tolist())
            for ranks in (2, 4):
                parts = [
                    loaded(**source, resident=resident, batch_size=4 // ranks, rank=rank, world_size=ranks)[0]
                    for rank in range(ranks)
                ]
                pieces = [part.split(4 // ranks) for part in parts]
                assert torch.equal(torch.cat([p for step in zip(*pieces, strict=True) for p in step]), images)
            for stop in range(3):
                loader = PackedLoader(ds, 4, augment=augment, seed=3, resident=resident, **source)
                iterator = iter(loader)
                for _ in range(stop):
                    next(iterator)
                state, loader = (
                    loader.state_dict(),
                    PackedLoader(ds, 4, augment=augment, seed=3, resident=resident, **source),
                )
                loader.load_state_dict(state)
                assert torch.equal(torch.cat([part for part, _ in loader]), images[4 * stop :])
    once, _ = loaded(indices=[5], resident=False)
    assert torch.equal(loaded(sampler=wanted, resident=False)[0][:1], once)


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_share_an_epoch(stores: Stores, drop_last: bool, shuffle: bool) -> None:
    ds = PackedDataset(stores("cifar.h5"), "train", columns=("image", "key"))
    loaders = [
        PackedLoader(ds, 7, shuffle=shuffle, drop_last=drop_last, rank=rank, world_size=3, resident=False)
        for rank in range(3)
    ]
    seen = [[list(keys) for _, keys in loader] for loader in loaders]
    assert len({len(batches) for batches in seen}) == 1 == len({len(loader) for loader in loaders})
    flat = [key for batches in seen for keys in batches for key in keys]
    assert len(flat) == len(set(flat))
    # Global batches are those of one process with the global batch size.
    whole = PackedLoader(ds, 21, shuffle=shuffle, drop_last=drop_last, resident=False)
    for number, (_, keys) in enumerate(whole):
        if number < len(loaders[0]):
            assert sorted(keys) == sorted(k for batches in seen for k in batches[number])


def _distributed(rank: int, path: str, address: str, queue: Any) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    try:
        ds = PackedDataset(path, "train", columns=("image", "key"))
        loader = PackedLoader(ds, 9, shuffle=True, resident=False)
        queue.put((rank, loader.rank, loader.world_size, len(loader), [list(keys) for _, keys in loader]))
        dist.barrier()
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.long
def test_two_processes_of_torch_distributed(stores: Stores, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    address = f"file://{tmp_path / 'rendezvous'}"
    processes = [
        context.Process(target=_distributed, args=(rank, str(stores("cifar.h5")), address, queue)) for rank in (0, 1)
    ]
    for process in processes:
        process.start()
    results = sorted(queue.get(timeout=120) for _ in processes)
    for process in processes:
        process.join(240)
        assert process.exitcode == 0
    assert [(r[1], r[2]) for r in results] == [(0, 2), (1, 2)]
    assert results[0][3] == results[1][3]
    keys = [key for r in results for batch in r[4] for key in batch]
    assert len(keys) == len(set(keys)) == 100


# Resume -------------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", ["files.lmdb", "cifar.pth"])
@pytest.mark.parametrize("resident", [False, "auto"])
@pytest.mark.parametrize("stop", [0, 1, 3])
def test_a_resumed_epoch_goes_on_where_it_stood(stores: Stores, name: str, resident: Any, stop: int) -> None:
    ds = PackedDataset(stores(name), "train")
    make = lambda: PackedLoader(ds, 4, shuffle=True, augment=RAGGED, seed=9, resident=resident)  # noqa: E731
    loader = make()
    epochs = [all_batches(loader) for _ in range(3)]
    loader = make()
    all_batches(loader)
    iterator = iter(loader)
    for _ in range(stop):
        next(iterator)
    state = loader.state_dict()
    del iterator
    resumed = make()
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert same(all_batches(resumed), epochs[1][stop:])
    assert same(all_batches(resumed), epochs[2])


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
    ("state", "message"),
    [
        (
            None,
            "takes what a loader's state_dict\\(\\) gave, got NoneType; look under which name the checkpoint has it",
        ),
        ([1], "takes what a loader's state_dict\\(\\) gave, got list"),
        ({"model": 1}, "takes what a loader's state_dict\\(\\) gave, got dict"),
        ({"version": 2}, "should have whole numbers as epoch and records, and has epoch None, records None"),
        ({"version": 2, "epoch": 0, "records": -1}, "and has epoch 0, records -1"),
    ],
)
def test_what_is_no_state_is_told(stores: Stores, state: Any, message: str) -> None:
    loader = PackedLoader(PackedDataset(stores("cifar.h5"), "train"), 4)
    with pytest.raises(UsageError, match=message):
        loader.load_state_dict(state)


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
    assert list(iter(eight)) == []


# Manners ------------------------------------------------------------------------------------------------------------


def loader_threads() -> list[str]:
    """Those that ask object stores stay, for the next requests."""
    names = [t.name for t in threading.enumerate() if t.name.startswith("packstore")]
    return [name for name in names if name != "packstore-request"]


def test_nothing_holds_the_first_batch_back(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, others = [], threading.Event()
    prepare = Assembler.prepare_batch

    def watched(self: Assembler, *arguments: Any, **options: Any) -> Any:
        begun.append(len(begun))
        if len(begun) > 1:
            others.set()
            return prepare(self, *arguments, **options)
        prepared = prepare(self, *arguments, **options)
        assert not others.wait(0.2)
        return prepared

    monkeypatch.setattr(Assembler, "prepare_batch", watched)
    for _ in PackedLoader(PackedDataset(stores("files.lmdb"), "train"), 2, resident=False, augment=RAGGED, workers=3):
        pass
    assert len(begun) > 3


@pytest.mark.slow
def test_an_early_break_leaves_no_thread(stores: Stores) -> None:
    loader = PackedLoader(PackedDataset(stores("files.lmdb"), "train"), 2, augment=RAGGED, workers=3)
    for _ in range(5):
        for _ in loader:
            break
    gc.collect()
    assert loader_threads() == []


@pytest.mark.slow
def test_a_forgotten_iterator_leaves_no_thread(stores: Stores) -> None:
    loader = PackedLoader(PackedDataset(stores("files.lmdb"), "train"), 2, augment=RAGGED)
    iterator = iter(loader)
    next(iterator)
    assert loader_threads() != []
    del iterator
    gc.collect()
    assert loader_threads() == []


def test_several_iterations_at_once(stores: Stores) -> None:
    ds = PackedDataset(stores("files.lmdb"), "train")
    loader = PackedLoader(ds, 4, augment=RAGGED)
    loader.set_epoch(0)
    wanted = all_batches(loader)
    loader.set_epoch(0)
    one = iter(loader)
    loader.set_epoch(0)
    two = iter(loader)
    mixed = [(next(one), next(two)) for _ in range(len(loader))]
    assert same([a for a, _ in mixed], wanted)
    assert same([b for _, b in mixed], wanted)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Twelve images, of which two do not decode."""
    for i in range(12):
        write_image(tmp_path / "photos" / f"{i:02}.png", 40, 50, i)
    for i in (4, 9):
        data = bytearray((tmp_path / "photos" / f"{i:02}.png").read_bytes())
        data[len(data) // 2] ^= 0xFF
        (tmp_path / "photos" / f"{i:02}.png").write_bytes(data)
    packstore.convert(tmp_path / "photos", tmp_path / "d.lmdb")
    return tmp_path / "d.lmdb"


@pytest.mark.slow
def test_a_record_that_does_not_decode_is_named(damaged: Path) -> None:
    loader = PackedLoader(PackedDataset(damaged), 2, augment=RAGGED)
    seen = []
    with pytest.raises(DecodeError, match=r"record 4 \(04\.png\)"):
        seen += [len(images) for images in loader]
    gc.collect()
    assert loader_threads() == []


def test_skip_leaves_it_out_and_counts_it(damaged: Path, caplog: pytest.LogCaptureFixture) -> None:
    ds = PackedDataset(damaged, columns=("image", "key"))
    loader = PackedLoader(ds, 4, augment=RAGGED, on_error="skip")
    batches = all_batches(loader)
    assert [len(images) for images, _ in batches] == [4, 3, 3]
    assert [k for _, keys in batches for k in keys] == [k for k in ds.keys if k not in ("04.png", "09.png")]
    assert loader.stats()["skipped"] == 2
    assert "record 4 (04.png)" in caplog.text
    clean = [i for i in range(12) if i not in (4, 9)]
    wanted = PackedLoader(ds, 4, augment=RAGGED, indices=clean)
    assert torch.equal(torch.cat([i for i, _ in batches]), torch.cat([i for i, _ in wanted]))


@pytest.mark.parametrize("augment", [[], [RandomHorizontalFlip()]])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("kind", ["files", "pixels"])
def test_images_of_differing_sizes_make_no_batch(
    stores: Stores, kind: str, on_error: Literal["raise", "skip"], augment: list[Any]
) -> None:
    loader = PackedLoader(PackedDataset(stores(f"{kind}.lmdb"), "train"), 64, augment=augment, on_error=on_error)
    with pytest.raises(UsageError, match=r"differ in size \(\d+x\d+, \d+x\d+\), so they make no batch: add an"):
        list(loader)


def test_images_of_differing_sizes_need_an_operation(stores: Stores) -> None:
    with pytest.raises(UsageError, match="RandomResizedCrop"):
        all_batches(PackedLoader(PackedDataset(stores("files.lmdb"), "train"), 4))
    with pytest.raises(UsageError, match=r"collate={'image': 'list'}"):
        all_batches(PackedLoader(PackedDataset(stores("files.lmdb"), "train"), 4, augment=[Resize(20)]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"prefetch": 0}, "prefetch"),
        ({"workers": 0}, "workers"),
        ({"resident": "maybe"}, "resident"),
        ({"on_error": "ignore"}, "on_error"),
        ({"dtype": torch.uint8}, "floating point"),
        ({"dtype": "float16"}, "torch.float16"),
        ({"normalize": "mnist"}, "imagenet, cifar10"),
        ({"sampler": [1], "shuffle": True}, "sampler"),
        ({"block": 4}, "shuffle=True"),
        ({"rank": 1}, "go together"),
        ({"rank": 2, "world_size": 2}, "from 0 to 1"),
        ({"indices": [100]}, "from 0 to 99"),
        ({"indices": [0.5]}, "whole numbers"),
        ({"augment": [3]}, "not callable"),
    ],
)
def test_wrong_options(stores: Stores, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PackedLoader(PackedDataset(stores("cifar.h5"), "train"), **{"batch_size": 4, **options})


def test_datasets_that_work_item_by_item_are_refused(stores: Stores) -> None:
    path = stores("cifar.h5")
    for options in ({"transform": abs}, {"output": "pil"}, {"dtype": torch.float32}, {"columns": ("label",)}):
        with pytest.raises(UsageError):
            PackedLoader(PackedDataset(path, "train", **options), 4)
    with pytest.raises(UsageError, match="normalised already"):
        PackedLoader(PackedDataset(stores("floats.pth"), "train"), 4, normalize="cifar10")


@pytest.mark.parametrize(
    ("size", "augment", "mode", "reason"),
    [
        (64, [], "resident", "free memory of cpu"),
        (64, [RandomHorizontalFlip()], "resident", "free memory of cpu"),
        (64, [RandomResizedCrop(32)], "resident", "free memory of cpu"),
        (64, [RandomCrop(56), Resize(32)], "resident", "free memory of cpu"),
        (65, [], "streaming", "12,675 bytes .over 12,288. are faster by streaming"),
        (65, [RandomHorizontalFlip()], "streaming", "over 12,288"),
        (65, [RandomCrop(65, padding=4)], "streaming", "over 12,288"),
    ],
)
def test_the_cpu_streams_where_that_is_faster(
    tmp_path: Path, size: int, augment: list[Any], mode: str, reason: str
) -> None:
    write_image(tmp_path / "photos" / "a.png", size, size, 0)
    packstore.convert(tmp_path / "photos", tmp_path / "a.pth", encoding="uint8", size=size)
    loader = PackedLoader(PackedDataset(tmp_path / "a.pth"), 1, augment=augment)
    assert loader.mode == mode
    assert re.search(reason, loader.mode_reason)
    assert PackedLoader(PackedDataset(tmp_path / "a.pth"), 1, augment=augment, resident=True).mode == "resident"


def test_resident_that_does_not_fit_says_both_numbers(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packstore.training.loader.residence.free_memory", lambda device: 1000)
    ds = PackedDataset(stores("cifar.h5"), "train")
    with pytest.raises(UsageError, match=r"307,200 bytes .* 1,000 are free"):
        PackedLoader(ds, 4, resident=True)
    loader = PackedLoader(ds, 4)
    assert loader.mode == "streaming"
    assert "250 allowed" in loader.mode_reason
    with pytest.raises(UsageError, match="one shape"):
        PackedLoader(PackedDataset(stores("files.lmdb"), "train"), 4, resident=True)


def test_stats_say_where_the_time_goes(stores: Stores) -> None:
    loader = PackedLoader(PackedDataset(stores("files.lmdb"), "train"), 4, augment=RAGGED)
    all_batches(loader)
    stats = loader.stats()
    assert stats["images"] == 21
    assert stats["batches"] == 6 == len(loader)
    for name in ("seconds", "images_per_second", "decode_seconds", "read_seconds"):
        assert stats[name] > 0
    loader.reset_stats()
    assert loader.stats()["images"] == 0


@pytest.mark.parametrize("name", ["files.lmdb", "pixels.h5", "cifar.h5", "floats.pth"])
@pytest.mark.parametrize("resident", [False, "auto"])
def test_in_inference_mode_as_elsewhere(stores: Stores, name: str, resident: Any) -> None:
    """It holds for the consumer's thread alone, and memory that was made in it for no other."""
    augment = RAGGED if name in ("files.lmdb", "pixels.h5") else FIXED
    options: dict[str, Any] = {"augment": augment, "resident": resident, "workers": 2}
    if name != "floats.pth":
        options["normalize"] = "imagenet"
    loader = PackedLoader(PackedDataset(stores(name), "train"), 4, **options)
    before = [(images.clone(), labels) for images, labels in loader]
    loader.set_epoch(0)
    with torch.inference_mode():
        inside = [(images.clone(), labels) for images, labels in loader]
    loader.set_epoch(0)
    after = list(loader)
    assert same(before, inside)
    assert same(before, after)
    after[0][0].mul_(2)  # not of inference mode


@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("augment", [[], [RandomHorizontalFlip()]])
def test_batches_are_the_consumers_to_change(stores: Stores, resident: bool, augment: list[Any]) -> None:
    """Of autograd, too: no batch is a view of something that others are."""
    ds = PackedDataset(stores("bfloats.h5"), "train")
    batches = iter(PackedLoader(ds, 4, resident=resident, augment=augment))
    weights = torch.ones(10, requires_grad=True)
    loss = torch.zeros(())
    for (images, labels), _ in zip(batches, range(4), strict=False):
        images += torch.zeros(1, requires_grad=True).to(images.dtype)
        labels.clamp_(max=8)
        loss = loss + (weights * images.float().mean()).index_select(0, labels).sum()
        assert labels.untyped_storage().nbytes() == labels.nbytes
    loss.backward()
    assert weights.grad is not None


@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("where", ["augment", "transform"])
def test_a_view_by_numpy_is_not_written_over(
    stores: Stores, resident: bool, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins where no buffer does."""
    monkeypatch.setitem(packstore.training.loader.resident._PIXELS_AT_ONCE, "cpu", 8 * 32 * 32)

    def view(images: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(images.numpy()[..., 1:, :])

    ds = PackedDataset(stores("cifar.h5"), "train")
    options: dict[str, Any] = {where: [view] if where == "augment" else view}
    kept = [images for images, _ in PackedLoader(ds, 4, resident=resident, **options)]
    plain = [images[..., 1:, :] for images, _ in PackedLoader(ds, 4, resident=resident)]
    assert all(torch.equal(a, b) for a, b in zip(kept, plain, strict=True))


def test_buffers_do_not_grow_over_epochs(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    empty = packstore.training.ring.HostTransport.allocate

    def counting(self: Any, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        tensor = empty(self, shape, dtype)
        made.append(tensor.nbytes)
        return tensor

    monkeypatch.setattr(packstore.training.ring.HostTransport, "allocate", counting)
    ds = PackedDataset(stores("files.lmdb"), "train")
    loader = PackedLoader(ds, 2, augment=[*RAGGED, lambda x: x.float()], prefetch=2)
    all_batches(loader)
    assert len(made) <= 3  # prefetch + 1 slots, for eleven batches


def test_memory_of_one_epoch_serves_the_next(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page of new memory costs a fault: a fifth of the time of small epochs."""
    made: list[int] = []
    take = packstore.training.ring.HostTransport._take_buffer

    def counting(self: Any, nbytes: int) -> Any:
        before = len(self._returned)
        memory = take(self, nbytes)
        made.extend([nbytes] * (len(self._returned) == before))
        return memory

    monkeypatch.setattr(packstore.training.ring.HostTransport, "_take_buffer", counting)
    loader = PackedLoader(PackedDataset(stores("files.lmdb"), "train"), 4, augment=RAGGED, drop_last=True, prefetch=2)
    batches = 0
    for _ in range(4):
        for images, _ in loader:
            del images
            batches += 1
    assert batches > 12
    assert 1 <= len(made) <= 4  # prefetch + 1 slots, and the batch that the caller had last


@pytest.mark.slow
def test_a_process_ends_while_an_iterator_lives(stores: Stores) -> None:
    code = (
        "import sys\nfrom packstore import PackedDataset, PackedLoader\n"
        "from packstore.training.augment import RandomResizedCrop\n"
        "loader = PackedLoader(PackedDataset(sys.argv[1], 'train'), 2, augment=[RandomResizedCrop(32)])\n"
        "iterator = iter(loader)\nnext(iterator)\nprint('ending')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(stores("files.lmdb"))],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ending\n", "")


@pytest.mark.slow
def test_an_exception_in_the_consumer_ends_the_threads(stores: Stores) -> None:
    loader = PackedLoader(PackedDataset(stores("files.lmdb"), "train"), 2, augment=RAGGED)

    def train() -> None:
        for _ in loader:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    gc.collect()
    assert loader_threads() == []


def test_block_shuffle_reads_blocks_together(stores: Stores) -> None:
    ds = PackedDataset(stores("cifar.h5"), "train", columns=("image", "key"))
    keys = [k for _, part in PackedLoader(ds, 10, shuffle=True, block=10) for k in part]
    assert sorted(keys) == sorted(ds.keys)
    assert keys != sorted(keys)
    np.testing.assert_array_equal(np.sort([ds.keys.index(k) for k in keys]), np.arange(100))


@given(
    st.tuples(st.integers(1, 90), st.integers(1, 90)),
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
    st.integers(0, 2**32 - 1),
)
def test_mirrored_before_resizing_or_after_is_the_same(
    size: tuple[int, int], target: tuple[int, int], seed: int
) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    pixels.flags.writeable = False  # as from a map
    before = pixels.copy()
    rows = np.zeros((2, *target, 3), np.uint8)
    alone = np.zeros_like(rows)
    for row, flip in enumerate((False, True)):
        box, window = np.array([[0, 0, *size]]), np.array([[0, 0, *target]])
        crops = Crops(box, np.array([target]), window, np.array([flip]))
        RowWriter(torch.from_numpy(rows[row : row + 1]), crops).write_box(0, pixels)
        there = RowWriter(torch.from_numpy(alone[row : row + 1]), crops)
        in_thread(lambda r=there: r.write_box(0, pixels))  # type: ignore[misc]
    assert np.array_equal(rows[1], rows[0][:, ::-1])
    assert np.array_equal(alone, rows)
    assert np.array_equal(pixels, before)


@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize("flip", [True, False])
def test_boxes_and_targets_of_one_pixel_are_resized_like_others(writable: bool, flip: bool) -> None:
    """torch's kernel for bytes asserts or mixes planes up for one pixel's width in other memory layouts."""
    image = np.random.default_rng(1).integers(0, 256, (30, 30, 3), np.uint8)
    image.flags.writeable = writable
    sides = (1, 2, 9)
    for box, target in itertools.product(itertools.product(sides, sides), repeat=2):
        if box == target:
            continue
        window = np.array([[0, 0, *target]] * 2)
        crops = Crops(np.array([[7, 5, *box]] * 2), np.array([target] * 2), window, np.array([flip] * 2))
        found = np.zeros((2, 2, *target, 3), np.uint8)
        rows = RowWriter(torch.from_numpy(found[0]), crops)
        alone = RowWriter(torch.from_numpy(found[1]), crops)
        rows.write_image(1, image)
        in_thread(lambda r=alone: r.write_image(1, image))  # type: ignore[misc]
        wide = torch.tensor(image[7 : 7 + box[0], 5 : 5 + box[1]]).permute(2, 0, 1)[None]
        expected = resize_by_products(wide, torch.tensor([[0, 0, *box]]), target)[0].permute(1, 2, 0).int().numpy()
        for each in found[:, 1]:
            assert np.abs(each.astype(int) - (expected[:, ::-1] if flip else expected)).max() <= 1, (box, target)
        assert not found[:, 0].any()


def test_pixels_that_may_not_be_written_keep_their_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where numpy before 2.1 gives no tensor over them: torch 2.4 wrote out of bounds for planes of another layout."""

    def refuse(array: Any) -> None:
        raise BufferError

    monkeypatch.setattr("packstore.training.loader.rows.from_dlpack", refuse)
    pixels = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    pixels.flags.writeable = False
    planes = _as_planes(pixels)
    assert planes.is_contiguous(memory_format=torch.channels_last)
    assert np.array_equal(planes[0].permute(1, 2, 0).numpy(), pixels)


def in_thread(function: Callable[[], Any]) -> Any:
    """What ``function`` gives in a thread in which torch works alone."""
    with ThreadPoolExecutor(1, initializer=make_single_threaded) as pool:
        return pool.submit(function).result()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="where else OpenMP can be found is not known")
def test_torch_works_alone_in_our_threads_and_as_before_in_others() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert in_thread(is_single_threaded)
        assert in_thread(torch.get_num_threads) == 1
        assert not is_single_threaded()
        assert torch.get_num_threads() == 2
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 2
            assert not pool.submit(is_single_threaded).result()
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="where else OpenMP can be found is not known")
def test_torch_works_alone_for_a_while_and_other_threads_as_before() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with single_threaded():
            assert torch.get_num_threads() == 1
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(torch.get_num_threads).result() == 3
        assert torch.get_num_threads() == 3
        with pytest.raises(ZeroDivisionError), single_threaded():
            _ = 1 / 0
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_torch_works_alone_for_a_while_without_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packstore.training.single_threaded._find_openmp_libraries", lambda: ())
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with single_threaded():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


_LEFT_OPEN = """
import sys, torch
from packstore import PackedDataset, PackedLoader
loader = PackedLoader(PackedDataset(sys.argv[1], "train"), 4, resident=sys.argv[2] == "True", workers=2)
torch.kept = iter(loader)  # outlives packstore's modules
next(torch.kept)
"""


@pytest.mark.slow
@pytest.mark.parametrize("resident", [True, False])
def test_an_iterator_may_be_left_open_at_exit(stores: Stores, resident: bool) -> None:
    command = [sys.executable, "-c", _LEFT_OPEN, str(stores("cifar.h5")), str(resident)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("options", [{}, {"normalize": "cifar10"}, {"augment": [RandomHorizontalFlip(), Cutout(4)]}])
def test_batches_train_a_plain_model_without_a_warning(stores: Stores, options: Any, resident: bool) -> None:
    """DistributedDataParallel warns of gradients whose strides are not those of their weights."""
    batch, _ = next(iter(PackedLoader(PackedDataset(stores("cifar.h5"), "train"), 4, resident=resident, **options)))
    assert batch.is_contiguous()
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 4, 1))
    model(batch.float()).sum().backward()
    for weight in model.parameters():
        assert weight.grad is not None
        assert weight.grad.stride() == weight.stride()


def test_what_is_no_dataset_of_ours_is_told(stores: Stores) -> None:
    subset = torch.utils.data.Subset(PackedDataset(stores("cifar.lmdb"), "train"), [1, 2])
    for other in (subset, str(stores("cifar.lmdb"))):
        with pytest.raises(UsageError, match=f"got {type(other).__name__}; indices= takes a part"):
            PackedLoader(other, 4)  # type: ignore[arg-type]


def test_options_of_dataloader_are_told_apart(stores: Stores) -> None:
    path = stores("cifar.lmdb")
    dataset = PackedDataset(path, "train")
    for name, meant in (
        ("num_workers", "workers= says"),
        ("threads", "workers= says"),
        ("pin_memory", "page-locked"),
        ("generator", "seed="),
        ("interpolation", "RandomResizedCrop"),
        ("batchsize", "it is batch_size="),
        ("colour", "help"),
    ):
        with pytest.raises(UsageError, match=f"PackedLoader has no argument {name}: .*{meant}") as caught:
            PackedLoader(dataset, 4, **{name: 2})
        assert isinstance(caught.value, TypeError)
    for name, meant in (("num_workers", "workers="), ("batch_size", "PackedLoader has it"), ("tranform", "transform=")):
        with pytest.raises(TypeError, match=f"PackedDataset has no argument {name}: .*{meant}"):
            PackedDataset(path, "train", **{name: 2})
    with pytest.raises(TypeError, match=r"augment\.Resize has no argument max_size: .*one size"):
        Resize(8, max_size=3)  # type: ignore[call-arg]
    assert pickle.loads(pickle.dumps(Resize(size=8))) == Resize(8)

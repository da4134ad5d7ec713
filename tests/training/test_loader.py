"""``PackedLoader``: what it gives, and in which order."""

from __future__ import annotations

import multiprocessing
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import WeightedRandomSampler

import packstore
from packstore import PackedDataset, PackedLoader, UsageError
from packstore.training.augment import (
    CenterCrop,
    PerImage,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from tests.conftest import Stores
from tests.internals import Normalization, Resident
from tests.makers.batches import FIXED, RAGGED, joined, same


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


@pytest.mark.parametrize("suffix", ["lmdb", "h5", "pth"])
@pytest.mark.parametrize("kind", ["files", "pixels"])
def test_geometry_is_torchvisions(stores: Stores, suffix: str, kind: str) -> None:
    ds = PackedDataset(stores(f"{kind}.{suffix}"), "val")
    images, labels = joined(list(PackedLoader(ds, 4, augment=[Resize(36), CenterCrop(32)])))
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
    wanted = list(PackedLoader(ds, 5, shuffle=True, augment=augment, seed=3, workers=1, resident=False))
    for options in ({"workers": 5}, {"workers": 2, "prefetch": 1}, {"prefetch": 9}):
        again = PackedLoader(ds, 5, shuffle=True, augment=augment, seed=3, resident=False, **options)
        assert same(list(again), wanted)
    other = PackedLoader(ds, 5, shuffle=True, augment=augment, seed=4, resident=False)
    assert not same(list(other), wanted)


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
        a, b = list(streaming), list(resident)
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
    for wrong in (True, -1, 1.0, "1", None):
        with pytest.raises(UsageError, match=f"^epoch should be a whole number of at least 0, got {wrong!r}$"):
            loader.set_epoch(wrong)  # type: ignore[arg-type]
    loader.set_epoch(np.int64(1))  # type: ignore[arg-type]
    assert type(loader.epoch) is int
    assert [key for _, keys in loader for key in keys] == epochs[1]


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
    assert loader.pipeline.kernel is None
    wanted = torch.channels_last if channels_last else torch.contiguous_format
    streamed = PackedLoader(dataset, 7, resident=False, **options)
    for _ in range(2):
        for one, two in zip(loader, streamed, strict=True):
            ours, theirs = (item if len(columns) > 1 else (item,) for item in (one, two))
            assert ours[0].is_contiguous(memory_format=wanted)
            assert ours[0].stride() == theirs[0].stride()
            assert torch.equal(ours[0], theirs[0])
            assert ours[2:] == theirs[2:]
            assert len(columns) == 1 or torch.equal(ours[1], theirs[1])
    assert isinstance(loader._producer, Resident)
    assert loader._producer.images is not None
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


@pytest.mark.parametrize("name", ["RandomOdd", "ElasticTransform"])
def test_torchvisions_random_operations_without_a_counterpart_need_per_image(stores: Stores, name: str) -> None:
    ds, random_one = PackedDataset(stores("cifar.lmdb"), "train"), _torchvisions(name)
    compose = _torchvisions("Compose", transforms=[_torchvisions("LinearTransformation"), random_one])
    for augment in ([random_one], compose, [compose], [print, random_one]):
        with pytest.raises(UsageError, match=f"torchvision's {name} would treat the whole batch alike; use .*PerImage"):
            PackedLoader(ds, 4, augment=augment)
    two = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Identity())
    assert len(PackedLoader(ds, 4, augment=two).options.augment) == 2
    plain = _torchvisions("LinearTransformation")
    assert len(PackedLoader(ds, 4, augment=[plain, PerImage(random_one)]).options.augment) == 2


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

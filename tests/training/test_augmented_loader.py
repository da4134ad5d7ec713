"""Loaders with operations on pixels: the same batches in any mode, with any threads and decoder; recipes by name."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packstore import PackedDataset, PackedLoader
from packstore import augment as A  # noqa: N812
from packstore.images.engine import Engine
from tests.internals import Draws, UsageError, apply_operations, as_operations, parse_augment, parse_normalization
from tests.makers.batches import check_order, images_of, same
from tests.makers.tiers import examples

CROP = [A.RandomResizedCrop(24, interpolation="random"), A.RandomHorizontalFlip()]
CHAINS: list[list[Any]] = [
    [*CROP, A.RandAugment(), A.RandomErasing(0.5, value="random")],
    [A.RandomResizedCrop(24), A.ColorJitter(0.4, 0.4, 0.4, 0.1), A.RandomHorizontalFlip(), A.RandomGrayscale(0.5)],
    [*CROP, A.AugMix(), A.GaussianBlur(5)],
    [*CROP, A.RandomRotation(30, "bilinear"), A.PerImage(torch.neg, generator=False), A.RandomInvert()],
    ["timm-rsb-a3", A.Resize(32), A.RandomApply([A.RandomAffine(20), A.RandomVerticalFlip()])],
    [A.Resize((20, 26)), A.TrivialAugmentWide(), A.CenterCrop(16), A.Cutout(4, fill=7)],
    [A.Resize((48, 40), "bicubic", False)],
    *([A.RandomResizedCrop(24, interpolation=way), A.CenterCrop(20)] for way in ("bicubic", "random", "lanczos")),
    [A.RandomResize(60, 240), A.RandomHorizontalFlip(), A.RandomCrop(120, pad_if_needed=True)],
    [A.ScaleJitter(128), A.Pad(4), A.CenterCrop(100)],
    [A.RandomShortestSize([64, 96, 128], 200), A.RandomCrop((70, 160), pad_if_needed=True)],
    [A.RandomHorizontalFlip(), A.RandomResizedCrop(30)],
    [A.RandomHorizontalFlip(), A.Resize(32), A.RandomHorizontalFlip(0.3), A.RandomCrop((30, 20)), A.Cutout(4)],
    [A.Resize(36), A.CenterCrop(32)],
    [A.Cutout(3), A.RandomResizedCrop(9)],
    [A.CenterCrop(20), A.RandomHorizontalFlip(alternating=True)],
]


def operations(chain: Any) -> Any:
    return [op for entry in chain for op in (A.recipe(entry) if isinstance(entry, str) else [entry])]


def alone(dataset: PackedDataset, chain: Any, epoch: int = 0) -> torch.Tensor:
    """Each item, decoded whole and augmented by itself."""
    start = dataset.reader.split("train").start
    draws = Draws(3, epoch, torch.arange(start, start + len(dataset)))
    return torch.cat([apply_operations(chain, dataset[n][0][None], draws[n : n + 1]) for n in range(len(dataset))])


def loaded(dataset: PackedDataset, chain: Any, **options: Any) -> torch.Tensor:
    return images_of(PackedLoader(dataset, **({"batch_size": 4, "seed": 3, "augment": chain} | options)))


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("store", ["files.lmdb", "files.h5", "pixels.h5", "pixels.pth", "square.pth", "square.lmdb"])
@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_batches_are_those_of_single_images(stores: Any, store: str, chain: Any) -> None:
    dataset, chain = PackedDataset(stores(store), "train"), operations(chain)
    expected = alone(dataset, chain)
    ways = [{"workers": 1}, {"workers": 3, "prefetch": 9}, {"workers": 2, "prefetch": 1}, {"channels_last": True}]
    one_size = store.startswith("square") and chain[0].output_size is not None
    for options in [*ways, {"batch_size": 1}, {"resident": False}, *([{"resident": True}] if one_size else [])]:
        assert torch.equal(loaded(dataset, chain, **options), expected), options


@pytest.mark.slow
@pytest.mark.parametrize("chain", [CHAINS[0], CHAINS[5]], ids=str)
def test_normalisation_comes_after_them(stores: Any, chain: Any) -> None:
    for store in ("files.lmdb", "square.lmdb"):
        dataset = PackedDataset(stores(store), "train")
        mean, std = (torch.tensor(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
        expected = (alone(dataset, operations(chain)).double() / 255 - mean) / std
        for options in ({}, {"resident": store.startswith("square"), "channels_last": True}):
            found = loaded(dataset, operations(chain), normalize="imagenet", **options)
            assert found.dtype == torch.float32
            assert torch.allclose(found.double(), expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["simplejpeg", "pillow"])
def test_other_decoders_give_the_same(stores: Any, decoder: str) -> None:
    chain = operations(CHAINS[0])
    expected = loaded(PackedDataset(stores("files.lmdb"), "train"), chain)
    found = loaded(PackedDataset(stores("files.lmdb"), "train", decoder=decoder), chain)
    difference = (found.int() - expected.int()).abs()
    assert (difference > 1).float().mean() < 0.02  # equalising and posterising amplify a difference of one


@pytest.mark.slow
def test_what_the_engine_refuses_is_nearly_the_same(stores: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = [A.RandomResizedCrop(24), A.ColorJitter(0.4, 0.4, 0.4), A.RandomErasing(0.5, value="color")]
    dataset = PackedDataset(stores("files.lmdb"), "train")
    expected = loaded(dataset, chain)
    monkeypatch.setattr(Engine, "run", lambda engine, requests, first, stop, most: np.ones(stop - first, np.bool_))
    found = loaded(PackedDataset(stores("files.lmdb"), "train"), chain)
    assert ((found.int() - expected.int()).abs() > 1).float().mean() < 0.001


@pytest.mark.slow
def test_epochs_ranks_and_resuming(stores: Any) -> None:
    dataset, chain = PackedDataset(stores("files.lmdb"), "train"), operations(CHAINS[0])
    make = partial(PackedLoader, dataset, seed=3, shuffle=True, drop_last=True, augment=chain)
    check_order(make, 4, (2,))
    loader = make(4)
    assert not same(list(loader), loader)


POINTS = [
    A.ColorJitter(0.4), A.RandomInvert(), A.RandomEqualize(), A.RandomPosterize(3), A.RandomSolarize(99),
    A.RandomErasing(), A.RandomRotation(20), A.RandomVerticalFlip(), A.RandomHorizontalFlip(), A.GaussianBlur(3),
    A.RandAugment(), A.AugMix(), A.TimmAugment("rand-m9-mstd1"), A.RandomPerspective(), A.CenterCrop(12),
]  # fmt: skip


@pytest.mark.slow
@examples(10)
@given(st.lists(st.sampled_from(POINTS), max_size=6))
def test_random_chains(stores: Any, chain: list[Any]) -> None:
    for store in ("files.lmdb", "square.lmdb"):
        dataset = PackedDataset(stores(store), "train")
        whole = [A.RandomResizedCrop(20), *chain]
        assert torch.equal(loaded(dataset, whole, workers=2), alone(dataset, whole))


def test_stores_of_floats_are_refused_for_colours(stores: Any) -> None:
    dataset = PackedDataset(stores("floats.lmdb"), "train")
    with pytest.raises(UsageError, match="RandomInvert works on bytes"):
        loaded(dataset, [A.RandomInvert(1)])
    found = loaded(dataset, [A.RandomErasing(1.0), A.RandomRotation(20)])
    assert found.dtype == torch.float32


# Recipes ----------------------------------------------------------------------------------------------------------

LISTS = [name for name in A.RECIPES if A.recipe(name).views is None and name not in ("ssd", "detr")]


@pytest.mark.parametrize("name", A.RECIPES)
def test_a_recipe_prints_as_the_code_that_makes_it(name: str) -> None:
    found = A.recipe(name)
    assert found.source
    assert found.name == name
    made = eval(repr(found), {name: getattr(A, name) for name in A.__all__})
    assert made == (found if found.views is None else found.views)
    parse_normalization(found.normalize)
    assert A.recipe(name) is not found


@pytest.mark.slow
@pytest.mark.parametrize("name", LISTS)
def test_a_recipe_loads(stores: Any, name: str) -> None:
    found = A.recipe(name)
    store = stores("cifar.lmdb" if name.startswith("cifar") else "files.lmdb")
    dataset = PackedDataset(store, "train")
    by_name = PackedLoader(dataset, 8, augment=name, mix=found.mix, normalize=found.normalize)
    by_list = PackedLoader(dataset, 8, augment=found, mix=found.mix, normalize=found.normalize, workers=1)
    for mine, theirs in zip(by_name, by_list, strict=True):
        assert torch.equal(mine[0], theirs[0])
        assert torch.equal(mine[1], theirs[1])
    assert parse_augment(name) == list(found)


def test_names_that_are_no_recipes_are_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'dinov2'"):
        A.recipe("dino2")
    with pytest.raises(UsageError, match="views=recipe"):
        as_operations("dino")
    with pytest.raises(UsageError, match=r"no recipe 'timm-rsb-a9': did you mean 'timm-rsb-a.*; or a policy of timm"):
        as_operations("timm-rsb-a9")
    with pytest.raises(UsageError, match="begins with rand, augmix"):
        as_operations(["timm-rsb-a9"])
    with pytest.raises(UsageError, match="there is no recipe"):
        as_operations("imagenet")
    assert as_operations(["rand-m9"]) == (A.TimmAugment("rand-m9"),)
    assert as_operations([A.Compose([A.Resize(3), A.Grayscale()])]) == (A.Resize(3), A.Grayscale())

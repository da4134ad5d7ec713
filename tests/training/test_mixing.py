"""MixUp, CutMix and masks of patches: the arithmetic of torchvision and timm, whatever loads the batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from packstore import PackedDataset, PackedLoader
from packstore import augment as A  # noqa: N812
from tests.internals import MIXING_STREAM, UsageError
from tests.makers.batches import go_on, same
from tests.makers.torchvision import skip_before


def draws(count: int, seed: int = 0, first: int = 0) -> A.Draws:
    return A.Draws(seed, 0, np.arange(first, first + count), MIXING_STREAM)


def images(count: int, size: tuple[int, int] = (24, 31), dtype: torch.dtype = torch.float32) -> torch.Tensor:
    found = torch.rand((count, 3, *size), generator=torch.Generator().manual_seed(1))
    return (found * 255).to(torch.uint8) if dtype == torch.uint8 else found.to(dtype)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mixer", [A.MixUp(0.8), A.CutMix(1.0), A.MixUp(0.1), A.CutMix(0.3)], ids=str)
def test_a_batch_is_mixed_as_by_torchvision(tv: Any, mixer: Any, seed: int) -> None:
    skip_before(21)
    batch, labels = images(7), torch.arange(7) % 5
    mix = A.BatchMixer([mixer])
    drawn = mix.draw_mix(draws(7, seed), (24, 31))
    share = float(drawn.share[0])
    assert (drawn.share == share).all()
    theirs = getattr(tv.transforms.v2, type(mixer).__name__)(num_classes=5)
    top, left, bottom, right = drawn.box[0].tolist()
    theirs.make_params = lambda _: {"lam": share, "box": (left, top, right, bottom), "lam_adjusted": share}
    expected, expected_labels = theirs(batch, labels)
    found = drawn.mix_images(batch)
    assert torch.equal(found, expected)
    assert torch.allclose(mix.mix_labels(labels, drawn, 5), expected_labels, atol=1e-6, rtol=0)
    if isinstance(mixer, A.CutMix):
        changed = (found != batch).any(1).any(0)
        assert abs(changed.float().mean() - (1 - share)) < 1e-6


def test_boxes_are_those_of_torchvision() -> None:
    """Its formulas, from the same share and middle."""
    mix = A.BatchMixer([A.CutMix(1.0)], mode="elem")
    drawn = mix.draw_mix(draws(500), (24, 31))
    heights, widths = drawn.box[:, 2] - drawn.box[:, 0], drawn.box[:, 3] - drawn.box[:, 1]
    assert (heights <= 24).all()
    assert (heights >= 0).all()
    assert np.allclose(drawn.share, 1 - heights * widths / (24 * 31))
    assert 0.5 < drawn.share.mean() < 0.75  # of Beta(1, 1), with what the edges cut off
    assert len(np.unique(drawn.box, axis=0)) > 400


@pytest.mark.parametrize("count", [6, 7, 1])
@pytest.mark.parametrize("mode", ["pair", "elem"])
def test_pairs_and_elements_are_mixed_with_the_opposite_row(mode: Any, count: int) -> None:
    mix = A.BatchMixer([A.MixUp(0.8), A.CutMix(1.0)], mode=mode, p=0.7)
    drawn = mix.draw_mix(draws(count, 5), (24, 31))
    batch = images(count)
    found = drawn.mix_images(batch)
    for row in range(count):
        other, share = count - 1 - row, drawn.share[row]
        if drawn.cuts[row]:
            expected = batch[row].clone()
            top, left, bottom, right = drawn.box[row].tolist()
            expected[:, top:bottom, left:right] = batch[other][:, top:bottom, left:right]
        else:
            expected = batch[row] * share + batch[other] * (1 - share)
        assert torch.allclose(found[row], expected, atol=1e-6)
        if mode == "pair":
            assert drawn.share[other] == share
    if mode == "elem" and count > 2:
        assert len(set(drawn.share.tolist())) > 2


def test_switching_and_probability_are_kept() -> None:
    drawn = A.BatchMixer([A.MixUp(0.5), A.CutMix(1.0)], p=0.6, weights=(1, 3), mode="elem").draw_mix(
        draws(20000), (100, 100)
    )
    mixed = drawn.share < 1
    assert abs(mixed.mean() - 0.6) < 0.02
    assert abs(drawn.cuts[mixed].mean() - 0.75) < 0.02


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float64])
def test_all_types_are_mixed(dtype: torch.dtype) -> None:
    batch = images(4, dtype=dtype).contiguous(memory_format=torch.channels_last)
    drawn = A.BatchMixer([A.MixUp(1.0), A.CutMix(1.0)], mode="elem").draw_mix(draws(4, 3), (24, 31))
    found = drawn.mix_images(batch)
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(found.double(), drawn.mix_images(batch.double()), atol=0.51 if dtype == torch.uint8 else 0.01)


def test_labels_are_smoothed_as_by_timm() -> None:
    labels, mix = torch.tensor([0, 2, 1, 2]), A.BatchMixer([A.MixUp(1.0)], label_smoothing=0.1, mode="elem")
    drawn = mix.draw_mix(draws(4), (8, 8))
    on, off = 1 - 0.1 + 0.1 / 4, 0.1 / 4
    plain = torch.full((4, 4), off)
    plain[torch.arange(4), labels] = on
    share = torch.from_numpy(drawn.share).float()[:, None]
    found = mix.mix_labels(labels, drawn, 4)
    assert torch.allclose(found, plain * share + plain.flip(0) * (1 - share))
    assert torch.allclose(found.sum(1), torch.ones(4))
    pairs = A.BatchMixer([A.MixUp(1.0)], labels="pairs").mix_labels(labels, drawn, None)
    assert isinstance(pairs, A.MixedLabels)
    assert torch.equal(pairs.second, labels.flip(0))


def test_classes_that_do_not_fit_are_refused() -> None:
    drawn = A.BatchMixer([A.MixUp()]).draw_mix(draws(2), (8, 8))
    with pytest.raises(UsageError, match="num_classes"):
        A.BatchMixer([A.MixUp()]).mix_labels(torch.tensor([0, 1]), drawn, None)
    with pytest.raises(UsageError, match="a label is 7, and there are 5 classes"):
        A.BatchMixer([A.MixUp()]).mix_labels(torch.tensor([0, 7]), drawn, 5)


# In a loader --------------------------------------------------------------------------------------------------------


def load(store: Path, **options: Any) -> list[Any]:
    columns = options.pop("columns", None)
    dataset = PackedDataset(store, "train", **({} if columns is None else {"columns": columns}))
    named: dict[str, Any] = {"shuffle": True, "seed": 4, "mix": [A.MixUp(0.8), A.CutMix(1.0)], "normalize": "imagenet"}
    return list(PackedLoader(dataset, 4, **(named | options)))


@pytest.mark.slow
def test_batches_are_the_same_in_any_mode(stores: Any) -> None:
    store = stores("files.lmdb")
    augment = [A.RandomResizedCrop(24), A.RandomHorizontalFlip()]
    first = load(store, augment=augment, workers=1)
    assert len(first) > 1
    assert first[0][1].dtype == torch.float32
    assert torch.allclose(first[0][1].sum(1), torch.ones(4))
    assert any((labels.max(1).values < 1).any() for _, labels in first)
    assert same(first, load(store, augment=augment, workers=4))
    fixed = stores("square.lmdb")
    assert same(load(fixed, resident=True), load(fixed, resident=False))
    plain = load(store, augment=augment, mix=None)
    assert plain[0][1].dtype == torch.int64
    assert any(not torch.equal(one[0], other[0]) for one, other in zip(first, plain, strict=True))


def test_a_loader_resumes_with_the_same_mix(stores: Any) -> None:
    dataset = PackedDataset(stores("files.lmdb"), "train")
    named: dict[str, Any] = {"shuffle": True, "augment": A.RandomResizedCrop(24), "mix": A.CutMix()}
    whole, begun = list(PackedLoader(dataset, 4, **named)), PackedLoader(dataset, 4, **named)
    assert same(go_on(begun, PackedLoader(dataset, 4, **named)), whole[1:])
    with pytest.raises(UsageError, match="has mix"):
        PackedLoader(dataset, 4, **(named | {"mix": A.MixUp()})).load_state_dict(begun.state_dict())


def test_pairs_and_arrays(stores: Any) -> None:
    options = {"augment": A.RandomResizedCrop(24), "mix": A.BatchMixer([A.MixUp()], labels="pairs")}
    for output in ("tensor", "numpy"):
        batch = load(stores("files.lmdb"), output=output, **options)[0]
        assert isinstance(batch[1], A.MixedLabels)
    assert isinstance(batch[1].share, np.ndarray)


def test_images_without_labels_are_not_mixed(stores: Any) -> None:
    with pytest.raises(UsageError, match="mix= needs labels"):
        load(stores("files.lmdb"), augment=A.RandomResizedCrop(24), columns=("image",))


# Masks of patches, and repeated augmentation ----------------------------------------------------------------------


def test_a_share_of_the_patches_is_hidden() -> None:
    masking = A.RandomMasking(0.75, 4)
    found = masking(A.Draws(1, 0, np.arange(300)), (16, 24))
    assert found.keep.shape == (300, 6)
    assert (found.mask.sum(1) == 18).all()
    for keep, mask, restore in zip(*found, strict=True):
        assert not mask[keep].any()
        assert sorted(restore.tolist()) == list(range(24))
        assert torch.equal(restore[keep], torch.arange(6))
    assert (found.mask.float().mean(0) - 0.75).abs().max() < 0.12
    other = masking(A.Draws(1, 1, np.arange(300)), (16, 24))
    assert not torch.equal(other.mask, found.mask)


def test_batches_have_their_masks(stores: Any) -> None:
    options: dict[str, Any] = {"augment": A.RandomResizedCrop(32), "masking": A.RandomMasking(0.5, 8), "seed": 5}
    for store in ("files.lmdb", "square.lmdb"):
        dataset = PackedDataset(stores(store), "train")
        start = dataset.reader.split("train").start
        batches = list(PackedLoader(dataset, 4, **options))
        masks = torch.cat([masks.mask for _, _, masks in batches])
        ids = np.arange(start, start + len(dataset))
        assert torch.equal(masks, A.RandomMasking(0.5, 8)(A.Draws(5, 0, ids, -2), (32, 32)).mask)
        assert batches[0][2].keep.shape == (4, 8)
    dataset = PackedDataset(stores("square.lmdb"), "train")
    for resident in (True, False):
        found = torch.cat([masks.mask for _, _, masks in PackedLoader(dataset, 4, resident=resident, **options)])
        assert torch.equal(found, masks)
    assert isinstance(next(iter(PackedLoader(dataset, 4, output="numpy", **options)))[2].keep, np.ndarray)
    with pytest.raises(UsageError, match="whole number of patches"):
        next(iter(PackedLoader(dataset, 4, augment=A.RandomResizedCrop(30), masking=A.RandomMasking(0.5, 8))))
    for wrong, message in ((0.75, "masking should be a RandomMasking, got 0.75"), ("half", "RandomMasking")):
        with pytest.raises(UsageError, match=message):
            PackedLoader(dataset, 4, masking=wrong)


def test_records_are_repeated_and_augmented_otherwise(stores: Any) -> None:
    dataset = PackedDataset(stores("files.lmdb"), "train")
    sampler = A.RASampler(dataset, 3)
    order = list(sampler)
    assert len(order) == len(sampler) == len(dataset)
    assert order[0] == order[1] == order[2] != order[3]
    assert len(set(order)) == -(-len(dataset) // 3)
    sampler.set_epoch(1)
    assert list(sampler) != order
    sampler.set_epoch(0)
    images, labels = next(iter(PackedLoader(dataset, 6, sampler=sampler, augment=A.RandomResizedCrop(24))))
    assert labels[0] == labels[1] == labels[2]
    assert not torch.equal(images[0], images[1])
    with pytest.raises(UsageError):
        A.RASampler(dataset, 0)

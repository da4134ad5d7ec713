"""Masks of patches beside a batch, and repeated augmentation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from packstore import PackedDataset, PackedLoader
from packstore.augment import Draws, RandomMasking, RandomResizedCrop, RASampler
from tests.internals import UsageError


def test_a_share_of_the_patches_is_hidden() -> None:
    masking = RandomMasking(0.75, 4)
    found = masking(Draws(1, 0, np.arange(300)), (16, 24))
    assert found.keep.shape == (300, 6)
    assert (found.mask.sum(1) == 18).all()
    for keep, mask, restore in zip(*found, strict=True):
        assert not mask[keep].any()
        assert sorted(restore.tolist()) == list(range(24))
        assert torch.equal(restore[keep], torch.arange(6))
    assert (found.mask.float().mean(0) - 0.75).abs().max() < 0.12
    other = masking(Draws(1, 1, np.arange(300)), (16, 24))
    assert not torch.equal(other.mask, found.mask)


def test_batches_have_their_masks(stores: Any) -> None:
    options: dict[str, Any] = {"augment": RandomResizedCrop(32), "masking": RandomMasking(0.5, 8), "seed": 5}
    for store in ("files.lmdb", "square.lmdb"):
        dataset = PackedDataset(stores(store), "train")
        start = dataset.reader.split("train").start
        batches = list(PackedLoader(dataset, 4, **options))
        masks = torch.cat([masks.mask for _, _, masks in batches])
        ids = np.arange(start, start + len(dataset))
        assert torch.equal(masks, RandomMasking(0.5, 8)(Draws(5, 0, ids, -2), (32, 32)).mask)
        assert batches[0][2].keep.shape == (4, 8)
    dataset = PackedDataset(stores("square.lmdb"), "train")
    for resident in (True, False):
        found = torch.cat([masks.mask for _, _, masks in PackedLoader(dataset, 4, resident=resident, **options)])
        assert torch.equal(found, masks)
    assert isinstance(next(iter(PackedLoader(dataset, 4, output="numpy", **options)))[2].keep, np.ndarray)
    with pytest.raises(UsageError, match="whole number of patches"):
        next(iter(PackedLoader(dataset, 4, augment=RandomResizedCrop(30), masking=RandomMasking(0.5, 8))))
    for wrong, message in ((0.75, "masking should be RandomMasking or None, got 0.75"), ("half", "RandomMasking")):
        with pytest.raises(UsageError, match=message):
            PackedLoader(dataset, 4, masking=wrong)


def test_records_are_repeated_and_augmented_otherwise(stores: Any) -> None:
    dataset = PackedDataset(stores("files.lmdb"), "train")
    sampler = RASampler(dataset, 3)
    order = list(sampler)
    assert len(order) == len(sampler) == len(dataset)
    assert order[0] == order[1] == order[2] != order[3]
    assert len(set(order)) == -(-len(dataset) // 3)
    sampler.set_epoch(1)
    assert list(sampler) != order
    sampler.set_epoch(0)
    images, labels = next(iter(PackedLoader(dataset, 6, sampler=sampler, augment=RandomResizedCrop(24))))
    assert labels[0] == labels[1] == labels[2]
    assert not torch.equal(images[0], images[1])
    with pytest.raises(UsageError):
        RASampler(dataset, 0)

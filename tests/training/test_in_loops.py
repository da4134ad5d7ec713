"""``PackedLoader`` and ``PackedDataset`` in the loops of timm, torchvision's references and torchdata."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from packstore import PackedDataset, PackedLoader
from packstore.augment import RASampler
from tests.conftest import Stores
from tests.makers.batches import FIXED, RAGGED
from tests.makers.torchvision import import_torchvision

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("done", [0, 3, 13])
def test_torchdata_saves_and_restores_the_state_of_a_loader(stores: Stores, done: int) -> None:
    from torchdata import nodes

    def make() -> Any:
        dataset = PackedDataset(stores("cifar.lmdb"), "train", columns=("image", "key"))
        loader = PackedLoader(dataset, 8, shuffle=True, augment=FIXED, resident=False)
        keys = nodes.Mapper(nodes.IterableWrapper(loader), lambda batch: batch[1])
        return nodes.Loader(nodes.Prefetcher(keys, prefetch_factor=2))

    whole, saved, resumed = make(), make(), make()
    epochs = [list(whole) for _ in range(3)]
    assert epochs[0] != epochs[1]
    list(saved)
    batches = iter(saved)
    for _ in range(done):
        next(batches)
    resumed.load_state_dict(saved.state_dict())
    rest = list(resumed)
    assert rest == (epochs[1][done:] or epochs[2])
    assert done == 13 or list(resumed) == epochs[2]


def test_a_stateful_data_loader_of_the_parts(stores: Stores) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchdata.stateful_dataloader import StatefulDataLoader

        def make() -> tuple[PackedLoader, Any]:
            dataset = PackedDataset(stores("files.lmdb"), "train", columns=("image", "key"))
            loader = PackedLoader(dataset, 2, shuffle=True, augment=RAGGED)
            parts = {"batch_sampler": loader.batch_sampler, "collate_fn": loader.collate_fn}
            return loader, StatefulDataLoader(loader.dataset, **parts)

        loader, _ = make()
        epochs = [[keys for _, keys in loader] for _ in range(2)]
        _, saved = make()
        batches = iter(saved)
        for _ in range(3):
            next(batches)
        _, resumed = make()
        resumed.load_state_dict(saved.state_dict())
        assert [keys for _, keys in resumed] == epochs[0][3:]
        assert [keys for _, keys in resumed] == epochs[1]


@pytest.mark.parametrize("training", [True, False])
def test_a_dataset_in_the_loader_of_timm(stores: Stores, training: bool) -> None:
    import_torchvision()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from timm.data import create_loader

        dataset = PackedDataset(stores("files.lmdb"), "train", output="pil")
        options = {"use_prefetcher": True, "device": torch.device("cpu"), "num_workers": 0}
        policy = {"auto_augment": "rand-m9-mstd0.5", "re_prob": 0.5} if training else {}
        loader = create_loader(dataset, (3, 32, 32), 4, is_training=training, **options, **policy)
        images, labels = next(iter(loader))
    assert images.shape == (4, 3, 32, 32)
    assert labels.dtype == torch.int64


def test_the_loop_of_a_reference_for_classification(stores: Stores) -> None:
    """What the training scripts of torchvision and timm ask of a loader, with repeated augmentation."""
    dataset = PackedDataset(stores("cifar.lmdb"), "train")
    loader = PackedLoader(dataset, 8, sampler=RASampler(dataset, 3, seed=5), augment=FIXED, normalize="cifar10")
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = torch.compile(
        lambda images, labels: torch.nn.functional.cross_entropy(model(images), labels), backend="eager"
    )
    orders = []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        order = []
        for images, labels in loader:
            loss = step(images, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            order += labels.tolist()
        orders.append(order)
    assert orders[0] != orders[1]
    assert len(orders[0]) == len(loader.sampler) == len(loader.dataset)  # type: ignore[arg-type]


def test_the_collation_of_a_reference_for_detection(stores: Stores) -> None:
    """``utils.collate_fn`` of torchvision's references, on items of a dataset."""
    import_torchvision()
    dataset = PackedDataset(stores("files.lmdb"), "train", output="tv_tensors")
    loader = DataLoader(dataset, 4, collate_fn=lambda batch: tuple(zip(*batch, strict=True)))
    images, labels = next(iter(loader))
    assert [image.ndim for image in images] == [3] * 4
    assert len(labels) == 4

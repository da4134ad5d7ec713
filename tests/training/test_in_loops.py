"""``PackedLoader`` and ``PackedDataset`` in loops of timm, torchvision, torchdata, and of a small model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomHorizontalFlip, RandomResizedCrop, RASampler
from tests.conftest import Stores
from tests.makers.batches import FIXED, RAGGED, go_on, keys_of
from tests.makers.samples import COCO_CLASSES, VOC_CLASSES, Voc, coco
from tests.makers.torchvision import import_torchvision
from tests.makers.typed import Typed

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("done", [0, 3, 13])
def test_torchdata_saves_and_restores_the_state_of_a_loader(stores: Stores, done: int) -> None:
    from torchdata import nodes

    def make() -> Any:
        dataset = PackedDataset(stores("cifar.lmdb"), "train", columns=("image", "key"))
        loader = PackedLoader(dataset, 8, shuffle=True, augment=FIXED, resident=False)
        keys = nodes.Mapper(nodes.IterableWrapper(loader), lambda batch: batch[1])
        return nodes.Loader(nodes.Prefetcher(keys, prefetch_factor=2))

    whole, saved = make(), make()
    epochs = [list(whole) for _ in range(3)]
    assert epochs[0] != epochs[1]
    list(saved)
    resumed = go_on(saved, make(), done)
    assert list(resumed) == (epochs[1][done:] or epochs[2])
    assert done == 13 or list(resumed) == epochs[2]


@pytest.mark.filterwarnings("ignore")
def test_a_stateful_data_loader_of_the_parts(stores: Stores) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make() -> tuple[PackedLoader, Any]:
        dataset = PackedDataset(stores("files.lmdb"), "train", columns=("image", "key"))
        loader = PackedLoader(dataset, 2, shuffle=True, augment=RAGGED)
        parts = {"batch_sampler": loader.batch_sampler, "collate_fn": loader.collate_fn}
        return loader, StatefulDataLoader(loader.dataset, **parts)

    whole, _ = make()
    epochs = [keys_of(whole) for _ in range(2)]
    resumed = go_on(make()[1], make()[1], 3)
    assert keys_of(resumed) == epochs[0][3:]
    assert keys_of(resumed) == epochs[1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("training", [True, False])
def test_a_dataset_in_the_loader_of_timm(stores: Stores, training: bool) -> None:
    import_torchvision()
    from timm.data import create_loader

    dataset = PackedDataset(stores("files.lmdb"), "train", output="pil")
    options = {"use_prefetcher": True, "device": torch.device("cpu"), "num_workers": 0}
    policy = {"auto_augment": "rand-m9-mstd0.5", "re_prob": 0.5} if training else {}
    images, labels = next(iter(create_loader(dataset, (3, 32, 32), 4, is_training=training, **options, **policy)))
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
        loader.sampler.set_epoch(epoch)
        order = []
        for images, labels in loader:
            loss = step(images, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            order += labels.tolist()
        orders.append(order)
    assert orders[0] != orders[1]
    assert len(orders[0]) == len(loader.sampler) == len(loader.dataset)


def test_the_loader_of_a_reference_with_repeated_augmentation(stores: Stores) -> None:
    """torch's loader with a sampler of packstore, over a dataset's items: the records of a :class:`PackedLoader`."""
    dataset = PackedDataset(stores("files.lmdb"), "train", columns=("key", "label"))
    sampler = RASampler(dataset, 3, seed=5)
    loader = DataLoader(dataset, 4, sampler=sampler, num_workers=2)
    images = PackedDataset(stores("files.lmdb"), "train", columns=("image", "key"))
    ours = PackedLoader(images, 4, sampler=RASampler(images, 3, seed=5), augment=RAGGED)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        assert [[*keys] for keys, _ in loader] == [keys for _, keys in ours]


OBJECTS = ("image", "boxes", "labels", "key")


def read_targets(path: Path, way: str) -> Iterator[tuple[list[Any], list[dict[str, Any]]]]:
    """The batches of a detector: images, and their boxes and labels."""
    if way == "loader":
        options: dict[str, Any] = {"dtype": torch.float32, "collate": {"image": "list"}}
        for images, *values in PackedLoader(PackedDataset(path, columns=OBJECTS), 3, **options):
            yield images, [dict(zip(OBJECTS[1:], each, strict=True)) for each in zip(*values, strict=True)]
        return
    dataset = PackedDataset(path, columns=OBJECTS, output="tv_tensors")
    for images, targets in DataLoader(dataset, 3, collate_fn=lambda batch: tuple(zip(*batch, strict=True))):
        yield [image / 255 for image in images], [*targets]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, for detectors
@pytest.mark.parametrize("way", ["loader", "items"])
def test_the_loop_of_a_reference_for_detection(typed_stores: dict[str, Typed], way: str) -> None:
    """Steps of a detector, fed by a loader, and by items with ``utils.collate_fn`` of torchvision's references."""
    detection, path = import_torchvision().models.detection, typed_stores["sizes"].path
    torch.manual_seed(1)
    model = detection.ssdlite320_mobilenet_v3_large(weights_backbone=None, num_classes=4)
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    dataset, seen = PackedDataset(path, columns=OBJECTS, output="dict"), 0
    for images, targets in read_targets(path, way):
        for image, target in zip(images, targets, strict=True):
            assert image.dtype == torch.float32
            assert (image * 255).round().equal(dataset[seen]["image"].float())
            assert target["boxes"].equal(dataset[seen]["boxes"])
            assert target["key"] == dataset[seen]["key"]
            seen += 1
        losses = model(images, [{"boxes": each["boxes"], "labels": each["labels"] + 1} for each in targets])
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
        assert all(loss.isfinite() for loss in losses.values())
    assert seen == 9


def join_padded(images: Any, fill: int) -> torch.Tensor:
    """``cat_list`` of torchvision's references."""
    size = tuple(map(max, zip(*(image.shape for image in images), strict=True)))
    joined = images[0].new(len(images), *size).fill_(fill)
    for image, place in zip(images, joined, strict=True):
        place[..., : image.shape[-2], : image.shape[-1]].copy_(image)
    return joined


@pytest.mark.parametrize("output", ["tensor", "tv_tensors"])
def test_the_collation_of_a_reference_for_segmentation(typed_stores: dict[str, Typed], output: Any) -> None:
    """Padded batches of images and masks, as the loader's own."""
    import_torchvision()
    path, columns = typed_stores["sizes"].path, ("image", "mask")

    def collate(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        images, masks = zip(*batch, strict=True)
        return join_padded(images, 0), join_padded(masks, 255)

    theirs = DataLoader(PackedDataset(path, columns=columns, output=output), 4, collate_fn=collate)
    ours = PackedLoader(PackedDataset(path, columns=columns), 4, collate={"image": "padded"}, mask_fill=255)
    for (images, masks), (values, labels) in zip(theirs, ours, strict=True):
        assert images.equal(values.values)
        assert masks.equal(labels.values)


# A step of training -----------------------------------------------------------------------------------------------

SUFFIXES = [".lmdb", ".h5", ".pth"]
FIELDS: dict[str, Any] = {
    "coco": {
        "image": "image",
        "boxes": "boxes",
        "labels": packstore.Labels(COCO_CLASSES, of="boxes"),
        "captions": "json",
        "mask": "mask",
    },
    "voc": {"image": "image", "mask": "mask", "boxes": "boxes", "labels": packstore.Labels(VOC_CLASSES, of="boxes")},
}
COLUMNS = ("image", "mask", "boxes", "labels")


def pack(folder: Path, name: str, suffix: str, way: str) -> Path:
    samples: Any = [*coco(12)] if name == "coco" else Voc(folder / "voc", 12)
    fields, out = FIELDS[name], folder / f"{name}{suffix}"
    if way == "convert":
        packstore.convert(samples, out, split="train", fields=fields)
        return out
    with packstore.Writer(out, fields, split="train") as writer:
        for sample in samples:
            writer.add(**{each: sample[each] for each in fields})
    return out


class Net(nn.Module):
    """One layer that says a class a pixel, and one that says a box an image."""

    def __init__(self) -> None:
        super().__init__()
        self.pixels = nn.Conv2d(3, 90, 3, padding=1)
        self.box = nn.Linear(3, 4)

    def loss(self, images: torch.Tensor, masks: torch.Tensor, boxes: list[torch.Tensor]) -> torch.Tensor:
        found = nn.functional.cross_entropy(self.pixels(images), masks.long())
        means = [each.mean(0) if len(each) else torch.zeros(4) for each in boxes]
        return found + (self.box(images.mean((2, 3))) - torch.stack(means)).abs().mean()


def step(images: torch.Tensor, masks: torch.Tensor, boxes: list[torch.Tensor]) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    before = net.loss(images, masks, boxes)
    before.backward()
    optimizer.step()
    assert net.loss(images, masks, boxes) < before


@pytest.mark.slow
@pytest.mark.parametrize("way", ["Writer", "convert"])
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", FIELDS)
def test_a_step(tmp_path: Path, name: str, suffix: str, way: str) -> None:
    v2 = import_torchvision().transforms.v2
    out = pack(tmp_path, name, suffix, way)
    transform = v2.Compose([v2.RandomResizedCrop(16, antialias=True), v2.RandomHorizontalFlip()])
    dataset = PackedDataset(out, "train", columns=COLUMNS, output="tv_tensors")
    samples = [transform(image, target) for image, target in (dataset[i] for i in range(4))]
    images = torch.stack([image for image, _ in samples]) / 255
    masks = torch.stack([target["mask"] for _, target in samples])
    assert (images.shape, masks.shape) == ((4, 3, 16, 16), (4, 16, 16))
    step(images, masks, [target["boxes"] for _, target in samples])
    loader = PackedLoader(
        PackedDataset(out, "train", columns=COLUMNS, output="dict"),
        4,
        shuffle=True,
        augment=[RandomResizedCrop(16), RandomHorizontalFlip()],
    )
    batches = list(loader)
    assert len(batches) == 3
    for batch in batches:
        assert all(len(one) == len(other) for one, other in zip(batch["boxes"], batch["labels"], strict=True))
        step(batch["image"] / 255, batch["mask"], batch["boxes"])

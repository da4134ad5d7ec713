"""From a program's samples to a step of training: sets like COCO and VOC, by ``Writer`` and by ``convert``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomHorizontalFlip, RandomResizedCrop
from tests.makers.samples import COCO_CLASSES, VOC_CLASSES, Voc, coco
from tests.makers.torchvision import import_torchvision

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

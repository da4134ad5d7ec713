#!/usr/bin/env python3
"""Trains a small ResNet on CIFAR-10 from a .pth store, held in device memory.

packstore convert cifar-10-python.tar.gz cifar.pth --encoding uint8
python tools/examples/train_cifar.py cifar.pth [--epochs 10] [--steps N]
"""

import argparse

import torch
from torch import nn
from tqdm import tqdm

from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomCrop, RandomHorizontalFlip


class Block(nn.Module):
    """Two convolutions around which the input is added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        layers = [nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)]
        again = [nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)]
        self.layers = nn.Sequential(*layers, nn.ReLU(), *again)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.layers(x))


def resnet(classes: int) -> nn.Module:
    stages: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        stages += [nn.Conv2d(before, after, 3, padding=1, stride=1 if before == 3 else 2), nn.ReLU(), Block(after)]
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--steps", type=int, help="stop each epoch after so many batches")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    augment = [RandomCrop(32, padding=4, padding_mode="reflect"), RandomHorizontalFlip(alternating=True)]
    train_set = PackedDataset(options.store, "train", device=options.device)
    normalize = "cifar10" if train_set.manifest.encoding == "uint8" else None  # others are normalised already
    form = {"normalize": normalize, "dtype": torch.float32, "channels_last": True}
    train = PackedLoader(train_set, options.batch_size, shuffle=True, augment=augment, **form)
    # A split that is not for training. Shuffled, since with --steps only a part of it is seen, and it may be sorted.
    held_out = next((s.name for s in train_set.manifest.splits if s.name != "train"), None)
    held_out or parser.error(f"{options.store} has no split to test on beside train")
    test_set = PackedDataset(options.store, held_out, device=options.device)
    test = PackedLoader(test_set, options.batch_size, shuffle=True, **form)
    model = resnet(len(train_set.classes)).to(options.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    for epoch in range(options.epochs):
        model.train()
        for step, (images, labels) in enumerate(tqdm(train, f"epoch {epoch}", unit="batch", leave=False)):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step + 1 == options.steps:
                break
        model.eval()
        correct = seen = 0
        with torch.no_grad():
            for step, (images, labels) in enumerate(test):
                correct += int((model(images).argmax(1) == labels).sum())
                seen += len(labels)
                if step + 1 == options.steps:
                    break
        print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {correct / seen:.1%} of {seen}")


if __name__ == "__main__":
    main()

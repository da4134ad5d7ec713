#!/usr/bin/env python3
"""Trains a small network to see several crops of an image alike, without labels, as DINO does.

packstore convert imagenet/ imagenet.lmdb
python tools/examples/train_views.py imagenet.lmdb [--recipe dinov2] [--batch-size 32] [--steps N]

A teacher, the running mean of the student, sees the large crops; the student sees all. A record is read and decoded
once for all of its crops.
"""

import argparse
import copy

import torch
from torch import nn

from packstore import PackedDataset, PackedLoader
from packstore.augment import recipe

DIMENSIONS, TEMPERATURES, MOMENTUM = 256, (0.1, 0.04), 0.996


def network() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, DIMENSIONS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--split", default="train")
    parser.add_argument("--recipe", default="dinov2")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, help="stop after so many batches")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    dataset = PackedDataset(options.store, options.split, columns=("image",), device=options.device)
    chosen = recipe(options.recipe)
    loader = PackedLoader(
        dataset, options.batch_size, shuffle=True, drop_last=True, views=chosen.views, normalize=chosen.normalize
    )
    student = network().to(options.device)
    teacher = copy.deepcopy(student).requires_grad_(False)
    centre = torch.zeros(DIMENSIONS, device=options.device)
    optimizer = torch.optim.AdamW(student.parameters(), 1e-3)
    for step, views in enumerate(loader, 1):
        by_size: dict[int, list[torch.Tensor]] = {}
        for crops in views.values():  # (B, n, 3, H, W)
            by_size.setdefault(crops.shape[-1], []).extend(crops.unbind(1))
        large = by_size[max(by_size)]
        seen = [each for crops in by_size.values() for each in student(torch.cat(crops)).chunk(len(crops))]
        with torch.no_grad():
            output = teacher(torch.cat(large))
            targets = ((output - centre) / TEMPERATURES[1]).softmax(1).chunk(len(large))
            centre.mul_(0.9).add_(output.mean(0), alpha=0.1)
        # Each crop should look like each large one but itself; those of the largest size come first.
        pairs = [(t, s) for a, t in enumerate(targets) for b, s in enumerate(seen) if a != b]
        loss = torch.stack([-(t * (s / TEMPERATURES[0]).log_softmax(1)).sum(1).mean() for t, s in pairs]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
                mine.lerp_(theirs, 1 - MOMENTUM)
        if step % 10 == 0 or step == options.steps:
            print(f"step {step}: loss {loss.item():.3f}, {loader.stats()['images_per_second']:.0f} records/s")
        if step == options.steps:
            break


if __name__ == "__main__":
    main()

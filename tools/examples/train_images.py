#!/usr/bin/env python3
"""Trains a small convolutional network on JPEG files out of an LMDB, streamed and augmented; resumable.

packstore convert imagenet/ imagenet.lmdb
python tools/examples/train_images.py imagenet.lmdb [--recipe timm-rsb-a2] [--epochs 1] [--steps N]
    [--checkpoint state.pt]

Without a recipe images are cropped and flipped.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomHorizontalFlip, RandomResizedCrop, recipe


def network(classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128), (128, 256)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, classes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--split", default="train")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--recipe", help="augment and mix batches as a paper does, such as timm-rsb-a2")
    parser.add_argument("--steps", type=int, help="stop after so many batches of this run")
    parser.add_argument("--checkpoint", type=Path, help="go on from here if it exists, and save here at the end")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    dataset = PackedDataset(options.store, options.split, device=options.device)
    chosen = None if options.recipe is None else recipe(options.recipe)
    loader = PackedLoader(
        dataset,
        options.batch_size,
        shuffle=True,
        augment=[RandomResizedCrop(options.size), RandomHorizontalFlip()] if chosen is None else chosen,
        mix=None if chosen is None else chosen.mix,  # labels are shares of classes then, which the loss takes as well
        normalize="imagenet" if chosen is None else chosen.normalize,
        channels_last=True,
    )
    model = network(len(dataset.classes)).to(options.device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    if options.checkpoint and options.checkpoint.exists():
        state = torch.load(options.checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
    step = 0
    while loader.epoch < options.epochs and step != options.steps:
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0 or step == options.steps:
                print(f"step {step}: loss {loss.item():.3f}, {loader.stats()['images_per_second']:.0f} images/s")
            if step == options.steps:
                break
        if step:
            print(f"epoch {loader.epoch - 1}: {step} steps in this run, loss {loss.item():.3f}")
        if options.checkpoint:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            torch.save(state, options.checkpoint)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Trains on several ranks (gloo) from a store that may be at a URL; goes on after a kill, with another number of ranks.

packstore convert imagenet/ s3://bucket/imagenet.lmdb --cluster ray
torchrun --nproc-per-node 2 tools/examples/train_ranks.py s3://bucket/imagenet.lmdb --checkpoint state.pt
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomHorizontalFlip, RandomResizedCrop


def network(classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--split", default="train")
    parser.add_argument("--global-batch", type=int, default=24, help="records of a step, over all ranks")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--checkpoint", type=Path, required=True, help="go on from here if it exists")
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dataset = PackedDataset(options.store, options.split)
    loader = PackedLoader(
        dataset,
        options.global_batch // ranks,
        shuffle="lanes",
        augment=[RandomResizedCrop(options.size), RandomHorizontalFlip()],
        normalize="imagenet",
        dtype=torch.float32,
        drop_last=True,
    )
    model = DistributedDataParallel(network(len(dataset.classes)))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    step = 0
    if options.checkpoint.exists():
        state = torch.load(options.checkpoint, weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        step = state["step"]
    print(f"rank {rank} of {ranks} begins at step {step}", flush=True)
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0 and step % options.every == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            new = options.checkpoint.with_suffix(".new")
            torch.save(state | {"loader": loader.state_dict()}, new)
            new.replace(options.checkpoint)
    print(f"rank {rank} of {ranks} ends its epoch at step {step}, loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Misspelt keywords and values of the wrong kind: ``mypy --strict`` refuses each line marked ``WRONG``."""

from __future__ import annotations

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomCrop, RandomHorizontalFlip

dataset = PackedDataset("a.lmdb", outptu="pil")  # WRONG
PackedDataset("a.lmdb", output="pli")  # WRONG
PackedLoader(dataset, shufle=True)  # WRONG
PackedLoader(dataset, num_workers=4)  # WRONG
PackedLoader(dataset, batch_size=2.0)  # WRONG
PackedLoader(dataset, sampler=["a"])  # WRONG
packstore.convert("a", "a.lmdb", owerwrite=True)  # WRONG
packstore.convert("a", "a.lmdb", fit="stretch")  # WRONG
packstore.convert("a", "a.lmdb", on_error="ignore")  # WRONG
packstore.verify("a.lmdb", agianst="a")  # WRONG
packstore.verify("a.lmdb", workers="4")  # WRONG
packstore.repair("a.lmdb", "a", "b.lmdb", partail=True)  # WRONG
packstore.salvage("a.lmdb", "b.lmdb", unprooven=True)  # WRONG
packstore.open("a.lmdb", checksums="sometimes")  # WRONG
packstore.prefetch([], "cpu", normalise="imagenet")  # WRONG
RandomCrop(32, paddign=4)  # WRONG
RandomHorizontalFlip(probability=0.5)  # WRONG

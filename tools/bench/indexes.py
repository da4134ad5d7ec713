#!/usr/bin/env python3
"""What a seek index and links give and take: stores without and with them.

    .venv/bin/python tools/bench/indexes.py SOURCE [--split train] [--repeats 7] [--workers N]

SOURCE is an image folder, or better a tar of one: links to small files read these one by one. In one run, in turn,
with a warm page cache: packing into an LMDB, the bytes of the stores, and a loader's epochs with random resized crop to
224 and flip in batches of 256. Minimum and median of the rounds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from common import machine, table, timed

import packstore
from packstore import PackedDataset, PackedLoader
from packstore.augment import RandomHorizontalFlip, RandomResizedCrop

STORES: dict[str, dict[str, Any]] = {
    "without index": {"encoding": "original", "index": False},
    "with index": {"encoding": "original", "index": True},
    "linked, without": {"encoding": "original", "index": False, "link": True},
    "linked, with": {"encoding": "original", "index": True, "link": True},
}


def in_turn(jobs: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Runs every job once for warm-up, then all in turn, each round beginning with another one."""
    for job in jobs.values():
        job()
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    names = list(jobs)
    for turn in range(repeats):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            seconds[name].append(jobs[name]())
    return seconds


def held_bytes(store: Path) -> int:
    """Bytes of the images, indexes and links that a store holds."""
    columns = packstore.open(store).manifest.container_columns
    return sum(c.nbytes for c in columns if c.name in ("image", "seek_index") or c.name.startswith("link_"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("--split", help="the split to load; needed where there are several")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--workers", type=int)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="packstore-bench-") as scratch:
        stores = {name: Path(scratch, f"{number}.lmdb") for number, name in enumerate(STORES)}

        def packing(name: str) -> float:
            convert = packstore.convert
            return timed(lambda: convert(arguments.source, stores[name], overwrite=True, **STORES[name]))

        packed = in_turn({name: lambda name=name: packing(name) for name in stores}, arguments.repeats)  # type: ignore[misc]
        sets = {name: PackedDataset(store, arguments.split) for name, store in stores.items()}
        crop = [RandomResizedCrop(224), RandomHorizontalFlip()]
        loaders = {
            name: PackedLoader(each, batch_size=256, augment=crop, shuffle=True, seed=1, workers=arguments.workers)
            for name, each in sets.items()
        }

        def epoch(loader: PackedLoader) -> float:
            start = time.perf_counter()
            for _ in loader:
                pass
            return time.perf_counter() - start

        loaded = in_turn({name: lambda of=loader: epoch(of) for name, loader in loaders.items()}, arguments.repeats)  # type: ignore[misc]
        unindexed = loaders["with index"].stats()["unindexed"]
        records, plain = packstore.open(stores["without index"]).manifest.records, held_bytes(stores["without index"])
        rows = [
            [
                name,
                *(f"{len(sets[name]) / pick(loaded[name]):,.0f}" for pick in (min, median)),
                *(f"{records / pick(packed[name]):,.0f}" for pick in (min, median)),
                f"{held_bytes(stores[name]) / plain:.2%}",
            ]
            for name in stores
        ]
    print(
        table(["store", "loaded images/s, best", "median", "packed images/s, best", "median", "bytes / images"], rows)
    )
    print(f"\n{records} images, {unindexed:.0f} with an index that did not fit. {machine()}")


if __name__ == "__main__":
    main()

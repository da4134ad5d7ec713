#!/usr/bin/env python3
"""How well an order mixes, and what it fetches: lanes beside a full permutation, blocks and no shuffling.

    .venv/bin/python tools/bench/mixing.py [--records 1280000] [--shards 640] [--classes 1000] [--batch 512] [--ranks 8]

No store is read: an order is arithmetic. Records are sorted by class, as those of an image folder are, which is the
worst case. Of one epoch:

- apart: how far apart in the store two records of a rank's batch are, the median of all pairs; and the share of pairs
  that are less than a shard apart.
- neighbours: how far apart in the epoch two records come that are neighbours in the store, the median; in percent of
  the epoch.
- classes: distinct classes in a batch of one rank and of all. Balance: chi-square of the classes of a batch by its
  degrees of freedom; 1 for records drawn by chance, 0 where all classes come equally often.
- fetched: shards that all ranks fetch, by the shards that there are, when each keeps twice its share of a window (with
  other orders than lanes, as with lanes of 64); and shards that one rank needs in 100 batches.
- time: processor time of a batch of one rank.

Then the processor time of a batch, and of the first one of an epoch, of 100,000,000 records in 20,000 shards.
"""

from __future__ import annotations

import argparse
import time
from collections import OrderedDict
from statistics import median
from typing import Any

import numpy as np
from common import machine, table
from numpy.typing import NDArray

from packstore.training.order import Order


def pairs(batches: list[NDArray[np.int64]], shard: int) -> tuple[float, float]:
    """Median distance in the store of two records of a batch, and the share that is less than a shard apart."""
    rng = np.random.default_rng(1)
    apart = np.concatenate([np.abs(batch - rng.permutation(batch)) for batch in batches])
    apart = apart[apart > 0]
    return float(np.median(apart)), float((apart < shard).mean())


def neighbours(order: Order) -> float:
    """Median distance in the epoch of records that are neighbours in the store."""
    return float(np.median(np.abs(np.diff(np.argsort(order.records_at(0, np.arange(order.count)))))))


def classes(batches: list[NDArray[np.int64]], class_of: NDArray[np.int64]) -> tuple[float, float]:
    """Distinct classes of a batch, and chi-square by degrees of freedom; means."""
    counts = np.stack([np.bincount(class_of[batch], minlength=int(class_of[-1]) + 1) for batch in batches])
    expected = counts.sum(1, keepdims=True) / counts.shape[1]
    chi_square = ((counts - expected) ** 2 / expected).sum(1) / (counts.shape[1] - 1)
    return float((counts > 0).sum(1).mean()), float(chi_square.mean())


def fetches(order: Order, shard_of: NDArray[np.int64], room: int) -> int:
    """Shards that a rank fetches, when it keeps the ``room`` that it used last."""
    kept: OrderedDict[int, None] = OrderedDict()
    count = 0
    for number in range(order.count_batches()):
        for shard in np.unique(shard_of[order.batch_records(0, number)]).tolist():
            count += shard not in kept
            kept[shard] = None
            kept.move_to_end(shard)
        while len(kept) > room:
            kept.popitem(last=False)
    return count


def cost(batch: int, ranks: int) -> str:
    """What a batch in lanes costs, of a large store: its median, at the beginning and at the end of epochs."""
    order = Order(10**8, batch, shuffle=True, shards=np.arange(20_000) * 5000, world_size=ranks, rank=ranks // 2)
    last = order.count_batches() - 1
    order.batch_records(0, 0)
    first, later = [], []
    for epoch in range(1, 10):
        for number in (0, 1, 2, 3, last - 3, last - 2, last - 1, last):
            start = time.process_time()
            order.batch_records(epoch, number)
            (later if number else first).append((time.process_time() - start) * 1e3)
    return f"{median(later):.2f} ms a batch of {batch}, {median(first):.2f} ms the first one of an epoch"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_280_000)
    parser.add_argument("--shards", type=int, default=640)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=512, help="records a batch, of one rank")
    parser.add_argument("--ranks", type=int, default=8)
    options = parser.parse_args()
    records, shards, ranks = options.records, options.shards, options.ranks
    sizes = np.random.default_rng(0).integers(75, 126, shards)  # unequal ones
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]) * records // sizes.sum()
    shard_of = np.searchsorted(starts, np.arange(records), "right") - 1
    class_of = np.arange(records) * options.classes // records
    ways: dict[str, dict[str, Any]] = {
        "full permutation": {"shuffle": True},
        "block=1024": {"shuffle": True, "block": 1024},
        **{f"lanes, window={n}": {"shuffle": True, "shards": starts, "window": n} for n in (16, 64, 256)},
        "none": {},
    }
    rows = []
    for name in ways:
        of_ranks = [
            Order(records, options.batch, drop_last=True, rank=rank, world_size=ranks, **ways[name])
            for rank in range(ranks)
        ]
        one = of_ranks[ranks // 2]
        some = range(0, one.count_batches(), 5)
        batches = [one.batch_records(0, number) for number in some]
        apart, near = pairs(batches, records // shards)
        own = classes(batches, class_of)
        all_of = classes([np.concatenate([o.batch_records(0, number) for o in of_ranks]) for number in some], class_of)
        window = ways[name].get("window", 64)
        fetched = sum(fetches(order, shard_of, max(2, 2 * window // ranks)) for order in of_ranks)
        touched = len(np.unique(shard_of[np.concatenate([one.batch_records(0, number) for number in range(100)])]))
        start = time.process_time()
        for number in some:
            one.batch_records(1, number)
        seconds = (time.process_time() - start) / len(some)
        rows.append(
            (
                name,
                f"{apart / records:.0%}",
                f"{near:.1%}",
                f"{neighbours(one) / records:.1%}",
                f"{own[0]:.0f}",
                f"{own[1]:.2f}",
                f"{all_of[0]:.0f}",
                f"{all_of[1]:.2f}",
                f"{fetched / shards:.2f}",
                touched,
                f"{seconds * 1e3:.2f} ms",
            )
        )
    print(f"{records:,} records of {options.classes:,} classes, sorted, in {shards:,} shards of unequal sizes;")
    print(f"{ranks} ranks with batches of {options.batch}\n")
    header = ("order", "apart", "within a shard", "neighbours", "classes, a rank", "balance", "classes, all", "balance")
    print(table([*header, "fetched", "in 100 batches", "time"], rows))
    print(f"\n100,000,000 records in 20,000 shards: {cost(512, 8)}; one rank: {cost(512, 1)}")
    print(f"\n{machine()}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Opening and indexing: a store of 1,280,000 records, one item against the bare decode, and `packstore --help`.

    .venv/bin/python tools/bench/access.py [IMAGES] [--records 1280000]

Opening is timed in fresh processes, with the imports done beforehand, and its memory is what the process grows by.
For an item, `ds[i]` and the bare decode of the same bytes run over the same records in turn; the difference is
packstore's own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from common import interleaved, machine, packstore_command, run_process, table

from packstore import PackedDataset, convert
from packstore import open as open_store
from packstore.core.columns import CHECKSUM, KEY
from packstore.core.manifest import Column, Manifest, Origin
from packstore.core.proof import ROW_CHECKSUM
from packstore.images.decoders import get_decoder
from packstore.stores import StoreBuilder

OPEN = """
import json, resource, sys, time
import lmdb, h5py, torch, psutil
import packstore.training.dataset, packstore.stores.lmdb.store, packstore.stores.hdf5.store, packstore.stores.pth.store
process = psutil.Process()
before = process.memory_full_info().uss
start = time.perf_counter()
ds = packstore.PackedDataset(sys.argv[1])
opened = time.perf_counter() - start
ds[len(ds) // 2]
first = time.perf_counter() - start
print(json.dumps([opened, first, process.memory_full_info().uss - before]))
"""


def make_store(path: Path, format: str, records: int) -> None:
    """A store of ``records`` small records with ImageNet-like keys and 1,000 classes."""
    columns = (
        Column("image", "fixed", "uint8", (4, 4, 3), "HWC", type="image"),
        Column("label", "fixed", "int64", (), None, tuple(f"n{i:08}" for i in range(1000)), type="label"),
        KEY,
        CHECKSUM,
        ROW_CHECKSUM,
    )
    with StoreBuilder(
        path, Manifest(format, "uint8", 0, tuple(columns), Origin("imagefolder", "synthetic"))
    ) as builder:
        for start in range(0, records, 10_000):
            numbers = range(start, min(start + 10_000, records))
            images = [i.to_bytes(48, "little") for i in numbers]
            labels = np.array(numbers, np.int64) * 1000 // records
            keys = [f"train/n{label:08}/n{label:08}_{i}.JPEG" for i, label in zip(numbers, labels, strict=True)]
            builder.append(images, {"key": keys, "label": labels}, "train")
        builder.commit()


def measure_open(path: Path) -> list[float]:
    runs = []
    for _ in range(5):
        out = subprocess.run([sys.executable, "-c", OPEN, str(path)], check=True, capture_output=True, text=True).stdout
        runs.append(json.loads(out))
    return [median(values) for values in zip(*runs, strict=True)]


def measure_item(images: Path, path: Path) -> list[object]:
    """Microseconds of ``ds[i]``, of the bare decode, and of what lies between."""
    convert(images, path, split=None)
    names = [s.name for s in open_store(path).manifest.splits]
    dataset = PackedDataset(path, names[0] if names else None)
    decoder = get_decoder("auto")
    indices = list(range(0, len(dataset), max(1, len(dataset) // 200)))
    raw = [dataset.reader.read(dataset._record_of_item(i)) for i in indices]

    def items() -> float:
        start = time.perf_counter()
        for i in indices:
            dataset[i]
        return (time.perf_counter() - start) / len(indices) * 1e6

    def bare() -> float:
        start = time.perf_counter()
        for data in raw:
            decoder.decode(data)
        return (time.perf_counter() - start) / len(raw) * 1e6

    result = interleaved({"ds[i]": items, "bare": bare}, 15)
    return [f"{result['ds[i]']:.1f}", f"{result['bare']:.1f}", f"{result['ds[i]'] - result['bare']:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path, nargs="?", help="an image folder for the item measurement")
    parser.add_argument("--records", type=int, default=1_280_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows = []
        for format, suffix in (("lmdb", "lmdb"), ("hdf5", "h5"), ("pth", "pth")):
            path = Path(scratch) / f"big.{suffix}"
            make_store(path, format, options.records)
            opened, first, memory = measure_open(path)
            rows.append([format, f"{opened * 1e3:.1f}", f"{first * 1e3:.1f}", f"{memory / 1e6:.1f}"])
        print(table([f"{options.records:,} records", "open ms", "with first item ms", "memory MB"], rows))
        if options.images is not None:
            row = measure_item(options.images, Path(scratch) / "items.lmdb")
            print("\n" + table(["ds[i] µs", "bare decode µs", "difference µs"], [row]))
    seconds = [run_process([*packstore_command(), "--help"]).wall for _ in range(11)]
    print(f"\npackstore --help: {median(seconds) * 1e3:.0f} ms\n\n{machine()}")


if __name__ == "__main__":
    main()

"""What grows with the number of records: opening, the first batch, an epoch's rate, memory. packstore alone.

Run by `peers.py --only scale`; stores of small made-up images, loaded by streaming, shuffled, in a process of their own
each. Opening and the first batch are medians of five.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from access import make_store
from peers_task import disk_bytes, memory_bytes

SUFFIXES = {"lmdb": "lmdb", "hdf5": "h5", "pth": "pth"}
BATCH = 512


def measure(scratch: Path, records: int, threads: int, repeats: int) -> list[dict[str, Any]]:
    """A row for each format."""
    rows = []
    for format, suffix in SUFFIXES.items():
        path = scratch / f"{records}.{suffix}"
        start = time.perf_counter()
        make_store(path, format, records)
        packing = time.perf_counter() - start
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            found = process.submit(load, str(path), threads, repeats).result()
        rows.append({"records": records, "format": format, "packing_s": packing, "bytes": disk_bytes([path]), **found})
        _remove(path)
    return rows


def load(path: str, threads: int, repeats: int) -> dict[str, float]:
    """Milliseconds and images a second; memory is what this process has beyond the imports."""
    from packstore import PackedDataset, PackedLoader
    from packstore.stores.hdf5 import store as hdf5_store
    from packstore.stores.lmdb import store as lmdb_store
    from packstore.stores.pth import store as pth_store

    assert all((hdf5_store, lmdb_store, pth_store))  # imported, so that the imports are not timed
    pid = os.getpid()
    _loader(PackedDataset, PackedLoader, path, threads)  # once, for what is loaded on first use
    before, opened, first, rates = memory_bytes(pid), [], [], []
    for _ in range(5):
        start = time.perf_counter()
        loader = _loader(PackedDataset, PackedLoader, path, threads)
        opened.append(time.perf_counter() - start)
        batches = iter(loader)
        next(batches)
        first.append(time.perf_counter() - start)
        batches.close()
    peak = memory_bytes(pid)
    for _ in range(repeats):
        start, images = time.perf_counter(), 0
        for batch, _ in loader:
            images += len(batch)
        rates.append(images / (time.perf_counter() - start))
        peak = max(peak, memory_bytes(pid))
    return {
        "open_ms": median(opened) * 1e3,
        "first_batch_ms": median(first) * 1e3,
        "images_per_second": median(rates),
        "memory_mb": (peak - before) / 1e6,
        "threads": float(psutil.Process(pid).num_threads()),
    }


def _loader(dataset: Any, loader: Any, path: str, threads: int) -> Any:
    return loader(dataset(path), BATCH, shuffle=True, workers=threads, resident=False)


def _remove(path: Path) -> None:
    if path.is_file():
        path.unlink()
        return
    for file in path.iterdir():
        file.unlink()
    path.rmdir()

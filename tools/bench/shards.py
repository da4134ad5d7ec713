#!/usr/bin/env python3
"""Stores of thousands of shards: opening, the first shuffled batch with labels, memory, open files, the table, and
appending to, merging and splitting them by shards.

    .venv/bin/python tools/bench/shards.py [--format lmdb] [--repeats 3]

The stores are synthetic and sparse: a shard is written once, and all others are links to it, so that 1e8 records take a
few megabytes. Each figure is of a fresh process, with the imports done beforehand; memory is anonymous, and what the
process grows by.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from common import machine, table

from packstore.core.columns import CHECKSUM, KEY
from packstore.core.errors import ManifestError
from packstore.core.manifest import Column, Manifest, Origin, Split
from packstore.core.proof import ROW_CHECKSUM, file_digest, join_records_digests
from packstore.core.registry import FORMATS
from packstore.core.shards import Shard, ShardTable
from packstore.stores import StoreBuilder, open_store
from packstore.stores.assembly import write_manifest_and_table

STEP = """
import json, re, resource, sys, time
import numpy as np, torch
import packstore.training.dataset, packstore.training.loader
import packstore.stores.lmdb.store, packstore.stores.hdf5.store, packstore.stores.pth.store

def memory():
    status = open("/proc/self/status").read()
    return [int(re.search(rf"Rss{kind}:\\s+(\\d+)", status).group(1)) / 1024 for kind in ("Anon", "Shmem")]

path, batches, files = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if files:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
before = memory()
start = time.perf_counter()
ds = packstore.PackedDataset(path, columns=("image", "label"))
opened = time.perf_counter() - start
loader = packstore.PackedLoader(ds, 512, shuffle=True, resident=False, workers=2)
first = records = 0
for images, labels in loader:
    first = first or time.perf_counter() - start
    records += len(labels)
    batches -= 1
    if not batches:
        break
seconds = time.perf_counter() - start
print(json.dumps([opened, first, seconds, records, *(b - a for a, b in zip(before, memory()))]))
"""


def make_shard(path: Path, format: str, records: int) -> Manifest:
    columns = (
        Column("image", "fixed", "uint8", (4, 4, 3), "HWC", type="image"),
        Column("label", "fixed", "int64", (), None, tuple(f"n{i:08}" for i in range(1000)), type="label"),
        KEY,
        CHECKSUM,
        ROW_CHECKSUM,
    )
    numbers = range(records)
    with StoreBuilder(path, Manifest(format, "uint8", 0, tuple(columns), Origin("flat", "synthetic"))) as builder:
        images = [i.to_bytes(48, "little") for i in numbers]
        keys = [f"train/n{i % 1000:08}/n{i % 1000:08}_{i}.JPEG" for i in numbers]
        builder.append(images, {"key": keys, "label": np.array(numbers, np.int64) % 1000}, "train")
        return builder.commit()


def make_store(path: Path, format: str, shards: int, records: int) -> None:
    """A store of ``shards`` links to one shard of ``records``."""
    kind = FORMATS[format]
    path.mkdir()
    first = path / kind.shard_name(0)
    manifest = make_shard(first, format, records)
    nbytes, digest = file_digest(kind.data_file(first))
    image, each = manifest.image.nbytes, manifest.records_digest
    rows = [Shard(kind.shard_name(0), records, nbytes, image, each, digest, manifest.digest)]
    for number in range(1, shards):
        name = kind.shard_name(number)
        if kind.files:
            (path / name).mkdir()
        kind.data_file(path / name).hardlink_to(kind.data_file(first))
        rows.append(dataclasses.replace(rows[0], name=name))
    write_manifest_and_table(path, head(manifest, rows, kind.suffixes[0]))


def head(manifest: Manifest, rows: list[Shard], suffix: str) -> Manifest:
    total = sum(row.records for row in rows)
    return dataclasses.replace(
        manifest,
        records=total,
        columns=tuple(dataclasses.replace(c, nbytes=c.nbytes * len(rows), digest=None) for c in manifest.columns),
        splits=(Split("train", 0, total),),
        records_digest=join_records_digests((row.records_digest, row.records) for row in rows),
        shards=ShardTable.from_shards(rows, suffix),
    )


def step(path: Path, batches: int = 1, files: int = 0) -> list[float]:
    """Seconds to open, to the first batch, and in all; records; MB of anonymous and of shared memory."""
    command = [sys.executable, "-c", STEP, str(path), str(batches), str(files)]
    found: list[float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def measure_table(count: int) -> tuple[float, int, int]:
    """Seconds to read and prove a table, and of how many changed bytes how many were found."""
    sha = hashlib.sha256(b"").hexdigest()
    one = ShardTable.from_shards([Shard("shard-00000.h5", 1000, 10**8, 10**8, sha[:32], sha, sha)], ".h5")
    rows = np.repeat(one.table, count)
    rows["nbytes"] += np.arange(count, dtype=np.uint64)
    rows["number"] = np.arange(count)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "table")
        rows.tofile(file)
        expected = ShardTable(count, hashlib.sha256(rows.tobytes()).hexdigest(), ".h5")
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            expected.parse_rows(file.read_bytes())
            seconds.append(time.perf_counter() - start)
        data, found = bytearray(file.read_bytes()), 0
        places = np.random.default_rng(0).integers(0, len(data), 100).tolist()
        for place in places:
            data[place] ^= 1
            try:
                expected.parse_rows(bytes(data))
            except ManifestError:
                found += 1
            data[place] ^= 1
    return median(seconds), found, len(places)


GROW = """
import json, sys, time, pathlib
import packstore, packstore.packing.append, packstore.packing.merge, packstore.packing.select
from packstore.stores import folder
def opened(*_):
    raise SystemExit("a shard is opened")
folder.Shards.open = opened
place, suffix = pathlib.Path(sys.argv[1]), sys.argv[2]
many, few = place / f"many{suffix}", place / f"few{suffix}"
seconds = []
for do in (
    lambda: packstore.append(many, few, on_duplicate="unchecked"),
    lambda: packstore.merge([many, few], place / f"merged{suffix}", on_duplicate="unchecked"),
    lambda: packstore.select(many, place / f"split{suffix}", splits={"a": 0.9, "b": 0.1}, whole_shards=True),
):
    start = time.perf_counter()
    do()
    seconds.append(time.perf_counter() - start)
print(json.dumps(seconds))
"""


def measure_growth(place: Path, format: str) -> list[float]:
    """Seconds to append 10 shards to 5,000, to merge these, and to split 5,010 in two, without opening one."""
    suffix = FORMATS[format].suffixes[0]
    make_store(place / f"many{suffix}", format, 5_000, 8)
    make_store(place / f"few{suffix}", format, 10, 8)
    command = [sys.executable, "-c", GROW, str(place), suffix]
    found: list[float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", default="lmdb", choices=list(FORMATS.built_in))
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(machine())
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for shards, records in ((5_000, 2_000), (20_000, 5_000)):
            path = Path(folder, f"{shards}")
            make_store(path, options.format, shards, records)
            runs = np.median([step(path) for _ in range(options.repeats)], axis=0)
            name = f"{shards:,} shards, {shards * records:,} records"
            lines.append([name, f"{runs[0]:.3f} s", f"{runs[1]:.3f} s", f"{runs[4]:.0f} MB", f"{runs[5]:.0f} MB"])
        small = Path(folder, "small")
        make_store(small, options.format, 500, 8)
        with open_store(small) as reader:
            total = len(reader)
        run = step(small, -1, 256)
        assert run[3] == total
    print(table(["store", "opened", "first batch of 512 with labels", "anonymous memory", "shared"], lines))
    print(f"\n500 shards, {total:,} records, at most 256 open files: an epoch in {run[2]:.1f} s")
    with tempfile.TemporaryDirectory() as folder:
        times = np.median([measure_growth(Path(tempfile.mkdtemp(dir=folder)), options.format)
                           for _ in range(options.repeats)], axis=0)  # fmt: skip
    for what, took in zip(("append 10 shards to 5,000", "merge them", "split 5,010 by shards"), times, strict=True):
        print(f"{what}: {took:.2f} s, no shard opened")
    seconds, found, tried = measure_table(100_000)
    print(f"a table of 100,000 shards: read in {1000 * seconds:.0f} ms; {found} of {tried} changed bytes found")


if __name__ == "__main__":
    main()

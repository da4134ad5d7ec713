#!/usr/bin/env python3
"""Stores at URLs, by an S3 server on this machine: what the cache costs, and opening one of thousands of shards.

    .venv/bin/python tools/bench/remote.py [--records 8192] [--repeats 5] [--workers 2] [--place /dev/shm]

The server is the double of the tests, a process of its own; whatever is compared runs in turn.

- warm: an epoch of a loader over a store at a URL with all shards in the cache, beside the same store on this machine;
  the ratio of their rates.
- cold: fetching all shards into an empty cache, proven, beside fetching the same objects with obstore alone: into files
  with their SHA-256, which is the same work, into files, into memory, and into memory with their SHA-256; all by four
  threads; the ratios of the rates. On this machine alone processors are what limits, and the server takes its share; so
  once more over a line of LINE bytes a second (5 Gbit/s).
- opening: seconds and requests until the first record could be asked for, at a store of 20,000 shards.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from common import interleaved, machine, table, timed
from shards import head, make_shard

import packstore
from packstore.augment import RandomHorizontalFlip, RandomResizedCrop
from packstore.core.parallel import ordered_map
from packstore.core.proof import file_digest
from packstore.core.registry import FORMATS
from packstore.core.shards import Shard
from packstore.core.urls import UrlPath, location
from packstore.objects import open_objects
from packstore.stores import open_store
from packstore.stores.places.remote import create_version, upload_store, upload_table
from packstore.stores.remote_shards import RemoteShards

ROOT = Path(__file__).resolve().parents[2]
AT_ONCE = 4
SIDE = 96
MANY_SHARDS = 20_000
SERVER = """
import sys
from tests.makers.s3 import double
with double() as state:
    print(state.port, flush=True)
    for line in sys.stdin:
        state.rate = float(line)
        print(len(state.requests), flush=True)
"""
LINE = 600e6
TARGETS = {"warm": 0.95, "cold": 0.8}


@contextmanager
def server() -> Iterator[Callable[..., int]]:
    """An empty ``s3://bucket`` for this process; a function that sets the bytes a second of the line to it (0 for no
    limit), and says how many requests it had so far."""
    from tests.makers.s3 import environment

    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        os.environ.update(environment(int(process.stdout.readline())))

        def requests(rate: float = 0.0) -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            print(rate, file=process.stdin, flush=True)
            return int(process.stdout.readline())

        try:
            yield requests
        finally:
            process.stdin.close()


def make_pixels(path: Path, records: int) -> None:
    """A store of ``records`` images of SIDE x SIDE pixels, in eight shards."""
    rng = np.random.default_rng(0)
    images = ((rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8), number % 10) for number in range(records))
    packstore.convert(images, path, encoding="uint8", shard_size=records // 8 * SIDE * SIDE * 3 + (1 << 20))


def epochs(dataset: Any, workers: int, augment: list[Any]) -> Callable[[], float]:
    """A function that runs an epoch of a loader and returns its seconds."""
    loader = packstore.PackedLoader(dataset, 256, shuffle="full", workers=workers, resident=False, augment=augment)

    def run() -> None:
        for _ in loader:
            pass

    return lambda: timed(run)


def measure_warm(local: Path, url: UrlPath, workers: int, repeats: int) -> list[list[str]]:
    rows = []
    for name, augment in (
        ("batches as they are", []),
        ("cropped, resized, flipped", [RandomResizedCrop(64), RandomHorizontalFlip()]),
    ):
        datasets = {where: packstore.PackedDataset(path) for where, path in (("local", local), ("remote", url))}
        jobs = {where: epochs(dataset, workers, augment) for where, dataset in datasets.items()}
        seconds = interleaved(jobs, 5 * repeats)  # an epoch is short
        count = len(datasets["local"])
        ratio = seconds["local"] / seconds["remote"]
        rates = [f"{count / seconds[where]:,.0f} images/s" for where in ("local", "remote")]
        rows.append([f"warm, {name}", *rates, f"{ratio:.2f}", f"{TARGETS['warm']}"])
    return rows


def measure_cold(url: UrlPath, cache: Path, repeats: int, line: str) -> list[list[str]]:
    import obstore
    from obstore.store import S3Store

    with open_store(url) as reader:
        assert isinstance(reader.table, RemoteShards)
        names, nbytes = reader.table.names, reader.nbytes
    objects = S3Store(
        "bucket",
        prefix=url.name,
        endpoint=os.environ["AWS_ENDPOINT_URL"],
        access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
        secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        client_options={"allow_http": True},
    )

    def into_memory(number: int) -> int:
        return len(obstore.get(objects, names[number]).bytes())

    def hashed(number: int) -> int:
        data = obstore.get(objects, names[number]).bytes()
        hashlib.sha256(data).digest()
        return len(data)

    def into_file(number: int) -> int:
        with Path(cache.parent, f"fetched-{number}").open("wb", buffering=0) as file:
            return sum(file.write(piece) for piece in obstore.get(objects, names[number]).stream(4 << 20))

    def into_file_hashed(number: int) -> int:
        found, size = hashlib.sha256(), 0
        with Path(cache.parent, f"fetched-{number}").open("wb", buffering=0) as file:
            for piece in obstore.get(objects, names[number]).stream(1 << 20):
                found.update(piece)
                size += file.write(piece)
        return size

    def all_of(fetch: Callable[[int], Any]) -> Callable[[], float]:
        def run() -> float:
            for path in cache.parent.glob("fetched-*"):
                path.unlink()
            return timed(lambda: [*ordered_map(fetch, range(len(names)), AT_ONCE)])

        return run

    def cold() -> float:
        shutil.rmtree(cache, ignore_errors=True)
        with open_store(url) as reader:
            return all_of(reader.table.prefetch)()

    beside = {
        "into files, and SHA-256": all_of(into_file_hashed),
        "into files": all_of(into_file),
        "into memory": all_of(into_memory),
        "into memory, and SHA-256": all_of(hashed),
    }
    seconds = interleaved({**beside, "cold": cold}, repeats)
    rates = {name: f"{nbytes / 1e6 / took:,.0f} MB/s" for name, took in seconds.items()}
    return [
        [
            f"cold{line}, against obstore {name}",
            *(rates[name], rates["cold"]),
            *(f"{seconds[name] / seconds['cold']:.2f}", f"{TARGETS['cold']}"),
        ]
        for name in beside
    ]


def measure_opening(place: Path, requests: Callable[..., int], repeats: int) -> tuple[float, int]:
    """Median seconds, and requests, to open a store of MANY_SHARDS shards; none of them is there."""
    shard = place / "shard-00000.lmdb"
    manifest = make_shard(shard, "lmdb", 5_000)
    nbytes, digest = file_digest(FORMATS["lmdb"].data_file(shard))
    row = (5_000, nbytes, manifest.image.nbytes, manifest.records_digest, digest, manifest.digest)
    rows = [Shard(FORMATS["lmdb"].shard_name(number), *row) for number in range(MANY_SHARDS)]
    whole = head(manifest, rows, ".lmdb")
    objects = open_objects("s3://bucket/many.lmdb")
    assert whole.shards is not None
    upload_table(objects, whole.shards)
    create_version(objects, whole, 0)
    before = requests()
    seconds = [timed(lambda: packstore.PackedDataset("s3://bucket/many.lmdb")) for _ in range(repeats)]
    return median(seconds), (requests() - before) // repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--place", type=Path, help="Folder for stores and cache.")
    options = parser.parse_args()
    sys.path.append(str(ROOT))
    with tempfile.TemporaryDirectory(dir=options.place) as folder, server() as requests:
        cache = Path(folder, "cache")
        os.environ |= {"PACKSTORE_CACHE": str(cache), "PACKSTORE_CACHE_SIZE": "20GB"}
        local, url = Path(folder, "pixels.lmdb"), location("s3://bucket/pixels.lmdb")
        assert isinstance(url, UrlPath)
        make_pixels(local, options.records)
        upload_store(local, url)
        print(machine())
        rows = measure_cold(url, cache, options.repeats, "")
        requests(LINE)
        rows += measure_cold(url, cache, options.repeats, f" at {LINE / 1e6:.0f} MB/s")
        requests(0)
        rows += measure_warm(local, url, options.workers, options.repeats)
        print(table(["", "beside it", "remote", "ratio", "wanted"], rows))
        seconds, count = measure_opening(Path(folder), requests, options.repeats)
        print(
            f"\nopening a store of {MANY_SHARDS:,} shards: {seconds:.3f} s (wanted < 1), {count} requests (wanted <= 4)"
        )


if __name__ == "__main__":
    main()

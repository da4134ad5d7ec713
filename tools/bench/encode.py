#!/usr/bin/env python3
"""Re-encoding against bare threads: `--encoding jpeg --resize 256` and a loop that only decodes, resizes and encodes.

    .venv/bin/python tools/bench/encode.py IMAGES [--repeats 5] [--workers N]

Both run in this process over the same files, in turn, with the same number of threads and a warm page cache. Prints the
images a second of each, their ratio, and how many cores each kept busy.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import simplejpeg
from common import machine, table

from packstore import convert
from packstore.core.parallel import default_workers
from packstore.images.decoders import get_decoder
from packstore.images.encode import EncodeOptions
from packstore.images.resize import shrink_to_limits
from packstore.sources import open_source


def bare(paths: list[Path], workers: int) -> None:
    """Decode, resize, encode, in plain threads with a plain list each: no store, no checks, no order."""
    decoder, quality = get_decoder("auto"), EncodeOptions(encoding="jpeg").quality

    def work(part: list[Path]) -> int:
        size = 0
        for path in part:
            pixels = shrink_to_limits(decoder.decode(path.read_bytes()), resize_to=256)
            size += len(simplejpeg.encode_jpeg(pixels, quality=quality, colorspace="RGB", colorsubsampling="420"))
        return size

    with ThreadPoolExecutor(workers) as pool:
        sum(pool.map(work, [paths[i::workers] for i in range(workers)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=default_workers())
    options = parser.parse_args()
    source = open_source(options.images)
    paths = [options.images / entry.key for entry in source.entries()]
    scratch = Path(tempfile.mkdtemp())
    target = scratch / "out.lmdb"

    def packstore() -> None:
        shutil.rmtree(target, ignore_errors=True)
        convert(options.images, target, encoding="jpeg", resize=256, workers=options.workers)

    jobs = {"bare threads": lambda: bare(paths, options.workers), "packstore convert": packstore}
    walls: dict[str, list[float]] = {name: [] for name in jobs}
    cores: dict[str, list[float]] = {name: [] for name in jobs}
    try:
        for job in jobs.values():
            job()
        for _ in range(options.repeats):
            for name, job in jobs.items():
                wall, cpu = time.perf_counter(), time.process_time()
                job()
                walls[name].append(time.perf_counter() - wall)
                cores[name].append((time.process_time() - cpu) / walls[name][-1])
    finally:
        shutil.rmtree(scratch)
    rows = [[name, f"{len(paths) / median(walls[name]):.0f}", f"{median(cores[name]):.2f}"] for name in jobs]
    print(table(["", "images/s", "cores busy"], rows))
    ratio = median(walls["bare threads"]) / median(walls["packstore convert"])
    print(f"\npackstore / bare: {ratio:.2f}; {options.workers} threads, {len(paths)} files; {machine()}")


if __name__ == "__main__":
    main()

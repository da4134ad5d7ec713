#!/usr/bin/env python3
"""The crop-seekable JPEG: how much larger files get, how fast they are rewritten, beside the engine's part of that
alone, and what a crop costs to decode and to resize.

    .venv/bin/python tools/bench/seekable.py IMAGES [--repeats 5] [--workers N] [--prices]

Everything runs in this process over the same files, in turn (A B A B …), with a warm page cache. Crops are those of a
random resized crop with its usual ranges, one an image, the same for every decoder. `--prices` shows instead what other
trades of size against selectivity would give: `packstore.images.seekable.rewrite._PRICE`.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from common import machine, table

from packstore import convert
from packstore.augment import RandomResizedCrop
from packstore.core.parallel import default_workers
from packstore.images.decoders import UNAVAILABLE, Decoder, available_decoders, get_decoder
from packstore.images.engine import Engine, Requests, get_engine
from packstore.images.resize import resize
from packstore.images.seekable import (
    CropPlans,
    NotSeekableError,
    make_seekable,
    plan_crop,
    plan_crops,
    read_index,
    rewrite,
    splice,
)
from packstore.images.sniff import sniff
from packstore.sources import open_source
from packstore.training.augment.base import Crops
from packstore.training.random_draws import Draws

Box = tuple[int, int, int, int]
Pair = tuple[Path, bytes, bytes, int]  # a file, what it holds, that made seekable, and its interval
BATCH, SIDE = 256, 224
MAX_PIXELS = 1 << 28


def rewritten(data: bytes) -> bytes:
    try:
        return make_seekable(data)
    except NotSeekableError:
        return data


def boxes(files: list[bytes]) -> list[Box]:
    sizes = np.array([(info.height, info.width) for info in map(sniff, files)], np.int64)
    draws = Draws(0, 0, np.arange(len(files)))
    crops = RandomResizedCrop(224).plan(Crops.full(sizes), draws)
    return [(top, left, height, width) for top, left, height, width in crops.box.tolist()]


def in_turn(jobs: dict[str, Callable[[], None]], repeats: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds of each job by ``clock``, ``repeats`` times each, after one run that does not count."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for job in jobs.values():
        job()
    for _ in range(repeats):
        for name, job in jobs.items():
            start = clock()
            job()
            times[name].append(clock() - start)
    return times


def processor() -> float:
    """Seconds of processor that this process and those that it started and waited for have used."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def sizes(files: list[bytes], made: list[bytes]) -> str:
    before, after = sum(map(len, files)), sum(map(len, made))
    kept = sum(read_index(data) is None for data in made)
    return (
        f"{len(files):,} files: {before:,} bytes before, {after:,} after: {after / before - 1:+.2%}; "
        f"{kept} cannot be made seekable"
    )


def bare_rewriting(pairs: list[Pair], workers: int, proven: bool = False, scratch: Path | None = None) -> None:
    """The engine's own work, in plain threads. With ``proven`` also its comparison of what was made with what went in;
    with ``scratch`` files are read anew, and what was made is written there, one behind the other."""

    def part(first: int) -> None:
        engine = get_engine()
        assert engine is not None
        with (scratch / f"made{first}" if scratch else Path(os.devnull)).open("wb", 0) as out:
            for path, data, made, interval in pairs[first::workers]:
                engine.rewrite(path.read_bytes() if scratch else data, interval)
                if proven:
                    engine.confirms(made)
                if scratch:
                    out.write(made)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(part, range(workers)))


def rewriting(images: Path, pairs: list[Pair], workers: int | None, repeats: int) -> str:
    """Converting beside the engine's work on the files that it rewrites."""
    scratch = Path(tempfile.mkdtemp())
    records = 0

    def conversion() -> None:
        nonlocal records
        shutil.rmtree(scratch / "a.lmdb", ignore_errors=True)
        records = convert(images, scratch / "a.lmdb", encoding="seekable", workers=workers).manifest.records

    threads = workers or default_workers()
    jobs = {
        "packstore.convert": conversion,
        "bare: rewriting": partial(bare_rewriting, pairs, threads),
        "bare: rewriting, proof": partial(bare_rewriting, pairs, threads, True),
        "bare: reading, rewriting, writing": partial(bare_rewriting, pairs, threads, False, scratch),
        "bare: reading, rewriting, proof, writing": partial(bare_rewriting, pairs, threads, True, scratch),
    }
    rows = []
    try:
        for clock in (time.perf_counter, processor):
            times = {
                name: median(values) / (records if name == "packstore.convert" else len(pairs))
                for name, values in in_turn(jobs, repeats, clock).items()
            }
            what = "images/s" if clock is time.perf_counter else "µs of processor an image"
            for name, seconds in times.items():
                rate = f"{1 / seconds:,.0f}" if clock is time.perf_counter else f"{seconds * 1e6:,.0f}"
                rows.append([name, f"{rate} {what}", f"{seconds / times['packstore.convert']:.2f}"])
    finally:
        shutil.rmtree(scratch)
    return table([f"rewriting, {threads} threads", "", "convert's share of its speed"], rows)


def crops(made: list[bytes], wanted: list[Box], repeats: int) -> str:
    """Single thread, processor time: one image after the other, whole and as crops."""
    rows = []
    for name, what in available_decoders().items():
        if what.startswith(UNAVAILABLE):
            continue
        decoder = get_decoder(name)
        times = in_turn(
            {"whole": lambda d=decoder: whole(d, made), "crop": lambda d=decoder: parts(d, made, wanted)},  # type: ignore[misc]
            repeats,
            time.thread_time,
        )
        each = {key: median(values) / len(made) * 1e6 for key, values in times.items()}
        rows.append([name, f"{each['whole']:.0f}", f"{each['crop']:.0f}", f"{each['whole'] / each['crop']:.2f}"])
    return table(["decoder", "whole, µs", "crop, µs", "times as fast"], rows)


def fused(files: list[bytes], made: list[bytes], wanted: list[Box], repeats: int) -> str:
    """The engine's crops, resized, in calls for a batch; and the same by TurboJPEG and torch. Single thread."""
    engine = get_engine()
    if engine is None:
        return ""
    rows = []
    for name, sources in (("original", files), ("seekable", made)):
        jobs: dict[str, Callable[[], None]] = {"engine": partial(batches, engine, sources, wanted)}
        for other in ("turbojpeg", "simplejpeg"):
            if not available_decoders()[other].startswith(UNAVAILABLE):
                jobs[other] = partial(resized, get_decoder(other), sources, wanted)
        times = in_turn(jobs, repeats, time.thread_time)
        for other in list(jobs)[1:]:
            ratio = median(b / a for a, b in zip(times["engine"], times[other], strict=True))
            each = [median(times[key]) / len(sources) * 1e6 for key in ("engine", other)]
            rows.append([name, other, f"{each[0]:.0f}", f"{each[1]:.0f}", f"{ratio:.2f}"])
    return table(["crops of 224", "beside", "engine, µs", "other, µs", "times as fast"], rows)


def batches(engine: Engine, files: list[bytes], wanted: list[Box]) -> None:
    """As the loader does it."""
    out = np.empty((BATCH, SIDE, SIDE, 3), np.uint8)
    for first in range(0, len(files), BATCH):
        requests, boxes = Requests(files[first : first + BATCH]), np.array(wanted[first : first + BATCH])
        requests.sizes()
        sizes, windows = np.full((len(boxes), 2), SIDE), np.tile([0, 0, SIDE, SIDE], (len(boxes), 1))
        requests.want(boxes, sizes, windows, None, out[: len(boxes)])
        engine.run(requests, 0, len(boxes), MAX_PIXELS)


def resized(decoder: Decoder, files: list[bytes], wanted: list[Box]) -> None:
    for data, box in zip(files, wanted, strict=True):
        resize(decoder.decode_crop(data, box), SIDE, SIDE)


def whole(decoder: Decoder, made: list[bytes]) -> None:
    for data in made:
        decoder.decode(data)


def parts(decoder: Decoder, made: list[bytes], wanted: list[Box]) -> None:
    """As the loader does it: crops are planned a batch at a time."""
    for first in range(0, len(made), BATCH):
        files, boxes = made[first : first + BATCH], wanted[first : first + BATCH]
        indexes = {number: index for number, data in enumerate(files) if (index := read_index(data)) is not None}
        plans = dict(zip(indexes, plan_crops([*indexes.values()], np.array(boxes)[[*indexes]]), strict=True))
        for number, (data, box) in enumerate(zip(files, boxes, strict=True)):
            decoder.decode_crop(data, box, index=indexes.get(number), plan=plans.get(number))


def splicing(made: list[bytes], wanted: list[Box], repeats: int) -> str:
    files: list[tuple[bytes, Any]] = []
    boxes = []
    for data, box in zip(made, wanted, strict=True):
        index = read_index(data)
        if index is not None:
            files.append((data, index))
            boxes.append(box)
    indexes, areas = [index for _, index in files], np.array(boxes, np.int64)

    def read() -> None:
        for data, _ in files:
            read_index(data)

    starts = range(0, len(files), BATCH)

    def plan() -> list[CropPlans]:
        return [plan_crops(indexes[first : first + BATCH], areas[first : first + BATCH]) for first in starts]

    planned = plan()
    plans = [each for part in planned for each in part]

    def cut() -> None:
        for (data, index), wanted in zip(files, plans, strict=True):
            if wanted.height:
                splice(data, index, wanted)

    jobs = {"read": read, "plan": lambda: plan() and None, "cut": cut}
    times = in_turn(jobs, repeats, time.thread_time)
    each = {key: median(values) / len(files) * 1e6 for key, values in times.items()}
    parts = [splice(*file, wanted) if wanted.height else None for file, wanted in zip(files, plans, strict=True)]
    share = sum(len(data if part is None else part) for (data, _), part in zip(files, parts, strict=True))
    return (
        f"Splice: {each['plan'] + each['cut']:.0f} µs an image ({each['plan']:.1f} to plan it, by batches of {BATCH}, "
        f"{each['cut']:.1f} to do it), and {each['read']:.1f} µs to read the index; the parts have "
        f"{share / sum(len(data) for data, _ in files):.0%} of the bytes"
    )


def prices(files: list[bytes], wanted: list[Box], workers: int | None) -> str:
    rows = []
    before = sum(map(len, files))
    for price in (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 10.0):
        rewrite._PRICE = price
        with ThreadPoolExecutor(workers) as pool:
            made = list(pool.map(rewritten, files))
        share = []
        for data, box in zip(made, wanted, strict=True):
            index = read_index(data)
            plan = plan_crop(index, box) if index else None
            share.append(
                plan.height * plan.width / index.height / index.width if index and plan and plan.height else 1.0
            )
        rows.append([f"{price:g}", f"{sum(map(len, made)) / before - 1:+.2%}", f"{np.mean(share):.3f}"])
    return table(["price", "growth", "share of the image decoded"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--prices", action="store_true")
    options = parser.parse_args()
    source = open_source(options.images)
    entries = [options.images / entry.key for entry in source.entries()]
    paths = [path for path in entries if path.read_bytes()[:3] == b"\xff\xd8\xff"]
    files = [path.read_bytes() for path in paths]
    wanted = boxes(files)
    if options.prices:
        print(prices(files, wanted, options.workers))
    else:
        with ThreadPoolExecutor(options.workers) as pool:
            made = list(pool.map(rewritten, files))
        print(sizes(files, made))
        pairs = [
            (*each, index.interval) for each in zip(paths, files, made, strict=True) if (index := read_index(each[2]))
        ]
        print(rewriting(options.images, pairs, options.workers, options.repeats))
        print(splicing(made, wanted, options.repeats))
        print()
        print(crops(made, wanted, options.repeats))
        print()
        print(fused(files, made, wanted, options.repeats))
    print(f"\n{len(files):,} JPEG files; {machine()}")


if __name__ == "__main__":
    main()

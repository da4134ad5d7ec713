#!/usr/bin/env python3
"""``packstore view``: the time until the page is there, of 60 thumbnails, and between frames while one scrolls.

    .venv/bin/python tools/bench/view.py STORE [--records 1290000] [--chromium /usr/bin/chromium]

Of STORE, and of a synthetic one with so many records (as in shards.py). Opening is a fresh process, until it prints its
address. Thumbnails are made by as many threads as there are cores, none of them cached. Needs playwright and Chromium.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from common import machine, table
from playwright.sync_api import sync_playwright
from shards import make_store

from packstore.core.parallel import default_workers
from packstore.seeing.view.images import BrowserImages
from packstore.stores import open_store

REPEATS = 5
THUMBNAILS = 60
SIDE = 192
FRAMES = """() => {
    window.frames_ms = [];
    let last = performance.now();
    const next = (now) => { window.frames_ms.push(now - last); last = now; requestAnimationFrame(next); };
    requestAnimationFrame(next);
}"""


@contextmanager
def running(store: Path) -> Iterator[tuple[str, float]]:
    """The address of a server for ``store``, and the seconds until it was printed."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "packstore", "view", str(store), "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip(), time.perf_counter() - began
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()


def opening(store: Path) -> tuple[float, float]:
    """Median seconds until the address, and median processor seconds of the whole process."""
    waits, used = [], []
    for _ in range(REPEATS):
        before = os.times()
        with running(store) as (_, seconds):
            waits.append(seconds)
        after = os.times()
        used.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return median(waits), median(used)


def thumbnails(store: Path) -> tuple[float, float]:
    """Median seconds and processor seconds of 60 thumbnails, each time of other records."""
    waits, used = [], []
    with open_store(store) as reader, ThreadPoolExecutor(default_workers()) as pool:
        for repeat in range(REPEATS):
            images = BrowserImages(reader)
            records = [(repeat * THUMBNAILS + i) % len(reader) for i in range(THUMBNAILS)]
            began, cpu = time.perf_counter(), time.process_time()
            list(pool.map(lambda record, images=images: images.get_thumbnail(record, SIDE), records))
            waits.append(time.perf_counter() - began)
            used.append(time.process_time() - cpu)
    return median(waits), median(used)


def scrolling(store: Path, browser: Any) -> tuple[float, float, float]:
    """Seconds until the first tile, and median and 95th percentile of milliseconds between frames while scrolling."""
    with running(store) as (address, _):
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        began = time.perf_counter()
        page.goto(address)
        page.wait_for_selector("#place-0 img")
        first = time.perf_counter() - began
        page.mouse.move(700, 500)
        page.evaluate(FRAMES)
        for _ in range(150):
            page.mouse.wheel(0, 120)
            page.wait_for_timeout(16)
        frames = sorted(page.evaluate("window.frames_ms"))
        page.close()
    return first, median(frames), frames[int(len(frames) * 0.95)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--records", type=int, default=1_290_000)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    print(machine())
    rows = []
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        large = Path(place) / "synthetic"
        make_store(large, "lmdb", options.records // 10_000, 10_000)
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        for store in (options.store, large):
            wait, used = opening(store)
            rows.append([store.name, "until the address", f"{wait:.2f} s", f"{used:.2f} s"])
            wait, used = thumbnails(store)
            rows.append([store.name, f"{THUMBNAILS} thumbnails of {SIDE} pixels", f"{wait:.2f} s", f"{used:.2f} s"])
            first, middle, late = scrolling(store, browser)
            rows.append([store.name, "until the first tile in the browser", f"{first:.2f} s", ""])
            rows.append([store.name, "between frames, median", f"{middle:.1f} ms", ""])
            rows.append([store.name, "between frames, 95th percentile", f"{late:.1f} ms", ""])
        browser.close()
    print(table(["store", "what", "time", "processor time"], rows))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""packstore beside the loaders of others: the same images, threads, work and run.

    .venv/bin/python tools/bench/peers.py --images IMAGES --cifar CIFAR-10-BATCHES-PY [--quick] [--out DIR]
    .venv/bin/python tools/bench/peers.py --images IMAGES --only jpeg q90 --threads 2 --repeats 5

IMAGES is an image folder (root/class/…; of root/train/class/… the training split), CIFAR-10-BATCHES-PY the folder of
that name. Written to DIR (default: `peers-results` in the working directory): `peers.md`, `peers.json`, and
`peers.png` where matplotlib is installed. With all peers and both datasets on two cores a run takes about 25 minutes,
with --quick about 10.

All give uint8 batches in random order, page cache warm (TurboLoader float32 from 0 to 1: it has no other):

- jpeg: the files as they are, of 224: random resized crop and flip, antialiased unless the table says otherwise; by an
  LMDB of them, and by the others each in its own way.
- q90: records encoded anew as JPEG of quality 90 at their size, by each packer itself (all 4:2:0); FFCV's `jpg`.
- raw: uint8 with the longer side at most 256; FFCV's `raw`.
- cifar: 32 x 32 pixels, batches of 512, random crop (padding 4) and flip.
- scale: packstore's opening, first batch, epoch and memory with 10,000, 100,000 and 1,000,000 records.

Columns: *packing* is the time to write what a loader needs, with as many workers as threads, its imports included
(median of --packs), *MB on disk* what that takes (of those that read the files, the files). *Cold* is the rate of one
pass through the images from opening on, in a fresh process, after the system was told to forget the files; what is
compiled or started for the first time (FFCV: some seconds; worker processes) is in it. *Peak memory* is of an epoch
that is not timed, of all processes of a loader together, shared memory once, without the page cache. *Cores busy* is
processor time by the clock: it shows who takes more threads than were given. In italics stands what is no loader but a
limit of the machine.

Every loader lives in a process of its own, since importing FFCV alone changes torch's number of threads. Before the
clock starts, each shows that it loads every image: an epoch of whole images is compared with what Pillow makes of the
files. Then comes an epoch for warm-up, and the epochs that count, in turn (A B C A B C …). An epoch begins with nothing
prefetched and ends with nothing under way; it goes through the images several times where they are few, so that
starting up does not count.

TurboLoader takes a thread a core, whatever --threads says.

A peer that is not installed is skipped, by name. To install them, beside packstore and its constraints:

    pip install -c tools/constraints.txt -e '.[peers,plot]'
    pip install --no-deps mosaicml-streaming==0.13.0         # it wants a numpy and an xxhash that are older than ours
    pip install -c tools/constraints.txt brotli python-snappy zstd catalogue 'transformers<5' boto3
    pip install -c tools/constraints.txt numpy astunparse gast makefun nvtx optree packaging six
    pip install -c tools/constraints.txt --no-deps nvidia-dali-cuda120==2.4.0 nvidia-nvimgcodec-cu12==0.9.0.20
    apt-get install g++ pkg-config libopencv-dev libturbojpeg0-dev libavdevice59   # (FFmpeg 5, for SPDL: Debian 12)
    pip install -c tools/constraints.txt setuptools wheel assertpy fastargs numba opencv-python-headless psutil \
        pytorch_pfn_extras terminaltables
    pip install -c tools/constraints.txt --no-deps --no-build-isolation ffcv==1.0.2

DALI then runs without a GPU, and says of some codecs for GPUs that it cannot load them. FFCV exists as source only.
torchvision has to be the release that goes with torch (0.28 with 2.13); its build for CUDA will do beside a CPU torch.
LitData empties the folders that it works in, which are /tmp/chunks and /tmp/data by default: here it has its own.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import peers_cifar
import peers_images
import peers_report
import peers_scale
import peers_task
import torch
from common import machine
from numpy.typing import NDArray
from peers_task import Contender, Task

from packstore import PackedDataset, convert
from packstore.sources import open_source

CROP = "random resized crop to 224 and flip, uint8, batches of 256"
CIFAR_EPOCHS = 16
"""Epochs over CIFAR have that many times the images of the others: they are a fiftieth of the pixels."""
RECORDS = (10_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class Workload:
    title: str
    work: str
    convert: dict[str, Any]
    contenders: tuple[Contender, ...]


WORKLOADS = {
    "jpeg": Workload("JPEG files as they are", CROP, {"encoding": "original"}, peers_images.JPEG),
    "q90": Workload(
        f"JPEG encoded anew, quality {peers_images.QUALITY}",
        CROP,
        {"encoding": "jpeg", "quality": peers_images.QUALITY},
        peers_images.Q90,
    ),
    "raw": Workload(
        f"uint8, longer side at most {peers_images.MAX_SIDE}",
        CROP,
        {"encoding": "uint8", "max_side": peers_images.MAX_SIDE},
        peers_images.RAW,
    ),
    "cifar": Workload(
        "CIFAR-10", "random crop (padding 4) and flip, uint8, batches of 512", {"encoding": "uint8"}, peers_cifar.CIFAR
    ),
}


class Member:
    """A contender in its process."""

    def __init__(self, contender: Contender, task: Task, process: ProcessPoolExecutor) -> None:
        self.contender, self.task, self._process = contender, task, process
        self.cores: list[float] = []
        self.seconds: list[float] = []

    @property
    def pid(self) -> int:
        (pid,) = self._process._processes
        return pid

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._process.submit(function, *arguments).result()

    def epoch(self) -> None:
        """One that counts."""
        cpu, start = peers_task.cpu_seconds(self.pid), time.perf_counter()
        seconds = float(self.ask(peers_task.epoch))
        self.cores.append((peers_task.cpu_seconds(self.pid) - cpu) / (time.perf_counter() - start))
        self.seconds.append(seconds)

    def peak_memory(self) -> int:
        """Of an epoch, looked at ten times a second."""
        peak, done = 0, threading.Event()

        def watch() -> None:
            nonlocal peak
            while not done.wait(0.1):
                peak = max(peak, peers_task.memory_bytes(self.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            self.ask(peers_task.epoch)
            return max(peak, peers_task.memory_bytes(self.pid))
        finally:
            done.set()
            watcher.join()

    def paths(self) -> list[Path]:
        """What it reads."""
        if self.task.data is not None:
            return [self.task.data]
        return [Path(file) for file in self.task.files] or [self.task.source]


@contextmanager
def member(contender: Contender, task: Task) -> Iterator[Member]:
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        yield Member(contender, task, process)


def run(workload: Workload, task: Task, expected: NDArray[np.float32], options: argparse.Namespace) -> dict[str, Any]:
    """Everything of one workload; what is printed is for whoever waits."""
    title = f"{workload.title}: {task.count:,} images, {options.threads} thread(s)"
    print(f"## {title}", file=sys.stderr, flush=True)
    # Twice all images where they are few: DALI may begin amid them, and shuffle buffers hold some back.
    seen = _whole(2 * task.count if task.count < 10_000 else task.count + task.count // 4, task)
    skipped: list[dict[str, str]] = []
    members: list[Member] = []
    packing: dict[str, float | None] = {}
    with ExitStack() as stack:
        for number, contender in enumerate(workload.contenders):
            one = stack.enter_context(member(contender, replace(task, own=task.own / str(number))))
            reason = one.ask(peers_task.missing, contender.modules)
            if reason is None:
                try:
                    packing[contender.name] = _pack(one, options.packs)
                    worst = one.ask(peers_task.check, contender, replace(one.task, images=seen), expected)
                    one.ask(peers_task.prepare, contender, one.task)
                    one.ask(peers_task.epoch)  # for warm-up
                except Exception as error:  # one that fails must not take the others with it
                    reason = f"failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            if reason is not None:
                skipped.append({"name": contender.name, "reason": reason})
                print(f"skipped: {contender.name} ({reason})", file=sys.stderr, flush=True)
                continue
            print(f"{contender.name}: every image comes, at most {worst:.1f} of 255 off", file=sys.stderr, flush=True)
            members.append(one)
        for _ in range(options.repeats):
            for one in members:
                one.epoch()
        memory = {one.contender.name: one.peak_memory() for one in members}
    rows = []
    for one in members:
        contender = one.contender
        # A loader of its own in a fresh process: what is mapped cannot be forgotten. Limits hold all in memory.
        cold = None if contender.limit or options.no_cold else _cold(one)
        rows.append(
            {
                "name": contender.name,
                "label": contender.label,
                "ours": contender.package == "packstore",
                "limit": contender.limit,
                "images_per_second": 1 / median(one.seconds),
                "runs": [1 / seconds for seconds in one.seconds],
                "cores_busy": median(one.cores),
                "memory_mb": memory[contender.name] / 1e6,
                "packing_s": None if contender.limit else packing[contender.name],
                "bytes": None if contender.limit else peers_task.disk_bytes(one.paths()),
                "cold": cold,
            }
        )
    work = f"{task.count:,} images, {workload.work}; {options.threads} threads or worker processes"
    return {"title": workload.title, "work": work, "images": task.count, "rows": rows, "skipped": skipped}


def _pack(one: Member, repeats: int) -> float | None:
    """Packs so many times, each to a folder of its own; the median of seconds. The loader gets the last one."""
    if one.contender.pack is None:
        return None
    seconds, own = [], one.task.own
    for number in range(repeats):
        one.task = replace(one.task, own=own / str(number), data=None)
        taken, data = one.ask(peers_task.pack, one.contender, one.task)
        one.task = replace(one.task, data=data)
        seconds.append(taken)
    return median(seconds)


def _cold(one: Member) -> float:
    task = replace(one.task, images=_whole(one.task.count, one.task))
    with member(one.contender, task) as fresh:
        fresh.ask(peers_task.missing, one.contender.modules)  # the imports come first, and do not count
        peers_task.forget(one.paths())
        return 1 / float(fresh.ask(peers_task.cold, one.contender, task))


def image_task(source: Path, own: Path, options: argparse.Namespace, settings: dict[str, Any]) -> Task:
    split = "train" if (source / "train").is_dir() else None
    files = tuple(str(source / entry.key) for entry in open_source(source).entries(split))
    return Task(files, len(files), source, split, own, options.epoch, options.threads, 256, 224, settings)


def cifar_task(source: Path, own: Path, options: argparse.Namespace, settings: dict[str, Any]) -> Task:
    own.mkdir(parents=True)
    store = convert(source, own / "pixels.h5", encoding="uint8").destination
    pixels = PackedDataset(store, "train", columns=("image",), output="numpy")
    np.save(own / "pixels.npy", np.stack([pixels[number] for number in range(len(pixels))]))
    images, file = CIFAR_EPOCHS * options.epoch, own / "pixels.npy"
    return Task((), len(pixels), source, "train", own, images, options.threads, 512, 32, settings, file)


def _whole(count: int, task: Task) -> int:
    """``count`` images or a few more, so that each worker has whole batches."""
    each = task.batch * task.threads
    return -(-count // each) * each


def measure(name: str, scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    workload = WORKLOADS[name]
    if options.peers:
        wanted = tuple(c for c in workload.contenders if any(p.lower() in c.name.lower() for p in options.peers))
        workload = replace(workload, contenders=wanted)
    if name == "cifar":
        task = cifar_task(options.cifar.resolve(), scratch / "own", options, workload.convert)
        expected = peers_task.cells(np.load(scratch / "own" / "pixels.npy"))
    else:
        task = image_task(options.images.resolve(), scratch / "own", options, workload.convert)
        expected = peers_task.pillow(task.files, task.size)
    return run(workload, replace(task, images=_whole(task.images, task)), expected, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="an image folder, for jpeg, q90 and raw")
    parser.add_argument("--cifar", type=Path, help="cifar-10-batches-py, for cifar")
    parser.add_argument("--only", nargs="+", choices=[*WORKLOADS, "scale"], default=[*WORKLOADS, "scale"])
    parser.add_argument("--peers", nargs="+", metavar="NAME", help="only contenders whose name contains one of these")
    parser.add_argument("--quick", action="store_true", help="shorter epochs, three of them, one packing, no 1,000,000")
    parser.add_argument("--repeats", type=int, help="epochs that count (default: 5; --quick: 3)")
    parser.add_argument("--packs", type=int, help="packings (default: 3; --quick: 1)")
    parser.add_argument("--epoch", type=int, help="images an epoch, at least (default: 4096; --quick: 1536)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-cold", action="store_true", help="leave the cold page cache out")
    parser.add_argument("--scratch", type=Path, help="where to write what is packed (default: a temporary directory)")
    parser.add_argument("--out", type=Path, default=Path("peers-results"), help="where the results go")
    options = parser.parse_args()
    for name, full, quick in (("repeats", 5, 3), ("packs", 3, 1), ("epoch", 4096, 1536)):
        if getattr(options, name) is None:
            setattr(options, name, quick if options.quick else full)
    results: dict[str, Any] = {
        "machine": f"{machine()}, torch {torch.__version__}",
        "how": f"Medians of {options.repeats} epochs, each loader in a process of its own, all in turn",
        "workloads": [],
        "scale": [],
    }
    began = time.perf_counter()
    for name in options.only:
        needed = "cifar" if name == "cifar" else "images"
        if name != "scale" and getattr(options, needed) is None:
            print(f"skipped: {name} (no --{needed})", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
            if name == "scale":
                for records in RECORDS[:2] if options.quick else RECORDS:
                    print(f"## {records:,} records", file=sys.stderr, flush=True)
                    results["scale"] += peers_scale.measure(Path(scratch), records, options.threads, options.repeats)
            else:
                results["workloads"].append(measure(name, Path(scratch), options))
        results["seconds"] = time.perf_counter() - began
        written = peers_report.write(results, options.out)  # after each, so that an interrupted run leaves something
    print(peers_report.markdown(results))
    print("written: " + ", ".join(map(str, written)), file=sys.stderr)


if __name__ == "__main__":
    main()

"""The cases of against.py, and the process that runs them with one revision of packstore.

    python tools/bench/against_cases.py work SOURCES STORES IMAGES    answers lines of standard input: see `work`
    python tools/bench/against_cases.py first STORE                   prints the seconds until the first batch
    python tools/bench/against_cases.py stream STORE                  loads two epochs

PYTHONPATH names the revision. The cases use only the public functions that packstore had on 2026-11-23: an older
revision that lacks something fails in `prepare`, and is reported as n/a.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # against.py imports this file, and has to stay small: a child's peak memory begins with its parent's
    import torch

THREADS = 2
"""Threads of torch, of loaders and of conversions, on any machine."""
PHOTOS = 500
SMALL_FILES = 5000
CIFAR_BATCHES = 5
SEED = 2026

Work = Callable[[Path], object]
"""One turn of a case, which may write to the path, a new one each time."""


@dataclass(frozen=True)
class Case:
    """What one turn does: ``make_work`` in a worker, or ``command`` in a process of its own."""

    about: str
    make_work: Callable[[Worker], Work] | None = None
    command: Callable[[Path, Path, Path], list[str]] | None = None  # of sources, stores and a new path
    sources: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    memory: bool = False
    """Compare the peak memory of ``command``, not its time."""
    large: bool = False
    """Holds hundreds of megabytes: is made, and run once to warm up, before each turn, and dropped after it."""


class Worker:
    """Makes sources and stores on first use, and runs cases."""

    def __init__(self, sources: Path, stores: Path, images: Path | None) -> None:
        self.sources, self.stores, self.images = sources, stores, images
        self.works: dict[str, Work] = {}
        self.turns = 0

    def get_source(self, name: str) -> Path:
        """Returns a source, which both revisions read. Makes it on first use."""
        path = self.sources / name
        if not path.exists():
            partial_path = self.sources / f"{name}.part"
            SOURCES[name](partial_path, self.images)
            partial_path.rename(path)
        return path

    @cache  # noqa: B019 - one worker a process
    def get_store(self, name: str) -> Path:
        """Returns a store. Packs it on first use."""
        import packstore

        source, options = STORES[name]
        packstore.convert(self.get_source(source), self.stores / name, workers=THREADS, **options)
        return self.stores / name

    def load(self, store: str, batch_size: int, **options: Any) -> Iterator[Any]:
        """Returns a loader of all records."""
        from packstore import PackedDataset, PackedLoader

        split = "train" if store.startswith("cifar") else None
        dataset = PackedDataset(self.get_store(store), split)
        return PackedLoader(dataset, batch_size, shuffle=True, workers=THREADS, **options)

    def prepare(self, name: str) -> None:
        """Makes what a case needs, and runs the case once to warm it up."""
        case = CASES[name]
        for source in case.sources:
            self.get_source(source)
        for store in case.stores:
            self.get_store(store)
        if case.make_work is not None:
            self.run(name)

    def run(self, name: str) -> dict[str, float]:
        """Runs a case once; returns its wall-clock and CPU seconds, child processes included."""
        case, work = CASES[name], self.works.pop(name, None)
        if work is None:
            assert case.make_work is not None
            work = case.make_work(self)
            self.time(work)
        seconds = self.time(work)
        if not case.large:
            self.works[name] = work
        return seconds

    def time(self, work: Work) -> dict[str, float]:
        self.turns += 1
        out = self.stores / f"out-{self.turns}.lmdb"
        begin, cpu = time.perf_counter(), cpu_seconds()
        work(out)
        seconds = {"wall": time.perf_counter() - begin, "cpu": cpu_seconds() - cpu}
        shutil.rmtree(out, ignore_errors=True)
        return seconds


def cpu_seconds() -> float:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


# --- sources ----------------------------------------------------------------------------------------------------------


def make_photos(path: Path, images: Path | None) -> None:
    """Writes 500 JPEG files to 500 folders."""
    for number in range(PHOTOS):
        write_photo(path / f"class{number:03}" / f"{number:03}.jpg", number, images)


def make_eight(path: Path, images: Path | None) -> None:
    """Writes 8 photos to 2 folders."""
    for number in range(8):
        write_photo(path / f"class{number % 2}" / f"{number}.jpg", number, images)


def write_photo(path: Path, number: int, images: Path | None) -> None:
    """Copies a JPEG file of a folder of images; without such a folder draws clouds with grain, of 500 x 375 pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if images is not None:
        given = list_images(images)
        shutil.copyfile(given[number % len(given)], path)
        return
    import numpy as np
    from PIL import Image

    random = np.random.default_rng((SEED, number))
    size = (500, 375) if number % 4 else (375, 500)
    pixels = random.standard_normal((*size[::-1], 1), np.float32) * 5
    for cells in (6, 48):  # coarse and fine, as in a photo
        noise = Image.fromarray(random.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        pixels = pixels + np.asarray(noise.resize(size, Image.Resampling.BICUBIC), np.float32) / 2
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90, subsampling="4:2:0")


@cache
def list_images(folder: Path) -> list[Path]:
    """Returns the JPEG files below a folder, sorted. Raises ValueError if there are none."""
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not found:
        raise ValueError(f"{folder} has no .jpg or .jpeg file")
    return found


def make_small(path: Path, images: Path | None) -> None:
    """Writes 5,000 JPEG files of 32 x 32 random pixels to 10 folders."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(SEED)
    for number in range(SMALL_FILES):
        folder = path / f"class{number % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:04}.jpg", quality=90)


def make_cifar(path: Path, images: Path | None) -> None:
    """Writes CIFAR-10's own files, with 50,000 random images to train, and 10,000 to test."""
    import numpy as np

    path.mkdir()
    random = np.random.default_rng(SEED)
    for name in (*(f"data_batch_{number + 1}" for number in range(CIFAR_BATCHES)), "test_batch"):
        pixels = random.integers(0, 256, (10_000, 3072), dtype=np.uint8)
        files = [f"{name}-{number}.png".encode() for number in range(10_000)]
        batch = {b"data": pixels, b"labels": random.integers(0, 10, 10_000).tolist(), b"filenames": files}
        (path / name).write_bytes(pickle.dumps(batch, protocol=2))
    names = {b"label_names": [f"class{number}".encode() for number in range(10)]}
    (path / "batches.meta").write_bytes(pickle.dumps(names, protocol=2))


SOURCES: dict[str, Callable[[Path, Path | None], None]] = {
    "photos": make_photos,
    "eight": make_eight,
    "small": make_small,
    "cifar-10-batches-py": make_cifar,
}
STORES: dict[str, tuple[str, dict[str, Any]]] = {
    "photos.lmdb": ("photos", {}),
    "small.lmdb": ("small", {}),
    "square.lmdb": ("photos", {"encoding": "uint8", "size": 160}),
    "cifar.lmdb": ("cifar-10-batches-py", {"encoding": "uint8", "split": "train"}),
    "cifar.pth": ("cifar-10-batches-py", {"encoding": "float16", "split": "train"}),
}


# --- cases ------------------------------------------------------------------------------------------------------------


def resized_crop() -> list[Any]:
    from packstore.augment import RandomHorizontalFlip, RandomResizedCrop

    return [RandomResizedCrop(224), RandomHorizontalFlip()]


def padded_crop(size: int, padding: int = 0) -> list[Any]:
    from packstore.augment import RandomCrop, RandomHorizontalFlip

    return [RandomCrop(size, padding=padding), RandomHorizontalFlip()]


def load_epochs(
    store: str, batch_size: int, epochs: int, augment: Callable[[], Any] | None = None, **options: Any
) -> Callable[[Worker], Work]:
    """Returns what makes a turn of ``epochs`` epochs, by a loader that is made once."""

    def make_work(worker: Worker) -> Work:
        loader = worker.load(store, batch_size, **options, **({} if augment is None else {"augment": augment()}))

        def work(out: Path) -> None:
            for _ in range(epochs):
                for images, *_others in loader:  # kept until the next ones are there, as in any training loop
                    assert len(images)

        return work

    return make_work


def load_halves(epochs: int, augment: Callable[[], Any] | None = None) -> Callable[[Worker], Work]:
    """Returns what loads CIFAR as float16, which some revisions give only if asked."""

    def make_work(worker: Worker) -> Work:
        import torch

        return load_epochs("cifar.pth", 512, epochs, augment, resident=True, dtype=torch.float16)(worker)

    return make_work


def gather(worker: Worker) -> Work:
    """Gathers the rows of CIFAR-10's resident epochs, without packstore."""
    import torch

    batches = list(worker.load("cifar.lmdb", 512, resident=True))
    images: torch.Tensor = torch.cat([images for images, *_others in batches]).contiguous()
    labels: torch.Tensor = torch.cat([labels for _images, labels, *_others in batches])
    del batches

    def work(out: Path) -> None:
        for _ in range(CIFAR_EPOCHS):
            for rows in torch.randperm(len(images)).split(512):
                batch = torch.index_select(images, 0, rows)
                assert len(batch) == len(torch.index_select(labels, 0, rows))

    return work


def read_items(store: str, count: int) -> Callable[[Worker], Work]:
    def make_work(worker: Worker) -> Work:
        from packstore import PackedDataset

        dataset = PackedDataset(worker.get_store(store), "train" if store.startswith("cifar") else None)
        numbers = [number * 7919 % len(dataset) for number in range(count)]

        def work(out: Path) -> None:
            for number in numbers:
                dataset[number]

        return work

    return make_work


def load_by_torch(worker: Worker) -> Work:
    """Loads 10,000 items of CIFAR-10 by torch's DataLoader with two processes."""
    from torch.utils.data import DataLoader, Subset

    from packstore import PackedDataset

    dataset = Subset(PackedDataset(worker.get_store("cifar.lmdb"), "train"), range(10_000))
    loader = DataLoader(dataset, 256, shuffle=True, num_workers=2)
    return lambda out: [len(images) for images, _labels in loader]


def pack(source: str, times: int = 1, **options: Any) -> Callable[[Worker], Work]:
    def make_work(worker: Worker) -> Work:
        import packstore

        path = worker.get_source(source)

        def work(out: Path) -> None:
            for number in range(times):
                packstore.convert(path, out / f"{number}.lmdb", workers=THREADS, **options)

        def work_in_folder(out: Path) -> None:
            out.mkdir()
            work(out)

        return work_in_folder

    return make_work


def check(store: str, times: int) -> Callable[[Worker], Work]:
    def make_work(worker: Worker) -> Work:
        import packstore

        path = worker.get_store(store)
        return lambda out: [packstore.verify(path, workers=THREADS) for _ in range(times)]

    return make_work


def packstore_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "packstore", *arguments]


def convert_command(source: str) -> Callable[[Path, Path, Path], list[str]]:
    return lambda sources, stores, out: packstore_command(
        "convert", str(sources / source), str(out), "--workers", str(THREADS), "--quiet"
    )


def this_command(action: str, store: str) -> Callable[[Path, Path, Path], list[str]]:
    return lambda sources, stores, out: [sys.executable, __file__, action, str(stores / store)]


CIFAR_EPOCHS = 4
GATHER, GATHERED = "bare-gather", "cifar-uint8"
"""A case without packstore, and the one it is the goal of."""

CASES: dict[str, Case] = {
    "jpeg": Case("JPEG, resized crop and flip", load_epochs("photos.lmdb", 64, 1, resized_crop)),
    "jpeg-normalize": Case(
        "JPEG, crop, flip and normalised float32", load_epochs("photos.lmdb", 64, 1, resized_crop, normalize="imagenet")
    ),
    "recipe": Case(
        "JPEG, recipe torchvision-resnet50-v2",
        load_epochs("photos.lmdb", 64, 1, lambda: "torchvision-resnet50-v2"),
    ),
    "uint8-streaming": Case(
        "uint8 160 x 160 streaming, crop and flip",
        load_epochs("square.lmdb", 64, 10, partial(padded_crop, 128), resident=False),
    ),
    "uint8-resident": Case(
        "uint8 160 x 160 resident, crop and flip",
        load_epochs("square.lmdb", 64, 10, partial(padded_crop, 128), resident=True),
    ),
    GATHER: Case("torch.index_select of CIFAR's rows alone", gather, large=True),
    GATHERED: Case("CIFAR uint8 resident", load_epochs("cifar.lmdb", 512, CIFAR_EPOCHS, resident=True), large=True),
    "cifar-uint8-crop": Case(
        "CIFAR uint8 resident, crop and flip",
        load_epochs("cifar.lmdb", 512, 2, partial(padded_crop, 32, 4), resident=True),
        large=True,
    ),
    "cifar-float16": Case("CIFAR float16 resident", load_halves(2), large=True),
    "cifar-float16-crop": Case(
        "CIFAR float16 resident, crop and flip",
        load_halves(2, partial(padded_crop, 32, 4)),
        large=True,
    ),
    "items": Case("ds[i] of CIFAR uint8", read_items("cifar.lmdb", 3000)),
    "items-jpeg": Case("ds[i] of JPEG", read_items("photos.lmdb", 100)),
    "torch-dataloader": Case("torch's DataLoader, 2 processes, CIFAR uint8", load_by_torch),
    "pack-8": Case("convert 8 photos, whole command", command=convert_command("eight"), sources=("eight",)),
    "pack-small": Case("pack 5,000 small files in 10 folders", pack("small")),
    "pack-small-no-index": Case("pack 5,000 small files without seek index", pack("small", index=False)),
    "pack-folders": Case("pack 500 photos in 500 folders", pack("photos")),
    "pack-folders-no-index": Case("pack 500 photos without seek index", pack("photos", 2, index=False)),
    "verify": Case("verify 5,000 small files", check("small.lmdb", 2)),
    "first-batch": Case(
        "open and first batch, torch imported",
        command=this_command("first", "photos.lmdb"),
        stores=("photos.lmdb",),
    ),
    "help": Case("packstore --help", command=lambda sources, stores, out: packstore_command("--help")),
    "memory-load": Case(
        "peak memory: two epochs of JPEG",
        command=this_command("stream", "photos.lmdb"),
        stores=("photos.lmdb",),
        memory=True,
    ),
    "memory-pack": Case(
        "peak memory: convert 500 photos", command=convert_command("photos"), sources=("photos",), memory=True
    ),
}


# --- processes --------------------------------------------------------------------------------------------------------


def first(store: Path) -> None:
    """Prints the seconds from the import of packstore to the first batch, as JSON."""
    import torch  # noqa: F401 - its own import takes most of the time, and is the same for all revisions

    begin, cpu = time.perf_counter(), cpu_seconds()
    stream(store, batches=1)
    print(json.dumps({"wall": time.perf_counter() - begin, "cpu": cpu_seconds() - cpu}))


def stream(store: Path, batches: int | None = None) -> None:
    """Loads two epochs, or the first batches."""
    from packstore import PackedDataset, PackedLoader

    loader = PackedLoader(PackedDataset(store), 64, shuffle=True, workers=THREADS, augment=resized_crop())
    for _ in range(2):
        for number, _batch in enumerate(loader, 1):
            if number == batches:
                return


def work(sources: Path, stores: Path, images: str) -> None:
    """Answers each line ``[ACTION, CASE]`` with a line: measured values, or ``{"failed": reason}`` of ``prepare``."""
    worker = Worker(sources, stores, Path(images) if images else None)
    for line in sys.stdin:
        action, name = json.loads(line)
        answer: dict[str, float] | dict[str, str] = {}
        if action == "run":
            answer = worker.run(name)
        else:
            try:
                worker.prepare(name)
            except Exception as error:  # an older revision may lack anything
                answer = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    import packstore

    # A mistake here would compare a revision with itself.
    assert Path(packstore.__file__).is_relative_to(os.environ["PYTHONPATH"]), packstore.__file__
    action, *paths = sys.argv[1:]
    if action == "work":
        work(Path(paths[0]), Path(paths[1]), paths[2])
    else:
        {"first": first, "stream": stream}[action](Path(paths[0]))

#!/usr/bin/env python3
"""`Writer` against `convert`: how much slower is it to hand over samples one by one?

    .venv/bin/python tools/bench/writer.py IMAGES [IMAGES ...] [--repeats 5]

For each image folder with classes, in turn and with a warm page cache, into one LMDB: `convert` of the folder;
a `Writer` that gets the same keys, bytes and labels from a generator that reads the files; `convert` of that generator;
and `convert` of a list of paths. The figures are images a second, and their share of the first.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import interleaved, machine, table, timed

import packstore


def listed(images: Path, scratch: Path) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Keys, paths and labels of a folder in packing order, and its classes."""
    packstore.convert(images, scratch / "list.lmdb")
    with packstore.open(scratch / "list.lmdb") as store:
        keys = [store.key(i) for i in range(len(store))]
        labels = store.fixed_column("label").tolist()
        classes = store.manifest.classes
    shutil.rmtree(scratch / "list.lmdb")
    assert classes is not None, f"{images} has no classes"
    samples = zip(keys, labels, strict=True)
    return [{"key": key, "image": images / key, "label": label} for key, label in samples], classes


def measure(images: Path, scratch: Path, repeats: int) -> list[object]:
    samples, classes = listed(images, scratch)
    fields: dict[str, Any] = {"image": "image", "label": packstore.Label(classes)}
    out = scratch / "out.lmdb"

    def read() -> Iterator[dict[str, Any]]:
        for sample in samples:
            with sample["image"].open("rb", buffering=0) as file:
                yield {**sample, "image": file.read()}

    def write() -> None:
        with packstore.Writer(out, fields) as writer:
            for sample in read():
                writer.add(**sample)

    def run(job: Any) -> float:
        shutil.rmtree(out, ignore_errors=True)
        return timed(job)

    seconds = interleaved(
        {
            "convert": lambda: run(lambda: packstore.convert(images, out)),
            "Writer": lambda: run(write),
            "generator": lambda: run(lambda: packstore.convert(read(), out, fields=fields)),
            "paths": lambda: run(lambda: packstore.convert(samples, out, fields=fields)),
        },
        repeats,
    )
    shutil.rmtree(out, ignore_errors=True)
    speeds = [f"{len(samples) / seconds[name]:,.0f}" for name in seconds]
    shares = [f"{seconds['convert'] / seconds[name]:.2f}" for name in list(seconds)[1:]]
    return [images.name, len(samples), *speeds, *shares]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="+", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="where to write (default: a temporary directory)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        rows = [measure(images, Path(scratch), options.repeats) for images in options.images]
    speeds = ["convert/s", "Writer/s", "convert(generator)/s", "convert(paths)/s"]
    print(table(["folder", "images", *speeds, "Writer", "generator", "paths"], rows))
    print(f"\nmedians of {options.repeats}, in one process; {machine()}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Packing against `tar cf`: how long does it take to put a folder of images into one LMDB, checksums and all?

    .venv/bin/python tools/bench/pack.py IMAGES [IMAGES ...] [--repeats 5]

For each image folder, in turn and with a warm page cache: `tar cf` of the folder, `packstore convert` into LMDB (whole
processes; packstore also makes its result durable with fsync, so tar is timed both without and with a following sync of
its file), and the start of the interpreter with packstore's imports. The ratio is (packstore - start) / tar.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from common import interleaved, machine, packstore_command, run_process, table

START = (
    "import packstore.packing.conversion, packstore.stores.lmdb.store, packstore.stores.lmdb.writer, "
    "packstore.sources.imagefolder, packstore.sources.arrays.published, tqdm, packstore.cli"
)


def measure(images: Path, scratch: Path, repeats: int) -> list[object]:
    store, tar = scratch / "out.lmdb", scratch / "out.tar"

    def clean() -> None:
        shutil.rmtree(store, ignore_errors=True)
        tar.unlink(missing_ok=True)

    def wall(command: list[str]) -> float:
        return run_process(command, before=clean).wall

    tar_command = ["tar", "cf", str(tar), "-C", str(images), "."]
    seconds = interleaved(
        {
            "tar": lambda: wall(tar_command),
            "tar+sync": lambda: wall(["sh", "-c", f'"$@" && sync "{tar}"', "sh", *tar_command]),
            "start": lambda: wall([sys.executable, "-c", START]),
            "packstore": lambda: wall([*packstore_command(), "convert", "-q", str(images), str(store)]),
        },
        repeats,
    )
    clean()
    files = sum(1 for path in images.rglob("*") if path.is_file())
    net = seconds["packstore"] - seconds["start"]
    ratios = [f"{net / seconds[name]:.2f}" for name in ("tar", "tar+sync")]
    return [images.name, files, *(f"{seconds[n]:.3f}" for n in ("tar", "tar+sync", "start", "packstore")), *ratios]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="+", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="where to write (default: a temporary directory)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        rows = [measure(images, Path(scratch), options.repeats) for images in options.images]
    header = [
        "folder",
        "files",
        "tar s",
        "tar + sync s",
        "start s",
        "packstore s",
        "ratio to tar",
        "ratio to tar + sync",
    ]
    print(table(header, rows))
    print(f"\nmedians of {options.repeats}; {machine()}")


if __name__ == "__main__":
    main()

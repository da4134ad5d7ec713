#!/usr/bin/env python3
"""Packing from archives against the same bytes put into an LMDB by a bare loop.

    .venv/bin/python tools/bench/archives.py IMAGES [--repeats 5]

IMAGES is an image folder. Its files go into a tar, a zip and a tar.gz; each of these, and the folder, becomes an LMDB.
The bare loop reads as many bytes as the tar has from it, in values of the images' sizes, and appends them to an LMDB in
transactions of 4 MiB, with one sync at the end: no names, no headers, no checksums. All in one process, in turn, with a
warm page cache. The ratio is that of rates: 1 is as fast as the bare loop.
"""

from __future__ import annotations

import argparse
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import lmdb
from common import interleaved, machine, table

from packstore import convert


def bare(tar: Path, sizes: list[int], out: Path) -> None:
    env = lmdb.open(str(out), map_size=1 << 40, sync=False, lock=False)
    with tar.open("rb", buffering=0) as file:
        number = 0
        while number < len(sizes):
            pending, nbytes = [], 0
            while number < len(sizes) and nbytes < 4 << 20:
                pending.append((b"%010d" % number, file.read(sizes[number])))
                nbytes += sizes[number]
                number += 1
            with env.begin(write=True) as txn, txn.cursor() as cursor:
                cursor.putmulti(pending, append=True)
    env.sync(True)
    env.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="where to write (default: a temporary directory)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        folder, out = Path(scratch), Path(scratch, "out.lmdb")
        sizes = [file.stat().st_size for file in options.images.rglob("*") if file.is_file()]
        sources = {"the folder": options.images}
        for name, mode in (("tar", "w"), ("tar.gz", "w:gz")):
            sources[name] = folder / f"set.{name}"
            with tarfile.open(sources[name], mode) as archive:
                archive.add(options.images, "set")
        sources["zip"] = Path(shutil.make_archive(str(folder / "set"), "zip", options.images))

        def seconds(work: Callable[[], object]) -> float:
            shutil.rmtree(out, ignore_errors=True)
            start = time.perf_counter()
            work()
            return time.perf_counter() - start

        found = interleaved(
            {
                "bare loop": lambda: seconds(lambda: bare(sources["tar"], sizes, out)),
                **{name: (lambda path=path: seconds(lambda: convert(path, out))) for name, path in sources.items()},
            },
            options.repeats,
        )
    print(machine())
    lines = [[name, f"{len(sizes) / each:,.0f}", f"{found['bare loop'] / each:.2f}"] for name, each in found.items()]
    print(table(["read from", "images/s", "of the bare loop"], lines))


if __name__ == "__main__":
    main()

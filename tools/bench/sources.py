#!/usr/bin/env python3
"""Packing from formats of others against the same bytes put into an LMDB by a bare loop.

    .venv/bin/python tools/bench/sources.py IMAGES [--repeats 5] [--images 600] [--times 4]

IMAGES is an image folder. Its files, each several times, go into a tar, into WebDataset shards of 100 MB, and into
Parquet files as Hugging Face writes them (row groups of 100 images, uncompressed): what a conversion costs whatever its
size, such as a survey and the syncs of its journal, should count as little as with a data set. Two bare loops stand for
what is wrapped: one reads the tar's bytes in values of the images' sizes, the other reads the image column of the
Parquet files with pyarrow. Both append what they read to an LMDB in transactions of 4 MiB, with one sync at the end: no
names, no checksums. All in one process, in turn, with a warm page cache. The ratio is that of rates: 1 is as fast as
the bare loop.
"""

from __future__ import annotations

import argparse
import io
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import lmdb
import pyarrow as pa
import pyarrow.parquet as pq
from archives import bare
from common import interleaved, machine, table, timed

from packstore import convert

_SHARD_BYTES = 100_000_000
_ROW_GROUP = 100


def write_webdataset(files: list[Path], folder: Path) -> None:
    folder.mkdir()
    number, room = 0, 0
    shard: tarfile.TarFile | None = None
    for index, file in enumerate(files):
        data = file.read_bytes()
        if shard is None or room < len(data):
            if shard is not None:
                shard.close()
            shard = tarfile.open(folder / f"train-{number:06}.tar", "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
            number, room = number + 1, _SHARD_BYTES
        for suffix, content in ((".jpg", data), (".cls", b"%d" % (index % 10))):
            member = tarfile.TarInfo(f"{index:08}{suffix}")
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))
        room -= len(data)
    if shard is not None:
        shard.close()


def write_parquet(files: list[Path], folder: Path) -> None:
    folder.mkdir()
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    features = (
        b'{"info": {"features": {"image": {"_type": "Image"}, "label": {"names": ["a", "b"], "_type": "ClassLabel"}}}}'
    )
    schema = pa.schema([("image", image), ("label", pa.int64())], {b"huggingface": features})
    with pq.ParquetWriter(folder / "train-00000-of-00001.parquet", schema, compression="none") as writer:
        for start in range(0, len(files), _ROW_GROUP):
            some = files[start : start + _ROW_GROUP]
            rows = [{"bytes": file.read_bytes(), "path": file.name} for file in some]
            labels = [index % 2 for index in range(len(some))]
            writer.write_table(pa.table({"image": pa.array(rows, image), "label": labels}, schema=schema))


def read_parquet(folder: Path) -> Iterator[memoryview]:
    for file in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(_ROW_GROUP, columns=["image"]):
            for value in batch.column(0).field("bytes"):
                yield memoryview(value.as_buffer())


def bare_parquet(folder: Path, out: Path) -> None:
    env = lmdb.open(str(out), map_size=1 << 40, sync=False, lock=False)
    pending: list[tuple[bytes, memoryview]] = []
    nbytes = 0

    def append() -> None:
        with env.begin(write=True) as txn, txn.cursor() as cursor:
            cursor.putmulti(pending, append=True)
        pending.clear()

    for number, value in enumerate(read_parquet(folder)):
        pending.append((b"%010d" % number, value))
        nbytes += len(value)
        if nbytes >= 4 << 20:
            append()
            nbytes = 0
    append()
    env.sync(True)
    env.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--images", dest="count", type=int, help="how many of the images (default: all)")
    parser.add_argument("--times", type=int, default=4, help="how often each of them is in the set")
    parser.add_argument("--scratch", type=Path, help="where to write (default: a temporary directory)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        folder, out = Path(scratch), Path(scratch, "out.lmdb")
        files = sorted(file for file in options.images.rglob("*") if file.is_file())[: options.count]
        files *= options.times
        sizes = [file.stat().st_size for file in files]
        tar = folder / "set.tar"
        with tarfile.open(tar, "w") as archive:
            for number, file in enumerate(files):
                archive.add(file, f"set/{file.parent.name}/{number}{file.suffix}")
        write_webdataset(files, folder / "shards")
        write_parquet(files, folder / "parquet")

        def seconds(work: partial[object]) -> float:
            shutil.rmtree(out, ignore_errors=True)
            return timed(work)

        jobs = {
            "bare loop, tar": partial(bare, tar, sizes, out),
            "tar": partial(convert, tar, out),
            "WebDataset": partial(convert, folder / "shards", out),
            "bare loop, pyarrow": partial(bare_parquet, folder / "parquet", out),
            "Parquet": partial(convert, folder / "parquet", out),
        }
        found = interleaved({name: partial(seconds, job) for name, job in jobs.items()}, options.repeats)
    print(machine())
    lines = []
    for name, each in found.items():
        base = found["bare loop, pyarrow" if "arquet" in name or "pyarrow" in name else "bare loop, tar"]
        lines.append([name, f"{len(sizes) / each:,.0f}", f"{base / each:.2f}"])
    print(table(["read from", "images/s", "of its bare loop"], lines))


if __name__ == "__main__":
    main()

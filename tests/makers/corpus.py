"""Writes the fuzzer's seeds that are stores, tables and manifests: ``python -m tests.makers.corpus``.

To be run when the layout of stores changes: what is refused at its first field teaches a fuzzer nothing. Seeds that do
not come from packstore (``old-superblock.h5``, ``v110.h5``, ``torch.pth``) stay as they are.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path

import h5py
import numpy as np

from packstore.stores import open_store
from packstore.testing.records import Records, make_records, write
from tests.internals import Column, Shard, ShardTable
from tests.makers.fuzz_targets import CORPUS

SMALL = [5, 0, 30, 100, 9]


def store_seeds() -> dict[str, Records]:
    """By the file's name in the folder of its format, what a seed holds."""
    kinds = {"ragged": make_records(sizes=SMALL, count=5), "fixed": make_records("float16", 5)}
    kinds["raw"] = make_records("ragged-uint8", 5)
    found = {f"{format}/{name}": records for format in ("hdf5", "pth") for name, records in kinds.items()}
    return found | {
        "hdf5/dense-attributes": kinds["ragged"],
        "hdf5/dense-links": _with_columns(kinds["ragged"], 6),
        "hdf5/typed": make_records("typed", 3, sizes=SMALL[:3]),
        "pth/typed": make_records("typed", 3, sizes=SMALL[:3]),
        "lmdb/ragged": kinds["ragged"],
        "lmdb/overflow": make_records(count=2, sizes=[5000, 4100]),
        "lmdb/two-levels": make_records(count=150, sizes=[100] * 150),
    }


def _with_columns(records: Records, number: int) -> Records:
    """With so many more columns that HDF5 keeps its links in a heap of their own."""
    columns = tuple(Column(f"extra{i}", "fixed", "int64") for i in range(number))
    values = {column.name: np.arange(len(records)) for column in columns}
    return dataclasses.replace(records, columns=records.columns + columns, values=records.values | values)


def main() -> None:
    texts = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, records in store_seeds().items():
            format, _, stem = name.partition("/")
            suffix = {"hdf5": ".h5", "pth": ".pth", "lmdb": ".lmdb"}[format]
            path = Path(folder, name.replace("/", "-") + suffix)
            text = write(path, records).to_json()
            texts[stem if stem == "typed" else format] = text
            if stem == "dense-attributes":
                with h5py.File(path, "r+", libver="latest") as file:
                    for i in range(10):
                        file.attrs[f"a{i}"] = i
            with open_store(path) as reader:
                assert bytes(reader.read(0)) == records.images[0]
            data, seed = (path / "data.mdb", ".mdb") if format == "lmdb" else (path, suffix)
            shutil.copyfile(data, CORPUS / format / (stem + seed))
        sharded = Path(folder, "sharded.pth")
        manifest = write(sharded, make_records(sizes=SMALL, count=5), shard_size=100)
        texts["sharded"] = manifest.to_json()
    for name, text in texts.items():
        (CORPUS / "manifest" / f"{name}.json").write_text(text)
    sha = "ab" * 32
    shards = [Shard(f"shard-{i:05}.h5", i + 1, 1000 * i, 10 * i, sha[:32], sha, sha) for i in range(4)]
    (CORPUS / "shards" / "table").write_bytes(ShardTable.from_shards(shards, ".h5").table.tobytes())


if __name__ == "__main__":
    main()

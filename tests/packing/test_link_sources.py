"""``convert --link`` of every layout and of every export: the dataset of a packed store, or a refusal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import packstore
from packstore.stores import open_store
from tests.internals import EXPORTS, PackstoreError, StoreError, UsageError
from tests.makers.all_layouts import LAYOUTS
from tests.makers.linked import make_source

LINKED = (
    *("MDS", "LitData", "FFCV", "WebDataset", "TFRecord, a file", "COCO", "YOLO", "Pascal VOC"),
    *("image folder", "flat", "captions", "images and masks", "ILSVRC of Kaggle", "cub200, .tar", "Arrow"),
)
"""Layouts that must be linked, all their images or those of their first class."""
COMPRESSED = ("parquet", "npz", "zarr", "hdf5")
"""Exports that keep images otherwise than as ranges of bytes."""
KNOWN = [name for name, (kind, _) in LAYOUTS.items() if kind is not None]


def is_dataset_of(linked: Path, packed: Path) -> None:
    """A linked store has the records of a packed one, and reads them from files."""
    with open_store(linked) as a, open_store(packed) as b:
        assert a.manifest.is_linked
        assert a.manifest.dataset_digest == b.manifest.dataset_digest
        assert [bytes(v) for v in a.views(np.arange(len(a)))] == [bytes(b.read(i)) for i in range(len(b))]
    assert packstore.verify(linked, decode=True).ok


def link_or_refuse(source: object, folder: Path, **options: object) -> str | None:
    """Links a source, and compares that with ``packed.lmdb``; or returns why it is refused, with nothing left."""
    try:
        packstore.convert(source, folder / "linked.lmdb", link=True, **options)  # type: ignore[arg-type]
    except UsageError as error:
        assert not (folder / "linked.lmdb").exists()
        return str(error)
    is_dataset_of(folder / "linked.lmdb", folder / "packed.lmdb")
    return None


@pytest.mark.parametrize("name", KNOWN)
def test_linked_or_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "root").mkdir()
    source = LAYOUTS[name][1](tmp_path / "root")
    options = {"encoding": "original", "on_error": "skip", "alpha": "drop", "depth": "scale", "frames": "first"}
    try:
        packstore.convert(source, tmp_path / "packed.lmdb", **options)  # type: ignore[arg-type]
    except PackstoreError:
        pytest.skip("its images are no files")
    refusal = link_or_refuse(source, tmp_path, **options)
    assert refusal is None or (name not in LINKED and "link" in refusal), refusal


@pytest.mark.parametrize("target", [*EXPORTS])
def test_exports_are_linked_or_refused(tmp_path: Path, target: str) -> None:
    packstore.convert(make_source(tmp_path, "tar"), tmp_path / "a.lmdb")
    packstore.export(tmp_path / "a.lmdb", tmp_path / "out", to=target)
    packstore.convert(tmp_path / "out", tmp_path / "packed.lmdb")
    refusal = link_or_refuse(tmp_path / "out", tmp_path)
    assert refusal is None or (target in COMPRESSED and "link" in refusal), refusal


@pytest.mark.parametrize("format", ["lmdb", "h5", "pth"])
@pytest.mark.parametrize("sharded", [False, True])
def test_stores_are_linked(tmp_path: Path, format: str, sharded: bool) -> None:
    options = {"shard_size": 20_000} if sharded else {}
    packed = tmp_path / f"packed.{format}"
    packstore.convert(make_source(tmp_path, "tar"), packed, encoding="original", **options)  # type: ignore[arg-type]
    packstore.convert(packed, tmp_path / "linked.lmdb", link=True)
    is_dataset_of(tmp_path / "linked.lmdb", packed)
    packstore.convert(tmp_path / "linked.lmdb", tmp_path / "again.h5", link="relative")
    is_dataset_of(tmp_path / "again.h5", packed)
    with open_store(tmp_path / "again.h5") as reader:
        link = bytes(reader.value("link_file", 0)).decode()
    assert link.startswith(f"packed.{format}")
    file = tmp_path / link
    data = bytearray(file.read_bytes())
    with open_store(tmp_path / "again.h5") as reader:
        place = int(reader.value("link_offset", 0)) + 100
        key = reader.key(0)
    data[place] ^= 1
    file.write_bytes(data)
    with open_store(tmp_path / "again.h5") as reader, pytest.raises(StoreError, match=key):
        reader.read(0)


@pytest.mark.parametrize("target", ["mds", "tfrecord", "recordio", "webdataset", "litdata"])
def test_damaged_shards_are_errors_with_a_name(tmp_path: Path, target: str) -> None:
    if target not in EXPORTS:
        pytest.skip("no export")
    packstore.convert(make_source(tmp_path, "tar"), tmp_path / "a.lmdb")
    packstore.export(tmp_path / "a.lmdb", tmp_path / "out", to=target)
    packstore.convert(tmp_path / "out", tmp_path / "linked.lmdb", link=True)
    with open_store(tmp_path / "linked.lmdb") as reader:
        file, place = Path(bytes(reader.value("link_file", 2)).decode()), int(reader.value("link_offset", 2))
        key = reader.key(2)
    data = bytearray(file.read_bytes())
    data[place + 50] ^= 1
    file.write_bytes(data)
    with open_store(tmp_path / "linked.lmdb") as reader:
        with pytest.raises(StoreError, match=key):
            reader.read(2)
        assert bytes(reader.read(1))

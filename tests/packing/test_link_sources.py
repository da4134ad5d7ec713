"""Linked stores of every layout and export, at URLs too: the dataset of a packed store, or a refusal."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import packstore
from packstore.augment import RandomResizedCrop
from packstore.stores import open_store
from tests.internals import EXPORTS, PackstoreError, StoreError, UsageError, format_linked_files
from tests.makers.all_layouts import LAYOUTS
from tests.makers.linked import make_files, make_source, spoil
from tests.makers.s3 import Double, upload

pytestmark = pytest.mark.slow

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


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache that is used, empty."""
    monkeypatch.setenv("PACKSTORE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Two WebDataset shards, of six images each."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(2):
        (tmp_path / f"{number}").mkdir()
        shutil.move(make_source(tmp_path / f"{number}", "webdataset", 6 * number), folder / f"train-{number:06}.tar")
    return folder


def batches(store: object, *, shuffle: bool = True) -> list[torch.Tensor]:
    loader = packstore.PackedLoader(
        packstore.PackedDataset(store),  # type: ignore[arg-type]
        4,
        augment=RandomResizedCrop(32),
        shuffle=shuffle,
        seed=3,
    )
    return [batch[0].clone() for batch in loader]


@pytest.mark.parametrize("format", ["lmdb", "h5"])
@pytest.mark.parametrize("at_url", [False, True])
@pytest.mark.parametrize("relative", [False, True])
def test_tars_in_a_bucket_are_read_from_the_cache(
    s3_double: Double, cache: Path, shards: Path, tmp_path: Path, format: str, at_url: bool, relative: bool
) -> None:
    raw = upload(shards, "s3://bucket/raw/shards")
    store = f"s3://bucket/packed/a.{format}" if at_url else str(tmp_path / f"a.{format}")
    packstore.convert(raw, store, link="relative" if relative else True)
    packed = tmp_path / f"packed.{format}"
    packstore.convert(shards, packed)
    with open_store(store) as a, open_store(packed) as b:
        assert a.manifest.is_linked
        assert a.manifest.dataset_digest == b.manifest.dataset_digest
        assert a.manifest.image.nbytes == b.manifest.image.nbytes
        assert [bytes(v) for v in a.views(np.arange(len(a)))] == [bytes(b.read(i)) for i in range(len(b))]
        links = {os.fsdecode(bytes(a.value("link_file", i))) for i in range(len(a))}
    assert links == (
        {f"../raw/shards/train-{i:06}.tar" for i in range(2)}
        if relative and at_url
        else {f"s3://bucket/raw/shards/train-{i:06}.tar" for i in range(2)}
    )
    assert packstore.verify(store, decode=True).ok
    assert packstore.verify(store, against=shards).ok
    s3_double.requests.clear()
    orders = [False] if at_url else [False, True]  # shards at a URL come in another order
    for shuffle in orders:
        assert all(map(torch.equal, batches(store, shuffle=shuffle), batches(packed, shuffle=shuffle)))
    fetched = [name for method, name in s3_double.requests if method == "GET" and name.endswith(".tar")]
    assert fetched == []  # the copies of the conversion are still there
    shutil.rmtree(cache)
    s3_double.requests.clear()
    assert len(batches(store)) == 3
    fetched = [name for method, name in s3_double.requests if method == "GET" and name.endswith(".tar")]
    assert {*fetched} == {f"raw/shards/train-{i:06}.tar" for i in range(2)}


def test_object_that_changes_is_an_error_with_a_name(
    s3_double: Double, cache: Path, shards: Path, tmp_path: Path
) -> None:
    raw = upload(shards, "s3://bucket/raw")
    packstore.convert(raw, tmp_path / "a.lmdb", link=True)
    spoil(shards / "train-000001.tar", "flipped")
    s3_double.objects["raw/train-000001.tar"] = (shards / "train-000001.tar").read_bytes()
    with open_store(tmp_path / "a.lmdb") as reader:
        assert bytes(reader.read(0))
        with pytest.raises(StoreError, match=r"raw/train-000001\.tar has changed"):
            reader.read(11)
    del s3_double.objects["raw/train-000001.tar"]
    with (
        open_store(tmp_path / "a.lmdb") as reader,
        pytest.raises(StoreError, match=r"raw/train-000001\.tar cannot be read"),
    ):
        reader.read(11)


def test_store_at_a_url_grows_and_is_relinked(s3_double: Double, cache: Path, shards: Path, tmp_path: Path) -> None:
    raw = upload(shards, "s3://bucket/raw")
    url = "s3://bucket/packed/a.lmdb"
    packstore.convert(raw, url, link=True, index=False)
    (tmp_path / "more").mkdir()
    shutil.move(make_source(tmp_path / "more", "webdataset", 30), tmp_path / "more" / "train-000007.tar")
    shutil.rmtree(tmp_path / "more" / "files")

    packstore.append(url, upload(tmp_path / "more", "s3://bucket/more"))
    packstore.add_index(url)
    copy = upload(shards, "s3://bucket/elsewhere")
    report = packstore.relink(url, rebase=(raw, copy))
    assert (report.files, report.moved) == (3, 2)
    for name in [name for name in s3_double.objects if name.startswith("raw/")]:
        del s3_double.objects[name]
    shutil.rmtree(cache)
    assert packstore.verify(url, decode=True).ok
    with open_store(url) as reader:
        assert reader.manifest.is_linked
        assert reader.manifest.has_column("seek_index")
    local = packstore.relink(url, rebase=(copy, shards))
    assert local.moved == 2
    assert packstore.verify(url).ok


def test_objects_of_one_image_each_are_refused(s3_double: Double, cache: Path, tmp_path: Path) -> None:
    raw = upload(make_files(tmp_path / "files"), "s3://bucket/files")
    with pytest.raises(UsageError, match="cannot be linked"):
        packstore.convert(raw, tmp_path / "a.lmdb", link=True)


@pytest.mark.parametrize("format", ["lmdb", "h5", "pth"])
def test_a_linked_store_of_one_file_is_read_at_a_url(
    s3_double: Double, cache: Path, shards: Path, tmp_path: Path, format: str
) -> None:
    (tmp_path / "all").mkdir()
    shutil.move(shards, tmp_path / "all" / "shards")
    packstore.convert(
        tmp_path / "all" / "shards", tmp_path / "all" / f"a.{format}", link="relative", encoding="original"
    )
    with open_store(tmp_path / "all" / f"a.{format}") as reader:
        images = [bytes(reader.read(i)) for i in range(len(reader))]
    url = upload(tmp_path / "all", "s3://bucket/all")
    shutil.rmtree(tmp_path / "all")
    with open_store(f"{url}/a.{format}") as reader:
        assert [bytes(reader.read(i)) for i in range(len(reader))] == images


def test_files_here_and_in_a_bucket_have_no_common_folder(
    s3_double: Double, cache: Path, shards: Path, tmp_path: Path
) -> None:
    (shards / "train-000001.tar").rename(tmp_path / "more.tar")
    packstore.convert(upload(shards, "s3://bucket/shards"), tmp_path / "a.lmdb", link=True, split="train")
    packstore.append(tmp_path / "a.lmdb", tmp_path / "more.tar", split="train")
    with open_store(tmp_path / "a.lmdb") as reader:
        assert format_linked_files(reader) == "2 files in several places"

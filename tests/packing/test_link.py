"""``convert --link``: stores whose images stay where they are."""

from __future__ import annotations

import os
import shutil
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

import packstore
from packstore.augment import RandomResizedCrop
from packstore.core.errors import PackstoreError, StoreError, UsageError
from packstore.stores import open_store
from tests.makers.jpegs import jpeg

FORMATS = ("lmdb", "h5", "pth")
CONTAINERS = ("folder", "tar", "zip", "webdataset")


def make_files(folder: Path, count: int = 6) -> Path:
    """A folder of two classes whose images differ in size and content."""
    for number in range(count):
        file = folder / f"class{number % 2}" / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jpeg(240 + 8 * number, 320, "420", seed=number))
    return folder


def make_source(tmp_path: Path, container: str) -> Path:
    folder = make_files(tmp_path / "files")
    if container == "folder":
        return folder
    files = sorted(folder.rglob("*.jpg"))
    source = tmp_path / f"source.{'zip' if container == 'zip' else 'tar'}"
    if container == "zip":
        with zipfile.ZipFile(source, "w", zipfile.ZIP_STORED) as archive:
            for file in files:
                archive.write(file, file.relative_to(folder))
        return source
    with tarfile.open(source, "w") as tar:
        for number, file in enumerate(files):
            if container == "tar":
                tar.add(file, str(file.relative_to(folder)))
                continue
            label = tmp_path / "label.cls"
            label.write_text(str(number % 2))
            tar.add(file, f"{number:05}.jpg")
            tar.add(label, f"{number:05}.cls")
    return source


def link(source: Path, store: Path, **options: object) -> Path:
    packstore.convert(source, store, link=True, encoding="original", **options)  # type: ignore[arg-type]
    return store


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("index", [True, False])
def test_it_is_the_packed_dataset(tmp_path: Path, format: str, container: str, index: bool) -> None:
    source = make_source(tmp_path, container)
    linked = link(source, tmp_path / f"linked.{format}", index=index)
    packed = tmp_path / f"packed.{format}"
    packstore.convert(source, packed, encoding="original", index=index)
    with open_store(linked) as a, open_store(packed) as b:
        assert a.manifest.dataset_digest == b.manifest.dataset_digest
        assert a.manifest.image.nbytes == b.manifest.image.nbytes
        assert [bytes(a.read(i)) for i in range(len(a))] == [bytes(b.read(i)) for i in range(len(b))]
        assert [bytes(v) for v in a.views(np.arange(len(a)))] == [bytes(b.read(i)) for i in range(len(b))]
    assert packstore.verify(linked, decode=True).ok
    assert packstore.verify(linked, against=source).ok
    copy = tmp_path / f"copy.{format}"
    packstore.convert(linked, copy, encoding="original")
    with open_store(copy) as reader, open_store(packed) as b:
        assert not reader.manifest.is_linked
        assert reader.manifest.dataset_digest == b.manifest.dataset_digest
    shutil.rmtree(tmp_path / "files")
    source.unlink(missing_ok=True)
    assert packstore.verify(copy).ok
    assert not packstore.verify(linked).ok


@pytest.mark.parametrize("container", CONTAINERS)
def test_plain_bytes_lie_where_the_columns_say(tmp_path: Path, container: str) -> None:
    source = make_source(tmp_path, container)
    with open_store(link(source, tmp_path / "a.lmdb")) as reader:
        for i in range(len(reader)):
            with Path(os.fsdecode(bytes(reader.value("link_file", i)))).open("rb") as file:
                file.seek(int(reader.value("link_offset", i)))
                assert file.read(int(reader.value("link_length", i))) == bytes(reader.read(i))


def loaded(store: Path) -> list[torch.Tensor]:
    loader = packstore.PackedLoader(
        packstore.PackedDataset(store), 3, augment=RandomResizedCrop(32), shuffle=True, seed=3, workers=2
    )
    return [batch[0].clone() for batch in loader]


def test_loader_gives_the_same_batches(tmp_path: Path) -> None:
    source = make_source(tmp_path, "tar")
    packstore.convert(source, tmp_path / "packed.lmdb")
    linked, packed = (loaded(path) for path in (link(source, tmp_path / "a.lmdb"), tmp_path / "packed.lmdb"))
    assert len(linked) == len(packed) > 0
    assert all(map(torch.equal, linked, packed))


def spoil(file: Path, how: str) -> None:
    """Damages the last third of a file, where an image lies."""
    data = bytearray(file.read_bytes())
    if how == "deleted":
        file.unlink()
    elif how == "moved":
        file.rename(file.with_suffix(".elsewhere"))
    elif how == "truncated":
        file.write_bytes(data[: len(data) // 3])
    elif how == "directory":
        file.unlink()
        file.mkdir()
    else:
        found = file.stat()
        for place in range(len(data) // 3, len(data)):
            data[place] ^= 0x55
        file.write_bytes(data)
        if how == "same time":
            os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("container", ["folder", "tar"])
@pytest.mark.parametrize("how", ["deleted", "moved", "truncated", "directory", "flipped", "same time"])
def test_source_that_changes_is_an_error_with_a_name(tmp_path: Path, container: str, how: str, opened: bool) -> None:
    source = make_source(tmp_path, container)
    store = link(source, tmp_path / "a.lmdb")
    file = source if container == "tar" else source / "class0" / "0.jpg"
    record = 0 if container == "folder" else 5
    with open_store(store, "auto") as reader:
        key = reader.key(record)
        if opened:
            right = bytes(reader.read(record))
        spoil(file, how)
        if opened and container == "tar" and how in ("deleted", "moved", "directory"):
            assert bytes(reader.read(record)) == right  # the file is open, and still has its bytes
        else:
            with pytest.raises(StoreError, match=key):
                reader.read(record)
    with open_store(store, "auto") as reader, pytest.raises(StoreError, match=key):
        reader.read(record)
    report = packstore.verify(store)
    assert not report.ok
    assert any(key in (problem.key or "") for problem in report.problems)
    with pytest.raises(PackstoreError, match=r"class\d/\d.jpg"):
        packstore.convert(store, tmp_path / "copy.lmdb")


def test_touched_and_longer_files_are_read_if_their_bytes_are_the_same(tmp_path: Path) -> None:
    source = make_source(tmp_path, "tar")
    store = link(source, tmp_path / "a.lmdb")
    with source.open("ab") as file:
        file.write(bytes(512))
    os.utime(source, (1, 1))
    assert packstore.verify(store).ok


def test_compressed_archive_is_refused(tmp_path: Path) -> None:
    folder = make_files(tmp_path / "files")
    shutil.make_archive(str(tmp_path / "a"), "gztar", folder)
    shutil.make_archive(str(tmp_path / "b"), "zip", folder)
    for source in (tmp_path / "a.tar.gz", tmp_path / "b.zip"):
        with pytest.raises(UsageError, match="cannot be linked"):
            link(source, tmp_path / "store.lmdb")
        assert not (tmp_path / "store.lmdb").exists()


@pytest.mark.parametrize(
    "options",
    [{"encoding": "uint8", "size": 8}, {"encoding": "jpeg"}, {"shard_size": 1000}, {"progressive": "baseline"}],
)
def test_options_that_make_other_bytes_are_refused(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="link"):
        packstore.convert(make_files(tmp_path / "files"), tmp_path / "a.lmdb", link=True, **options)  # type: ignore[arg-type]


def test_select_and_index_keep_links(tmp_path: Path) -> None:
    source = make_source(tmp_path, "tar")
    store = link(source, tmp_path / "a.lmdb", index=False)
    packstore.add_index(store)
    packstore.select(store, tmp_path / "few.lmdb", where="label == class1")
    for path, count in ((store, 6), (tmp_path / "few.lmdb", 3)):
        assert packstore.verify(path, decode=True).ok
        with open_store(path) as reader:
            assert len(reader) == count
            assert reader.manifest.is_linked
    with open_store(store) as reader:
        assert reader.manifest.has_column("seek_index")


def test_append_merge_repair_and_salvage_refuse(tmp_path: Path) -> None:
    source = make_source(tmp_path, "folder")
    store = link(source, tmp_path / "a.lmdb")
    before = (store / "data.mdb").read_bytes()
    for command in (
        lambda: packstore.append(store, source),
        lambda: packstore.merge([store, store], tmp_path / "out.lmdb"),
        lambda: packstore.repair(store, source, tmp_path / "out.lmdb"),
        lambda: packstore.salvage(store, tmp_path / "out.lmdb"),
    ):
        with pytest.raises(UsageError, match="linked"):
            command()
    assert (store / "data.mdb").read_bytes() == before
    assert not (tmp_path / "out.lmdb").exists()


def test_flipped_bytes_of_the_store_are_found(tmp_path: Path) -> None:
    store = link(make_source(tmp_path, "tar"), tmp_path / "a.lmdb")
    with open_store(store) as reader:
        images = [bytes(reader.read(i)) for i in range(len(reader))]
    file = store / "data.mdb"
    data = file.read_bytes()
    for place in np.random.default_rng(0).integers(0, len(data), 60).tolist():
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        file.write_bytes(flipped)
        try:
            with open_store(store, "auto") as reader:
                for i, image in enumerate(images):
                    with suppress(StoreError):
                        assert bytes(reader.read(i)) == image
        except StoreError:
            pass
